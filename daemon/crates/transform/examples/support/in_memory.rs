//! A dataset whose values are computed from the fetched bytes, and a row in memory, for tests and measurements.

use forebay_dataset::{Dataset, Defect, Field, FieldKind, FieldValue};
use forebay_protocol::ids::SampleId;
use forebay_storage::location::{FileId, FileTable, Location, SampleBytes};
use forebay_transform::Row;

/// The value of a field of a sample, from the sample's bytes.
pub(crate) type Value = for<'a> fn(field: &str, SampleId, &'a [u8]) -> FieldValue<'a>;

/// Any number of samples, each in one file.
#[derive(Debug)]
pub(crate) struct InMemory {
    fields: Vec<Field>,
    value: Value,
    /// Maximal row size by field; unknown for fields without an entry.
    longest: Vec<Option<u64>>,
}

impl InMemory {
    /// Fields of these names and kinds.
    pub(crate) fn new(
        fields: impl IntoIterator<Item = (&'static str, FieldKind)>,
        value: Value,
    ) -> Self {
        let field = |(name, kind): (&str, _)| Field { name: name.to_owned(), kind };
        Self { fields: fields.into_iter().map(field).collect(), value, longest: Vec::new() }
    }

    /// The same, with the size of each field's longest row if known.
    #[allow(dead_code, reason = "not every user knows them")]
    pub(crate) fn with_longest(
        fields: impl IntoIterator<Item = (&'static str, FieldKind)>,
        value: Value,
        longest: &[Option<u64>],
    ) -> Self {
        Self { longest: longest.to_vec(), ..Self::new(fields, value) }
    }

    /// A single field `image`, whose file is the sample's bytes.
    #[allow(dead_code, reason = "not every user decodes images")]
    pub(crate) fn images() -> Self {
        let image = ("image", FieldKind::EncodedImage);
        Self::new([image], |_, _, bytes| FieldValue::EncodedImage(bytes))
    }
}

impl FileTable for InMemory {
    fn append_path(&self, _file: FileId, _path: &mut Vec<u8>) {}
}

impl Dataset for InMemory {
    fn sample_count(&self) -> u64 {
        u64::MAX
    }

    fn fields(&self) -> &[Field] {
        &self.fields
    }

    fn locate(&self, _id: SampleId, locations: &mut Vec<Location>) {
        locations.push(Location::whole(FileId(0)));
    }

    fn read<'a>(
        &'a self,
        id: SampleId,
        bytes: SampleBytes<'a>,
        values: &mut Vec<FieldValue<'a>>,
    ) -> Result<(), Defect> {
        values.extend(self.fields.iter().map(|field| (self.value)(&field.name, id, bytes.all())));
        Ok(())
    }

    fn max_row_bytes(&self, field: usize) -> Option<u64> {
        self.longest.get(field).copied().flatten()
    }

    fn fingerprint(&self) -> [u8; 32] {
        [0; 32]
    }
}

/// The row of one tensor.
#[allow(dead_code, reason = "some users have rows of their own")]
pub(crate) struct OneRow(pub(crate) Vec<u8>);

impl Row for OneRow {
    fn dense(&mut self, _tensor: usize) -> &mut [u8] {
        &mut self.0
    }

    fn ragged(&mut self, _tensor: usize, bytes: u64) -> Option<&mut [u8]> {
        self.0.resize(usize::try_from(bytes).ok()?, 0);
        Some(&mut self.0)
    }

    fn ragged_bytes(&mut self, _tensor: usize) -> &[u8] {
        &self.0
    }
}

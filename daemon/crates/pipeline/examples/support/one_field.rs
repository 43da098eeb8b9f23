//! A dataset of one field whose value is made of the fetched bytes, and a row in memory, for tests and figures.

use forebay_pipeline::Row;
use forebay_protocol::ids::SampleId;
use forebay_source::dataset::{Dataset, Defect, Field, FieldKind, FieldValue};
use forebay_source::location::{FileId, FileTable, Location, SampleBytes};

/// Samples without end, each with the same field.
pub(crate) struct OneField {
    fields: [Field; 1],
    value: for<'a> fn(&'a [u8]) -> FieldValue<'a>,
}

impl OneField {
    /// A field of that name and kind.
    pub(crate) fn new(
        name: &str,
        kind: FieldKind,
        value: for<'a> fn(&'a [u8]) -> FieldValue<'a>,
    ) -> Self {
        Self { fields: [Field { name: name.to_owned(), kind }], value }
    }
}

impl std::fmt::Debug for OneField {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("OneField").finish_non_exhaustive()
    }
}

impl FileTable for OneField {
    fn append_path(&self, _file: FileId, _path: &mut Vec<u8>) {}
}

impl Dataset for OneField {
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
        _id: SampleId,
        bytes: SampleBytes<'a>,
        values: &mut Vec<FieldValue<'a>>,
    ) -> Result<(), Defect> {
        values.push((self.value)(bytes.all()));
        Ok(())
    }

    fn fingerprint(&self) -> [u8; 32] {
        [0; 32]
    }
}

/// The row of one dense tensor.
pub(crate) struct OneRow(pub(crate) Vec<u8>);

impl Row for OneRow {
    fn dense(&mut self, _tensor: usize) -> &mut [u8] {
        &mut self.0
    }

    fn ragged(&mut self, _tensor: usize, _bytes: u64) -> Option<&mut [u8]> {
        None
    }
}

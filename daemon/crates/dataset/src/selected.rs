//! A dataset of which only some samples are used. Their ids are those of the whole dataset: [`Dataset::kept`] says which
//! they are, and the order draws from these.

use std::path::PathBuf;
use std::sync::Arc;

use forebay_protocol::ids::SampleId;
use forebay_protocol::tensor::DType;
use forebay_select::Subset;
use forebay_storage::Storage;
use forebay_storage::location::{ByteRange, FileId, FileTable, Location, SampleBytes};
use forebay_storage::version::ObjectStamp;

use crate::{
    Dataset, Defect, Description, DirectRead, Field, FieldValue, IndexBytes, SampleBlocks,
};

/// See the module's head.
#[derive(Debug)]
pub struct Selected {
    inner: Arc<dyn Dataset>,
    kept: Arc<Subset>,
    /// What selects the samples, for users.
    words: String,
}

impl Selected {
    /// The samples of a dataset that are in a subset. `words`: what selects them.
    #[must_use]
    pub const fn new(inner: Arc<dyn Dataset>, kept: Arc<Subset>, words: String) -> Self {
        Self { inner, kept, words }
    }
}

impl FileTable for Selected {
    fn append_path(&self, file: FileId, path: &mut Vec<u8>) {
        self.inner.append_path(file, path);
    }

    fn stamp(&self, file: FileId) -> Option<ObjectStamp> {
        self.inner.stamp(file)
    }
}

impl Dataset for Selected {
    fn sample_count(&self) -> u64 {
        self.inner.sample_count()
    }

    fn kept(&self) -> Option<&Arc<Subset>> {
        Some(&self.kept)
    }

    fn fields(&self) -> &[Field] {
        self.inner.fields()
    }

    fn locate(&self, id: SampleId, locations: &mut Vec<Location>) {
        self.inner.locate(id, locations);
    }

    fn locate_drawn(&self, id: SampleId, draw: u64, locations: &mut Vec<Location>) {
        self.inner.locate_drawn(id, draw, locations);
    }

    fn read_drawn<'a>(
        &'a self,
        id: SampleId,
        draw: u64,
        bytes: SampleBytes<'a>,
        values: &mut Vec<FieldValue<'a>>,
    ) -> Result<(), Defect> {
        self.inner.read_drawn(id, draw, bytes, values)
    }

    fn own_range(&self, id: SampleId) -> ByteRange {
        self.inner.own_range(id)
    }

    fn own_bytes(&self, id: SampleId, bytes: SampleBytes<'_>) -> u64 {
        self.inner.own_bytes(id, bytes)
    }

    fn shares_units(&self) -> bool {
        self.inner.shares_units()
    }

    fn page_bytes(&self) -> Option<u64> {
        self.inner.page_bytes()
    }

    fn blocks(&self) -> Option<SampleBlocks> {
        self.inner.blocks()
    }

    fn read<'a>(
        &'a self,
        id: SampleId,
        bytes: SampleBytes<'a>,
        values: &mut Vec<FieldValue<'a>>,
    ) -> Result<(), Defect> {
        self.inner.read(id, bytes, values)
    }

    fn unpacked_bytes(&self, bytes: SampleBytes<'_>) -> u64 {
        self.inner.unpacked_bytes(bytes)
    }

    fn direct_read(&self) -> Option<&DirectRead> {
        self.inner.direct_read()
    }

    fn read_in_place<'a>(&'a self, id: SampleId, values: &mut Vec<FieldValue<'a>>) {
        self.inner.read_in_place(id, values);
    }

    fn output_dtype(&self, field: usize) -> Option<DType> {
        self.inner.output_dtype(field)
    }

    fn fingerprint(&self) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new_derive_key("forebay selected samples of a dataset");
        hasher.update(&self.inner.fingerprint());
        hasher.update(&self.kept.digest());
        *hasher.finalize().as_bytes()
    }

    fn index(&self) -> Option<&IndexBytes> {
        self.inner.index()
    }

    fn append_name(&self, id: SampleId, name: &mut Vec<u8>) {
        self.inner.append_name(id, name);
    }

    fn append_key(&self, id: SampleId, key: &mut Vec<u8>) -> bool {
        self.inner.append_key(id, key)
    }

    fn full_name(&self, storage: &dyn Storage, id: SampleId) -> PathBuf {
        self.inner.full_name(storage, id)
    }

    fn max_row_bytes(&self, field: usize) -> Option<u64> {
        self.inner.max_row_bytes(field)
    }

    fn rows_differ(&self, field: usize) -> Option<bool> {
        self.inner.rows_differ(field)
    }

    fn label(&self, id: SampleId) -> Option<Result<i64, Defect>> {
        self.inner.label(id)
    }

    fn identity_words(&self) -> Option<String> {
        self.inner.identity_words()
    }

    fn description(&self) -> Description {
        let mut description = self.inner.description();
        description.notes.push(("selected", self.words.clone()));
        description
    }

    fn classes(&self) -> &[String] {
        self.inner.classes()
    }
}

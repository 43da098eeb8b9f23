//! Datasets on top of another one.

use std::fmt::Debug;
use std::path::PathBuf;
use std::sync::Arc;

use forebay_protocol::ids::SampleId;
use forebay_protocol::tensor::DType;
use forebay_select::Subset;
use forebay_storage::Storage;
use forebay_storage::location::{ByteRange, FileTable, Location, SampleBytes};

use crate::{
    Dataset, DatasetError, Defect, Description, DirectRead, Field, FieldValue, FileColumn,
    IndexBytes, SampleBlocks, VisitColumns,
};

/// A layer of a dataset, with the methods of [`Dataset`] that layers define. The inner dataset answers the others, except
/// [`Dataset::direct_read`], which would read past a layer that does not define it.
///
/// A layer has the inner dataset's samples, ids and files.
pub(crate) trait Layer: FileTable + Debug {
    /// The type of the inner dataset.
    type Inner: Dataset + ?Sized;

    /// The inner dataset.
    fn inner(&self) -> &Self::Inner;

    /// See [`Dataset::kept`].
    fn kept(&self) -> Option<&Arc<Subset>> {
        self.inner().kept()
    }

    /// See [`Dataset::fields`]. The first fields are those of the inner dataset, in its order.
    fn fields(&self) -> &[Field] {
        self.inner().fields()
    }

    /// See [`Dataset::unpacked_bytes`].
    fn unpacked_bytes(&self, bytes: SampleBytes<'_>) -> u64 {
        self.inner().unpacked_bytes(bytes)
    }

    /// See [`Dataset::locate`].
    fn locate(&self, id: SampleId, locations: &mut Vec<Location>) {
        self.inner().locate(id, locations);
    }

    /// See [`Dataset::locate_drawn`].
    fn locate_drawn(&self, id: SampleId, draw: u64, locations: &mut Vec<Location>) {
        self.inner().locate_drawn(id, draw, locations);
    }

    /// See [`Dataset::own_bytes`].
    fn own_bytes(&self, id: SampleId, bytes: SampleBytes<'_>) -> u64 {
        self.inner().own_bytes(id, bytes)
    }

    /// See [`Dataset::shares_units`].
    fn shares_units(&self) -> bool {
        self.inner().shares_units()
    }

    /// See [`Dataset::blocks`].
    fn blocks(&self) -> Option<SampleBlocks> {
        self.inner().blocks()
    }

    /// See [`Dataset::read`].
    fn read<'a>(
        &'a self,
        id: SampleId,
        bytes: SampleBytes<'a>,
        values: &mut Vec<FieldValue<'a>>,
    ) -> Result<(), Defect> {
        self.inner().read(id, bytes, values)
    }

    /// See [`Dataset::read_drawn`].
    fn read_drawn<'a>(
        &'a self,
        id: SampleId,
        draw: u64,
        bytes: SampleBytes<'a>,
        values: &mut Vec<FieldValue<'a>>,
    ) -> Result<(), Defect> {
        self.inner().read_drawn(id, draw, bytes, values)
    }

    /// See [`Dataset::direct_read`].
    fn direct_read(&self) -> Option<&DirectRead> {
        None
    }

    /// See [`Dataset::fingerprint`].
    fn fingerprint(&self) -> [u8; 32] {
        self.inner().fingerprint()
    }

    /// See [`Dataset::description`].
    fn description(&self) -> Description {
        self.inner().description()
    }
}

/// Whether a field is one of the inner dataset's.
fn is_inner(layer: &impl Layer, field: usize) -> bool {
    field < layer.inner().fields().len()
}

impl<L: Layer> Dataset for L {
    fn sample_count(&self) -> u64 {
        self.inner().sample_count()
    }

    fn kept(&self) -> Option<&Arc<Subset>> {
        Layer::kept(self)
    }

    fn fields(&self) -> &[Field] {
        Layer::fields(self)
    }

    fn locate(&self, id: SampleId, locations: &mut Vec<Location>) {
        Layer::locate(self, id, locations);
    }

    fn locate_drawn(&self, id: SampleId, draw: u64, locations: &mut Vec<Location>) {
        Layer::locate_drawn(self, id, draw, locations);
    }

    fn own_range(&self, id: SampleId) -> ByteRange {
        self.inner().own_range(id)
    }

    fn own_bytes(&self, id: SampleId, bytes: SampleBytes<'_>) -> u64 {
        Layer::own_bytes(self, id, bytes)
    }

    fn shares_units(&self) -> bool {
        Layer::shares_units(self)
    }

    fn page_bytes(&self) -> Option<u64> {
        self.inner().page_bytes()
    }

    fn blocks(&self) -> Option<SampleBlocks> {
        Layer::blocks(self)
    }

    fn read<'a>(
        &'a self,
        id: SampleId,
        bytes: SampleBytes<'a>,
        values: &mut Vec<FieldValue<'a>>,
    ) -> Result<(), Defect> {
        Layer::read(self, id, bytes, values)
    }

    fn read_drawn<'a>(
        &'a self,
        id: SampleId,
        draw: u64,
        bytes: SampleBytes<'a>,
        values: &mut Vec<FieldValue<'a>>,
    ) -> Result<(), Defect> {
        Layer::read_drawn(self, id, draw, bytes, values)
    }

    fn unpacked_bytes(&self, bytes: SampleBytes<'_>) -> u64 {
        Layer::unpacked_bytes(self, bytes)
    }

    fn direct_read(&self) -> Option<&DirectRead> {
        Layer::direct_read(self)
    }

    fn read_in_place<'a>(&'a self, id: SampleId, values: &mut Vec<FieldValue<'a>>) {
        self.inner().read_in_place(id, values);
    }

    fn output_dtype(&self, field: usize) -> Option<DType> {
        is_inner(self, field).then(|| self.inner().output_dtype(field)).flatten()
    }

    fn fingerprint(&self) -> [u8; 32] {
        Layer::fingerprint(self)
    }

    fn index(&self) -> Option<&IndexBytes> {
        self.inner().index()
    }

    fn append_name(&self, id: SampleId, name: &mut Vec<u8>) {
        self.inner().append_name(id, name);
    }

    fn full_name(&self, storage: &dyn Storage, id: SampleId) -> PathBuf {
        self.inner().full_name(storage, id)
    }

    fn max_row_bytes(&self, field: usize) -> Option<u64> {
        is_inner(self, field).then(|| self.inner().max_row_bytes(field)).flatten()
    }

    fn rows_differ(&self, field: usize) -> Option<bool> {
        is_inner(self, field).then(|| self.inner().rows_differ(field)).flatten()
    }

    fn label(&self, id: SampleId) -> Option<Result<i64, Defect>> {
        self.inner().label(id)
    }

    fn append_key(&self, id: SampleId, key: &mut Vec<u8>) -> bool {
        self.inner().append_key(id, key)
    }

    fn columns(&self, storage: &dyn Storage) -> Result<Option<Vec<FileColumn>>, DatasetError> {
        self.inner().columns(storage)
    }

    fn visit_columns(
        &self,
        storage: &dyn Storage,
        columns: &[usize],
        visit: VisitColumns<'_>,
    ) -> Result<(), DatasetError> {
        self.inner().visit_columns(storage, columns, visit)
    }

    fn identity_words(&self) -> Option<String> {
        self.inner().identity_words()
    }

    fn description(&self) -> Description {
        Layer::description(self)
    }

    fn classes(&self) -> &[String] {
        self.inner().classes()
    }
}

//! Maps a sample id to the locations of its bytes and to its fields.
//!
//! The trait [`Dataset`] is the interface to the engine and the operations. `field` describes samples, `opening` has
//! the inputs and results of opening a dataset, `joined` combines several datasets. The crate `formats` has the
//! formats, the crate `index` has saved indexes, and a `storage` reads bytes. `selected` is a dataset of which only some
//! samples are used, `video_fields` makes clips of fields that are video files, and `columns` has what conditions on
//! samples are evaluated on.

#![forbid(unsafe_code)]

mod beside_index;
pub mod blocks;
pub mod classes;
mod columns;
mod description;
pub mod error;
mod field;
pub mod index_bytes;
mod joined;
mod layer;
pub mod mask;
pub mod npy_header;
pub mod opening;
pub mod progress;
pub mod runs;
mod selected;
pub mod sound;
#[cfg(any(test, feature = "testing"))]
#[doc(hidden)]
pub mod testing;
mod video_fields;
mod weights;

pub use beside_index::{FileKey, file_key, open_beside, path_beside, read_checked, save_checked};
pub use blocks::{PageBytes, SampleBlocks};
pub use classes::ClassSummary;
pub use columns::{FileColumn, NoSize, VisitColumns, stored_size};
pub use description::Description;
pub use error::DatasetError;
pub use field::{
    ArrayValue, Defect, DirectRead, Field, FieldKind, FieldValue, Sound, SoundForm, SoundSpan,
};
pub use index_bytes::IndexBytes;
pub use joined::{Disagreement, join};
pub use opening::{IndexReport, OpenOptions, Opened};
pub use progress::{FilesRead, ProgressCallback, ScanProgress, TextsMade, no_progress};
pub use selected::Selected;
pub use sound::{SoundCoding, SoundHeader};
pub use video_fields::{VideoField, WithVideos, times_of, video_kinds};
pub use weights::{SampleWeights, read_weights};

use std::path::PathBuf;
use std::sync::Arc;

use forebay_protocol::ids::SampleId;
use forebay_protocol::tensor::DType;
use forebay_select::Subset;

use forebay_storage::Storage;
use forebay_storage::location::{ByteRange, FileTable, Location, SampleBytes};

/// A set of samples, numbered from 0. Shared by all threads.
pub trait Dataset: FileTable + std::fmt::Debug {
    /// The number of samples.
    fn sample_count(&self) -> u64;

    /// The samples that are used; `None`: all. The ids are those of all samples.
    fn kept(&self) -> Option<&Arc<Subset>> {
        None
    }

    /// The number of samples that are used.
    fn kept_count(&self) -> u64 {
        self.kept().map_or_else(|| self.sample_count(), |kept| kept.kept())
    }

    /// The sample that is used after `number` others, in the order of ids.
    ///
    /// # Panics
    /// The number is not below [`kept_count`](Self::kept_count).
    fn kept_at(&self, number: u64) -> SampleId {
        SampleId(self.kept().map_or(number, |kept| kept.id_of(number)))
    }

    /// The fields of every sample, in order, without `index`.
    fn fields(&self) -> &[Field];

    /// Appends the locations of the sample's bytes: one or several, in the order in which [`read`](Self::read) expects
    /// them. A location with a length is part of a file that other samples share: the storage keeps it open.
    ///
    /// # Panics
    /// The id is not below [`sample_count`](Self::sample_count).
    fn locate(&self, id: SampleId, locations: &mut Vec<Location>);

    /// As [`locate`](Self::locate), for a draw: datasets of which a sample has several parts, such as clips of a video,
    /// choose one by it. `draw`: uniform bits that depend on the stream's seed, the sample and its pass alone.
    ///
    /// # Panics
    /// As [`locate`](Self::locate).
    fn locate_drawn(&self, id: SampleId, draw: u64, locations: &mut Vec<Location>) {
        let _ = draw;
        self.locate(id, locations);
    }

    /// The sample's range in its first file, for messages. For a sample in a shared block, its part of the block if
    /// that is known.
    ///
    /// # Panics
    /// As [`locate`](Self::locate).
    fn own_range(&self, id: SampleId) -> ByteRange {
        let mut locations = Vec::new();
        self.locate(id, &mut locations);
        locations.first().map_or(ByteRange::WHOLE, |first| first.range)
    }

    /// The size of the sample's part of the located bytes if it is known; otherwise the size of all of them.
    fn own_bytes(&self, _id: SampleId, bytes: SampleBytes<'_>) -> u64 {
        bytes.length_bytes()
    }

    /// Whether locations may be [blocks](forebay_storage::location::Unit::Block) that several samples share. The engine
    /// then keeps a table of the blocks in use.
    fn shares_units(&self) -> bool {
        false
    }

    /// If locations may be [parts of compressed data](forebay_storage::location::Unit::Packed): the maximum memory of
    /// unpacking for one read, in bytes.
    fn page_bytes(&self) -> Option<u64> {
        None
    }

    /// Runs of samples that are cheaper to read together than individually; `None`: each sample is read individually.
    /// Scans the whole index.
    fn blocks(&self) -> Option<SampleBlocks> {
        None
    }

    /// Splits the located bytes into one value per field, in the order of [`fields`](Self::fields). Appends to
    /// `values`.
    ///
    /// # Errors
    /// The bytes are defective.
    fn read<'a>(
        &'a self,
        id: SampleId,
        bytes: SampleBytes<'a>,
        values: &mut Vec<FieldValue<'a>>,
    ) -> Result<(), Defect>;

    /// As [`read`](Self::read), of the bytes that [`locate_drawn`](Self::locate_drawn) located for the same draw.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    fn read_drawn<'a>(
        &'a self,
        id: SampleId,
        draw: u64,
        bytes: SampleBytes<'a>,
        values: &mut Vec<FieldValue<'a>>,
    ) -> Result<(), Defect> {
        let _ = draw;
        self.read(id, bytes, values)
    }

    /// The maximum memory that [`read`](Self::read) needs for unpacking besides the sample's bytes.
    fn unpacked_bytes(&self, _bytes: SampleBytes<'_>) -> u64 {
        0
    }

    /// How a sample's array is read directly into its row; `None` if it cannot be.
    fn direct_read(&self) -> Option<&DirectRead> {
        None
    }

    /// The values of a sample that was read by [`direct_read`](Self::direct_read): [`FieldValue::InPlace`] for the
    /// array, and the values of the other fields. Appends to `values`.
    fn read_in_place<'a>(&'a self, id: SampleId, values: &mut Vec<FieldValue<'a>>) {
        let _ = id;
        values.push(FieldValue::InPlace);
    }

    /// The type of an array field in a batch unless `[output]` sets one; `None`: the samples' type.
    fn output_dtype(&self, field: usize) -> Option<DType> {
        let _ = field;
        None
    }

    /// BLAKE3 of the relative paths in id order and of the class list. Excludes sizes, because a scan does not request
    /// them; see `folder`.
    fn fingerprint(&self) -> [u8; 32];

    /// The bytes of the saved index, which the next daemon receives; `None` if the dataset has no index.
    fn index(&self) -> Option<&IndexBytes> {
        None
    }

    /// Appends a sample's name in `dataset.ids` and in messages: a path relative to the dataset's root. It is the path
    /// of the sample's first file unless several samples share a file.
    ///
    /// # Panics
    /// The sample does not exist.
    fn append_name(&self, id: SampleId, name: &mut Vec<u8>) {
        let mut locations = Vec::new();
        self.locate(id, &mut locations);
        if let Some(first) = locations.first() {
            self.append_path(first.file, name);
        }
    }

    /// A sample's name in messages: its file, or the file that contains it and its name there. `storage` is the
    /// dataset's.
    ///
    /// # Panics
    /// The sample does not exist.
    fn full_name(&self, storage: &dyn Storage, id: SampleId) -> PathBuf {
        let mut name = Vec::new();
        self.append_name(id, &mut name);
        storage.full_path(&name)
    }

    /// An upper bound on the bytes of a row of a field of bytes, text or arrays, if the index has it. It is the default
    /// of the field's `max_bytes`, which `[output]` can set.
    fn max_row_bytes(&self, field: usize) -> Option<u64> {
        let _ = field;
        None
    }

    /// Whether the rows of an array field differ in length, if the index has it. Scans the whole index.
    fn rows_differ(&self, field: usize) -> Option<bool> {
        let _ = field;
        None
    }

    /// The value of the first integer field or its defect, if the index has it; `None` if the sample must be read for it.
    fn label(&self, id: SampleId) -> Option<Result<i64, Defect>> {
        let _ = id;
        None
    }

    /// Appends what identifies a sample whatever other samples there are: its path below the root, or its key in an
    /// archive. False: its name says its place among others.
    ///
    /// # Panics
    /// The sample does not exist.
    fn append_key(&self, id: SampleId, key: &mut Vec<u8>) -> bool {
        let _ = (id, key);
        false
    }

    /// The columns of its files, which have more than its fields; `None`: a condition uses the fields.
    ///
    /// # Errors
    /// A file cannot be read.
    fn columns(&self, storage: &dyn Storage) -> Result<Option<Vec<FileColumn>>, DatasetError> {
        let _ = storage;
        Ok(None)
    }

    /// Visits the values of some of its [`columns`](Self::columns) for all samples, in the order of ids.
    ///
    /// # Errors
    /// A file cannot be read, or an error of `visit`.
    fn visit_columns(
        &self,
        storage: &dyn Storage,
        columns: &[usize],
        visit: VisitColumns<'_>,
    ) -> Result<(), DatasetError> {
        let _ = (storage, columns, visit);
        Ok(())
    }

    /// What the ranks of a job compare besides the fingerprint, as text, if it is more informative than digits.
    fn identity_words(&self) -> Option<String> {
        None
    }

    /// What it reports to a user.
    fn description(&self) -> Description {
        Description::of_classes(self.classes())
    }

    /// The names of the classes in label order; empty if there are none.
    fn classes(&self) -> &[String] {
        &[]
    }
}

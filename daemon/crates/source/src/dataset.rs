//! Maps a sample id to where its bytes lie and to its fields.
//!
//! This file is the seam: the trait [`Dataset`] that engine and operations see; `field` has what its samples consist of.
//! Formats are one file each, beside it, and one line in `registry`. Reading bytes is `storage`'s part.

mod arrow;
mod audio_folder;
mod beside_index;
mod blocks;
mod changes;
mod columns;
#[cfg(any(test, feature = "testing"))]
#[doc(hidden)]
pub mod conformance;
mod draft;
pub mod error;
mod field;
mod fields;
mod file_samples;
pub mod folder;
#[doc(hidden)]
pub mod fuzzing;
mod image_folder;
mod joined;
mod litdata;
mod manifest;
mod mds;
mod npy;
mod npy_header;
mod npz;
mod opening;
mod parquet;
mod progress;
mod propose;
mod records;
mod registry;
mod row_index;
mod runs;
mod saved_index;
mod shard_paths;
mod shards;
mod sound;
mod stored_file;
mod tables;
#[cfg(any(test, feature = "testing"))]
#[doc(hidden)]
pub mod testing;
mod tfrecord;
mod tokens;
mod webdataset;
mod weights;
mod window;

pub use beside_index::{open_beside, path_beside};
pub use blocks::{PageBytes, SampleBlocks};
pub use draft::Draft;
pub use error::DatasetError;
pub use field::{ArrayValue, Defect, DirectRead, Field, FieldKind, FieldValue, Sound, SoundForm};
pub use folder::classes::ClassSummary;
pub use folder::index::IndexBytes;
pub use joined::{Disagreement, join};
pub use opening::{IndexReport, OpenOptions, Opened};
pub use progress::{FilesRead, ProgressCallback, ScanProgress, no_progress};
pub use propose::{Proposal, build_index, open, propose, recognize, settle_format};
pub use registry::{format_names, format_tables, resolve_keys, root_of, roots_of};
pub use sound::{SoundCoding, SoundHeader};
pub use weights::{SampleWeights, read_weights};

use std::path::PathBuf;

use forebay_protocol::ids::SampleId;
use forebay_protocol::tensor::DType;

use crate::location::{ByteRange, FileTable, Location, SampleBytes};
use crate::storage::Storage;

/// A set of samples, numbered from 0. Shared by all threads.
pub trait Dataset: FileTable + std::fmt::Debug {
    /// The number of samples.
    fn sample_count(&self) -> u64;

    /// The fields of every sample, in order, without `index`.
    fn fields(&self) -> &[Field];

    /// Appends where the sample's bytes lie: one location or several, in the order in which [`read`](Self::read) takes
    /// them. A location with a length is part of a file that other samples have parts of, too: the storage keeps it open.
    ///
    /// # Panics
    /// When the id is not below [`sample_count`](Self::sample_count).
    fn locate(&self, id: SampleId, locations: &mut Vec<Location>);

    /// Where in its first file a sample lies, for messages: of one that shares a block, which part of the block is its own
    /// where that is known.
    ///
    /// # Panics
    /// As [`locate`](Self::locate).
    fn own_range(&self, id: SampleId) -> ByteRange {
        let mut locations = Vec::new();
        self.locate(id, &mut locations);
        locations.first().map_or(ByteRange::WHOLE, |first| first.range)
    }

    /// How many of the located bytes are a sample's own, where that is known; else all of them.
    fn own_bytes(&self, _id: SampleId, bytes: SampleBytes<'_>) -> u64 {
        bytes.length_bytes()
    }

    /// Whether locations may be [blocks](crate::location::Unit::Block) that several samples share. The engine then keeps a
    /// table of those that it needs, which samples of their own do without.
    fn shares_units(&self) -> bool {
        false
    }

    /// Where locations may be [parts of what is compressed](crate::location::Unit::Packed): how many bytes of memory one
    /// read takes at most to unpack.
    fn page_bytes(&self) -> Option<u64> {
        None
    }

    /// Runs of samples that are read together for less than one by one; `None`: each is read alone for what it is. Looks at
    /// the whole index.
    fn blocks(&self) -> Option<SampleBlocks> {
        None
    }

    /// Splits the located bytes into one value a field, in the order of [`fields`](Self::fields). Appends to `values`.
    ///
    /// # Errors
    /// When the bytes are defective.
    fn read<'a>(
        &'a self,
        id: SampleId,
        bytes: SampleBytes<'a>,
        values: &mut Vec<FieldValue<'a>>,
    ) -> Result<(), Defect>;

    /// What [`read`](Self::read) unpacks of a sample's bytes at most, beside them.
    fn unpacked_bytes(&self, _bytes: SampleBytes<'_>) -> u64 {
        0
    }

    /// How a sample's array can be read directly into its row; `None` where it cannot.
    fn direct_read(&self) -> Option<&DirectRead> {
        None
    }

    /// The values of a sample that was read as [`direct_read`](Self::direct_read) says: [`FieldValue::InPlace`] for the
    /// array, and the other fields'. Appends to `values`.
    fn read_in_place<'a>(&'a self, id: SampleId, values: &mut Vec<FieldValue<'a>>) {
        let _ = id;
        values.push(FieldValue::InPlace);
    }

    /// The type that a field of arrays has in a batch where `[output]` does not say one; `None`: that of its samples.
    fn output_dtype(&self, field: usize) -> Option<DType> {
        let _ = field;
        None
    }

    /// What `forebay check` prints of the dataset: names and texts.
    fn notes(&self) -> Vec<(&'static str, String)> {
        Vec::new()
    }

    /// BLAKE3 over the relative paths in id order and the class list. Sizes are left out, because a scan does not ask
    /// for them; see `folder`.
    fn fingerprint(&self) -> [u8; 32];

    /// The bytes of the saved index, for a daemon that takes this one's place; `None` where a dataset is opened without
    /// one.
    fn index(&self) -> Option<&IndexBytes> {
        None
    }

    /// Appends what `dataset.ids` and messages call a sample: a path relative to the dataset's root, that of its first file
    /// unless several samples lie in one.
    ///
    /// # Panics
    /// When there is no such sample.
    fn append_name(&self, id: SampleId, name: &mut Vec<u8>) {
        let mut locations = Vec::new();
        self.locate(id, &mut locations);
        if let Some(first) = locations.first() {
            self.append_path(first.file, name);
        }
    }

    /// What messages call a sample: its file, or the file that it lies in and its name there. `storage` is the dataset's.
    ///
    /// # Panics
    /// When there is no such sample.
    fn full_name(&self, storage: &dyn Storage, id: SampleId) -> PathBuf {
        let mut name = Vec::new();
        self.append_name(id, &mut name);
        storage.full_path(&name)
    }

    /// The longest row of a field of bytes or text, where the index tells it; it stands in for `max_bytes` in `[output]`.
    fn max_row_bytes(&self, field: usize) -> Option<u64> {
        let _ = field;
        None
    }

    /// What the fields are made of, as `[dataset.fields]` says it; empty where that table is not the format's.
    fn field_rules(&self) -> String {
        String::new()
    }

    /// What was left out of the dataset because it is hidden, as text.
    fn left_out(&self) -> Option<&str> {
        None
    }

    /// The classes in numbers; `None` where there are none.
    fn class_summary(&self) -> Option<ClassSummary> {
        None
    }

    /// The names of the classes in label order; empty where there are none.
    fn classes(&self) -> &[String] {
        &[]
    }
}

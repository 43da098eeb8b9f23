//! Maps a sample id to where its bytes lie and to its fields.
//!
//! This file is the seam: the words ([`Field`], [`FieldValue`], [`Defect`]) and the trait [`Dataset`] that engine and
//! operations see. Formats are one file each, beside it, and one line in `registry`. Reading bytes is `storage`'s part.

pub mod error;
pub mod folder;
#[doc(hidden)]
pub mod fuzzing;
mod image_folder;
mod npy;
mod npy_header;
mod npz;
mod registry;
mod sample_files;
#[cfg(test)]
pub(crate) mod testing;

pub use error::DatasetError;
pub use folder::IndexReport;
pub use folder::index::{FolderIndex, IndexBytes};
pub use folder::scan::{ProgressCallback, ScanProgress};
pub use registry::{Opened, build_index, format_names, no_progress, open, open_with_report};

use forebay_protocol::ids::SampleId;
use forebay_protocol::tensor::DType;

/// What one field of a dataset's samples is, before any operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Field {
    /// Such as `image`, `label`, `array`.
    pub name: String,
    /// What it holds.
    pub kind: FieldKind,
}

/// What a field holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FieldKind {
    /// The bytes of an image file, to be decoded by an operation.
    EncodedImage,
    /// An array. The shape is the first sample's; empty for a scalar such as `label`.
    Array {
        /// The type of the elements.
        dtype: DType,
        /// Without the batch's dimension.
        shape: Vec<u64>,
    },
}

/// One field of one sample, as a dataset reads it.
#[derive(Debug)]
pub enum FieldValue<'a> {
    /// The bytes of an image file.
    Encoded(&'a [u8]),
    /// An array's elements.
    Array(ArrayValue<'a>),
    /// A single i64, such as a label.
    Integer(i64),
    /// An array whose elements were read straight into the row.
    InItsRow,
}

/// How the elements of a dataset's one array can be read from a file straight into a row: they are in C order and in the
/// machine's byte order, and what stands before them in the file is always the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StraightArray {
    /// The number of the array among the fields.
    pub field: usize,
    /// What a sample's bytes begin with. One that begins otherwise is read and judged in the ordinary way.
    pub before: Vec<u8>,
    /// The elements' bytes, with which the sample's bytes end.
    pub elements_bytes: u64,
}

/// An array as it lies in a file.
#[derive(Debug)]
pub struct ArrayValue<'a> {
    /// The type of the elements.
    pub dtype: DType,
    /// Without the batch's dimension; `shape.len()` dimensions.
    pub shape: std::borrow::Cow<'a, [u64]>,
    /// Whether the first axis varies fastest.
    pub fortran_order: bool,
    /// Whether elements lie with the most significant byte first.
    pub big_endian: bool,
    /// Exactly the elements. Owned where a member had to be inflated.
    pub bytes: std::borrow::Cow<'a, [u8]>,
}

/// The part of a file that holds a sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ByteRange {
    /// From the file's start.
    pub offset: u64,
    /// `None`: to the file's end.
    pub length: Option<u64>,
}

/// Why a sample cannot be used: a defect in bytes that were read in full. Lowercase, without the file's name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Defect(pub String);

/// A set of samples, numbered from 0. Shared by all threads.
pub trait Dataset: Send + Sync + std::fmt::Debug {
    /// The number of samples.
    fn sample_count(&self) -> u64;

    /// The fields of every sample, in order, without `index`.
    fn fields(&self) -> &[Field];

    /// Appends the sample's path, relative to the dataset's root (a file's folder, where the root is a file), and says which bytes of that file it is.
    ///
    /// # Panics
    /// When the id is not below [`sample_count`](Self::sample_count).
    fn locate(&self, id: SampleId, path: &mut Vec<u8>) -> ByteRange;

    /// Splits the located bytes into one value a field, in the order of [`fields`](Self::fields). Appends to `values`.
    ///
    /// # Errors
    /// When the bytes are defective.
    fn read<'a>(
        &'a self,
        id: SampleId,
        bytes: &'a [u8],
        values: &mut Vec<FieldValue<'a>>,
    ) -> Result<(), Defect>;

    /// How a sample's array can be read straight into its row; `None` where it cannot.
    fn straight(&self) -> Option<&StraightArray> {
        None
    }

    /// The values of a sample whose array has been read straight into its row: [`FieldValue::InItsRow`] for that field,
    /// and what the other fields are. Appends to `values`.
    fn read_beside<'a>(&'a self, id: SampleId, field: usize, values: &mut Vec<FieldValue<'a>>) {
        let _ = (id, field);
        values.push(FieldValue::InItsRow);
    }

    /// BLAKE3 over the relative paths in id order and the class list. Sizes are left out, because a scan does not ask
    /// for them; see `folder`.
    fn fingerprint(&self) -> [u8; 32];

    /// The index that a scan of the folders made; `None` where a dataset is opened without one.
    fn index(&self) -> Option<&FolderIndex> {
        None
    }

    /// The names of the classes in label order; empty where there are none.
    fn classes(&self) -> &[String] {
        &[]
    }
}

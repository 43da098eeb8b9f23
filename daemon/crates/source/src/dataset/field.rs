//! What a sample consists of: its fields' names and kinds, known when a dataset is opened, and their values.
//!
//! Values borrow from the fetched bytes where they can. How a value reaches the batch is the plan's part.

use std::borrow::Cow;

use forebay_protocol::tensor::DType;
use serde::{Deserialize, Serialize};

/// What one field of a dataset's samples is, before any operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Field {
    /// Such as `image`, `label`, `array`.
    pub name: String,
    /// What it holds.
    pub kind: FieldKind,
}

/// What a field holds. The value of each sample is the [`FieldValue`] of the same name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FieldKind {
    /// The bytes of an image file, to be decoded by an operation.
    EncodedImage,
    /// Any bytes.
    Bytes,
    /// UTF-8.
    Text,
    /// An array. The shape is the first sample's; empty for a single number.
    Array {
        /// The type of the elements.
        dtype: DType,
        /// Without the batch's dimension.
        shape: Vec<u64>,
    },
    /// An array whose first dimension differs from sample to sample, as boxes do: `[n, 4]`.
    RaggedArray {
        /// The type of the elements.
        dtype: DType,
        /// The dimensions behind the first; empty for a list of numbers.
        row_shape: Vec<u64>,
    },
    /// A sound, to be decoded to an array of float32 whose first dimension differs from sample to sample.
    Sound {
        /// The dimensions behind the first: none, or the channels.
        row_shape: Vec<u64>,
    },
    /// An i64, such as a label.
    Integer,
    /// An f64.
    Float,
}

/// One field of one sample, as a dataset reads it.
#[derive(Debug)]
pub enum FieldValue<'a> {
    /// The bytes of an image file.
    EncodedImage(&'a [u8]),
    /// Any bytes. Owned where they had to be unpacked.
    Bytes(Cow<'a, [u8]>),
    /// Text; that it is UTF-8 was checked.
    Text(Cow<'a, str>),
    /// A sound's file.
    Sound(Sound<'a>),
    /// An array's elements, for both kinds of arrays.
    Array(ArrayValue<'a>),
    /// An i64.
    Integer(i64),
    /// An f64.
    Float(f64),
    /// An array whose elements were read directly into the row; see [`DirectRead`].
    InPlace,
}

/// What is made of a sound.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct SoundForm {
    /// So many channels, `[n, channels]`; `None`: one, the mean of all, `[n]`.
    pub channels: Option<u16>,
    /// Samples a second; `None`: the file's.
    pub rate: Option<u32>,
}

impl SoundForm {
    /// The dimensions behind the first of the array.
    pub fn row_shape(self) -> Vec<u64> {
        self.channels.map(u64::from).into_iter().collect()
    }
}

/// A sound that is not decoded.
#[derive(Debug, Clone, Copy)]
pub struct Sound<'a> {
    /// The file.
    pub file: &'a [u8],
    /// What is made of it.
    pub form: SoundForm,
}

/// An array as it lies in a file.
#[derive(Debug)]
pub struct ArrayValue<'a> {
    /// The type of the elements.
    pub dtype: DType,
    /// Without the batch's dimension; `shape.len()` dimensions.
    pub shape: Cow<'a, [u64]>,
    /// Whether the first axis varies fastest.
    pub fortran_order: bool,
    /// Whether elements lie with the most significant byte first.
    pub big_endian: bool,
    /// Exactly the elements. Owned where a member had to be inflated.
    pub bytes: Cow<'a, [u8]>,
}

/// How the elements of a dataset's one array can be read from a file directly into a row: they are in C order and in the
/// machine's byte order, and what stands before them in the file is always the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirectRead {
    /// The number of the array among the fields.
    pub field: usize,
    /// What a sample's bytes begin with. One that begins otherwise is read and judged in the ordinary way.
    pub before: Vec<u8>,
    /// The elements' bytes, with which the sample's bytes end.
    pub elements_bytes: u64,
}

/// Why a sample cannot be used: a defect in bytes that were read in full. Lowercase, without the file's name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Defect(pub String);

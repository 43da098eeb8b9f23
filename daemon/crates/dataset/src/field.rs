//! The fields of a sample: their names and kinds, known when a dataset is opened, and their values.
//!
//! Values borrow from the fetched bytes where possible. The plan copies a value into the batch.

use std::borrow::Cow;

use forebay_protocol::tensor::DType;
use forebay_video::clip::Clip;
use serde::{Deserialize, Serialize};

/// A field of a dataset's samples, before any operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Field {
    /// Such as `image`, `label`, `array`.
    pub name: String,
    /// The kind of its values.
    pub kind: FieldKind,
}

/// The kind of a field's values. Each value is the [`FieldValue`] with the same name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FieldKind {
    /// The bytes of an image file; an operation decodes them.
    EncodedImage,
    /// The bytes of any number of image files, in order; an operation decodes them.
    EncodedImages,
    /// Any bytes.
    Bytes,
    /// UTF-8 text.
    Text,
    /// An array. The shape is the first sample's; empty for a scalar.
    Array {
        /// The type of the elements.
        dtype: DType,
        /// Without the batch dimension.
        shape: Vec<u64>,
    },
    /// An array whose first dimension differs between samples, such as boxes: `[n, 4]`.
    RaggedArray {
        /// The type of the elements.
        dtype: DType,
        /// The dimensions after the first; empty for a list of numbers.
        row_shape: Vec<u64>,
    },
    /// A sound, decoded to an array of float32 whose first dimension differs between samples.
    Sound {
        /// The dimensions after the first: none, or the number of channels.
        row_shape: Vec<u64>,
    },
    /// Clips of a video; an operation decodes them.
    Video {
        /// The number of clips, each with `frames` pictures; `None`: one clip, without this dimension.
        clips: Option<u64>,
        /// The pictures of a clip; `None`: the number differs between samples.
        frames: Option<u64>,
    },
    /// An i64, such as a label.
    Integer,
    /// An f64.
    Float,
}

impl FieldKind {
    /// Whether values may differ in length and a row needs no more bytes than the value itself.
    pub fn is_of_any_length(&self) -> bool {
        match self {
            Self::Bytes | Self::Text => true,
            Self::Array { shape, .. } => !shape.is_empty(),
            _ => false,
        }
    }
}

/// One field of one sample, as a dataset reads it.
#[derive(Debug)]
pub enum FieldValue<'a> {
    /// The bytes of an image file.
    EncodedImage(&'a [u8]),
    /// The bytes of each image file.
    EncodedImages(Vec<&'a [u8]>),
    /// Any bytes. Owned if they were unpacked.
    Bytes(Cow<'a, [u8]>),
    /// Text, checked to be UTF-8.
    Text(Cow<'a, str>),
    /// The file of a sound.
    Sound(Sound<'a>),
    /// The packets of a video that the wanted pictures need, and their times: clip after clip.
    Video(Box<Clip<'a>>),
    /// The elements of an array, for both kinds of arrays.
    Array(ArrayValue<'a>),
    /// An i64.
    Integer(i64),
    /// An f64.
    Float(f64),
    /// An array whose elements were read directly into the row; see [`DirectRead`].
    InPlace,
}

/// The form to which a sound is decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct SoundForm {
    /// The number of channels, `[n, channels]`; `None`: mono, the mean of all channels, `[n]`.
    pub channels: Option<u16>,
    /// Samples per second; `None`: as in the file.
    pub rate: Option<u32>,
}

impl SoundForm {
    /// The dimensions of the array after the first.
    pub fn row_shape(self) -> Vec<u64> {
        self.channels.map(u64::from).into_iter().collect()
    }
}

/// An encoded sound.
#[derive(Debug, Clone, Copy)]
pub struct Sound<'a> {
    /// The bytes of the file.
    pub file: &'a [u8],
    /// The form to decode it to.
    pub form: SoundForm,
}

/// An array as stored in a file.
#[derive(Debug)]
pub struct ArrayValue<'a> {
    /// The type of the elements.
    pub dtype: DType,
    /// Without the batch dimension; `shape.len()` dimensions.
    pub shape: Cow<'a, [u64]>,
    /// Whether the first axis varies fastest.
    pub fortran_order: bool,
    /// Whether the most significant byte of an element is first.
    pub big_endian: bool,
    /// Exactly the elements. Owned if they were inflated.
    pub bytes: Cow<'a, [u8]>,
}

impl<'a> ArrayValue<'a> {
    /// A scalar from its little-endian bytes.
    pub fn scalar(dtype: DType, bytes: impl Into<Cow<'a, [u8]>>) -> Self {
        Self::new(dtype, &[][..], bytes)
    }

    /// An array in C order of little-endian elements.
    pub fn new(
        dtype: DType,
        shape: impl Into<Cow<'a, [u64]>>,
        bytes: impl Into<Cow<'a, [u8]>>,
    ) -> Self {
        let (shape, bytes) = (shape.into(), bytes.into());
        Self { dtype, shape, fortran_order: false, big_endian: false, bytes }
    }
}

/// How the elements of a dataset's only array are read from a file directly into a row: they are in C order and in the
/// machine's byte order, and the bytes before them are the same in every file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirectRead {
    /// The index of the array among the fields.
    pub field: usize,
    /// The bytes that precede the elements. A sample that begins with other bytes is read the ordinary way.
    pub before: Vec<u8>,
    /// The size of the elements, which end the sample, in bytes.
    pub elements_bytes: u64,
}

/// Why a sample cannot be used: a defect in bytes that were read completely. Lowercase, without the file's name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Defect(pub String);

/// The end of a [`Defect`] whose remedy is to raise a configuration key rather than to repair the data.
const RAISE: &str = "; raise ";

impl Defect {
    /// A row of a field exceeds its byte limit: the data are intact, and a key is too small.
    pub fn too_long(field: &str, bytes: u64, limit: Option<u64>) -> Self {
        let limit = limit.map_or(String::new(), |limit| format!(" of {limit}"));
        Self(format!(
            "`{field}` has {bytes} bytes, more than its `max_bytes`{limit}{RAISE}output.{field}.max_bytes to {bytes} or more"
        ))
    }

    /// Whether the reason of a [`Defect`] names a key to raise.
    pub fn is_of_a_key(reason: &str) -> bool {
        reason.contains(RAISE)
    }
}

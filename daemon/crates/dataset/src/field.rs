//! The fields of a sample: their names and kinds, known when a dataset is opened, and their values.
//!
//! Values borrow from the fetched bytes where possible. The plan copies a value into the batch.

use std::borrow::Cow;
use std::ops::Range;

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
        /// Samples per second of all sounds; `None`: as in each file.
        rate: Option<u32>,
        /// Whether they may be AAC, which a process with the host's libavcodec decodes.
        may_be_aac: bool,
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
    /// The part of the sound; `None`: all of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub span: Option<SoundSpan>,
}

/// A part of a sound, as times in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct SoundSpan {
    /// From the beginning of the sound.
    pub start: u64,
    /// The duration; `None`: to the end of the sound.
    pub length: Option<u64>,
}

impl SoundSpan {
    /// The part that the keys `start` and `seconds` set, in nanoseconds; `None` without either.
    pub fn of_keys(start: Option<u64>, length: Option<u64>) -> Option<Self> {
        (start.is_some() || length.is_some()).then(|| Self { start: start.unwrap_or(0), length })
    }

    /// The frames of the part, of a sound of so many frames at so many a second. Times are rounded to the nearest
    /// frame; a part that extends beyond the end of the sound ends with it.
    ///
    /// # Errors
    /// It begins behind the end.
    pub fn frames(self, all: u64, rate: u32) -> Result<Range<u64>, Defect> {
        const SECOND: u128 = 1_000_000_000;
        let frame = |time: u64| {
            let frame = (u128::from(time) * u128::from(rate) + SECOND / 2) / SECOND;
            u64::try_from(frame).unwrap_or(u64::MAX)
        };
        let start = frame(self.start);
        if start > all || (start == all && all > 0) {
            return Err(Defect(format!(
                "the part begins at frame {start}, behind the sound, which has {all}"
            )));
        }
        let end = self.length.map_or(all, |length| start.saturating_add(frame(length)).min(all));
        Ok(start..end)
    }
}

impl SoundForm {
    /// The dimensions of the array after the first.
    pub fn row_shape(self) -> Vec<u64> {
        self.channels.map(u64::from).into_iter().collect()
    }

    /// The kind of a field of such sounds.
    pub fn kind(self, may_be_aac: bool) -> FieldKind {
        FieldKind::Sound { row_shape: self.row_shape(), rate: self.rate, may_be_aac }
    }

    /// The keys that set it, in the syntax of the configuration, each after a comma.
    pub fn keys(self) -> String {
        #[expect(clippy::cast_precision_loss, reason = "whole seconds below 2⁵³ nanoseconds")]
        let seconds = |time: u64| time as f64 / 1e9;
        let channels = self.channels.map(|count| format!(", channels = {count}"));
        let rate = self.rate.map(|rate| format!(", rate = {rate}"));
        let span = self.span.map(|SoundSpan { start, length }| {
            let length = length.map(|length| format!(", seconds = {:?}", seconds(length)));
            format!(", start = {:?}{}", seconds(start), length.unwrap_or_default())
        });
        [channels, rate, span].into_iter().flatten().collect()
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

    /// The number that an array without dimensions is, rounded to a float; `None`: it has dimensions, or is of half
    /// floats or booleans.
    #[expect(clippy::cast_precision_loss, reason = "documented")]
    pub fn number(&self) -> Option<f64> {
        let mut bytes = self.bytes.to_vec();
        if self.big_endian {
            bytes.reverse();
        }
        // Fails if the length is not the type's.
        macro_rules! read {
            ($type:ty) => {
                bytes.try_into().ok().map(<$type>::from_le_bytes)
            };
        }
        match self.dtype {
            _ if !self.shape.is_empty() => None,
            DType::F64 => read!(f64),
            DType::F32 => read!(f32).map(f64::from),
            DType::I64 => read!(i64).map(|number| number as f64),
            DType::U64 => read!(u64).map(|number| number as f64),
            DType::I32 => read!(i32).map(f64::from),
            DType::U32 => read!(u32).map(f64::from),
            DType::I16 => read!(i16).map(f64::from),
            DType::U16 => read!(u16).map(f64::from),
            DType::I8 => read!(i8).map(f64::from),
            DType::U8 => read!(u8).map(f64::from),
            _ => None,
        }
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

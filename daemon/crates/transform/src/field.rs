//! One field of one sample: during the operations of a stage, and between two stages.
//!
//! A value borrows from the fetched bytes or from the dataset as long as no operation changes it. Between two stages
//! nothing is borrowed: parts of the fetched bytes are stored as ranges, the rest in buffers that are reused.

use std::borrow::Cow;

use forebay_dataset::{ArrayValue, Defect, FieldValue, Sound};
use forebay_protocol::tensor::DType;
use forebay_resample::PillowResampler;
use forebay_storage::location::{PlaceInBytes, SampleBytes};
use forebay_video::clip::Clip;
use forebay_workers::ForeignPool;

use super::bucket::Bucket;
use super::image::{ImageTools, PendingImage, PlannedImage};
use super::needs::KEPT_BYTES;
use super::sounds::SoundsElsewhere;
use forebay_media::array::{ArrayBuffer, write_array};
use forebay_media::sound::{self, SoundTools};

/// Maximal number of spare array buffers of a work thread.
const KEPT_ARRAYS: usize = 8;

/// A work thread's tools and scratch memory.
#[derive(Debug, Default)]
pub(crate) struct Tools {
    /// Decoders, resizer, buffers for pixels.
    pub image: ImageTools,
    /// Elements in native byte order and C order, before they are cast.
    pub reordered: Vec<u8>,
    /// Which boxes are kept.
    pub kept: Vec<bool>,
    pub sounds: SoundTools,
    /// Why no process that decodes videos can be had, if that made the last sample bad.
    pub no_helpers: Option<String>,
    /// Whether the thread must end.
    pub ending: crate::video::Ending,
    /// The bucket of the sample under work, if there are buckets.
    pub bucket: Option<Bucket>,
    /// For pixels that must be Pillow's.
    pub pillow: PillowResampler,
    #[cfg(feature = "text")]
    pub texts: crate::texts::TextTools,
    arrays: Vec<ArrayBuffer>,
}

impl Tools {
    /// A buffer for an array, with arbitrary contents.
    pub(crate) fn spare_array(&mut self) -> ArrayBuffer {
        self.arrays.pop().unwrap_or_default()
    }

    /// Frees the memory of an unusually large sample: a thread keeps at most [`KEPT_BYTES`] in all its buffers.
    pub(crate) fn trim(&mut self) {
        let arrays: usize = self.arrays.iter().map(|array| array.bytes.capacity()).sum();
        let kept = self.image.kept_bytes() + self.reordered.capacity() + self.sounds.kept_bytes();
        let kept = kept + self.pillow.held_bytes();
        #[cfg(feature = "text")]
        let kept = kept + self.texts.kept_bytes();
        if kept + arrays > KEPT_BYTES {
            self.sounds = SoundTools::default();
            self.pillow = PillowResampler::default();
            self.image.give_back();
            self.reordered = Vec::new();
            self.arrays.clear();
            #[cfg(feature = "text")]
            {
                self.texts = crate::texts::TextTools::default();
            }
        }
    }
}

/// One field of a sample during operations.
#[derive(Debug)]
pub(crate) enum FieldInProgress<'a> {
    /// Nothing: its row is written, it was dropped, or the operation that adds it has not run yet.
    Absent,
    /// Read directly into its row.
    InPlace,
    /// An image's file.
    File(&'a [u8]),
    /// Several images' files.
    Files(Vec<&'a [u8]>),
    /// Bytes or text.
    Bytes(Cow<'a, [u8]>),
    /// A scalar, in native byte order.
    Number(DType, [u8; 8]),
    /// An audio file; it is decoded to an array before any operation.
    Sound(Sound<'a>),
    /// An array as stored in the file.
    Array(ArrayValue<'a>),
    /// An array that operations may change.
    Buffer(ArrayBuffer),
    /// An image.
    Image(PendingImage<'a>),
    /// A video's packets.
    Clip(Box<Clip<'a>>),
    /// The pictures of a video.
    Video(Vec<PendingImage<'a>>),
}

/// A field between two stages.
#[derive(Debug)]
pub(crate) enum CarriedField {
    /// As [`FieldInProgress::Absent`].
    Absent,
    /// An image's file.
    File(CarriedBytes),
    /// Several images' files.
    Files(Vec<CarriedBytes>),
    /// Bytes or text.
    Bytes(CarriedBytes),
    /// An array.
    Buffer(ArrayBuffer),
    /// A decoded image.
    Image(PendingImage<'static>),
    /// An image whose decoding waits for its first resampling, and its file.
    Planned(PlannedImage, CarriedBytes),
    /// A video's packets.
    Clip(Box<Clip<'static>>),
    /// The pictures of a video.
    Video(Vec<PendingImage<'static>>),
}

/// Bytes between two stages.
#[derive(Debug)]
pub(crate) enum CarriedBytes {
    /// A part of the fetched bytes, which remain.
    Fetched(PlaceInBytes),
    /// Decompressed from them, or provided by the dataset.
    Own(Vec<u8>),
}

impl CarriedBytes {
    fn of(part: Cow<'_, [u8]>, fetched: SampleBytes<'_>) -> Self {
        let Cow::Borrowed(part) = part else {
            return Self::Own(part.into_owned());
        };
        fetched.find(part).map_or_else(|| Self::Own(part.to_vec()), Self::Fetched)
    }

    fn get<'a>(&'a self, fetched: SampleBytes<'a>) -> &'a [u8] {
        match self {
            Self::Fetched(place) => fetched.at(place),
            Self::Own(bytes) => bytes,
        }
    }

    const fn held_bytes(&self) -> usize {
        match self {
            Self::Fetched(_) => 0,
            Self::Own(bytes) => bytes.len(),
        }
    }
}

impl<'a> From<FieldValue<'a>> for FieldInProgress<'a> {
    fn from(value: FieldValue<'a>) -> Self {
        match value {
            FieldValue::EncodedImage(file) => Self::File(file),
            FieldValue::EncodedImages(files) => Self::Files(files),
            FieldValue::Bytes(bytes) => Self::Bytes(bytes),
            FieldValue::Text(Cow::Borrowed(text)) => Self::Bytes(text.as_bytes().into()),
            FieldValue::Text(Cow::Owned(text)) => Self::Bytes(text.into_bytes().into()),
            FieldValue::Sound(sound) => Self::Sound(sound),
            FieldValue::Video(clip) => Self::Clip(clip),
            FieldValue::Array(array) => Self::Array(array),
            FieldValue::Integer(value) => Self::Number(DType::I64, value.to_ne_bytes()),
            FieldValue::Float(value) => Self::Number(DType::F64, value.to_ne_bytes()),
            FieldValue::InPlace => Self::InPlace,
        }
    }
}

impl<'a> FieldInProgress<'a> {
    /// A field as left by the previous stage.
    pub(crate) fn pick_up(carried: &'a mut CarriedField, fetched: SampleBytes<'a>) -> Self {
        match carried {
            CarriedField::Absent => Self::Absent,
            CarriedField::File(file) => Self::File(file.get(fetched)),
            CarriedField::Files(files) => {
                Self::Files(files.iter().map(|file| file.get(fetched)).collect())
            }
            CarriedField::Bytes(bytes) => Self::Bytes(bytes.get(fetched).into()),
            CarriedField::Planned(planned, file) => {
                Self::Image(planned.with_file(file.get(fetched)))
            }
            CarriedField::Buffer(_)
            | CarriedField::Image(_)
            | CarriedField::Clip(_)
            | CarriedField::Video(_) => match std::mem::replace(carried, CarriedField::Absent) {
                CarriedField::Buffer(array) => Self::Buffer(array),
                CarriedField::Image(image) => Self::Image(image),
                CarriedField::Clip(clip) => Self::Clip(clip),
                CarriedField::Video(pictures) => Self::Video(pictures),
                _ => Self::Absent,
            },
        }
    }

    /// The array or scalar, to be changed in place.
    ///
    /// # Errors
    /// It is neither, or its bytes do not match its shape.
    pub(crate) fn array(&mut self, tools: &mut Tools) -> Result<&mut ArrayBuffer, Defect> {
        if let Some(value) = self.array_value() {
            let mut buffer = tools.spare_array();
            buffer.dtype = value.dtype;
            buffer.shape.clear();
            buffer.shape.extend_from_slice(&value.shape);
            buffer.bytes.resize(value.bytes.len(), 0);
            write_array("array", &value, value.dtype, &mut tools.reordered, &mut buffer.bytes)?;
            *self = Self::Buffer(buffer);
        }
        match self {
            Self::Buffer(buffer) => Ok(buffer),
            _ => Err(Defect("an operation found no array".to_owned())),
        }
    }

    /// Decodes an audio file, AAC by `helpers`; other fields are unchanged.
    ///
    /// # Errors
    /// The file is defective, or larger than `most_bytes` when decoded.
    pub(crate) fn decode_sound(
        &mut self,
        most_bytes: u64,
        helpers: Option<&ForeignPool>,
        tools: &mut Tools,
    ) -> Result<(), Defect> {
        if let Self::Sound(file) = self {
            let mut array = tools.spare_array();
            let Tools { sounds, ending, no_helpers, .. } = tools;
            let mut elsewhere = SoundsElsewhere { helpers, ending, no_helpers };
            sound::decode(file, most_bytes, sounds, &mut elsewhere, &mut array)?;
            *self = Self::Buffer(array);
        }
        Ok(())
    }

    /// The array or scalar, if no operation has changed it.
    fn array_value(&self) -> Option<ArrayValue<'_>> {
        Some(match self {
            Self::Number(dtype, bytes) => ArrayValue {
                dtype: *dtype,
                shape: Cow::Borrowed(&[]),
                fortran_order: false,
                big_endian: cfg!(target_endian = "big"),
                bytes: Cow::Borrowed(bytes),
            },
            Self::Array(array) => ArrayValue {
                shape: Cow::Borrowed(&array.shape),
                bytes: Cow::Borrowed(&array.bytes),
                ..*array
            },
            _ => return None,
        })
    }

    /// The array or scalar, to be written.
    pub(crate) fn elements(&self) -> Option<ArrayValue<'_>> {
        match self {
            Self::Buffer(buffer) => Some(buffer.value()),
            _ => self.array_value(),
        }
    }

    /// The first dimension of an array.
    pub(crate) fn first_dimension(&self) -> Option<u64> {
        match self {
            Self::Array(array) => array.shape.first().copied(),
            Self::Buffer(array) => array.shape.first().copied(),
            _ => None,
        }
    }

    /// Cuts an array to so many elements of its first dimension; a shorter one stays as it is.
    ///
    /// # Errors
    /// Its bytes do not match its shape.
    pub(crate) fn truncate(&mut self, elements: u64, tools: &mut Tools) -> Result<(), Defect> {
        let Some(length) = self.first_dimension().filter(|length| *length > elements) else {
            return Ok(());
        };
        // Of bytes that the shape divides into equal parts, which is checked when the array is used.
        let part = |bytes: usize| {
            let kept = bytes as u64 / length * elements;
            usize::try_from(kept).unwrap_or(bytes)
        };
        match self {
            Self::Array(array) if !array.fortran_order || array.shape.len() == 1 => {
                let kept = part(array.bytes.len());
                match &mut array.bytes {
                    Cow::Borrowed(bytes) => *bytes = &bytes[..kept],
                    Cow::Owned(bytes) => bytes.truncate(kept),
                }
                array.shape.to_mut()[0] = elements;
            }
            _ => {
                // The elements of the first dimension lie together only in C order.
                let array = self.array(tools)?;
                array.bytes.truncate(part(array.bytes.len()));
                array.shape[0] = elements;
            }
        }
        Ok(())
    }

    /// Converts the field for the next stage.
    pub(crate) fn carry(
        mut self,
        fetched: SampleBytes<'_>,
        tools: &mut Tools,
    ) -> Result<CarriedField, Defect> {
        if self.array_value().is_some() {
            self.array(tools)?;
        }
        Ok(match self {
            Self::File(file) => CarriedField::File(CarriedBytes::of(file.into(), fetched)),
            Self::Files(files) => {
                let carried = |file: &[u8]| CarriedBytes::of(file.into(), fetched);
                CarriedField::Files(files.into_iter().map(carried).collect())
            }
            Self::Bytes(bytes) => CarriedField::Bytes(CarriedBytes::of(bytes, fetched)),
            Self::Buffer(array) => CarriedField::Buffer(array),
            Self::Image(image) => match image.planned() {
                Some((planned, file)) => {
                    CarriedField::Planned(planned, CarriedBytes::of(file.into(), fetched))
                }
                None => CarriedField::Image(image.detach(&mut tools.image)?),
            },
            Self::Clip(clip) => CarriedField::Clip(Box::new(crate::video::owned(*clip))),
            Self::Video(pictures) => {
                let detached = pictures.into_iter().map(|image| image.detach(&mut tools.image));
                CarriedField::Video(detached.collect::<Result<_, _>>()?)
            }
            Self::Absent | Self::InPlace | Self::Sound(_) | Self::Number(..) | Self::Array(_) => {
                CarriedField::Absent
            }
        })
    }

    /// Its contents, for messages.
    pub(crate) const fn describe(&self) -> &'static str {
        match self {
            Self::Absent => "nothing",
            Self::InPlace => "an array in its row",
            Self::File(_) => "an image file",
            Self::Files(_) => "a list of image files",
            Self::Bytes(_) => "bytes",
            Self::Sound(_) => "a sound's file",
            Self::Number(..) | Self::Array(_) | Self::Buffer(_) => "an array",
            Self::Image(_) => "a decoded image",
            Self::Clip(_) => "a video that is not decoded",
            Self::Video(_) => "a decoded video",
        }
    }

    /// Returns its memory to the thread's tools.
    pub(crate) fn recycle(self, tools: &mut Tools) {
        match self {
            Self::Image(image) => image.recycle(&mut tools.image),
            Self::Video(pictures) => {
                pictures.into_iter().for_each(|image| image.recycle(&mut tools.image));
            }
            Self::Buffer(array) if tools.arrays.len() < KEPT_ARRAYS => tools.arrays.push(array),
            _ => {}
        }
    }
}

impl CarriedField {
    /// The bytes that it holds in addition to the fetched ones.
    pub(crate) fn held_bytes(&self) -> usize {
        match self {
            Self::Absent => 0,
            Self::Files(files) => files.iter().map(CarriedBytes::held_bytes).sum(),
            Self::File(bytes) | Self::Bytes(bytes) | Self::Planned(_, bytes) => bytes.held_bytes(),
            Self::Buffer(array) => array.bytes.len(),
            Self::Image(image) => image.held_bytes(),
            Self::Clip(clip) => crate::video::held_bytes(clip),
            Self::Video(pictures) => pictures.iter().map(PendingImage::held_bytes).sum(),
        }
    }
}

//! The length that a sample's value is or has, or the class that it is, or why it has none.

use forebay_dataset::{ArrayValue, FieldValue, SoundHeader};
use forebay_media::decode::Decoders;
use forebay_media::size::Size;
use forebay_protocol::tensor::DType;

use crate::ground::classes::ClassValue;

fn whole(number: i64) -> Result<u64, String> {
    u64::try_from(number).map_err(|_| format!("its value is {number}, and a length is 0 or more"))
}

/// The milliseconds of a sound, or of a number of seconds, rounded up.
pub(super) fn milliseconds_of(value: &FieldValue<'_>) -> Result<u64, String> {
    match value {
        FieldValue::Sound(sound) => {
            let header = SoundHeader::read(sound.file).map_err(|defect| defect.0)?;
            let frames = header.frames.ok_or("its header does not say how long the sound is")?;
            let span = sound.form.span.unwrap_or_default();
            let part = span.frames(frames, header.rate).map_err(|defect| defect.0)?;
            let frames = part.end - part.start;
            let milliseconds = (u128::from(frames) * 1000).div_ceil(header.rate.max(1).into());
            Ok(u64::try_from(milliseconds).unwrap_or(u64::MAX))
        }
        FieldValue::Float(seconds) => milliseconds_in(*seconds),
        FieldValue::Integer(seconds) => whole(*seconds).map(|seconds| seconds.saturating_mul(1000)),
        FieldValue::Array(array) if array.shape.is_empty() => match float_of(array) {
            Some(seconds) => milliseconds_in(seconds),
            None => number_of(array).and_then(whole).map(|seconds| seconds.saturating_mul(1000)),
        },
        _ => Err("its value is neither a sound nor a number of seconds".to_owned()),
    }
}

/// A microsecond more or less is a float's rounding.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "saturating, 0 or more"
)]
fn milliseconds_in(seconds: f64) -> Result<u64, String> {
    if seconds >= 0.0 {
        Ok(((seconds * 1e6).round() as u64).div_ceil(1000))
    } else {
        Err(format!("its value is {seconds}, and a length is 0 or more"))
    }
}

/// The area of a picture, by its header, or the value of a whole number.
pub(super) fn pixels_of(
    value: &FieldValue<'_>,
    most_pixels: u64,
    decoders: &mut Decoders,
) -> Result<u64, String> {
    match value {
        FieldValue::EncodedImage(file) => {
            let header =
                decoders.read_header(file, false, most_pixels).map_err(|defect| defect.0)?;
            let size = header.size();
            Ok(u64::from(size.width) * u64::from(size.height))
        }
        FieldValue::Integer(pixels) => whole(*pixels),
        FieldValue::Array(array) if array.shape.is_empty() => number_of(array).and_then(whole),
        _ => Err("its value is neither a picture nor a whole number".to_owned()),
    }
}

/// The width and height of a picture by its header, as a batch sees it: in one number of 32 bits ([`picture_size`]).
pub(super) fn shape_of(
    value: &FieldValue<'_>,
    (most_pixels, is_turned): (u64, bool),
    decoders: &mut Decoders,
) -> Result<u64, String> {
    let FieldValue::EncodedImage(file) = value else {
        return Err("its value is no picture".to_owned());
    };
    let header = decoders.read_header(file, is_turned, most_pixels).map_err(|defect| defect.0)?;
    Ok(packed_size(header.size()).into())
}

/// The longest side that is stored: larger pictures keep their aspect ratio, nearly.
const MOST_SIDE: u32 = u16::MAX as u32 - 1;

fn packed_size(size: Size) -> u32 {
    let Size { mut width, mut height } = size;
    while width.max(height) > MOST_SIDE {
        (width, height) = (width / 2, height / 2);
    }
    width.max(1) << 16 | height.max(1)
}

/// The size that [`shape_of`] has stored.
pub(super) const fn picture_size(packed: u32) -> Size {
    Size { width: packed >> 16, height: packed & 0xffff }
}

/// The value of an array of floats without dimensions; `None`: of another type.
fn float_of(array: &ArrayValue<'_>) -> Option<f64> {
    matches!(array.dtype, DType::F32 | DType::F64).then(|| array.number()).flatten()
}

/// The length that a value is or has.
pub(super) fn length_of(value: &FieldValue<'_>) -> Result<u64, String> {
    match value {
        FieldValue::Integer(number) => whole(*number),
        FieldValue::Array(array) => match array.shape.first() {
            Some(elements) => Ok(*elements),
            None => number_of(array).and_then(whole),
        },
        FieldValue::Bytes(bytes) => Ok(bytes.len() as u64),
        FieldValue::Text(text) => Ok(text.len() as u64),
        FieldValue::EncodedImage(_)
        | FieldValue::EncodedImages(_)
        | FieldValue::Sound(_)
        | FieldValue::Video(_)
        | FieldValue::Float(_)
        | FieldValue::InPlace => Err("its value has no length".to_owned()),
    }
}

/// The class that a value is.
pub(super) fn class_of(value: &FieldValue<'_>) -> Result<ClassValue, String> {
    match value {
        FieldValue::Integer(number) => Ok(ClassValue::Number(*number)),
        FieldValue::Text(text) => Ok(ClassValue::Text(text.as_ref().into())),
        FieldValue::Array(array) if array.shape.is_empty() => {
            if array.dtype == DType::Bool {
                return Ok(ClassValue::Number(
                    array.bytes.first().is_some_and(|of| *of != 0).into(),
                ));
            }
            number_of(array).map(ClassValue::Number)
        }
        _ => Err("its value is neither a whole number nor text".to_owned()),
    }
}

/// The value of an array without dimensions.
fn number_of(array: &ArrayValue<'_>) -> Result<i64, String> {
    let is_signed = match array.dtype {
        DType::I8 | DType::I16 | DType::I32 | DType::I64 => true,
        DType::U8 | DType::U16 | DType::U32 | DType::U64 => false,
        other => {
            return Err(format!("its value is a {}, not a whole number", other.name()));
        }
    };
    let mut bytes = array.bytes.to_vec();
    if array.big_endian {
        bytes.reverse();
    }
    let is_negative = is_signed && bytes.last().is_some_and(|last| last & 0x80 != 0);
    bytes.resize(8, if is_negative { 0xff } else { 0 });
    bytes.try_into().map(i64::from_le_bytes).map_err(|_| "its value is not a number".to_owned())
}

#[cfg(test)]
mod tests {
    use forebay_dataset::{Sound, SoundForm, SoundSpan};

    use super::*;

    #[test]
    fn lengths_of_values() {
        let array = |shape: &'static [u64], bytes: &'static [u8]| {
            FieldValue::Array(ArrayValue::new(DType::I16, shape, bytes))
        };
        let big_endian = FieldValue::Array(ArrayValue {
            big_endian: true,
            ..ArrayValue::scalar(DType::U16, &[1, 2][..])
        });
        for (value, length) in [
            (FieldValue::Integer(7), 7),
            (array(&[3, 2], &[0; 12]), 3),
            (array(&[], &[2, 1]), 258),
            (big_endian, 258),
            (FieldValue::Bytes(b"abc"[..].into()), 3),
            (FieldValue::Text("ä".into()), 2),
        ] {
            assert_eq!(length_of(&value), Ok(length), "{value:?}");
        }
        for (value, reason) in [
            (FieldValue::Integer(-1), "its value is -1"),
            (array(&[], &[0xff, 0xff]), "its value is -1"),
            (FieldValue::Float(1.0), "has no length"),
        ] {
            assert!(length_of(&value).unwrap_err().contains(reason), "{value:?}");
        }
    }

    #[test]
    fn classes_of_values() {
        let scalar =
            |dtype, bytes: &'static [u8]| FieldValue::Array(ArrayValue::scalar(dtype, bytes));
        for (value, class) in [
            (FieldValue::Integer(-7), ClassValue::Number(-7)),
            (FieldValue::Text("ä".into()), ClassValue::Text("ä".into())),
            (scalar(DType::I16, &[0xfe, 0xff]), ClassValue::Number(-2)),
            (scalar(DType::Bool, &[1]), ClassValue::Number(1)),
        ] {
            assert_eq!(class_of(&value), Ok(class), "{value:?}");
        }
        for value in [
            FieldValue::Float(1.0),
            FieldValue::Bytes(b"a"[..].into()),
            scalar(DType::F32, &[0; 4]),
        ] {
            assert!(class_of(&value).is_err(), "{value:?}");
        }
    }

    /// A WAV file of so many bytes of sound: 8,000 frames a second, one byte each.
    fn wav(frames: u32) -> Vec<u8> {
        let mut file = b"RIFF\0\0\0\0WAVEfmt \x10\0\0\0\x01\0\x01\0".to_vec();
        file.extend([8000_u32, 8000].into_iter().flat_map(u32::to_le_bytes));
        file.extend(b"\x01\0\x08\0data");
        file.extend(frames.to_le_bytes());
        file.resize(file.len() + frames as usize, 128);
        file
    }

    #[test]
    fn seconds_of_sounds_and_numbers_are_milliseconds_rounded_up() {
        for (frames, milliseconds) in [(0, 0), (1, 1), (8, 1), (9, 2), (12_000, 1500)] {
            let file = wav(frames);
            let sound = FieldValue::Sound(Sound { file: &file, form: SoundForm::default() });
            assert_eq!(milliseconds_of(&sound), Ok(milliseconds), "{frames} frames");
        }
        // Of a part of the sound, its own.
        let span = Some(SoundSpan { start: 500_000_000, length: Some(2_000_000_000) });
        let form = SoundForm { span, ..SoundForm::default() };
        let file = wav(12_000);
        assert_eq!(milliseconds_of(&FieldValue::Sound(Sound { file: &file, form })), Ok(1000));
        let scalar =
            |dtype, bytes: &'static [u8]| FieldValue::Array(ArrayValue::scalar(dtype, bytes));
        for (value, milliseconds) in [
            (FieldValue::Integer(3), 3000),
            (FieldValue::Float(1.1), 1100),
            (FieldValue::Float(0.000_1), 1),
            (FieldValue::Float(f64::INFINITY), u64::MAX.div_ceil(1000)),
            (scalar(DType::F32, &[0, 0, 0xc0, 0x3f]), 1500),
            (scalar(DType::U8, &[2]), 2000),
        ] {
            assert_eq!(milliseconds_of(&value), Ok(milliseconds), "{value:?}");
        }
        let cut = &wav(100)[..60];
        for (value, reason) in [
            (FieldValue::Float(-0.5), "its value is -0.5"),
            (FieldValue::Float(f64::NAN), "its value is NaN"),
            (FieldValue::Integer(-1), "its value is -1"),
            (FieldValue::Text("1".into()), "neither a sound nor a number"),
            (FieldValue::Sound(Sound { file: cut, form: SoundForm::default() }), "truncated"),
        ] {
            assert!(milliseconds_of(&value).unwrap_err().contains(reason), "{value:?}");
        }
    }

    #[test]
    fn pixels_are_the_area_in_the_header() {
        let mut file = Vec::new();
        // The head of a PNG of 640 × 48 pixels, without its pixels.
        file.extend(b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR\0\0\x02\x80\0\0\0\x30\x08\x02\0\0\0");
        file.extend([0; 4]);
        let mut decoders = Decoders::default();
        let mut pixels = |value, most| pixels_of(&value, most, &mut decoders);
        assert_eq!(pixels(FieldValue::EncodedImage(&file), 1 << 20), Ok(640 * 48));
        assert_eq!(pixels(FieldValue::Integer(9), 1), Ok(9));
        let error = pixels(FieldValue::EncodedImage(&file), 100).unwrap_err();
        assert!(error.contains("more than limits.pixels (100)"), "{error}");
        assert!(pixels(FieldValue::Float(9.0), 1).is_err());
        assert!(pixels(FieldValue::EncodedImage(b"x"), 1).is_err());
        let mut shape = |value| shape_of(&value, (1 << 20, false), &mut decoders);
        let packed = shape(FieldValue::EncodedImage(&file)).unwrap();
        assert_eq!(picture_size(u32::try_from(packed).unwrap()), Size { width: 640, height: 48 });
        assert!(shape(FieldValue::Integer(9)).is_err());
        for (size, stored) in [
            (Size { width: 65_534, height: 1 }, (65_534, 1)),
            (Size { width: 65_535, height: 131_068 }, (32_767, 65_534)),
            (Size { width: 1, height: u32::MAX }, (1, 65_535 / 2)),
        ] {
            let Size { width, height } = picture_size(packed_size(size));
            assert_eq!((width, height), stored, "{size:?}");
        }
    }
}

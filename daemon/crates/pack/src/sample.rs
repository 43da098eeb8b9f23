//! A sample between its reader and its writer: its key and the values of its fields, owned.
//!
//! Arrays are in C order and little endian here, whatever the source has, so that equal arrays have equal digests.

use forebay_dataset::{ArrayValue, FieldValue};
use forebay_formats::in_order::Piece;
use forebay_protocol::tensor::DType;

/// The first bytes of the BLAKE3 of a sample's key and values.
pub(crate) type Digest = [u8; 16];

/// See the module's head.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Sample {
    /// The name by which the layout finds it; empty if names are dropped and the layout needs none.
    pub(crate) key: String,
    /// One per field.
    pub(crate) values: Vec<Value>,
}

/// The value of a field.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Value {
    /// A picture's or a sound's file.
    File(Vec<u8>),
    /// The files of several pictures.
    Files(Vec<Vec<u8>>),
    /// Any bytes.
    Bytes(Vec<u8>),
    Text(String),
    Integer(i64),
    Float(f64),
    Array(Array),
}

/// An array in C order of little-endian elements.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Array {
    pub(crate) dtype: DType,
    pub(crate) shape: Vec<u64>,
    pub(crate) bytes: Vec<u8>,
}

impl Value {
    /// Copies a value that was read.
    ///
    /// # Errors
    /// An array's bytes do not match its shape.
    pub(crate) fn of(value: &FieldValue<'_>) -> Result<Self, String> {
        Ok(match value {
            FieldValue::EncodedImage(file) => Self::File(file.to_vec()),
            FieldValue::EncodedImages(files) => {
                Self::Files(files.iter().map(|file| file.to_vec()).collect())
            }
            FieldValue::Sound(sound) => Self::File(sound.file.to_vec()),
            FieldValue::Bytes(bytes) => Self::Bytes(bytes.to_vec()),
            FieldValue::Text(text) => Self::Text(text.to_string()),
            FieldValue::Integer(value) => Self::Integer(*value),
            FieldValue::Float(value) => Self::Float(*value),
            FieldValue::Array(array) => Self::Array(Array::of(array)?),
            FieldValue::Video(_) => return Err("a video is not packed".to_owned()),
            // Only a reader that asks for it gets this.
            FieldValue::InPlace => return Err("its array was read elsewhere".to_owned()),
        })
    }

    /// The memory of its contents.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::File(bytes) | Self::Bytes(bytes) => bytes.len(),
            Self::Files(files) => files.iter().map(|file| file.len() + size_of::<Vec<u8>>()).sum(),
            Self::Text(text) => text.len(),
            Self::Integer(_) | Self::Float(_) => 8,
            Self::Array(array) => array.bytes.len() + 8 * array.shape.len(),
        }
    }

    fn digest(&self, hasher: &mut blake3::Hasher) {
        let mut add = |kind: u8, bytes: &[u8]| {
            hasher.update(&[kind]);
            hasher.update(&(bytes.len() as u64).to_le_bytes());
            hasher.update(bytes);
        };
        match self {
            Self::File(file) => add(0, file),
            Self::Files(files) => {
                add(1, &(files.len() as u64).to_le_bytes());
                files.iter().for_each(|file| add(0, file));
            }
            Self::Bytes(bytes) => add(2, bytes),
            Self::Text(text) => add(3, text.as_bytes()),
            Self::Integer(value) => add(4, &value.to_le_bytes()),
            Self::Float(value) => add(5, &value.to_bits().to_le_bytes()),
            Self::Array(Array { dtype, shape, bytes }) => {
                add(6, dtype.name().as_bytes());
                let shape: Vec<_> = shape.iter().flat_map(|side| side.to_le_bytes()).collect();
                add(7, &shape);
                add(8, bytes);
            }
        }
    }
}

impl Sample {
    /// Its memory.
    pub(crate) fn bytes(&self) -> usize {
        let values = self.values.iter().map(|value| value.bytes() + size_of::<Value>());
        self.key.len() + size_of::<Self>() + values.sum::<usize>()
    }

    pub(crate) fn digest(&self) -> Digest {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&(self.key.len() as u64).to_le_bytes());
        hasher.update(self.key.as_bytes());
        self.values.iter().for_each(|value| value.digest(&mut hasher));
        let mut digest = Digest::default();
        hasher.finalize_xof().fill(&mut digest);
        digest
    }
}

impl Array {
    fn of(array: &ArrayValue<'_>) -> Result<Self, String> {
        let ArrayValue { dtype, shape, fortran_order, big_endian, bytes } = array;
        let size = usize::try_from(dtype.size_bytes()).unwrap_or(1);
        let sides = shape.iter().map(|side| usize::try_from(*side)).collect::<Result<Vec<_>, _>>();
        let sides = sides.map_err(|_| "its shape exceeds this machine".to_owned())?;
        let count = sides.iter().try_fold(1_usize, |all, side| all.checked_mul(*side));
        if count.and_then(|count| count.checked_mul(size)) != Some(bytes.len()) {
            let (name, bytes) = (dtype.name(), bytes.len());
            return Err(format!("an array of the shape {shape:?} of {name} has {bytes} bytes"));
        }
        let mut bytes = match *fortran_order && sides.len() > 1 {
            true => in_c_order(bytes, &sides, size),
            false => bytes.to_vec(),
        };
        if *big_endian && size > 1 {
            bytes.chunks_exact_mut(size).for_each(<[u8]>::reverse);
        }
        Ok(Self { dtype: *dtype, shape: shape.to_vec(), bytes })
    }
}

/// The elements of an array in Fortran order, in C order.
fn in_c_order(bytes: &[u8], sides: &[usize], size: usize) -> Vec<u8> {
    let mut ordered = Vec::with_capacity(bytes.len());
    let mut place = vec![0; sides.len()];
    for _ in 0..bytes.len() / size.max(1) {
        let mut stride = 1;
        let mut offset = 0;
        for (index, side) in place.iter().zip(sides) {
            offset += index * stride;
            stride *= side;
        }
        ordered.extend_from_slice(&bytes[offset * size..(offset + 1) * size]);
        for (index, side) in place.iter_mut().zip(sides).rev() {
            *index += 1;
            if *index < *side {
                break;
            }
            *index = 0;
        }
    }
    ordered
}

/// Samples with their digests, from a reading thread.
#[derive(Debug, Default)]
pub(crate) struct Samples(pub(crate) Vec<(Sample, Digest)>);

impl Piece for Samples {
    fn bytes(&self) -> usize {
        self.0.iter().map(|(sample, _)| sample.bytes()).sum()
    }
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use super::*;

    fn array(shape: &[u64], fortran_order: bool, big_endian: bool, bytes: &[u8]) -> Array {
        Array::of(&ArrayValue {
            dtype: DType::U16,
            shape: Cow::Borrowed(shape),
            fortran_order,
            big_endian,
            bytes: Cow::Borrowed(bytes),
        })
        .unwrap()
    }

    #[test]
    fn equal_arrays_are_equal_in_any_order_of_axes_and_bytes() {
        let elements = |big: bool, numbers: [u16; 6]| -> Vec<u8> {
            let of = |number: u16| if big { number.to_be_bytes() } else { number.to_le_bytes() };
            numbers.into_iter().flat_map(of).collect()
        };
        let plain = array(&[2, 3], false, false, &elements(false, [1, 2, 3, 4, 5, 6]));
        let other = array(&[2, 3], true, true, &elements(true, [1, 4, 2, 5, 3, 6]));
        assert_eq!(plain, other);
        assert_eq!(plain.bytes, elements(false, [1, 2, 3, 4, 5, 6]));
        let empty = array(&[0, 3], true, false, &[]);
        assert_eq!((empty.shape, empty.bytes.len()), (vec![0, 3], 0));
        let short = ArrayValue::new(DType::U16, vec![2], vec![0; 3]);
        assert!(Array::of(&short).is_err());
        let vast = ArrayValue::new(DType::U16, vec![u64::MAX, 3], vec![0; 3]);
        assert!(Array::of(&vast).is_err());
    }

    #[test]
    fn digests_distinguish_values_keys_and_their_borders() {
        let text = |texts: &[&str]| Sample {
            key: "k".to_owned(),
            values: texts.iter().map(|text| Value::Text((*text).to_owned())).collect(),
        };
        let samples = [
            text(&["ab", "c"]),
            text(&["a", "bc"]),
            text(&["abc"]),
            Sample { key: "l".to_owned(), ..text(&["abc"]) },
            Sample { values: vec![Value::Bytes(b"abc".to_vec())], ..text(&[]) },
            Sample { values: vec![Value::Files(vec![b"abc".to_vec()])], ..text(&[]) },
            Sample { values: vec![Value::Float(0.0)], ..text(&[]) },
            Sample { values: vec![Value::Float(-0.0)], ..text(&[]) },
            Sample { values: vec![Value::Integer(0)], ..text(&[]) },
        ];
        let mut digests: Vec<_> = samples.iter().map(Sample::digest).collect();
        digests.sort_unstable();
        digests.dedup();
        assert_eq!(digests.len(), samples.len());
    }
}

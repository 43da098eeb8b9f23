//! The output value of a pixel's byte: the byte itself, or a float from a table of 256 entries per channel.
//!
//! A table instead of arithmetic per pixel gives the same number on every machine and on a GPU, at the same speed. The
//! daemon uses it to write rows; a client uses it to finish rows that the daemon left as bytes ([`crate::finish`]). No
//! other code computes these values. Layouts and images are not handled here.

use half::{bf16, f16};

use crate::dtype::DType;

/// Means and standard deviations, one per channel, for values between 0 and 1.
#[derive(Debug, Clone, PartialEq)]
pub struct Normalization {
    /// One per channel.
    pub mean: Vec<f64>,
    /// One per channel, above 0.
    pub std: Vec<f64>,
}

/// The value of each byte, in native byte order; one table per channel.
#[derive(Debug)]
pub enum PixelValues {
    /// The byte itself.
    Bytes,
    /// f16 or bf16.
    TwoBytes(Vec<[[u8; 2]; 256]>),
    /// f32.
    FourBytes(Vec<[[u8; 4]; 256]>),
    /// f64.
    EightBytes(Vec<[[u8; 8]; 256]>),
}

/// `(value / 255 − mean) / std`, each step rounded to single precision: torchvision's `ToTensor` and `Normalize`.
fn single(byte: u8, mean_and_std: Option<(f64, f64)>) -> f32 {
    let value = f32::from(byte) / 255.0;
    #[expect(
        clippy::cast_possible_truncation,
        reason = "rounded to single precision, as torch does"
    )]
    match mean_and_std {
        Some((mean, std)) => (value - mean as f32) / std as f32,
        None => value,
    }
}

fn double(byte: u8, mean_and_std: Option<(f64, f64)>) -> f64 {
    let value = f64::from(byte) / 255.0;
    mean_and_std.map_or(value, |(mean, std)| (value - mean) / std)
}

fn tables<const N: usize>(
    channels: u8,
    normalization: Option<&Normalization>,
    value: impl Fn(u8, Option<(f64, f64)>) -> [u8; N],
) -> Vec<[[u8; N]; 256]> {
    (0..usize::from(channels))
        .map(|channel| {
            let mean_and_std =
                normalization.and_then(|it| Some((*it.mean.get(channel)?, *it.std.get(channel)?)));
            let mut table = [[0; N]; 256];
            for (byte, entry) in (0..=255).zip(&mut table) {
                *entry = value(byte, mean_and_std);
            }
            table
        })
        .collect()
}

impl PixelValues {
    /// The values for a type; `None` for a type that images cannot have (any but uint8 and the floats).
    #[must_use]
    pub fn new(dtype: DType, channels: u8, normalization: Option<&Normalization>) -> Option<Self> {
        match dtype {
            DType::U8 => Some(Self::Bytes),
            DType::F16 => Some(Self::TwoBytes(tables(channels, normalization, |byte, by| {
                f16::from_f32(single(byte, by)).to_ne_bytes()
            }))),
            DType::BF16 => Some(Self::TwoBytes(tables(channels, normalization, |byte, by| {
                bf16::from_f32(single(byte, by)).to_ne_bytes()
            }))),
            DType::F32 => Some(Self::FourBytes(tables(channels, normalization, |byte, by| {
                single(byte, by).to_ne_bytes()
            }))),
            DType::F64 => Some(Self::EightBytes(tables(channels, normalization, |byte, by| {
                double(byte, by).to_ne_bytes()
            }))),
            _ => None,
        }
    }

    /// All values as one table: the value of byte `v` in channel `c` is entry `c × 256 + v`, of the element's size. For
    /// [`PixelValues::Bytes`] this is the identity table.
    #[must_use]
    pub fn table_bytes(&self, channels: u8) -> Vec<u8> {
        match self {
            Self::Bytes => (0..channels).flat_map(|_| 0..=255).collect(),
            Self::TwoBytes(tables) => tables.as_flattened().as_flattened().to_vec(),
            Self::FourBytes(tables) => tables.as_flattened().as_flattened().to_vec(),
            Self::EightBytes(tables) => tables.as_flattened().as_flattened().to_vec(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_scaled_then_normalised() {
        let by = Normalization { mean: vec![0.485], std: vec![0.229] };
        let Some(PixelValues::FourBytes(table)) = PixelValues::new(DType::F32, 1, Some(&by)) else {
            panic!("no table of f32")
        };
        assert_eq!(f32::from_ne_bytes(table[0][0]), -0.485_f32 / 0.229_f32);
        assert_eq!(f32::from_ne_bytes(table[0][255]), (1.0_f32 - 0.485) / 0.229);
        let Some(PixelValues::TwoBytes(table)) = PixelValues::new(DType::BF16, 1, None) else {
            panic!("no table of bf16")
        };
        assert_eq!(bf16::from_ne_bytes(table[0][51]), bf16::from_f32(0.2));
        assert!(PixelValues::new(DType::I32, 3, None).is_none());
    }
}

//! `batch.pad`: the rows of a ragged tensor as one array, padded to the longest row of their batch.
//!
//! The rows stay in the slot as they are; the caller says where the array is written.

use forebay_protocol::tensor::{DType, Padding};
use half::{bf16, f16};

use crate::error::Error;
use crate::views::{Element, Ragged, Tensor};

/// The largest element, in bytes.
const MOST_ELEMENT_BYTES: usize = 8;

/// The rows of a ragged tensor that are handed out as one array.
#[derive(Debug, Clone)]
pub struct PaddedRows<'batch> {
    tensor: Tensor<'batch>,
    ragged: Ragged<'batch>,
    /// The first dimension of each row.
    lengths: Vec<usize>,
    /// The first dimension of the padded rows.
    longest: usize,
    /// A padded row, in bytes.
    row_bytes: usize,
    value: [u8; MOST_ELEMENT_BYTES],
}

impl<'batch> PaddedRows<'batch> {
    /// The padding of a tensor; `None`: its rows are not padded.
    pub(crate) fn of(tensor: Tensor<'batch>) -> Option<Result<Self, Error>> {
        let padding = tensor.spec().padding?;
        Some(Self::new(tensor, tensor.ragged()?, padding))
    }

    fn new(tensor: Tensor<'batch>, ragged: Ragged<'batch>, by: Padding) -> Result<Self, Error> {
        let broken =
            || Error::Protocol(format!("the rows of `{}` leave their slot", tensor.name()));
        let length = |row| match ragged.row_bytes(row) {
            Some(_) => ragged.row_len(row).ok_or_else(broken),
            None => Err(broken()),
        };
        let lengths = (0..ragged.len()).map(length).collect::<Result<Vec<usize>, Error>>()?;
        let longest = lengths.iter().copied().max().unwrap_or(0);
        let multiple = usize::try_from(by.multiple_of.max(1)).map_err(|_| broken())?;
        let longest = longest.checked_next_multiple_of(multiple).ok_or_else(broken)?;
        let step = ragged
            .row_shape()
            .iter()
            .try_fold(tensor.dtype().size_bytes(), |bytes, side| bytes.checked_mul(*side));
        let row_bytes = step
            .and_then(|step| usize::try_from(step).ok()?.checked_mul(longest))
            .filter(|bytes| bytes.checked_mul(lengths.len()).is_some())
            .ok_or_else(broken)?;
        let value = bytes_of(tensor.dtype(), f64::from_bits(by.value_bits));
        Ok(Self { tensor, ragged, lengths, longest, row_bytes, value })
    }

    /// The array's shape: the rows, the longest of them, and the other dimensions of a row.
    #[must_use]
    pub fn shape(&self) -> Vec<u64> {
        let rows = [self.lengths.len() as u64, self.longest as u64];
        rows.iter().chain(self.ragged.row_shape()).copied().collect()
    }

    /// The array's size.
    #[must_use]
    pub fn length_bytes(&self) -> usize {
        self.row_bytes * self.lengths.len()
    }

    /// The first dimension of each row.
    #[must_use]
    pub fn lengths(&self) -> &[usize] {
        &self.lengths
    }

    /// Writes the array.
    ///
    /// # Errors
    /// [`Error::Config`] when `to` is not as long as [`length_bytes`](Self::length_bytes); [`Error::Forked`] in a forked
    /// child.
    pub fn write(&self, to: &mut [u8]) -> Result<(), Error> {
        if to.len() != self.length_bytes() {
            return Err(Error::Config(format!(
                "the padded rows of `{}` are {} bytes, not {}",
                self.tensor.name(),
                self.length_bytes(),
                to.len()
            )));
        }
        let size = usize::try_from(self.tensor.dtype().size_bytes()).unwrap_or(1);
        // A row of no bytes has nothing to write.
        for (row, to) in to.chunks_exact_mut(self.row_bytes.max(1)).enumerate() {
            let found = self.ragged.row_bytes(row).ok_or(Error::Forked)?;
            let (filled, rest) = to.split_at_mut(found.len().min(to.len()));
            filled.copy_from_slice(&found[..filled.len()]);
            for element in rest.chunks_exact_mut(size) {
                element.copy_from_slice(&self.value[..size]);
            }
        }
        Ok(())
    }

    /// The array's elements in row-major order.
    ///
    /// # Errors
    /// [`Error::NoSuchTensor`] when the elements have another type; [`Error::Forked`] in a forked child.
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>, Error> {
        self.tensor.as_slice::<T>()?;
        let mut bytes = vec![0; self.length_bytes()];
        self.write(&mut bytes)?;
        Ok(bytes.chunks_exact(size_of::<T>()).map(T::from_bytes).collect())
    }
}

/// A value of a type, as it is in memory.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the daemon has checked that the value is of the type; any other saturates"
)]
fn bytes_of(dtype: DType, value: f64) -> [u8; MOST_ELEMENT_BYTES] {
    let mut bytes = [0; MOST_ELEMENT_BYTES];
    let mut put = |from: &[u8]| bytes[..from.len()].copy_from_slice(from);
    match dtype {
        DType::U8 => put(&(value as u8).to_ne_bytes()),
        DType::I8 => put(&(value as i8).to_ne_bytes()),
        DType::U16 => put(&(value as u16).to_ne_bytes()),
        DType::I16 => put(&(value as i16).to_ne_bytes()),
        DType::U32 => put(&(value as u32).to_ne_bytes()),
        DType::I32 => put(&(value as i32).to_ne_bytes()),
        DType::U64 => put(&(value as u64).to_ne_bytes()),
        DType::I64 => put(&(value as i64).to_ne_bytes()),
        DType::F16 => put(&f16::from_f64(value).to_ne_bytes()),
        DType::BF16 => put(&bf16::from_f32(value as f32).to_ne_bytes()),
        DType::F32 => put(&(value as f32).to_ne_bytes()),
        DType::F64 => put(&value.to_ne_bytes()),
        DType::Bool => put(&[u8::from(value != 0.0)]),
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_the_bytes_of_their_type() {
        for (dtype, value, expected) in [
            (DType::U8, 200.0, vec![200]),
            (DType::I8, -1.0, vec![255]),
            (DType::I16, -2.0, vec![254, 255]),
            (DType::I64, -100.0, vec![156, 255, 255, 255, 255, 255, 255, 255]),
            (DType::U32, 258.0, vec![2, 1, 0, 0]),
            (DType::F32, -0.5, vec![0, 0, 0, 0xbf]),
            (DType::F16, 1.0, vec![0, 0x3c]),
            (DType::BF16, 1.0, vec![0x80, 0x3f]),
            (DType::F64, 2.0, vec![0, 0, 0, 0, 0, 0, 0, 0x40]),
            (DType::Bool, 1.0, vec![1]),
        ] {
            assert_eq!(bytes_of(dtype, value)[..expected.len()], expected, "{dtype:?}");
        }
        assert!(
            f16::from_ne_bytes([
                bytes_of(DType::F16, f64::NAN)[0],
                bytes_of(DType::F16, f64::NAN)[1]
            ])
            .is_nan()
        );
    }
}

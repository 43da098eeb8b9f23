//! Writes an array's elements into a row: native byte order, C order, the output's type. Bulk copies where possible.

mod cast;

use std::borrow::Cow;

use forebay_protocol::tensor::DType;

use super::buffers::prepare;
pub use cast::cast;
use forebay_dataset::{ArrayValue, Defect};

/// The first sample's type and shape, which every sample must have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArrayType {
    /// The elements' type.
    pub dtype: DType,
    /// The lengths of the axes.
    pub shape: Vec<u64>,
}

impl std::fmt::Display for ArrayType {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{} {:?}", self.dtype.name(), self.shape)
    }
}

/// An array in memory that operations may change: native byte order, C order.
#[derive(Debug)]
pub struct ArrayBuffer {
    /// The elements' type.
    pub dtype: DType,
    /// The lengths of the axes.
    pub shape: Vec<u64>,
    /// Exactly the elements.
    pub bytes: Vec<u8>,
}

impl Default for ArrayBuffer {
    fn default() -> Self {
        Self { dtype: DType::U8, shape: Vec::new(), bytes: Vec::new() }
    }
}

impl ArrayBuffer {
    /// The array as a value for a row.
    pub fn value(&self) -> ArrayValue<'_> {
        ArrayValue {
            dtype: self.dtype,
            shape: Cow::Borrowed(&self.shape),
            fortran_order: false,
            big_endian: cfg!(target_endian = "big"),
            bytes: Cow::Borrowed(&self.bytes),
        }
    }
}

/// Checks that an array has the type that all arrays must have.
pub fn check_type(name: &str, value: &ArrayValue<'_>, expected: &ArrayType) -> Result<(), Defect> {
    if value.dtype == expected.dtype && *value.shape == *expected.shape {
        return Ok(());
    }
    let found = ArrayType { dtype: value.dtype, shape: value.shape.to_vec() };
    let hint = match (&found.shape[..], &expected.shape[..]) {
        ([one, rest @ ..], [other, others @ ..])
            if rest == others && found.dtype == expected.dtype =>
        {
            let row = rest
                .iter()
                .fold(found.dtype.size_bytes(), |bytes, side| bytes.saturating_mul(*side));
            ragged_hint(name, row.saturating_mul((*one).max(*other)))
        }
        _ => String::new(),
    };
    Err(Defect(format!("`{name}` is {found}, and the first sample's is {expected}{hint}")))
}

/// The configuration for rows of different lengths, with room for the longer one of `row_bytes`.
fn ragged_hint(name: &str, row_bytes: u64) -> String {
    const KIBIBYTE: u64 = 1024;
    let kibibytes = row_bytes.div_ceil(KIBIBYTE).checked_next_power_of_two().unwrap_or(row_bytes);
    format!(
        "; if lengths differ from sample to sample, set `[output] {name} = {{ ragged = true, max_bytes = \"{}KiB\" }}`",
        kibibytes.max(64)
    )
}

/// Checks that an array differs from the first sample's only in its first dimension, and has the bytes of its shape.
///
/// # Errors
/// Names both types.
pub fn check_ragged_type(
    name: &str,
    value: &ArrayValue<'_>,
    dtype: DType,
    row_shape: &[u64],
) -> Result<(), Defect> {
    if value.dtype != dtype || value.shape.get(1..) != Some(row_shape) {
        let expected = row_shape.iter().map(|side| format!(", {side}")).collect::<String>();
        return Err(Defect(format!(
            "`{name}` is {} {:?}, and {} [any{expected}] is expected, as the first sample's",
            value.dtype.name(),
            value.shape,
            dtype.name(),
        )));
    }
    check_length(name, value)
}

/// Checks that an array has the bytes that its shape requires.
fn check_length(name: &str, value: &ArrayValue<'_>) -> Result<(), Defect> {
    let expected = value
        .shape
        .iter()
        .try_fold(value.dtype.size_bytes(), |bytes, side| bytes.checked_mul(*side));
    if expected == Some(value.bytes.len() as u64) {
        return Ok(());
    }
    Err(Defect(format!(
        "`{name}` has {} bytes, and {} of shape {:?} needs {}",
        value.bytes.len(),
        value.dtype.name(),
        value.shape,
        expected.map_or_else(|| "more than fit".to_owned(), |bytes| bytes.to_string())
    )))
}

/// Writes all elements as `target`. `scratch` is used if they must be reordered and cast.
///
/// # Errors
/// The array's length does not match its shape.
///
/// # Panics
/// The length of `row` differs from the result's.
pub fn write_array(
    name: &str,
    value: &ArrayValue<'_>,
    target: DType,
    scratch: &mut Vec<u8>,
    row: &mut [u8],
) -> Result<(), Defect> {
    let element_bytes = usize::try_from(value.dtype.size_bytes()).unwrap_or(1);
    check_length(name, value)?;
    let is_swapped = element_bytes > 1 && value.big_endian != cfg!(target_endian = "big");
    let is_transposed =
        value.fortran_order && value.shape.iter().filter(|side| **side > 1).count() > 1;
    if !is_swapped && !is_transposed {
        cast(value.dtype, &value.bytes, target, row);
        return Ok(());
    }
    if value.dtype == target {
        reorder(value, element_bytes, is_swapped, is_transposed, row);
        return Ok(());
    }
    let plain = prepare(scratch, value.bytes.len());
    reorder(value, element_bytes, is_swapped, is_transposed, plain);
    cast(value.dtype, plain, target, row);
    Ok(())
}

fn reorder(
    value: &ArrayValue<'_>,
    element_bytes: usize,
    is_swapped: bool,
    is_transposed: bool,
    to: &mut [u8],
) {
    match element_bytes {
        1 => reorder_elements::<1>(value, is_swapped, is_transposed, to),
        2 => reorder_elements::<2>(value, is_swapped, is_transposed, to),
        4 => reorder_elements::<4>(value, is_swapped, is_transposed, to),
        _ => reorder_elements::<8>(value, is_swapped, is_transposed, to),
    }
}

fn reorder_elements<const N: usize>(
    value: &ArrayValue<'_>,
    is_swapped: bool,
    is_transposed: bool,
    to: &mut [u8],
) {
    let from = value.bytes.as_chunks::<N>().0;
    let to = to.as_chunks_mut::<N>().0;
    let native = |mut element: [u8; N]| {
        if is_swapped {
            element.reverse();
        }
        element
    };
    if !is_transposed {
        for (to, from) in to.iter_mut().zip(from) {
            *to = native(*from);
        }
        return;
    }
    // Iterates over the result in C order; in the source the first axis is the fastest.
    let sides: Vec<usize> =
        value.shape.iter().map(|side| usize::try_from(*side).unwrap_or(0)).collect();
    let Some((last, leading)) = sides.split_last() else {
        return;
    };
    if *last == 0 {
        return;
    }
    let last_stride: usize = leading.iter().product();
    let mut index = vec![0; leading.len()];
    for line in to.chunks_exact_mut(*last) {
        let mut stride = 1;
        let mut start = 0;
        for (place, side) in index.iter().zip(leading) {
            start += place * stride;
            stride *= side;
        }
        for (to, from) in line.iter_mut().zip(from[start..].iter().step_by(last_stride)) {
            *to = native(*from);
        }
        for (place, side) in index.iter_mut().zip(leading).rev() {
            *place += 1;
            if *place < *side {
                break;
            }
            *place = 0;
        }
    }
}

#[cfg(test)]
mod tests;

//! The reference of `forebay_mix` on the CPU: mixes finished rows in pairs, as the daemon does with `on = "cpu"`. Not
//! optimised.

use forebay_protocol::mix::Mix;
use forebay_protocol::tensor::{DType, TensorSpec};
use half::{bf16, f16};

use crate::error::Error;

/// Mixes the rows of a batch, in order: `bytes` are `rows` rows of `spec`, an image of uint8, float16, bfloat16 or float32.
///
/// # Errors
/// [`Error::Protocol`] when `spec` is not such an image, or `bytes` are not exactly `rows` rows long.
pub fn mix_rows(
    spec: &TensorSpec,
    mixes: &[Mix],
    rows: usize,
    bytes: &mut [u8],
) -> Result<(), Error> {
    let name = &spec.name;
    let row_bytes = spec.row_pitch_bytes().and_then(|bytes| usize::try_from(bytes).ok());
    let is_mixed = matches!(spec.dtype, DType::U8 | DType::F16 | DType::BF16 | DType::F32);
    let (Some(row_bytes), &[first, second, third], true) =
        (row_bytes, &spec.row_shape[..], is_mixed)
    else {
        return Err(Error::Protocol(format!("`{name}` has no rows that are mixed")));
    };
    if row_bytes.checked_mul(rows) != Some(bytes.len()) {
        return Err(Error::Protocol(format!(
            "{rows} rows of `{name}` are of {row_bytes} bytes, not {} together",
            bytes.len()
        )));
    }
    let (width, pixels, channels) = if spec.channels_last {
        (second, first * second, third)
    } else {
        (third, second * third, first)
    };
    for mix in mixes {
        for place in 0..rows / 2 {
            let (before, after) = bytes.split_at_mut((rows - 1 - place) * row_bytes);
            let (one, other) = (&mut before[place * row_bytes..][..row_bytes], after);
            let other = &mut other[..row_bytes];
            match mix {
                Mix::Nothing => {}
                Mix::Sum { share } => sum(spec.dtype, *share, one, other),
                Mix::Part { columns, rows } => {
                    let size = one.len() / usize::try_from(pixels * channels).unwrap_or(1).max(1);
                    let pairs = one.chunks_exact_mut(size).zip(other.chunks_exact_mut(size));
                    for ((one, other), element) in pairs.zip(0_u64..) {
                        let pixel =
                            if spec.channels_last { element / channels } else { element % pixels };
                        let (column, row) = (pixel % width, pixel / width);
                        let is_within = |at: u64, range: &std::ops::Range<u32>| {
                            (u64::from(range.start)..u64::from(range.end)).contains(&at)
                        };
                        if is_within(column, columns) && is_within(row, rows) {
                            one.swap_with_slice(other);
                        }
                    }
                }
            }
        }
    }
    Ok(())
}

fn sum(dtype: DType, share: f32, one: &mut [u8], other: &mut [u8]) {
    match dtype {
        DType::F32 => each(share, one, other, f32::from_ne_bytes, f32::to_ne_bytes),
        DType::F16 => each(
            share,
            one,
            other,
            |bytes| f16::from_ne_bytes(bytes).to_f32(),
            |value| f16::from_f32(value).to_ne_bytes(),
        ),
        DType::BF16 => each(
            share,
            one,
            other,
            |bytes| bf16::from_ne_bytes(bytes).to_f32(),
            |value| bf16::from_f32(value).to_ne_bytes(),
        ),
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to 255")]
        _ => each(
            share,
            one,
            other,
            |[byte]| f32::from(byte),
            |value| [value.round_ties_even() as u8],
        ),
    }
}

fn each<const BYTES: usize>(
    share: f32,
    one: &mut [u8],
    other: &mut [u8],
    widened: fn([u8; BYTES]) -> f32,
    rounded: fn(f32) -> [u8; BYTES],
) {
    let rest = 1.0 - share;
    let (one, other) = (one.as_chunks_mut::<BYTES>().0, other.as_chunks_mut::<BYTES>().0);
    for (one, other) in one.iter_mut().zip(other) {
        let (a, b) = (widened(*one), widened(*other));
        (*one, *other) = (rounded(a * share + b * rest), rounded(b * share + a * rest));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows of two adjacent pixels with two channels.
    fn spec(dtype: DType, channels_last: bool) -> TensorSpec {
        let shape = if channels_last { [1, 2, 2] } else { [2, 1, 2] };
        TensorSpec { channels_last, ..TensorSpec::dense("image", dtype, &shape) }
    }

    #[test]
    fn rows_are_mixed_with_rows_from_the_end_and_the_middle_row_is_unchanged() {
        let mixes = [Mix::Nothing, Mix::Sum { share: 0.75 }];
        let mut bytes = [0, 1, 2, 255, 7, 7, 7, 7, 10, 3, 4, 1];
        mix_rows(&spec(DType::U8, true), &mixes, 3, &mut bytes).unwrap();
        // 2.5 and 1.5 are rounded to even.
        assert_eq!(bytes, [2, 2, 2, 192, 7, 7, 7, 7, 8, 2, 4, 64]);
        let floats = [0.5_f32, 1.0, 0.1, 0.7, -1.0, 3.0, 0.3, 0.2];
        let mut bytes: Vec<u8> = floats.iter().flat_map(|value| value.to_ne_bytes()).collect();
        mix_rows(&spec(DType::F32, false), &mixes, 2, &mut bytes).unwrap();
        let found = bytes.as_chunks().0.iter().map(|bytes| f32::from_ne_bytes(*bytes));
        let expected = (0..8).map(|at| floats[at] * 0.75 + floats[(at + 4) % 8] * 0.25);
        assert!(found.eq(expected));
    }

    #[test]
    fn part_is_swapped_in_either_layout_and_mixes_apply_in_order() {
        let part = Mix::Part { columns: 1..2, rows: 0..1 };
        for (channels_last, expected) in
            [(true, [0, 1, 6, 7, 4, 5, 2, 3]), (false, [0, 5, 2, 7, 4, 1, 6, 3])]
        {
            let mut bytes: [u8; 8] = std::array::from_fn(|at| u8::try_from(at).unwrap());
            mix_rows(&spec(DType::U8, channels_last), std::slice::from_ref(&part), 2, &mut bytes)
                .unwrap();
            assert_eq!(bytes, expected);
        }
        let sum = Mix::Sum { share: 1.0 };
        for (mixes, expected) in [
            ([part.clone(), sum.clone()], [0, 7]),
            ([sum, Mix::Part { columns: 0..0, rows: 0..1 }], [0, 3]),
        ] {
            let mut bytes = [0, 1, 2, 3, 4, 5, 6, 7];
            mix_rows(&spec(DType::U8, true), &mixes, 2, &mut bytes).unwrap();
            assert_eq!([bytes[0], bytes[3]], expected);
        }
    }

    #[test]
    fn unmixable_tensors_are_refused() {
        let whole = spec(DType::F16, false);
        let flat = TensorSpec::dense("image", DType::U8, &[4]);
        for (spec, bytes) in [(&whole, 15), (&whole, 8), (&spec(DType::F64, true), 64), (&flat, 8)]
        {
            let refused = mix_rows(spec, &[], 2, &mut vec![0; bytes]);
            assert!(matches!(refused, Err(Error::Protocol(_))), "{spec:?} {bytes}");
        }
    }
}

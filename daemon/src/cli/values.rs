//! A sample's values as text for display.

use forebay_client::DType;
use half::{bf16, f16};

/// Longer arrays and texts are truncated.
const MAX_VALUES: usize = 24;
const MAX_CHARACTERS: usize = 400;

/// The elements of a row.
pub(super) fn numbers(bytes: &[u8], dtype: DType) -> Vec<f64> {
    let mut numbers = Vec::new();
    each_number(bytes, dtype, |number| numbers.push(number));
    numbers
}

/// Calls `see` with each element.
#[expect(clippy::cast_precision_loss, reason = "they are shown to a person")]
pub(super) fn each_number(bytes: &[u8], dtype: DType, see: impl FnMut(f64)) {
    fn each<const N: usize>(bytes: &[u8], see: impl FnMut(f64), read: fn([u8; N]) -> f64) {
        bytes.as_chunks().0.iter().map(|chunk| read(*chunk)).for_each(see);
    }
    match dtype {
        DType::Bool | DType::U8 => bytes.iter().map(|byte| f64::from(*byte)).for_each(see),
        DType::I8 => each(bytes, see, |b| f64::from(i8::from_ne_bytes(b))),
        DType::U16 => each(bytes, see, |b| f64::from(u16::from_ne_bytes(b))),
        DType::I16 => each(bytes, see, |b| f64::from(i16::from_ne_bytes(b))),
        DType::U32 => each(bytes, see, |b| f64::from(u32::from_ne_bytes(b))),
        DType::I32 => each(bytes, see, |b| f64::from(i32::from_ne_bytes(b))),
        DType::U64 => each(bytes, see, |b| u64::from_ne_bytes(b) as f64),
        DType::I64 => each(bytes, see, |b| i64::from_ne_bytes(b) as f64),
        DType::F16 => each(bytes, see, |b| f16::from_ne_bytes(b).to_f64()),
        DType::BF16 => each(bytes, see, |b| bf16::from_ne_bytes(b).to_f64()),
        DType::F32 => each(bytes, see, |b| f64::from(f32::from_ne_bytes(b))),
        DType::F64 => each(bytes, see, f64::from_ne_bytes),
    }
}

/// Whether a type has fractions.
pub(super) const fn is_float(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::BF16 | DType::F32 | DType::F64)
}

/// The first values, and the shape if there are several.
pub(super) fn described(values: &[f64], dtype: DType, shape: &[usize]) -> String {
    let one =
        |value: &f64| if is_float(dtype) { format!("{value:.4}") } else { format!("{value}") };
    if shape.is_empty() {
        return values.first().map(one).unwrap_or_default();
    }
    let first: Vec<String> = values.iter().take(MAX_VALUES).map(one).collect();
    let more = if values.len() > MAX_VALUES { ", …" } else { "" };
    let shape: Vec<String> = shape.iter().map(ToString::to_string).collect();
    let colon = if first.is_empty() { "" } else { ": " };
    format!("{} [{}]{colon}{}{more}", dtype.name(), shape.join(", "), first.join(", "))
}

/// The beginning of a text.
pub(super) fn begin(text: &str) -> String {
    match text.char_indices().nth(MAX_CHARACTERS) {
        Some((end, _)) => format!("{} …", &text[..end]),
        None => text.to_owned(),
    }
}

//! Values of a sample as text for a person.

use forebay_client::DType;
use half::{bf16, f16};

/// Of longer arrays and texts, the begin is shown.
const MAX_VALUES: usize = 24;
const MAX_CHARACTERS: usize = 400;

/// The elements of a row.
#[expect(clippy::cast_precision_loss, reason = "they are shown to a person")]
pub(super) fn numbers(bytes: &[u8], dtype: DType) -> Vec<f64> {
    fn each<const N: usize>(bytes: &[u8], read: fn([u8; N]) -> f64) -> Vec<f64> {
        bytes.chunks_exact(N).map(|chunk| chunk.try_into().map_or(0.0, read)).collect()
    }
    match dtype {
        DType::Bool | DType::U8 => bytes.iter().map(|byte| f64::from(*byte)).collect(),
        DType::I8 => each(bytes, |b| f64::from(i8::from_ne_bytes(b))),
        DType::U16 => each(bytes, |b| f64::from(u16::from_ne_bytes(b))),
        DType::I16 => each(bytes, |b| f64::from(i16::from_ne_bytes(b))),
        DType::U32 => each(bytes, |b| f64::from(u32::from_ne_bytes(b))),
        DType::I32 => each(bytes, |b| f64::from(i32::from_ne_bytes(b))),
        DType::U64 => each(bytes, |b| u64::from_ne_bytes(b) as f64),
        DType::I64 => each(bytes, |b| i64::from_ne_bytes(b) as f64),
        DType::F16 => each(bytes, |b| f16::from_ne_bytes(b).to_f64()),
        DType::BF16 => each(bytes, |b| bf16::from_ne_bytes(b).to_f64()),
        DType::F32 => each(bytes, |b| f64::from(f32::from_ne_bytes(b))),
        DType::F64 => each(bytes, f64::from_ne_bytes),
    }
}

/// The first values, and the shape where there are several.
pub(super) fn described(values: &[f64], dtype: DType, shape: &[usize]) -> String {
    let is_float = matches!(dtype, DType::F16 | DType::BF16 | DType::F32 | DType::F64);
    let one = |value: &f64| if is_float { format!("{value:.4}") } else { format!("{value}") };
    if shape.is_empty() {
        return values.first().map(one).unwrap_or_default();
    }
    let first: Vec<String> = values.iter().take(MAX_VALUES).map(one).collect();
    let more = if values.len() > MAX_VALUES { ", …" } else { "" };
    let shape: Vec<String> = shape.iter().map(ToString::to_string).collect();
    format!("{} [{}]: {}{more}", dtype.name(), shape.join(", "), first.join(", "))
}

/// A text, shortened.
pub(super) fn begin(text: &str) -> String {
    match text.char_indices().nth(MAX_CHARACTERS) {
        Some((end, _)) => format!("{} …", &text[..end]),
        None => text.to_owned(),
    }
}

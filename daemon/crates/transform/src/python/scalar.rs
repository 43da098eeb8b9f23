//! Scalars that the user's function returns: NumPy's types, or Python's own.
//!
//! A field has the type of the first samples' values. A scalar of another type is converted if that does not change
//! integers.

use forebay_dataset::Defect;
use forebay_protocol::tensor::DType;
use forebay_workers::{Arena, DeclaredKind, Number, ReplyValue};

use super::returned::{RETURNED_NONE, read_into};
use forebay_media::array::cast;

/// The Python type for a field whose values are scalars of several types in the first samples.
pub(super) fn merged(kinds: &[&DeclaredKind]) -> Option<DeclaredKind> {
    let mut is_float = false;
    for kind in kinds {
        match kind {
            DeclaredKind::Integer => {}
            DeclaredKind::Float => is_float = true,
            DeclaredKind::Array(dtype, shape) if shape.is_empty() => {
                is_float |= has_fractions(*dtype)
            }
            _ => return None,
        }
    }
    let is_one_type = kinds.windows(2).all(|pair| pair[0] == pair[1]);
    match kinds.first() {
        Some(DeclaredKind::Array(..)) if is_one_type => None,
        None => None,
        Some(_) if is_float => Some(DeclaredKind::Float),
        Some(_) => Some(DeclaredKind::Integer),
    }
}

const fn has_fractions(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::BF16 | DType::F32 | DType::F64)
}

/// The bytes of a number in a type; `None`: the type cannot represent it.
pub(super) fn to_bytes(number: Number, dtype: DType) -> Option<Vec<u8>> {
    let (source, bytes) = match number {
        Number::Integer(number) => (DType::I64, number.to_ne_bytes()),
        Number::Float(number) => (DType::F64, number.to_ne_bytes()),
    };
    let mut converted = vec![0; usize::try_from(dtype.size_bytes()).ok()?];
    cast(source, &bytes, dtype, &mut converted);
    if has_fractions(dtype) {
        return Some(converted);
    }
    let mut back = [0; 8];
    cast(dtype, &converted, source, &mut back);
    // A float is never converted to an integer.
    (source == DType::I64 && back == bytes && !is_wrapped(number, dtype)).then_some(converted)
}

/// Whether the conversion back hides that a negative number became a large one.
fn is_wrapped(number: Number, dtype: DType) -> bool {
    dtype == DType::U64 && matches!(number, Number::Integer(number) if number < 0)
}

/// A scalar in the arena.
pub(super) fn read(dtype: DType, value: &ReplyValue, arena: &Arena) -> Result<Number, Defect> {
    let mut bytes = Vec::new();
    read_into(&mut bytes, value, arena)?;
    number_of(dtype, &bytes).ok_or_else(|| Defect(RETURNED_NONE.to_owned()))
}

/// A number of a type; an integer that does not fit in 64 bits with a sign becomes a float.
fn number_of(dtype: DType, bytes: &[u8]) -> Option<Number> {
    if bytes.len() as u64 != dtype.size_bytes() {
        return None;
    }
    let mut wide = [0; 8];
    let is_beyond = dtype == DType::U64 && bytes.last().is_some_and(|byte| byte >> 7 == 1);
    if has_fractions(dtype) || (is_beyond && cfg!(target_endian = "little")) {
        cast(dtype, bytes, DType::F64, &mut wide);
        return Some(Number::Float(f64::from_ne_bytes(wide)));
    }
    cast(dtype, bytes, DType::I64, &mut wide);
    Some(Number::Integer(i64::from_ne_bytes(wide)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_is_converted_to_the_fields_type_or_refused() {
        let integer = |number, dtype| to_bytes(Number::Integer(number), dtype);
        assert_eq!(integer(255, DType::U8), Some(vec![255]));
        assert_eq!(integer(-3, DType::I16), Some((-3_i16).to_ne_bytes().to_vec()));
        assert_eq!(integer(7, DType::F32), Some(7_f32.to_ne_bytes().to_vec()));
        assert_eq!(integer(1, DType::Bool), Some(vec![1]));
        for (number, dtype) in [
            (256, DType::U8),
            (-1, DType::U8),
            (-1, DType::U64),
            (1 << 40, DType::I32),
            (2, DType::Bool),
        ] {
            assert_eq!(integer(number, dtype), None, "{number} as {}", dtype.name());
        }
        let float = |number, dtype| to_bytes(Number::Float(number), dtype);
        assert_eq!(float(0.5, DType::F32), Some(0.5_f32.to_ne_bytes().to_vec()));
        assert_eq!(float(2.0, DType::I32), None);
    }

    #[test]
    fn number_of_any_type_is_read() {
        let read = |dtype, bytes: &[u8]| number_of(dtype, bytes);
        assert_eq!(read(DType::U8, &[200]), Some(Number::Integer(200)));
        assert_eq!(read(DType::Bool, &[1]), Some(Number::Integer(1)));
        assert_eq!(read(DType::I32, &(-5_i32).to_ne_bytes()), Some(Number::Integer(-5)));
        assert_eq!(read(DType::F32, &1.5_f32.to_ne_bytes()), Some(Number::Float(1.5)));
        let beyond = read(DType::U64, &u64::MAX.to_ne_bytes());
        assert_eq!(beyond, Some(Number::Float(18_446_744_073_709_551_616.0)));
        assert_eq!(read(DType::U64, &[1]), None);
    }

    #[test]
    fn first_numbers_of_several_types_become_pythons_type() {
        let scalar = |dtype| DeclaredKind::Array(dtype, Vec::new());
        let (integer, float) = (DeclaredKind::Integer, DeclaredKind::Float);
        let (half, byte) = (scalar(DType::F16), scalar(DType::U8));
        assert_eq!(merged(&[&integer, &integer]), Some(integer.clone()));
        assert_eq!(merged(&[&integer, &half]), Some(float.clone()));
        assert_eq!(merged(&[&byte, &integer]), Some(integer.clone()));
        assert_eq!(merged(&[&float, &byte]), Some(float));
        assert_eq!(merged(&[&byte, &byte]), None);
        assert_eq!(merged(&[&byte, &DeclaredKind::Text]), None);
        assert_eq!(merged(&[&integer, &DeclaredKind::Array(DType::U8, vec![1])]), None);
    }
}

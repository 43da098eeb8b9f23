//! How the values of a column are written, and what fields they can be.

use std::borrow::Cow;

use forebay_protocol::tensor::DType;
use serde::{Deserialize, Serialize};

use super::half::f16_value;
use crate::dataset::fields::Form;
use crate::dataset::{ArrayValue, Defect};

/// Dimensions that an array may have, as NumPy's.
const MAX_DIMENSIONS: usize = 32;

/// How one column is written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::dataset) enum Encoding {
    Bytes,
    Text,
    Image,
    Json,
    /// A number of this type, by its name.
    Number(String),
    /// A whole number in digits.
    IntegerText,
    /// A number in digits.
    FloatText,
    Array(ArrayForm),
    /// What is not read, and why.
    Unread(String),
}

/// How an array is written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::dataset) enum ArrayForm {
    /// The elements alone, of a type and perhaps a shape; else of one dimension.
    Plain(String, Option<Vec<u64>>),
    /// The elements alone, of a type; rows of this shape, as many as there are.
    Rows(String, Vec<u64>),
    /// As MosaicML Streaming does: perhaps a byte of the type, a byte of the number of dimensions and of their size, the
    /// dimensions.
    Mosaic(Option<String>),
    /// As LitData does for NumPy: type, number of dimensions and dimensions, each u32.
    Lit,
    /// The same for PyTorch: numbers of other types, and the most significant byte first.
    LitTensor,
}

/// The types of numbers by the names that NumPy has for them.
const TYPES: [DType; 11] = [
    DType::U8,
    DType::I8,
    DType::U16,
    DType::I16,
    DType::U32,
    DType::I32,
    DType::U64,
    DType::I64,
    DType::F16,
    DType::F32,
    DType::F64,
];

/// A type by its name.
pub(in crate::dataset) fn dtype(name: &str) -> Option<DType> {
    TYPES.into_iter().find(|dtype| dtype.name() == name)
}

/// A type by MosaicML Streaming's number.
fn mosaic_dtype(code: u8) -> Option<DType> {
    Some(match code {
        8 => DType::U8,
        9 => DType::I8,
        16 => DType::U16,
        17 => DType::I16,
        18 => DType::F16,
        32 => DType::U32,
        33 => DType::I32,
        34 => DType::F32,
        64 => DType::U64,
        65 => DType::I64,
        66 => DType::F64,
        _ => return None,
    })
}

/// A type by LitData's number for NumPy's.
pub(in crate::dataset) fn lit_dtype(code: u32) -> Option<DType> {
    let types = [
        DType::I8,
        DType::I16,
        DType::I32,
        DType::I64,
        DType::U8,
        DType::U16,
        DType::U32,
        DType::U64,
        DType::F16,
        DType::F32,
        DType::F64,
    ];
    types.get(usize::try_from(code).ok()?).copied()
}

/// A type by LitData's number for PyTorch's.
pub(in crate::dataset) fn lit_tensor_dtype(code: u32) -> Option<DType> {
    Some(match code {
        0 | 1 => DType::F32,
        2 | 3 => DType::F64,
        8 | 9 => DType::F16,
        11 => DType::U8,
        12 => DType::I8,
        13 | 14 => DType::I16,
        15 | 16 => DType::I32,
        17 | 18 => DType::I64,
        20 => DType::U16,
        _ => return None,
    })
}

/// A number.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(in crate::dataset) enum Number {
    Integer(i64),
    Float(f64),
}

impl Encoding {
    /// What a value is read as where the configuration does not say it.
    pub(super) fn usual_form(&self) -> Option<Form> {
        Some(match self {
            Self::Bytes => Form::Bytes,
            Self::Text | Self::Json => Form::Text,
            Self::Image => Form::Image,
            Self::Number(name) if name.starts_with("float") => Form::Float,
            Self::Number(_) | Self::IntegerText => Form::Integer,
            Self::FloatText => Form::Float,
            Self::Array(_) => Form::Array,
            Self::Unread(_) => return None,
        })
    }

    /// Whether a value can be read as that.
    pub(super) fn can_be(&self, form: Form, has_key: bool) -> bool {
        match self {
            Self::Unread(_) => false,
            Self::Json | Self::Text | Self::Bytes if has_key => !form.is_of_bytes(),
            _ if has_key => false,
            Self::Bytes => true,
            Self::Text | Self::IntegerText | Self::FloatText => !form.is_of_bytes(),
            Self::Image => matches!(form, Form::Image | Form::Bytes),
            Self::Json => matches!(form, Form::Text | Form::Bytes),
            Self::Number(name) => {
                form == Form::Float || (form == Form::Integer && !name.starts_with("float"))
            }
            Self::Array(_) => form == Form::Array,
        }
    }

    /// The number that bytes of a type are.
    pub(super) fn number(name: &str, bytes: &[u8]) -> Result<Number, String> {
        let dtype = dtype(name).ok_or("is of a type that is not read")?;
        if bytes.len() as u64 != dtype.size_bytes() {
            return Err(format!(
                "has {} bytes, and a {name} has {}",
                bytes.len(),
                dtype.size_bytes()
            ));
        }
        let mut wide = [0; 8];
        wide[..bytes.len()].copy_from_slice(bytes);
        let unsigned = u64::from_le_bytes(wide);
        let unused = 64 - 8 * bytes.len();
        Ok(match dtype {
            DType::F64 => Number::Float(f64::from_le_bytes(wide)),
            DType::F32 => {
                Number::Float(f64::from(f32::from_le_bytes([wide[0], wide[1], wide[2], wide[3]])))
            }
            DType::F16 => Number::Float(f16_value(u16::from_le_bytes([wide[0], wide[1]]))),
            DType::I8 | DType::I16 | DType::I32 | DType::I64 => {
                Number::Integer((unsigned << unused).cast_signed() >> unused)
            }
            _ => Number::Integer(
                i64::try_from(unsigned).map_err(|_| "is larger than an int64 can be")?,
            ),
        })
    }

    /// One of each, for fuzzers.
    pub(super) fn for_fuzzing() -> Vec<Self> {
        let mut all = vec![
            Self::Bytes,
            Self::Text,
            Self::Image,
            Self::Json,
            Self::IntegerText,
            Self::FloatText,
        ];
        all.extend(TYPES.map(|dtype| Self::Number(dtype.name().to_owned())));
        let arrays = [
            ArrayForm::Plain("int16".to_owned(), Some(vec![2, 2])),
            ArrayForm::Plain("float32".to_owned(), None),
            ArrayForm::Rows("uint8".to_owned(), vec![3]),
            ArrayForm::Mosaic(None),
            ArrayForm::Mosaic(Some("uint8".to_owned())),
            ArrayForm::Lit,
            ArrayForm::LitTensor,
        ];
        all.extend(arrays.map(Self::Array));
        all
    }
}

impl ArrayForm {
    /// The array that bytes are.
    ///
    /// # Errors
    /// A header that is cut off or of a type that is not read, or other bytes than its shape has.
    pub(super) fn read<'a>(&self, bytes: &'a [u8]) -> Result<ArrayValue<'a>, Defect> {
        let mut rest = bytes;
        let (dtype, shape) = match self {
            Self::Plain(name, shape) => {
                let dtype = named(name)?;
                let flat = || vec![bytes.len() as u64 / dtype.size_bytes()];
                (dtype, shape.clone().unwrap_or_else(flat))
            }
            Self::Rows(name, row) => {
                let dtype = named(name)?;
                let of_row = row
                    .iter()
                    .try_fold(dtype.size_bytes(), |all, dimension| all.checked_mul(*dimension));
                let rows = of_row.and_then(|of_row| (bytes.len() as u64).checked_div(of_row));
                (dtype, [&[rows.unwrap_or(0)], row.as_slice()].concat())
            }
            Self::Mosaic(name) => {
                let dtype = match name {
                    Some(name) => named(name)?,
                    None => {
                        let code = take::<1>(&mut rest)?[0];
                        mosaic_dtype(code).ok_or_else(|| unknown(u64::from(code)))?
                    }
                };
                let form = take::<1>(&mut rest)?[0];
                let shape = (0..form >> 2).map(|_| {
                    Ok(match form & 3 {
                        0 => u64::from(take::<1>(&mut rest)?[0]),
                        1 => u64::from(u16::from_le_bytes(take(&mut rest)?)),
                        2 => u64::from(u32::from_le_bytes(take(&mut rest)?)),
                        _ => u64::from_le_bytes(take(&mut rest)?),
                    })
                });
                (dtype, shape.collect::<Result<Vec<_>, Defect>>()?)
            }
            Self::Lit => {
                let code = u32::from_le_bytes(take(&mut rest)?);
                let dtype = lit_dtype(code).ok_or_else(|| unknown(u64::from(code)))?;
                (dtype, dimensions(&mut rest, u32::from_le_bytes)?)
            }
            Self::LitTensor => {
                let code = u32::from_be_bytes(take(&mut rest)?);
                let dtype = lit_tensor_dtype(code).ok_or_else(|| unknown(u64::from(code)))?;
                (dtype, dimensions(&mut rest, u32::from_be_bytes)?)
            }
        };
        let elements = shape.iter().try_fold(1_u64, |all, dimension| all.checked_mul(*dimension));
        let expected = elements.and_then(|all| all.checked_mul(dtype.size_bytes()));
        if expected != Some(rest.len() as u64) || shape.len() > MAX_DIMENSIONS {
            return Err(Defect(format!(
                "an array of the shape {shape:?} of {} is to have other than {} bytes",
                dtype.name(),
                rest.len()
            )));
        }
        Ok(ArrayValue {
            dtype,
            shape: Cow::Owned(shape),
            fortran_order: false,
            big_endian: false,
            bytes: Cow::Borrowed(rest),
        })
    }
}

fn named(name: &str) -> Result<DType, Defect> {
    dtype(name).ok_or_else(|| Defect(format!("an array of {name} is not read")))
}

fn unknown(code: u64) -> Defect {
    Defect(format!("an array's type has the number {code}, which is not read"))
}

fn take<const N: usize>(rest: &mut &[u8]) -> Result<[u8; N], Defect> {
    let (taken, behind) = rest
        .split_first_chunk()
        .ok_or_else(|| Defect("an array's header is cut off".to_owned()))?;
    *rest = behind;
    Ok(*taken)
}

/// The number of dimensions and the dimensions.
fn dimensions(rest: &mut &[u8], number: fn([u8; 4]) -> u32) -> Result<Vec<u64>, Defect> {
    let count = number(take(rest)?);
    if usize::try_from(count).map_or(true, |count| count > MAX_DIMENSIONS) {
        return Err(Defect(format!(
            "an array has {count} dimensions, and at most {MAX_DIMENSIONS} are read"
        )));
    }
    (0..count).map(|_| Ok(u64::from(number(take(rest)?)))).collect()
}

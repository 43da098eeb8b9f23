//! The encodings of a column's values.

use forebay_protocol::tensor::DType;
use serde::{Deserialize, Serialize};

use forebay_dataset::{ArrayValue, Defect};
use half::f16;

/// The maximum number of dimensions of an array, as in NumPy.
const MAX_DIMENSIONS: usize = 32;

/// The encoding of a column.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Encoding {
    /// Any bytes.
    Bytes,
    /// UTF-8.
    Text,
    /// A file of a picture.
    Image,
    /// A list of pictures' files.
    Images,
    /// A list of bytes, which may be pictures' files.
    ByteLists,
    /// JSON as text.
    Json,
    /// JSON, or LitData's binary form of it.
    Nested,
    /// A number; the name of its type.
    Number(String),
    /// An integer in decimal digits.
    IntegerText,
    /// A float in decimal digits.
    FloatText,
    /// An array.
    Array(ArrayForm),
    /// An unsupported encoding, and the reason.
    Unread(String),
}

/// The encoding of an array.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ArrayForm {
    /// Only the elements, with their type and optionally the shape; without a shape, the array has one dimension.
    Plain(String, Option<Vec<u64>>),
    /// Only the elements, with their type; any number of rows of this shape.
    Rows(String, Vec<u64>),
    /// As MosaicML Streaming writes it: the type's byte unless the type is fixed, a byte for the number of dimensions
    /// and their size, then the dimensions.
    Mosaic(Option<String>),
    /// As LitData writes NumPy arrays: type, number of dimensions and dimensions, each u32.
    Lit,
    /// As LitData writes PyTorch tensors: the same with other type numbers, and big-endian.
    LitTensor,
}

/// The number types, which have NumPy's names.
const TYPES: [DType; 12] = [
    DType::Bool,
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

/// Finds a type by its name.
pub fn dtype(name: &str) -> Option<DType> {
    TYPES.into_iter().find(|dtype| dtype.name() == name)
}

/// Finds a type by MosaicML Streaming's number.
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

/// Finds a type by LitData's number for NumPy types.
pub fn lit_dtype(code: u32) -> Option<DType> {
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

/// Finds a type by LitData's number for PyTorch types.
pub fn lit_tensor_dtype(code: u32) -> Option<DType> {
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

/// The value of a number.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Number {
    /// Any integer type, and booleans as 0 and 1.
    Integer(i64),
    /// Any float type.
    Float(f64),
}

/// # Errors
/// The bytes are not exactly one element.
pub fn check_length(dtype: DType, bytes: &[u8]) -> Result<(), String> {
    let (name, size) = (dtype.name(), dtype.size_bytes());
    match bytes.len() as u64 == size {
        true => Ok(()),
        false => Err(format!("has {} bytes, and a {name} has {size}", bytes.len())),
    }
}

impl Encoding {
    /// Its values in a message, as in "the column has texts".
    #[must_use]
    pub fn words(&self) -> String {
        match self {
            Self::Bytes => "bytes".to_owned(),
            Self::Text => "texts".to_owned(),
            Self::Image => "pictures".to_owned(),
            Self::Images => "lists of pictures".to_owned(),
            Self::ByteLists => "lists of bytes".to_owned(),
            Self::Json | Self::Nested => "JSON".to_owned(),
            Self::Number(name) => format!("numbers ({name})"),
            Self::IntegerText | Self::FloatText => "numbers as text".to_owned(),
            Self::Array(ArrayForm::Plain(name, Some(shape))) => {
                format!("arrays of {name} of the shape {shape:?}")
            }
            Self::Array(ArrayForm::Plain(name, None)) => format!("lists of {name}"),
            Self::Array(ArrayForm::Rows(name, row)) => {
                format!("arrays of {name} with rows of the shape {row:?}")
            }
            Self::Array(_) => "arrays".to_owned(),
            Self::Unread(reason) => format!("values that are not read ({reason})"),
        }
    }

    /// Whether it is a list of bytes, each of which is located by itself.
    pub const fn is_of_byte_lists(&self) -> bool {
        matches!(self, Self::Images | Self::ByteLists)
    }

    /// The name of the type of an array's elements.
    pub fn element(&self) -> Option<&str> {
        match self {
            Self::Array(ArrayForm::Plain(name, _) | ArrayForm::Rows(name, _)) => Some(name),
            _ => None,
        }
    }

    /// Reads a number of the named type.
    pub fn number(name: &str, bytes: &[u8]) -> Result<Number, String> {
        let dtype = dtype(name).ok_or("is of a type that is not read")?;
        check_length(dtype, bytes)?;
        let mut wide = [0; 8];
        wide[..bytes.len()].copy_from_slice(bytes);
        let unsigned = u64::from_le_bytes(wide);
        let unused = 64 - 8 * bytes.len();
        Ok(match dtype {
            DType::F64 => Number::Float(f64::from_le_bytes(wide)),
            DType::F32 => {
                Number::Float(f64::from(f32::from_le_bytes([wide[0], wide[1], wide[2], wide[3]])))
            }
            DType::F16 => Number::Float(f64::from(f16::from_le_bytes([wide[0], wide[1]]))),
            DType::I8 | DType::I16 | DType::I32 | DType::I64 => {
                Number::Integer((unsigned << unused).cast_signed() >> unused)
            }
            _ => Number::Integer(
                i64::try_from(unsigned).map_err(|_| "is larger than an int64 can be")?,
            ),
        })
    }

    /// One encoding of each kind, for fuzzers.
    pub fn for_fuzzing() -> Vec<Self> {
        let mut all = vec![
            Self::Bytes,
            Self::Text,
            Self::Image,
            Self::Images,
            Self::ByteLists,
            Self::Json,
            Self::Nested,
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
    /// Reads an array.
    ///
    /// # Errors
    /// The header is cut off or has an unsupported type, or the length does not match the shape.
    pub fn read<'a>(&self, bytes: &'a [u8]) -> Result<ArrayValue<'a>, Defect> {
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
        Ok(ArrayValue::new(dtype, shape, rest))
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

/// Reads the number of dimensions and the dimensions.
fn dimensions(rest: &mut &[u8], number: fn([u8; 4]) -> u32) -> Result<Vec<u64>, Defect> {
    let count = number(take(rest)?);
    if usize::try_from(count).map_or(true, |count| count > MAX_DIMENSIONS) {
        return Err(Defect(format!(
            "an array has {count} dimensions, and at most {MAX_DIMENSIONS} are read"
        )));
    }
    (0..count).map(|_| Ok(u64::from(number(take(rest)?)))).collect()
}

//! The header of a `.npy` file: type, shape, order, and the start of the elements.
//!
//! npyz parses the header's Python literal and the type strings. Checks before it refuse hostile input (deep nesting,
//! products above 64 bits, gigabytes of header). Elements are not read. The format:
//! <https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html>.

mod spelling;

use std::borrow::Cow;

use forebay_protocol::tensor::{DType, MAX_RANK};
use npyz::{DType as NumpyType, Endianness, NpyHeader, Order, TypeChar};

use crate::{ArrayValue, Defect, DirectRead};

/// The only field of a dataset of `.npy` files.
pub const ARRAY: &str = "array";
/// The maximum length of the header text; NumPy has the same limit (`max_header_size` of `numpy.load`).
const MAX_TEXT_BYTES: usize = 10_000;
/// The maximum length of the header: magic, version and the text's length precede the text.
pub const MAX_HEADER_BYTES: usize = 12 + MAX_TEXT_BYTES;
/// The maximum number of elements, and of the product of all numbers in a header: more than any file has, and far from
/// an overflow.
const MAX_ELEMENTS: u64 = 1 << 56;

/// The contents of a header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArrayHeader {
    /// The elements' type.
    pub dtype: DType,
    /// The lengths of the axes.
    pub shape: Vec<u64>,
    /// Whether the first axis varies fastest.
    pub fortran_order: bool,
    /// Whether the most significant byte of an element is first.
    pub big_endian: bool,
    /// The offset of the elements in the file.
    pub data_start: usize,
    /// The size of the elements, in bytes.
    pub data_bytes: u64,
}

/// A library's message without line breaks: some messages point at a position on a separate line.
fn on_one_line(reason: &dyn std::fmt::Display) -> String {
    reason.to_string().split_whitespace().collect::<Vec<_>>().join(" ")
}

fn defect(message: impl Into<String>) -> Defect {
    Defect(message.into())
}

/// The number of bytes before the first element, from at least the first 12 bytes of the file.
///
/// # Errors
/// Not a `.npy` file, an unsupported version, or a header longer than NumPy accepts.
pub fn header_bytes(start: &[u8]) -> Result<usize, Defect> {
    if start.is_empty() {
        return Err(defect("the file is empty"));
    }
    let magic = b"\x93NUMPY";
    if start.len() < magic.len() || start[..magic.len()] != *magic {
        return Err(defect("not a .npy file: it does not begin with \\x93NUMPY"));
    }
    let cut = || defect(format!("cut short: {} bytes end within the .npy header", start.len()));
    let (before, length) = match (start.get(6), start.get(7)) {
        (Some(1), Some(0)) => {
            let length = start.get(8..10).ok_or_else(cut)?;
            (10, usize::from(u16::from_le_bytes([length[0], length[1]])))
        }
        (Some(2 | 3), Some(0)) => {
            let length =
                start.get(8..12).and_then(|bytes| bytes.first_chunk::<4>()).ok_or_else(cut)?;
            (12, u32::from_le_bytes(*length) as usize)
        }
        (Some(major), Some(minor)) => {
            return Err(defect(format!(
                "version {major}.{minor} of .npy is unknown; 1.0 to 3.0 are read"
            )));
        }
        _ => return Err(cut()),
    };
    if length > MAX_TEXT_BYTES {
        return Err(defect(format!(
            "the .npy header claims {length} bytes, and NumPy takes at most {MAX_TEXT_BYTES}"
        )));
    }
    Ok(before + length)
}

impl ArrayHeader {
    /// Parses the header at the start of `bytes`, which may continue after the header.
    ///
    /// # Errors
    /// A header that NumPy would refuse, or a type that is not numeric.
    pub fn parse(bytes: &[u8]) -> Result<Self, Defect> {
        let data_start = header_bytes(bytes)?;
        let header = bytes.get(..data_start).ok_or_else(|| {
            defect(format!(
                "cut short: the .npy header ends at {data_start} of {} bytes",
                bytes.len()
            ))
        })?;
        refuse_traps(header)?;
        let before = if header[6] == 1 { 10 } else { 12 };
        let header = spelling::for_npyz(header, before);
        let parsed = NpyHeader::from_reader(&*header).map_err(|error| {
            defect(format!("the .npy header cannot be read: {}", on_one_line(&error)))
        })?;
        let (dtype, big_endian) = element_type(&parsed.dtype())?;
        let shape = parsed.shape().to_vec();
        if shape.len() >= MAX_RANK {
            return Err(defect(format!(
                "the array has {} dimensions, and a sample may have {}",
                shape.len(),
                MAX_RANK - 1
            )));
        }
        let overflow = || defect(format!("the shape {shape:?} overflows"));
        let elements = shape
            .iter()
            .try_fold(1_u64, |product, dim| product.checked_mul(*dim))
            .filter(|elements| *elements <= MAX_ELEMENTS)
            .ok_or_else(overflow)?;
        let data_bytes = elements * dtype.size_bytes();
        let fortran_order = parsed.order() == Order::Fortran;
        Ok(Self { dtype, shape, fortran_order, big_endian, data_start, data_bytes })
    }

    /// Compares the size of the payload with the header.
    ///
    /// # Errors
    /// `file_bytes` is not the size of the header and the elements together.
    pub fn check_length(&self, file_bytes: u64) -> Result<(), Defect> {
        let payload = file_bytes.saturating_sub(self.data_start as u64);
        let Self { dtype, shape, data_bytes, .. } = self;
        let described = || format!("{} {shape:?} takes {data_bytes} bytes", dtype.name());
        match payload.cmp(data_bytes) {
            std::cmp::Ordering::Equal => Ok(()),
            std::cmp::Ordering::Less => {
                Err(defect(format!("cut short: {} and {payload} follow the header", described())))
            }
            std::cmp::Ordering::Greater => {
                // NumPy's `load` reads the first array and leaves the rest unread.
                Err(defect(format!(
                    "too long: {} and {payload} follow the header; if another array was saved into the same file, \
                     save each in its own file, or all of them with numpy.savez",
                    described()
                )))
            }
        }
    }

    /// An array with these elements: all of them, or a part with another shape.
    pub fn array<'a>(
        &self,
        shape: impl Into<Cow<'a, [u64]>>,
        elements: impl Into<Cow<'a, [u8]>>,
    ) -> ArrayValue<'a> {
        ArrayValue {
            dtype: self.dtype,
            shape: shape.into(),
            fortran_order: self.fortran_order,
            big_endian: self.big_endian,
            bytes: elements.into(),
        }
    }
}

/// Parses a whole `.npy` file in memory to an array that borrows its elements.
///
/// # Errors
/// The header is defective, or the size of the file does not match it.
pub fn read_array(bytes: &[u8]) -> Result<ArrayValue<'_>, Defect> {
    let header = ArrayHeader::parse(bytes)?;
    header.check_length(bytes.len() as u64)?;
    let elements = &bytes[header.data_start..];
    Ok(header.array(header.shape.clone(), elements))
}

impl ArrayHeader {
    /// How the elements are read directly into a row; `before` are the bytes from the sample's start to the elements.
    pub fn direct_read(&self, before: &[u8], elements_bytes: u64) -> Option<DirectRead> {
        // With at most one axis longer than 1, both orders are the same.
        let is_c_order =
            !self.fortran_order || self.shape.iter().filter(|side| **side > 1).count() <= 1;
        let is_native =
            self.dtype.size_bytes() == 1 || self.big_endian == cfg!(target_endian = "big");
        (is_c_order && is_native).then(|| DirectRead {
            field: 0,
            before: before.to_vec(),
            elements_bytes,
        })
    }
}

/// Refuses header texts that would cause deep recursion or an overflow in the parser. An accepted text has at most one
/// `(`, one `{`, no `[`, and decimal numbers with a product below [`MAX_ELEMENTS`].
fn refuse_traps(header: &[u8]) -> Result<(), Defect> {
    let text = header.get(10..).unwrap_or_default();
    let mut quote = None;
    let mut product = 1_u64;
    let mut nested = 0_u32;
    let mut bytes = text.iter().copied().peekable();
    while let Some(byte) = bytes.next() {
        match (quote, byte) {
            (Some(mark), byte) if byte == mark => quote = None,
            (Some(_), b'0'..=b'9') => {
                // An item size, as in '<f8'.
                let mut digits = 1;
                while bytes.next_if(u8::is_ascii_digit).is_some() {
                    digits += 1;
                }
                if digits > 6 {
                    return Err(defect("the .npy header names a type of an absurd size"));
                }
            }
            (Some(_), _) => {}
            (None, b'\'' | b'"') => quote = Some(byte),
            (None, b'[') => {
                return Err(defect(
                    "structured arrays are not supported; save each field as an array of numbers",
                ));
            }
            (None, b'(' | b'{') => {
                nested += 1;
                if nested > 2 {
                    return Err(defect("the .npy header is nested more than a header is"));
                }
            }
            (None, b'0'..=b'9') => {
                let mut number = u64::from(byte - b'0');
                while let Some(digit) =
                    bytes.next_if(|byte| byte.is_ascii_alphanumeric() || *byte == b'_')
                {
                    // A long integer of Python 2, as in `(2L, 3L)`.
                    if digit == b'L' && !bytes.peek().is_some_and(u8::is_ascii_alphanumeric) {
                        break;
                    }
                    if !digit.is_ascii_digit() {
                        return Err(defect("the .npy header holds a number that is not decimal"));
                    }
                    number = number.saturating_mul(10).saturating_add(u64::from(digit - b'0'));
                }
                product = product.saturating_mul(number.max(1));
            }
            (None, _) => {}
        }
    }
    if product > MAX_ELEMENTS {
        return Err(defect("the shape in the .npy header overflows"));
    }
    Ok(())
}

/// The type of the elements, and whether they are big-endian.
fn element_type(numpy: &NumpyType) -> Result<(DType, bool), Defect> {
    let refuse = || {
        defect(format!(
            "elements of type {} are not supported; numbers and bool are (8 to 64 bits, float16 to float64)",
            numpy.descr()
        ))
    };
    let NumpyType::Plain(plain) = numpy else {
        return Err(refuse());
    };
    let dtype = match (plain.type_char(), plain.size_field()) {
        (TypeChar::Bool, 1) => DType::Bool,
        (TypeChar::Int, 1) => DType::I8,
        (TypeChar::Int, 2) => DType::I16,
        (TypeChar::Int, 4) => DType::I32,
        (TypeChar::Int, 8) => DType::I64,
        (TypeChar::Uint, 1) => DType::U8,
        (TypeChar::Uint, 2) => DType::U16,
        (TypeChar::Uint, 4) => DType::U32,
        (TypeChar::Uint, 8) => DType::U64,
        (TypeChar::Float, 2) => DType::F16,
        (TypeChar::Float, 4) => DType::F32,
        (TypeChar::Float, 8) => DType::F64,
        _ => return Err(refuse()),
    };
    Ok((dtype, plain.endianness() == Endianness::Big && dtype.size_bytes() > 1))
}

#[cfg(test)]
mod tests;

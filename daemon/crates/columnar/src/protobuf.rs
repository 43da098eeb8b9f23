//! The fields of protocol buffers' messages, without a schema.

use forebay_storage::varint;

/// The wire type of numbers of any length.
pub const VARINT: u8 = 0;
/// The wire type of numbers of 8 bytes.
pub const FIXED64: u8 = 1;
/// The wire type of bytes, texts, messages, and packed lists.
pub const BYTES: u8 = 2;
/// The wire type of numbers of 4 bytes.
pub const FIXED32: u8 = 5;

/// Why bytes are not a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// It ends within a field, or a number is too long.
    CutOff,
    /// A field has a wire type that does not exist.
    UnknownType,
}

/// A field of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part<'a> {
    /// Its number.
    pub number: u64,
    /// Its wire type.
    pub form: u8,
    /// Its value; for a varint, its encoded bytes.
    pub bytes: &'a [u8],
}

impl<'a> Part<'a> {
    /// Takes the first field off a message.
    ///
    /// # Errors
    /// The message is damaged.
    pub fn take(rest: &mut &'a [u8]) -> Result<Self, Fault> {
        let tag = varint(rest)?;
        let (number, form) = (tag >> 3, u8::try_from(tag & 7).unwrap_or(7));
        let bytes = match form {
            VARINT => {
                let before = *rest;
                varint(rest)?;
                &before[..before.len() - rest.len()]
            }
            FIXED64 => take(rest, 8)?,
            BYTES => {
                let length = varint(rest)?;
                take(rest, length)?
            }
            FIXED32 => take(rest, 4)?,
            _ => return Err(Fault::UnknownType),
        };
        Ok(Self { number, form, bytes })
    }

    /// The number, of a varint.
    #[must_use]
    pub fn integer(self) -> Option<u64> {
        let mut bytes = self.bytes;
        varint::take(&mut bytes).filter(|_| self.form == VARINT)
    }

    /// The bytes, of a text, a message, or a packed list.
    #[must_use]
    pub fn content(self) -> Option<&'a [u8]> {
        (self.form == BYTES).then_some(self.bytes)
    }
}

fn varint(rest: &mut &[u8]) -> Result<u64, Fault> {
    varint::take(rest).ok_or(Fault::CutOff)
}

fn take<'a>(rest: &mut &'a [u8], length: u64) -> Result<&'a [u8], Fault> {
    let length = usize::try_from(length).map_err(|_| Fault::CutOff)?;
    let (taken, after) = rest.split_at_checked(length).ok_or(Fault::CutOff)?;
    *rest = after;
    Ok(taken)
}

/// The fields of a message; an error ends them.
pub fn parts(mut rest: &[u8]) -> impl Iterator<Item = Result<Part<'_>, Fault>> {
    std::iter::from_fn(move || {
        let part = (!rest.is_empty()).then(|| Part::take(&mut rest))?;
        if part.is_err() {
            rest = &[];
        }
        Some(part)
    })
}

/// Appends the numbers of a repeated field: of one entry, or a packed list.
///
/// # Errors
/// The list is damaged.
pub fn append_integers(part: Part<'_>, numbers: &mut Vec<u64>) -> Result<(), Fault> {
    if let Some(number) = part.integer() {
        numbers.push(number);
        return Ok(());
    }
    let mut rest = part.content().ok_or(Fault::CutOff)?;
    while !rest.is_empty() {
        numbers.push(varint(&mut rest)?);
    }
    Ok(())
}

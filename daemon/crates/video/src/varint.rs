//! Numbers of variable length: seven bits a byte, the least significant first; signed numbers alternate in sign, so that
//! small ones are short.

use crate::error::{Result, refuse};

/// Appends a number.
pub(crate) fn put(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number.to_le_bytes()[0] | 0x80);
        number >>= 7;
    }
    out.push(number.to_le_bytes()[0]);
}

/// Appends a signed number.
pub(crate) fn put_signed(out: &mut Vec<u8>, number: i64) {
    put(out, (number << 1 ^ number >> 63).cast_unsigned());
}

/// Appends bytes after their number.
pub(crate) fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Reads numbers from bytes that anyone may have written.
#[derive(Debug, Clone)]
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(crate) const fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// What is left.
    pub(crate) const fn rest(&self) -> &'a [u8] {
        self.rest
    }

    pub(crate) fn byte(&mut self) -> Result<u8> {
        match self.rest.split_first() {
            Some((byte, rest)) => {
                self.rest = rest;
                Ok(*byte)
            }
            None => refuse!("it ends in the middle of a number"),
        }
    }

    pub(crate) fn number(&mut self) -> Result<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let part = u64::from(byte & 0x7f);
            if shift == 63 && part > 1 {
                break;
            }
            number |= part << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        refuse!("it has a number of more than 64 bits")
    }

    pub(crate) fn signed(&mut self) -> Result<i64> {
        let number = self.number()?;
        Ok((number >> 1).cast_signed() ^ -(number & 1).cast_signed())
    }

    /// A number that is at most `limit`. `what`: what it counts, for the message.
    pub(crate) fn up_to(&mut self, limit: u32, what: &str) -> Result<u32> {
        let number = self.number()?;
        match u32::try_from(number) {
            Ok(number) if number <= limit => Ok(number),
            _ => refuse!("{number} {what} exceed the limit of {limit}"),
        }
    }

    pub(crate) fn bytes(&mut self, length: usize) -> Result<&'a [u8]> {
        match self.rest.split_at_checked(length) {
            Some((bytes, rest)) => {
                self.rest = rest;
                Ok(bytes)
            }
            None => refuse!("{length} bytes are announced, and {} are left", self.rest.len()),
        }
    }

    /// Bytes after their number, of which there are at most `limit`.
    pub(crate) fn counted_bytes(&mut self, limit: u32, what: &str) -> Result<&'a [u8]> {
        let length = self.up_to(limit, what)?;
        self.bytes(length as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extreme_numbers_survive() {
        for number in [0, 1, 127, 128, 1 << 32, u64::MAX] {
            let mut bytes = Vec::new();
            put(&mut bytes, number);
            let mut reader = Reader::new(&bytes);
            assert_eq!((reader.number(), reader.rest().len()), (Ok(number), 0));
        }
        for number in [0, -1, 1, 63, -64, -65, i64::MIN, i64::MAX] {
            let mut bytes = Vec::new();
            put_signed(&mut bytes, number);
            assert_eq!(Reader::new(&bytes).signed(), Ok(number));
            assert!(Reader::new(&bytes[..bytes.len() - 1]).signed().is_err());
        }
        assert!(Reader::new(&[0xff; 11]).number().is_err(), "77 bits");
        assert!(
            Reader::new(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2])
                .number()
                .is_err()
        );
    }
}

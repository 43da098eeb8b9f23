//! The part of Thrift's compact protocol that Parquet's footer and page headers need, read in place.

/// The bytes are malformed or truncated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Broken;

/// The maximum nesting of skipped structs.
const MAX_DEPTH: usize = 32;

/// Types of values.
pub(super) const TRUE: u8 = 1;
const FALSE: u8 = 2;
const BYTE: u8 = 3;
const DOUBLE: u8 = 7;
const BINARY: u8 = 8;
const LIST: u8 = 9;
const SET: u8 = 10;
const MAP: u8 = 11;
pub(super) const STRUCT: u8 = 12;

/// The remaining bytes.
#[derive(Debug, Clone)]
pub(super) struct Reader<'a> {
    pub(super) rest: &'a [u8],
}

impl<'a> Reader<'a> {
    fn byte(&mut self) -> Result<u8, Broken> {
        let (byte, rest) = self.rest.split_first().ok_or(Broken)?;
        self.rest = rest;
        Ok(*byte)
    }

    fn unsigned(&mut self) -> Result<u64, Broken> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(Broken)
    }

    /// An integer of any width.
    pub(super) fn integer(&mut self) -> Result<i64, Broken> {
        let number = self.unsigned()?;
        Ok((number >> 1).cast_signed() ^ -(number & 1).cast_signed())
    }

    pub(super) fn bytes(&mut self) -> Result<&'a [u8], Broken> {
        let length = usize::try_from(self.unsigned()?).map_err(|_| Broken)?;
        let (bytes, rest) = self.rest.split_at_checked(length).ok_or(Broken)?;
        self.rest = rest;
        Ok(bytes)
    }

    pub(super) fn text(&mut self) -> Result<&'a str, Broken> {
        std::str::from_utf8(self.bytes()?).map_err(|_| Broken)
    }

    /// Calls `visit` with each field's number and type. It reads the value and returns true, or returns false to skip
    /// it.
    pub(super) fn fields(
        &mut self,
        mut visit: impl FnMut(i64, u8, &mut Self) -> Result<bool, Broken>,
    ) -> Result<(), Broken> {
        let mut number = 0_i64;
        loop {
            let head = self.byte()?;
            if head == 0 {
                return Ok(());
            }
            number = match head >> 4 {
                0 => self.integer()?,
                more => number.checked_add(i64::from(more)).ok_or(Broken)?,
            };
            let kind = head & 0xf;
            if !visit(number, kind, self)? {
                self.skip(kind, 0)?;
            }
        }
    }

    /// The element type of a list, and the number of elements, each of at least one byte.
    fn list(&mut self) -> Result<(u8, usize), Broken> {
        let head = self.byte()?;
        let count = match head >> 4 {
            15 => self.unsigned()?,
            count => u64::from(count),
        };
        let count = usize::try_from(count).map_err(|_| Broken)?;
        if count > self.rest.len() { Err(Broken) } else { Ok((head & 0xf, count)) }
    }

    /// The number of elements of the next list, which is not consumed.
    pub(super) fn count(&self) -> Result<usize, Broken> {
        Ok(self.clone().list()?.1)
    }

    /// The elements of a list.
    pub(super) fn elements<T>(
        &mut self,
        mut read: impl FnMut(&mut Self) -> Result<T, Broken>,
    ) -> Result<Vec<T>, Broken> {
        let (_, count) = self.list()?;
        let mut all = Vec::new();
        for _ in 0..count {
            all.push(read(self)?);
        }
        Ok(all)
    }

    fn skip(&mut self, kind: u8, depth: usize) -> Result<(), Broken> {
        if depth == MAX_DEPTH {
            return Err(Broken);
        }
        match kind {
            TRUE | FALSE => Ok(()),
            BYTE => self.byte().map(drop),
            4..=6 => self.unsigned().map(drop),
            DOUBLE => {
                self.rest = self.rest.get(8..).ok_or(Broken)?;
                Ok(())
            }
            BINARY => self.bytes().map(drop),
            LIST | SET => {
                let (kind, count) = self.list()?;
                (0..count).try_for_each(|_| self.skip_element(kind, depth))
            }
            MAP => {
                let count = self.unsigned()?;
                let kinds = if count > 0 { self.byte()? } else { 0 };
                if count > self.rest.len() as u64 {
                    return Err(Broken);
                }
                (0..count).try_for_each(|_| {
                    self.skip_element(kinds >> 4, depth)?;
                    self.skip_element(kinds & 0xf, depth)
                })
            }
            STRUCT => loop {
                let head = self.byte()?;
                if head == 0 {
                    return Ok(());
                }
                if head >> 4 == 0 {
                    self.integer()?;
                }
                self.skip(head & 0xf, depth + 1)?;
            },
            _ => Err(Broken),
        }
    }

    /// In a list, a boolean is one byte.
    fn skip_element(&mut self, kind: u8, depth: usize) -> Result<(), Broken> {
        let kind = if kind == TRUE || kind == FALSE { BYTE } else { kind };
        self.skip(kind, depth + 1)
    }
}

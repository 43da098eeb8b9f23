//! The first directory of a TIFF file, or of an EXIF block, which has the same structure.
//!
//! Reads TIFF 6.0's bytes, shorts and longs. Nothing is allocated: values are read in place.

/// A directory and its file.
#[derive(Debug, Clone, Copy)]
pub(in crate::decode) struct Directory<'f> {
    file: &'f [u8],
    big_endian: bool,
    /// Twelve bytes per entry.
    entries: &'f [u8],
}

/// The values of one tag.
#[derive(Debug, Clone, Copy)]
pub(in crate::decode) struct Values<'f> {
    bytes: &'f [u8],
    element_bytes: usize,
    big_endian: bool,
}

impl<'f> Directory<'f> {
    /// The first directory; if it is truncated, its complete entries.
    pub(in crate::decode) fn open(file: &'f [u8]) -> Option<Self> {
        let big_endian = match file.get(..4)? {
            b"MM\0\x2a" => true,
            b"II\x2a\0" => false,
            _ => return None,
        };
        let number = |at: usize, bytes: usize| {
            let bytes = file.get(at..)?.get(..bytes)?;
            usize::try_from(read(bytes, big_endian)).ok()
        };
        let start = number(4, 4)?.checked_add(2)?;
        let count = number(start - 2, 2)?;
        let rest = file.get(start..)?;
        Some(Self { file, big_endian, entries: &rest[..rest.len().min(12 * count)] })
    }

    /// Whether multi-byte values begin with their highest byte.
    pub(in crate::decode) const fn is_big_endian(&self) -> bool {
        self.big_endian
    }

    /// The values of a tag; `None` if it is missing, has another type than the three, or is outside the file.
    pub(in crate::decode) fn find(&self, tag: u16) -> Option<Values<'f>> {
        let number = |bytes: &[u8]| read(bytes, self.big_endian);
        let entry = self
            .entries
            .as_chunks::<12>()
            .0
            .iter()
            .find(|entry| number(&entry[..2]) == u32::from(tag))?;
        let element_bytes = match number(&entry[2..4]) {
            1 => 1,
            3 => 2,
            4 => 4,
            _ => return None,
        };
        let bytes = usize::try_from(number(&entry[4..8])).ok()?.checked_mul(element_bytes)?;
        let bytes = if bytes <= 4 {
            &entry[8..8 + bytes]
        } else {
            let start = usize::try_from(number(&entry[8..])).ok()?;
            self.file.get(start..)?.get(..bytes)?
        };
        Some(Values { bytes, element_bytes, big_endian: self.big_endian })
    }

    /// The only value of a tag, or the first.
    pub(in crate::decode) fn value(&self, tag: u16) -> Option<u32> {
        self.find(tag)?.get(0)
    }
}

impl Values<'_> {
    /// The number of values.
    pub(in crate::decode) const fn count(&self) -> usize {
        self.bytes.len() / self.element_bytes
    }

    /// One value.
    pub(in crate::decode) fn get(&self, index: usize) -> Option<u32> {
        let start = index.checked_mul(self.element_bytes)?;
        Some(read(self.bytes.get(start..)?.get(..self.element_bytes)?, self.big_endian))
    }

    /// All values.
    pub(in crate::decode) fn iter(&self) -> impl Iterator<Item = u32> {
        self.bytes.chunks_exact(self.element_bytes).map(|bytes| read(bytes, self.big_endian))
    }
}

/// An unsigned number of one to four bytes.
fn read(bytes: &[u8], big_endian: bool) -> u32 {
    let add = |all: u32, byte: &u8| all << 8 | u32::from(*byte);
    if big_endian { bytes.iter().fold(0, add) } else { bytes.iter().rev().fold(0, add) }
}

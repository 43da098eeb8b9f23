//! The part of FlatBuffers that Arrow's messages need: tables, their fields, strings and vectors, read in place.
//!
//! The reader checks each offset when it follows it, and needs no generated code. Offsets may lead anywhere in the
//! bytes and may form cycles, so callers limit the depth and the number of tables.

/// The bytes are malformed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Broken;

type Found<T> = Result<Option<T>, Broken>;

fn at<const N: usize>(bytes: &[u8], offset: usize) -> Result<[u8; N], Broken> {
    bytes.get(offset..).and_then(<[u8]>::first_chunk).copied().ok_or(Broken)
}

/// The target of the offset at `place`.
fn follow(bytes: &[u8], place: usize) -> Result<usize, Broken> {
    let offset = u32::from_le_bytes(at(bytes, place)?);
    usize::try_from(offset).ok().and_then(|offset| place.checked_add(offset)).ok_or(Broken)
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Table<'a> {
    bytes: &'a [u8],
    start: usize,
    /// The vtable: from the fifth byte on, each field has two bytes with its offset from `start`; 0: it is absent.
    fields: &'a [u8],
}

impl<'a> Table<'a> {
    /// The root table of a buffer.
    pub(super) fn root(bytes: &'a [u8]) -> Result<Self, Broken> {
        Self::at(bytes, follow(bytes, 0)?)
    }

    fn at(bytes: &'a [u8], start: usize) -> Result<Self, Broken> {
        let back = i64::from(i32::from_le_bytes(at(bytes, start)?));
        let place = i64::try_from(start).ok().and_then(|start| start.checked_sub(back));
        let place = place.and_then(|place| usize::try_from(place).ok()).ok_or(Broken)?;
        let length = usize::from(u16::from_le_bytes(at(bytes, place)?));
        let fields = bytes.get(place..).and_then(|rest| rest.get(..length)).ok_or(Broken)?;
        Ok(Self { bytes, start, fields })
    }

    /// The position of a field.
    fn place(&self, number: usize) -> Option<usize> {
        let offset = u16::from_le_bytes(at(self.fields, 4 + 2 * number).ok()?);
        (offset > 0).then(|| self.start + usize::from(offset))
    }

    fn number<const N: usize>(&self, number: usize) -> Found<[u8; N]> {
        self.place(number).map(|place| at(self.bytes, place)).transpose()
    }

    pub(super) fn u8(&self, number: usize, default: u8) -> Result<u8, Broken> {
        Ok(self.number(number)?.map_or(default, u8::from_le_bytes))
    }

    pub(super) fn i16(&self, number: usize, default: i16) -> Result<i16, Broken> {
        Ok(self.number(number)?.map_or(default, i16::from_le_bytes))
    }

    pub(super) fn i32(&self, number: usize, default: i32) -> Result<i32, Broken> {
        Ok(self.number(number)?.map_or(default, i32::from_le_bytes))
    }

    pub(super) fn i64(&self, number: usize, default: i64) -> Result<i64, Broken> {
        Ok(self.number(number)?.map_or(default, i64::from_le_bytes))
    }

    pub(super) fn table(&self, number: usize) -> Found<Self> {
        let Some(place) = self.place(number) else { return Ok(None) };
        Self::at(self.bytes, follow(self.bytes, place)?).map(Some)
    }

    /// The position and the elements of a vector with elements of this size.
    fn elements(&self, number: usize, bytes: usize) -> Found<(usize, &'a [u8])> {
        let Some(place) = self.place(number) else { return Ok(None) };
        let start = follow(self.bytes, place)?;
        let count = usize::try_from(u32::from_le_bytes(at(self.bytes, start)?)).ok();
        let length = count.and_then(|count| count.checked_mul(bytes)).ok_or(Broken)?;
        let elements = self.bytes.get(start + 4..).and_then(|rest| rest.get(..length));
        elements.map(|elements| Some((start + 4, elements))).ok_or(Broken)
    }

    /// A vector of structs or numbers of this size; empty if it is absent.
    pub(super) fn structs(&self, number: usize, bytes: usize) -> Result<&'a [u8], Broken> {
        Ok(self.elements(number, bytes)?.map_or(&[], |(_, elements)| elements))
    }

    /// A vector of tables; empty if it is absent.
    pub(super) fn tables(
        &self,
        number: usize,
    ) -> Result<impl Iterator<Item = Result<Self, Broken>> + use<'a>, Broken> {
        let (start, elements) = self.elements(number, 4)?.unwrap_or((0, &[]));
        let bytes = self.bytes;
        let places = (0..elements.len() / 4).map(move |place| start + 4 * place);
        Ok(places.map(move |place| Self::at(bytes, follow(bytes, place)?)))
    }

    /// A string; empty if it is absent.
    pub(super) fn text(&self, number: usize) -> Result<&'a str, Broken> {
        let bytes = self.structs(number, 1)?;
        std::str::from_utf8(bytes).map_err(|_| Broken)
    }
}

//! Unpacks the values of a chunk of a page.

use super::bitpacking::{BLOCK, block_bytes, unpack};
use super::layout::Compression;
use forebay_storage::codec::Codec;

/// The maximum number of values of a chunk, or of levels.
pub(super) const MAX_VALUES: u64 = 1 << 20;
/// The maximum bytes of a chunk or a dictionary, unpacked.
const MAX_BYTES: usize = 64 << 20;

/// Unpacked values.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Values {
    bytes: Vec<u8>,
    places: Places,
    /// By value, whether a list lacks an item; empty: none does.
    lacking: Vec<bool>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Places {
    /// Bits, 8 of them in a byte, the lowest first.
    Bits,
    /// Values of this many bytes.
    Fixed(usize),
    /// The end of each value.
    Ends(Vec<usize>),
}

impl Default for Places {
    fn default() -> Self {
        Self::Fixed(0)
    }
}

/// Where chunks and dictionaries differ: the form of values of any length, and of runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    Chunk,
    /// A dictionary, or levels.
    Block,
}

/// The damage of values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Damaged;

impl Values {
    /// The value with a number; `None`: there are fewer.
    pub(super) fn get(&self, number: usize) -> Option<&[u8]> {
        match &self.places {
            Places::Bits => {
                let byte = self.bytes.get(number / 8)?;
                Some(if byte >> (number % 8) & 1 == 1 { &[1] } else { &[0] })
            }
            Places::Fixed(size) => {
                let start = number.checked_mul(*size)?;
                self.bytes.get(start..)?.get(..*size)
            }
            Places::Ends(ends) => {
                let start =
                    number.checked_sub(1).map_or(Some(0), |before| ends.get(before).copied());
                self.bytes.get(start?..*ends.get(number)?)
            }
        }
    }

    /// Whether a value is a list that lacks an item.
    pub(super) fn lacks(&self, number: usize) -> bool {
        self.lacking.get(number).copied().unwrap_or(false)
    }

    /// The value as a number of up to 8 bytes.
    pub(super) fn number(&self, number: usize) -> Option<u64> {
        let value = self.get(number)?;
        let mut wide = [0; 8];
        wide.get_mut(..value.len())?.copy_from_slice(value);
        Some(u64::from_le_bytes(wide))
    }

    /// Values one after the other.
    pub(super) fn of<'v>(
        values: impl Iterator<Item = Result<&'v [u8], Damaged>>,
    ) -> Result<Self, Damaged> {
        let (mut bytes, mut ends) = (Vec::new(), Vec::new());
        for value in values {
            bytes.extend_from_slice(value?);
            if bytes.len() > MAX_BYTES {
                return Err(Damaged);
            }
            ends.push(bytes.len());
        }
        Ok(Self { bytes, places: Places::Ends(ends), ..Self::default() })
    }

    /// The memory that it uses.
    pub(super) fn held(&self) -> u64 {
        (self.bytes.len() + self.lacking.len()) as u64
    }

    /// Unpacks values. `buffers`: those of the chunk.
    pub(super) fn unpack(
        compression: &Compression,
        buffers: &[&[u8]],
        count: u64,
        form: Form,
    ) -> Result<Self, Damaged> {
        if count > MAX_VALUES {
            return Err(Damaged);
        }
        let count = usize::try_from(count).map_err(|_| Damaged)?;
        let first = *buffers.first().ok_or(Damaged)?;
        match compression {
            Compression::Flat { bits: 1 } => {
                let bytes = first.get(..count.div_ceil(8)).ok_or(Damaged)?.to_vec();
                Ok(Self { bytes, places: Places::Bits, ..Self::default() })
            }
            Compression::Flat { bits } if bits % 8 == 0 => {
                let size = usize::try_from(bits / 8).map_err(|_| Damaged)?;
                let length = size.checked_mul(count).ok_or(Damaged)?;
                Ok(Self::fixed(size, first.get(..length).ok_or(Damaged)?.to_vec()))
            }
            Compression::Flat { .. } => Err(Damaged),
            Compression::Packed { bytes } => unpack_inline(first, *bytes, count),
            Compression::PackedAlike { bytes, width } => unpack_alike(first, *bytes, *width, count),
            Compression::Variable { offset_bytes } => variable(first, *offset_bytes, count, form),
            Compression::Symbols(symbols, of) => {
                let codes = Self::unpack(of, buffers, count as u64, form)?;
                let (mut bytes, mut ends) = (Vec::new(), Vec::new());
                for number in 0..count {
                    let codes = codes.get(number).ok_or(Damaged)?;
                    symbols.unpack(codes, &mut bytes).ok_or(Damaged)?;
                    if bytes.len() > MAX_BYTES {
                        return Err(Damaged);
                    }
                    ends.push(bytes.len());
                }
                Ok(Self { bytes, places: Places::Ends(ends), ..Self::default() })
            }
            Compression::Runs { bytes } => runs(buffers, *bytes, count, form),
            Compression::Split { bytes: size } => {
                let length = size.checked_mul(count).filter(|length| *length == first.len());
                let mut bytes = vec![0; length.ok_or(Damaged)?];
                for (part, own) in first.chunks_exact(count.max(1)).enumerate() {
                    for (value, byte) in bytes.chunks_exact_mut(*size).zip(own) {
                        value[part] = *byte;
                    }
                }
                Ok(Self::fixed(*size, bytes))
            }
            Compression::General(codec, of) => {
                let unpacked = general(*codec, first).ok_or(Damaged)?;
                let mut all = vec![&unpacked[..]];
                all.extend(&buffers[1..]);
                Self::unpack(of, &all, count as u64, form)
            }
            Compression::Lists { .. } => lists(compression, buffers, count),
        }
    }

    fn fixed(size: usize, bytes: Vec<u8>) -> Self {
        Self { bytes, places: Places::Fixed(size), ..Self::default() }
    }
}

/// A block with the width of its numbers before it, in a number of their type.
fn unpack_inline(buffer: &[u8], size: usize, count: usize) -> Result<Values, Damaged> {
    let (width, block) = buffer.split_at_checked(size).ok_or(Damaged)?;
    let mut wide = [0; 8];
    wide[..size].copy_from_slice(width);
    let width = usize::try_from(u64::from_le_bytes(wide)).map_err(|_| Damaged)?;
    if count > BLOCK || width > 64 {
        return Err(Damaged);
    }
    let block = block.get(..block_bytes(width)).ok_or(Damaged)?;
    let mut bytes = Vec::with_capacity(BLOCK * size);
    unpack(block, size, width, &mut bytes).ok_or(Damaged)?;
    bytes.truncate(count * size);
    Ok(Values::fixed(size, bytes))
}

/// Blocks of one width. The numbers after the last whole block are in another block, or as they are: the length of the
/// buffer tells which.
fn unpack_alike(buffer: &[u8], size: usize, width: usize, count: usize) -> Result<Values, Damaged> {
    if width > 64 {
        return Err(Damaged);
    }
    let (whole, rest) = (count / BLOCK, count % BLOCK);
    let block = block_bytes(width);
    let mut bytes = Vec::new();
    for number in 0..whole {
        let own = buffer.get(number * block..).and_then(|own| own.get(..block)).ok_or(Damaged)?;
        unpack(own, size, width, &mut bytes).ok_or(Damaged)?;
    }
    let last = buffer.get(whole * block..).ok_or(Damaged)?;
    if rest > 0 && last.len() == rest * size {
        bytes.extend_from_slice(last);
    } else if rest > 0 {
        unpack(last.get(..block).ok_or(Damaged)?, size, width, &mut bytes).ok_or(Damaged)?;
        bytes.truncate(count * size);
    }
    Ok(Values::fixed(size, bytes))
}

/// Offsets, then values. In a chunk, offsets count from its start; in a block, from the first value, and the width of an
/// offset and the place of the first value are before them.
fn variable(buffer: &[u8], size: usize, count: usize, form: Form) -> Result<Values, Damaged> {
    let number = |bytes: &[u8], place: usize| {
        let mut wide = [0; 8];
        let start = place.checked_mul(size)?;
        wide.get_mut(..size)?.copy_from_slice(bytes.get(start..)?.get(..size)?);
        usize::try_from(u64::from_le_bytes(wide)).ok()
    };
    let (offsets, values) = match form {
        Form::Chunk => (buffer, buffer),
        Form::Block => {
            let start = number(buffer, 1).ok_or(Damaged)?;
            if number(buffer, 0) != Some(8 * size) {
                return Err(Damaged);
            }
            let offsets = buffer.get(2 * size..start).ok_or(Damaged)?;
            (offsets, &buffer[start..])
        }
    };
    let start = number(offsets, 0).ok_or(Damaged)?;
    let (mut ends, mut last) = (Vec::with_capacity(count.min(buffer.len())), start);
    for place in 1..=count {
        let end = number(offsets, place).filter(|end| *end >= last).ok_or(Damaged)?;
        ends.push(end - start);
        last = end;
    }
    let bytes = values.get(start..last).ok_or(Damaged)?.to_vec();
    Ok(Values { bytes, places: Places::Ends(ends), ..Values::default() })
}

/// Values and the lengths of their runs: in two buffers of a chunk; in a block, after the bytes of the values.
fn runs(buffers: &[&[u8]], size: usize, count: usize, form: Form) -> Result<Values, Damaged> {
    let (values, lengths) = match (form, buffers) {
        (Form::Chunk, [values, lengths, ..]) => (*values, *lengths),
        (Form::Block, [block, ..]) => {
            let (length, rest) = block.split_first_chunk().ok_or(Damaged)?;
            let length = usize::try_from(u64::from_le_bytes(*length)).map_err(|_| Damaged)?;
            rest.split_at_checked(length).ok_or(Damaged)?
        }
        _ => return Err(Damaged),
    };
    if values.len() != lengths.len() * size {
        return Err(Damaged);
    }
    let mut bytes = Vec::new();
    for (value, length) in values.chunks_exact(size).zip(lengths) {
        for _ in 0..usize::from(*length).min(count - bytes.len() / size) {
            bytes.extend_from_slice(value);
        }
    }
    match bytes.len() == count * size {
        true => Ok(Values::fixed(size, bytes)),
        false => Err(Damaged),
    }
}

/// Lists of a fixed number of items: the validities of the lists, from the outermost inwards, then all items.
fn lists(compression: &Compression, buffers: &[&[u8]], count: usize) -> Result<Values, Damaged> {
    let (mut of, mut items, mut validities) = (compression, 1_usize, Vec::new());
    let mut buffers = buffers.iter();
    while let Compression::Lists { items: own, has_validity, of: inner } = of {
        let own = usize::try_from(*own).map_err(|_| Damaged)?;
        items = items.checked_mul(own).ok_or(Damaged)?;
        if *has_validity {
            validities.push((*buffers.next().ok_or(Damaged)?, items));
        }
        of = inner;
    }
    let all = items.checked_mul(count).ok_or(Damaged)?;
    let buffer = *buffers.next().ok_or(Damaged)?;
    // An item has at least a bit, and the limit is that of the bytes.
    if items == 0 || all / 8 > buffer.len() {
        return Err(Damaged);
    }
    let size = match of {
        Compression::Flat { bits } if bits % 8 == 0 => usize::try_from(bits / 8).ok(),
        _ => None,
    };
    let size = size.and_then(|size| size.checked_mul(items)).ok_or(Damaged)?;
    let bytes = buffer.get(..size.checked_mul(count).ok_or(Damaged)?).ok_or(Damaged)?.to_vec();
    let mut lacking = Vec::new();
    for (validity, items) in validities {
        lacking.resize(count, false);
        for (number, lacking) in lacking.iter_mut().enumerate() {
            *lacking |= !all_set(validity, number * items, items).ok_or(Damaged)?;
        }
    }
    Ok(Values { bytes, places: Places::Fixed(size), lacking })
}

/// Whether bits are set; `None`: there are fewer.
pub(super) fn all_set(bits: &[u8], start: usize, count: usize) -> Option<bool> {
    let mut all = true;
    for bit in start..start.checked_add(count)? {
        all &= bits.get(bit / 8)? >> (bit % 8) & 1 == 1;
    }
    Some(all)
}

/// The bytes before a packed value, which say what it unpacks to.
pub(super) const fn size_bytes(codec: Codec) -> usize {
    match codec {
        Codec::Lz4 => 4,
        _ => 8,
    }
}

/// What a packed value unpacks to, by the bytes before it.
pub(super) fn unpacked_size(codec: Codec, packed: &[u8]) -> Option<u64> {
    let mut wide = [0; 8];
    let size = packed.get(..size_bytes(codec))?;
    wide.get_mut(..size.len())?.copy_from_slice(size);
    Some(u64::from_le_bytes(wide))
}

fn general(codec: Codec, packed: &[u8]) -> Option<Vec<u8>> {
    let size = usize::try_from(unpacked_size(codec, packed)?).ok()?;
    let mut unpacked = Vec::new();
    let is_sound = size <= MAX_BYTES
        // LZ4 expands a byte to at most 255.
        && (codec != Codec::Lz4 || size / 255 <= packed.len())
        && codec.unpack(&packed[size_bytes(codec)..], (size, size), &mut unpacked);
    is_sound.then_some(unpacked)
}

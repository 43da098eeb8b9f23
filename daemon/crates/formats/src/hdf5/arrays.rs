//! Lists of chunks as arrays, which the library writes with `libver="latest"`: of a dataset that cannot grow one of fixed length,
//! and of one that grows along one axis one that grows with it. Places of chunks are in the order of the greatest shape that the
//! dataset may get. An array that grows has its first places in its index; the others are in blocks, which are in sets: each
//! second set has twice the blocks, and the others blocks of twice the places. Long blocks have pages.

use std::ops::Range;

use forebay_dataset::error::DatasetError;

use super::chunks::{MAX_CHUNKS, WHAT};
use super::listed::Listed;
use super::{CHECKSUM_BYTES, Hdf5, Numbers, Sizes};

/// The mark, the version and the client before the address of the header.
const MARK_BYTES: usize = 6;

/// How the places of an array are stored.
#[derive(Debug, Clone, Copy)]
struct Places {
    bytes: usize,
    /// Those of a chunk's size, before its mask; `None`: chunks have no filters.
    size_bytes: Option<usize>,
    /// A block with more has pages of as many.
    page: u64,
}

impl Places {
    fn parse(numbers: &mut Numbers<'_>, sizes: Sizes) -> Option<Self> {
        let (client, bytes) = (numbers.u8()?, usize::from(numbers.u8()?));
        let more = bytes.checked_sub(sizes.offset)?;
        let size_bytes = match client {
            0 => (more == 0).then_some(None)?,
            1 => Some(more.checked_sub(4).filter(|size| (1..=8).contains(size))?),
            _ => return None,
        };
        Some(Self { bytes, size_bytes, page: 0 })
    }

    fn with_page(self, bits: u8) -> Option<Self> {
        let page = 1_u64.checked_shl(bits.into()).filter(|page| *page <= MAX_CHUNKS as u64)?;
        Some(Self { page, ..self })
    }

    fn bytes_of(&self, count: u64) -> u64 {
        count.saturating_mul(self.bytes as u64)
    }
}

/// The header of an array that grows.
struct Growing {
    places: Places,
    /// The bytes of a place's number.
    number_bytes: usize,
    /// The places in the index.
    in_index: u64,
    /// The places in a block of the first set.
    least: u64,
    /// The sets, and those whose blocks the index has.
    sets: u32,
    sets_in_index: u32,
    index: Option<u64>,
}

impl Growing {
    fn parse(bytes: &[u8], sizes: Sizes) -> Option<Self> {
        let mut numbers = Numbers { rest: bytes };
        (numbers.take(5)? == b"EAHD\0").then_some(())?;
        let places = Places::parse(&mut numbers, sizes)?;
        let (bits, in_index, least) = (numbers.u8()?, numbers.u8()?, numbers.u8()?);
        let pointers = numbers.u8()?;
        let places = places.with_page(numbers.u8()?)?;
        // Counts and sizes of what it has.
        numbers.skip(6 * sizes.length)?;
        let index = numbers.address(sizes)?;
        let is_sound = bits <= 64 && least.is_power_of_two() && pointers.is_power_of_two();
        is_sound.then_some(())?;
        let sets = (1 + u32::from(bits)).checked_sub(least.ilog2())?;
        let sets_in_index = 2 * pointers.ilog2();
        (sets_in_index <= sets).then_some(Self {
            places,
            number_bytes: usize::from(bits).div_ceil(8),
            in_index: in_index.into(),
            least: least.into(),
            sets,
            sets_in_index,
            index,
        })
    }

    /// The blocks of a set, and the places in each.
    fn set(&self, set: u32) -> Option<(u64, u64)> {
        let blocks = 1_u64.checked_shl(set / 2)?;
        Some((blocks, self.least.checked_mul(1_u64.checked_shl(set.div_ceil(2))?)?))
    }
}

/// Which pages of a block were written, by bits from the highest on.
#[derive(Clone, Copy)]
struct Pages<'b> {
    bits: &'b [u8],
    first: u64,
}

impl Pages<'_> {
    fn has(&self, page: u64) -> bool {
        let bit = self.first.saturating_add(page);
        let byte = usize::try_from(bit / 8).ok().and_then(|byte| self.bits.get(byte));
        byte.is_some_and(|byte| byte & (0x80 >> (bit % 8)) != 0)
    }
}

impl Hdf5<'_> {
    /// Adds the chunks of an array of fixed length.
    pub(super) fn fixed_array(
        &mut self,
        address: u64,
        listed: &mut Listed<'_>,
    ) -> Result<(), DatasetError> {
        let sizes = self.sizes;
        let head = self.part(address, (8 + sizes.length + sizes.offset + CHECKSUM_BYTES) as u64)?;
        let parse = || {
            let mut numbers = Numbers { rest: &head };
            (numbers.take(5)? == b"FAHD\0").then_some(())?;
            let places = Places::parse(&mut numbers, sizes)?.with_page(numbers.u8()?)?;
            let count = numbers.sized(sizes.length).filter(|count| *count <= MAX_CHUNKS as u64)?;
            Some((places, count, numbers.address(sizes)?))
        };
        let (places, count, block) = parse().ok_or_else(|| self.damaged(WHAT, address))?;
        let Some(block) = block else { return Ok(()) };
        let before = (MARK_BYTES + sizes.offset) as u64;
        if count <= places.page {
            return self.places(block, b"FADB\0", (before, 0..count), places, listed);
        }
        let map = count.div_ceil(places.page).div_ceil(8);
        let head = self.part(block, before + map + CHECKSUM_BYTES as u64)?;
        if !head.starts_with(b"FADB\0") {
            return Err(self.damaged(WHAT, block));
        }
        let pages = Pages { bits: &head[MARK_BYTES + sizes.offset..], first: 0 };
        self.pages(block.saturating_add(head.len() as u64), pages, 0..count, places, listed)
    }

    /// Adds the chunks of an array that grows.
    pub(super) fn growing_array(
        &mut self,
        address: u64,
        listed: &mut Listed<'_>,
    ) -> Result<(), DatasetError> {
        let sizes = self.sizes;
        let bytes = 12 + 6 * sizes.length + sizes.offset + CHECKSUM_BYTES;
        let head = self.part(address, bytes as u64)?;
        let found = Growing::parse(&head, sizes);
        let array = found.ok_or_else(|| self.damaged(WHAT, address))?;
        let Some(at) = array.index else { return Ok(()) };
        let before = MARK_BYTES + sizes.offset;
        // One address for each block of the first sets, and for each further set.
        let blocks =
            (0..array.sets_in_index).filter_map(|set| Some(array.set(set)?.0)).sum::<u64>();
        let addresses = blocks + u64::from(array.sets - array.sets_in_index);
        let of_places = array.places.bytes_of(array.in_index);
        let bytes = before as u64 + of_places + addresses * sizes.offset as u64;
        let index = self.part(at, bytes + CHECKSUM_BYTES as u64)?;
        let mut numbers = Numbers { rest: &index };
        if numbers.take(5) != Some(b"EAIB\0") || numbers.skip(before - 5).is_none() {
            return Err(self.damaged(WHAT, at));
        }
        for place in 0..array.in_index {
            let added = self.place(&mut numbers, place, array.places, listed);
            added.ok_or_else(|| self.damaged(WHAT, at))?;
        }
        let mut first = array.in_index;
        for set in 0..array.sets {
            let sized = array.set(set);
            let (blocks, each) = sized.ok_or_else(|| self.damaged(WHAT, address))?;
            let of_set = if set < array.sets_in_index { blocks } else { 1 };
            for block in 0..of_set {
                let place = numbers.address(sizes).ok_or_else(|| self.damaged(WHAT, at))?;
                let Some(place) = place else { continue };
                if set < array.sets_in_index {
                    let places = first + block * each..first + (block + 1) * each;
                    self.block(place, places, None, &array, listed)?;
                } else {
                    self.set_of_blocks(place, first, (blocks, each), &array, listed)?;
                }
            }
            first = first.saturating_add(blocks.saturating_mul(each));
        }
        Ok(())
    }

    /// Adds the chunks of a set of an array that grows.
    fn set_of_blocks(
        &mut self,
        address: u64,
        first: u64,
        (blocks, each): (u64, u64),
        array: &Growing,
        listed: &mut Listed<'_>,
    ) -> Result<(), DatasetError> {
        let sizes = self.sizes;
        let before = MARK_BYTES + sizes.offset + array.number_bytes;
        let pages = if each > array.places.page { each / array.places.page } else { 0 };
        let map = blocks.saturating_mul(pages.div_ceil(8));
        let bytes = (before as u64).saturating_add(map);
        let bytes = bytes.saturating_add(blocks.saturating_mul(sizes.offset as u64));
        let set = self.part(address, bytes.saturating_add(CHECKSUM_BYTES as u64))?;
        let map = usize::try_from(map).unwrap_or(usize::MAX);
        let mut numbers = Numbers { rest: &set };
        let bits = (numbers.take(5) == Some(b"EASB\0"))
            .then_some(())
            .and_then(|()| numbers.skip(before - 5))
            .and_then(|()| numbers.take(map));
        let bits = bits.ok_or_else(|| self.damaged(WHAT, address))?;
        for block in 0..blocks {
            let place = numbers.address(sizes).ok_or_else(|| self.damaged(WHAT, address))?;
            let start = first.saturating_add(block.saturating_mul(each));
            let places = start..start.saturating_add(each);
            let pages = (pages > 0).then_some(Pages { bits, first: block.saturating_mul(pages) });
            if let Some(place) = place {
                self.block(place, places, pages, array, listed)?;
            }
        }
        Ok(())
    }

    /// Adds the chunks of a block of an array that grows.
    fn block(
        &mut self,
        address: u64,
        places: Range<u64>,
        pages: Option<Pages<'_>>,
        array: &Growing,
        listed: &mut Listed<'_>,
    ) -> Result<(), DatasetError> {
        let before = (MARK_BYTES + self.sizes.offset + array.number_bytes) as u64;
        let Some(pages) = pages else {
            return self.places(address, b"EADB\0", (before, places), array.places, listed);
        };
        let head = self.part(address, before + CHECKSUM_BYTES as u64)?;
        if !head.starts_with(b"EADB\0") {
            return Err(self.damaged(WHAT, address));
        }
        let first = address.saturating_add(head.len() as u64);
        self.pages(first, pages, places, array.places, listed)
    }

    /// Adds the chunks of pages.
    fn pages(
        &mut self,
        mut address: u64,
        pages: Pages<'_>,
        all: Range<u64>,
        places: Places,
        listed: &mut Listed<'_>,
    ) -> Result<(), DatasetError> {
        let mut first = all.start;
        for page in 0.. {
            if first >= all.end {
                break;
            }
            let of_page = first..first.saturating_add(places.page).min(all.end);
            let bytes = places.bytes_of(of_page.end - of_page.start) + CHECKSUM_BYTES as u64;
            first = of_page.end;
            if pages.has(page) {
                self.places(address, b"", (0, of_page), places, listed)?;
            }
            address = address.saturating_add(bytes);
        }
        Ok(())
    }

    /// Adds the chunks of a part that has a mark, `before` bytes, and places.
    fn places(
        &mut self,
        address: u64,
        mark: &[u8],
        (before, all): (u64, Range<u64>),
        places: Places,
        listed: &mut Listed<'_>,
    ) -> Result<(), DatasetError> {
        let bytes = before.saturating_add(places.bytes_of(all.end - all.start));
        let part = self.part(address, bytes.saturating_add(CHECKSUM_BYTES as u64))?;
        let mut numbers = Numbers { rest: &part };
        let skipped = numbers.skip(usize::try_from(before).unwrap_or(usize::MAX));
        if !part.starts_with(mark) || skipped.is_none() {
            return Err(self.damaged(WHAT, address));
        }
        for place in all {
            let added = self.place(&mut numbers, place, places, listed);
            added.ok_or_else(|| self.damaged(WHAT, address))?;
        }
        Ok(())
    }

    /// Adds the chunk of a place; `None`: its bytes have ended.
    fn place(
        &self,
        numbers: &mut Numbers<'_>,
        place: u64,
        places: Places,
        listed: &mut Listed<'_>,
    ) -> Option<()> {
        let address = numbers.address(self.sizes)?;
        let packed = match places.size_bytes {
            None => None,
            Some(bytes) => Some((numbers.sized(bytes)?, numbers.u32()?)),
        };
        if let Some(address) = address {
            let number = listed.number_of_place(place);
            listed.add(number, self.base.saturating_add(address), packed);
        }
        Some(())
    }

    /// A part that ends with its checksum.
    fn part(&mut self, address: u64, bytes: u64) -> Result<Vec<u8>, DatasetError> {
        self.check_sum(WHAT, address, bytes)?;
        Ok(self.get(address, bytes)?.to_vec())
    }
}

//! The links of a group with many objects, or whose order of creation is kept, as netCDF-4 has them: in a heap of blocks, and
//! found by a tree.

use forebay_dataset::error::DatasetError;

use super::records::bytes_of;
use super::{Hdf5, Numbers, Sizes};

/// The most levels of the heap.
const MAX_DEPTH: usize = 32;
/// The type of a tree of links by their names, whose records have a hash and a place in the heap.
const BY_NAMES: u8 = 5;
const HASH_BYTES: usize = 4;
/// The most bytes of a link.
const MAX_LINK_BYTES: u64 = 1 << 17;

/// A heap of objects, whose offsets go through its blocks. Blocks are in rows of as many blocks; those of the first two rows
/// have the first size, and those of each further row twice the size.
#[derive(Debug)]
struct Heap {
    /// The bytes of an offset, and of a length, in a place.
    offset_bytes: usize,
    length_bytes: usize,
    width: u64,
    first_block: u64,
    /// The largest block with objects; larger ones have blocks.
    most_block: u64,
    root: u64,
    /// The rows of the root; 0: it has objects.
    rows: u64,
}

impl Heap {
    fn parse(bytes: &[u8], sizes: Sizes) -> Option<Self> {
        let mut numbers = Numbers { rest: bytes };
        (numbers.take(5)? == b"FRHP\0").then_some(())?;
        numbers.skip(2)?;
        // Compressed blocks are not read.
        (numbers.u16()? == 0).then_some(())?;
        numbers.skip(1)?;
        let most_object = numbers.u32()?;
        // Counts and places of large objects, free space and tiny objects.
        numbers.skip(2 * sizes.offset + 10 * sizes.length)?;
        let width = u64::from(numbers.u16()?);
        let (first_block, most_block) =
            (numbers.sized(sizes.length)?, numbers.sized(sizes.length)?);
        let heap_bits = usize::from(numbers.u16()?);
        numbers.skip(2)?;
        let root = numbers.address(sizes)??;
        let rows = u64::from(numbers.u16()?);
        let is_sound = width > 0
            && first_block.is_power_of_two()
            && most_block.is_power_of_two()
            && first_block <= most_block
            && most_block <= 1 << 32
            && (1..=64).contains(&heap_bits)
            && rows <= 64;
        let of_block = most_block.ilog2().div_ceil(8) as usize;
        let length_bytes = of_block.min(bytes_of(most_object.into()));
        is_sound.then_some(Self {
            offset_bytes: heap_bits.div_ceil(8),
            length_bytes,
            width,
            first_block,
            most_block,
            root,
            rows,
        })
    }

    /// The size of the blocks of a row.
    fn block(&self, row: u64) -> Option<u64> {
        let times = 1_u64.checked_shl(u32::try_from(row.saturating_sub(1)).ok()?)?;
        self.first_block.checked_mul(times)
    }

    /// The row of an offset, the block in it, and the offset within the block.
    fn place(&self, mut offset: u64) -> Option<(u64, u64, u64)> {
        for row in 0..64 {
            let block = self.block(row)?;
            let all = block.checked_mul(self.width)?;
            if offset < all {
                return Some((row, offset / block, offset % block));
            }
            offset -= all;
        }
        None
    }
}

impl Hdf5<'_> {
    /// The messages of a group's links.
    ///
    /// # Errors
    /// They are damaged or compressed, or cannot be read.
    pub(super) fn dense_links(
        &mut self,
        heap: u64,
        tree: u64,
    ) -> Result<Vec<(u64, Vec<u8>)>, DatasetError> {
        let sizes = self.sizes;
        let heap_bytes = 26 + 3 * sizes.offset as u64 + 12 * sizes.length as u64;
        self.check_sum("the heap of a group", heap, heap_bytes)?;
        let bytes = self.get(heap, heap_bytes)?;
        let found = Heap::parse(bytes, sizes);
        let of_heap = found.ok_or_else(|| self.damaged("the heap of a group", heap))?;
        let (_, places) = self.records("the tree of a group", tree, &[BY_NAMES])?;
        let place = |record: &Vec<u8>| self.object(&of_heap, &record[HASH_BYTES..], heap);
        places.iter().map(place).collect()
    }

    /// An object of a heap, and its address.
    fn object(
        &mut self,
        heap: &Heap,
        place: &[u8],
        address: u64,
    ) -> Result<(u64, Vec<u8>), DatasetError> {
        let mut numbers = Numbers { rest: place };
        let parsed = numbers.u8().and_then(|kind| {
            // Of the first version, and in a block.
            (kind & 0xf0 == 0).then_some(())?;
            Some((numbers.sized(heap.offset_bytes)?, numbers.sized(heap.length_bytes)?))
        });
        let parsed = parsed.filter(|(_, length)| *length <= MAX_LINK_BYTES);
        let (offset, length) = parsed.ok_or_else(|| self.damaged("a link in the heap", address))?;
        let at = match heap.rows {
            0 => heap.root.saturating_add(offset),
            rows => self.block_address(heap, (heap.root, rows), offset, 0)?,
        };
        Ok((at, self.get(at, length)?.to_vec()))
    }

    /// The address of an offset in a block of blocks.
    fn block_address(
        &mut self,
        heap: &Heap,
        (block, rows): (u64, u64),
        offset: u64,
        depth: usize,
    ) -> Result<u64, DatasetError> {
        let sizes = self.sizes;
        let damaged = |file: &Self| file.damaged("a block of a heap", block);
        let place = heap.place(offset).filter(|(row, ..)| *row < rows && depth < MAX_DEPTH);
        let (row, column, within) = place.ok_or_else(|| damaged(self))?;
        // The mark, the version, the heap's address, and the offset of the block.
        let before = 5 + sizes.offset + heap.offset_bytes;
        let entry = before as u64 + (row * heap.width + column) * sizes.offset as u64;
        let is_block = self.get(block, 4)? == b"FHIB";
        let bytes = self.get(block.saturating_add(entry), sizes.offset as u64)?;
        let child = Numbers { rest: bytes }.address(sizes).flatten().filter(|_| is_block);
        let child = child.ok_or_else(|| damaged(self))?;
        let size = heap.block(row).unwrap_or(u64::MAX);
        if size <= heap.most_block {
            return Ok(child.saturating_add(within));
        }
        let rows = size.ilog2().checked_sub((heap.first_block * heap.width).ilog2());
        let rows = rows.ok_or_else(|| damaged(self))?;
        self.block_address(heap, (child, u64::from(rows) + 1), within, depth + 1)
    }
}

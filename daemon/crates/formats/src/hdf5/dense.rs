//! The links of a group with many objects, or whose order of creation is kept, as netCDF-4 has them: in a heap of blocks, and
//! found by a tree.

use forebay_dataset::error::DatasetError;

use super::{CHECKSUM_BYTES, Hdf5, Numbers, Sizes, has_checksum};

/// The most links of a group, and levels of the tree and of the heap.
const MAX_LINKS: usize = 1 << 22;
const MAX_DEPTH: usize = 32;
/// The type of a tree of links by their names, whose records have a hash and a place in the heap.
const BY_NAMES: u8 = 5;
const HASH_BYTES: usize = 4;
/// The mark, the version and the type before a node's records, and the checksum after them.
const NODE_BYTES: usize = 10;
/// The most bytes of a node, and of a link.
const MAX_NODE_BYTES: u32 = 1 << 20;
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

/// A tree of records.
#[derive(Debug)]
struct Tree {
    node_bytes: u32,
    record_bytes: usize,
    depth: usize,
    root: u64,
    records: usize,
}

/// The bytes that hold a number.
fn bytes_of(most: u64) -> usize {
    usize::try_from(most.max(1).ilog2() / 8 + 1).unwrap_or(8)
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

impl Tree {
    fn parse(bytes: &[u8], sizes: Sizes) -> Option<Self> {
        let mut numbers = Numbers { rest: bytes };
        (numbers.take(6)? == [b'B', b'T', b'H', b'D', 0, BY_NAMES]).then_some(())?;
        let node_bytes = numbers.u32()?;
        let (record_bytes, depth) = (numbers.u16()?.into(), numbers.u16()?.into());
        numbers.skip(2)?;
        let root = numbers.address(sizes)?;
        let records = usize::from(numbers.u16()?);
        let is_sound = (64..=MAX_NODE_BYTES).contains(&node_bytes)
            && (HASH_BYTES + 1..64).contains(&record_bytes)
            && depth <= MAX_DEPTH;
        let (root, records) = match root {
            Some(root) => (root, records),
            None => (0, 0),
        };
        is_sound.then_some(Self { node_bytes, record_bytes, depth, root, records })
    }

    /// The bytes of a child's number of records, and of the records below the children of each level's nodes.
    fn counts(&self, sizes: Sizes) -> Option<(usize, Vec<usize>)> {
        let node = self.node_bytes as usize - NODE_BYTES;
        let most = (node / self.record_bytes) as u64;
        let own = bytes_of(most);
        let (mut below, mut bytes) = (most, vec![0]);
        for level in 1..self.depth {
            let pointer = sizes.offset + own + bytes[level - 1];
            let most = (node.checked_sub(pointer)? / (self.record_bytes + pointer)) as u64;
            below = (most + 1).checked_mul(below)?.checked_add(most)?;
            bytes.push(bytes_of(below));
        }
        Some((own, bytes))
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
        let tree_bytes = 22 + sizes.offset as u64 + sizes.length as u64;
        self.check_sum("the tree of a group", tree, tree_bytes)?;
        let bytes = self.get(tree, tree_bytes)?;
        let found = Tree::parse(bytes, sizes).and_then(|tree| Some((tree.counts(sizes)?, tree)));
        let ((own, below), of_tree) =
            found.ok_or_else(|| self.damaged("the tree of a group", tree))?;
        let mut places = Vec::new();
        let (root, records, depth) = (of_tree.root, of_tree.records, of_tree.depth);
        if records > 0 {
            self.records(&of_tree, (own, &below), (root, records, depth), &mut places)?;
        }
        places.into_iter().map(|place| self.object(&of_heap, &place, heap)).collect()
    }

    /// Appends the records of a node and of those below it.
    fn records(
        &mut self,
        tree: &Tree,
        (own, below): (usize, &[usize]),
        (address, count, depth): (u64, usize, usize),
        places: &mut Vec<Vec<u8>>,
    ) -> Result<(), DatasetError> {
        let sizes = self.sizes;
        let bytes = self.node("the tree of a group", address, tree.node_bytes.into())?;
        let mut numbers = Numbers { rest: &bytes };
        let mark: &[u8] = if depth == 0 { b"BTLF" } else { b"BTIN" };
        let is_node = numbers.take(4) == Some(mark) && numbers.skip(2).is_some();
        let damaged = || self.damaged("the tree of a group", address);
        if !is_node || places.len() > MAX_LINKS {
            return Err(damaged());
        }
        for _ in 0..count {
            let record = numbers.take(tree.record_bytes).ok_or_else(damaged)?;
            places.push(record[HASH_BYTES..].to_vec());
        }
        let mut children = Vec::new();
        let pointers = if depth == 0 { 0 } else { count + 1 };
        for _ in 0..pointers {
            let child = numbers.address(sizes).flatten().zip(numbers.sized(own));
            // The records of all nodes below it.
            let skipped = numbers.skip(below.get(depth - 1).copied().unwrap_or(0));
            let (child, records) = child.filter(|_| skipped.is_some()).ok_or_else(damaged)?;
            children.push((child, usize::try_from(records).unwrap_or(usize::MAX)));
        }
        let end = bytes.len() - numbers.rest.len();
        if !bytes.get(..end + CHECKSUM_BYTES).is_some_and(has_checksum) {
            return Err(damaged());
        }
        for (child, records) in children {
            self.records(tree, (own, below), (child, records, depth - 1), places)?;
        }
        Ok(())
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

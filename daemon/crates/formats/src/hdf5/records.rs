//! Trees of records: of the links of a group, and of chunks.

use std::ops::Range;

use forebay_dataset::error::DatasetError;

use super::{CHECKSUM_BYTES, Hdf5, Numbers, Sizes, has_checksum};

/// The most records and levels of a tree.
const MAX_RECORDS: usize = 1 << 24;
const MAX_DEPTH: usize = 32;
/// The mark, the version and the type before a node's records, and the checksum after them.
const NODE_BYTES: usize = 10;
/// The most bytes of a node.
const MAX_NODE_BYTES: u32 = 1 << 20;
const RECORD_BYTES: Range<usize> = 5..128;

/// A tree of records.
#[derive(Debug)]
struct Tree {
    kind: u8,
    node_bytes: u32,
    record_bytes: usize,
    depth: usize,
    root: u64,
    records: usize,
}

/// The bytes that hold a number.
pub(super) fn bytes_of(most: u64) -> usize {
    usize::try_from(most.max(1).ilog2() / 8 + 1).unwrap_or(8)
}

impl Tree {
    fn parse(bytes: &[u8], sizes: Sizes, kinds: &[u8]) -> Option<Self> {
        let mut numbers = Numbers { rest: bytes };
        (numbers.take(5)? == b"BTHD\0").then_some(())?;
        let kind = numbers.u8().filter(|kind| kinds.contains(kind))?;
        let node_bytes = numbers.u32()?;
        let (record_bytes, depth) = (numbers.u16()?.into(), numbers.u16()?.into());
        numbers.skip(2)?;
        let root = numbers.address(sizes)?;
        let records = usize::from(numbers.u16()?);
        let is_sound = (64..=MAX_NODE_BYTES).contains(&node_bytes)
            && RECORD_BYTES.contains(&record_bytes)
            && depth <= MAX_DEPTH;
        let (root, records) = match root {
            Some(root) => (root, records),
            None => (0, 0),
        };
        is_sound.then_some(Self { kind, node_bytes, record_bytes, depth, root, records })
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
    /// The records of a tree in no order, and its kind, one of `kinds`. `what`: the tree.
    ///
    /// # Errors
    /// It is damaged, of another kind, or cannot be read.
    pub(super) fn records(
        &mut self,
        what: &str,
        address: u64,
        kinds: &[u8],
    ) -> Result<(u8, Vec<Vec<u8>>), DatasetError> {
        let sizes = self.sizes;
        let bytes = 22 + sizes.offset as u64 + sizes.length as u64;
        self.check_sum(what, address, bytes)?;
        let parsed = Tree::parse(self.get(address, bytes)?, sizes, kinds);
        let parsed = parsed.and_then(|tree| Some((tree.counts(sizes)?, tree)));
        let ((own, below), tree) = parsed.ok_or_else(|| self.damaged(what, address))?;
        let mut found = Vec::new();
        if tree.records > 0 {
            let root = (tree.root, tree.records, tree.depth);
            self.records_below(what, &tree, (own, &below), root, &mut found)?;
        }
        Ok((tree.kind, found))
    }

    /// Appends the records of a node and of those below it. `what`: the tree.
    fn records_below(
        &mut self,
        what: &str,
        tree: &Tree,
        (own, below): (usize, &[usize]),
        (address, count, depth): (u64, usize, usize),
        found: &mut Vec<Vec<u8>>,
    ) -> Result<(), DatasetError> {
        let sizes = self.sizes;
        let bytes = self.node(what, address, tree.node_bytes.into())?;
        let mut numbers = Numbers { rest: &bytes };
        let mark: &[u8] = if depth == 0 { b"BTLF" } else { b"BTIN" };
        let is_node = numbers.take(4) == Some(mark) && numbers.skip(2).is_some();
        let damaged = || self.damaged(what, address);
        if !is_node || found.len() > MAX_RECORDS {
            return Err(damaged());
        }
        for _ in 0..count {
            let record = numbers.take(tree.record_bytes).ok_or_else(damaged)?;
            found.push(record.to_vec());
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
        let part = bytes.get(..end + CHECKSUM_BYTES);
        if !part.is_some_and(|part| has_checksum(part) || !self.compares_sums) {
            return Err(damaged());
        }
        for (child, records) in children {
            self.records_below(what, tree, (own, below), (child, records, depth - 1), found)?;
        }
        Ok(())
    }
}

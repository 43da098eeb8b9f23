//! The chunks of a dataset, by the tree that lists them in files of `libver="earliest"`.

use forebay_dataset::error::DatasetError;

use super::{Hdf5, Numbers};

/// The most chunks of a dataset, and the highest level of its tree.
pub(super) const MAX_CHUNKS: usize = 1 << 24;
const MAX_LEVEL: u8 = 64;

/// A list of chunks, in a message.
pub(super) const WHAT: &str = "the list of chunks";

/// A chunk of a dataset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) struct StoredChunk {
    /// Counted in C order.
    pub(in super::super) number: u64,
    /// The offset in the file.
    pub(in super::super) offset: u64,
    pub(in super::super) bytes: u32,
    /// Filters that were not applied, a bit each.
    pub(in super::super) mask: u32,
}

impl Hdf5<'_> {
    /// The chunks of a tree, in the order of their numbers.
    ///
    /// # Errors
    /// The tree is damaged, or cannot be read.
    pub(super) fn chunks_of_tree(
        &mut self,
        tree: u64,
        shape: &[u64],
        chunk: &[u64],
    ) -> Result<Vec<StoredChunk>, DatasetError> {
        let mut walk = Walk { shape, chunk, found: Vec::new(), last: None };
        self.below(tree, &mut walk, None)?;
        Ok(walk.found)
    }

    fn below(
        &mut self,
        address: u64,
        walk: &mut Walk<'_>,
        level_above: Option<u8>,
    ) -> Result<(), DatasetError> {
        let sizes = self.sizes;
        let head = self.node(WHAT, address, 8)?;
        if !head.starts_with(b"TREE\x01") {
            return Err(self.damaged(WHAT, address));
        }
        let (level, count) = (head[5], usize::from(u16::from_le_bytes([head[6], head[7]])));
        let is_below = level_above.is_none_or(|above| above.checked_sub(1) == Some(level));
        if !is_below || level > MAX_LEVEL || walk.found.len() > MAX_CHUNKS {
            return Err(self.damaged(WHAT, address));
        }
        let key = 8 + 8 * (walk.shape.len() + 1);
        let bytes = count * (key + sizes.offset);
        let entries =
            self.get(address.saturating_add(8 + 2 * sizes.offset as u64), bytes as u64)?.to_vec();
        for entry in entries.chunks_exact(key + sizes.offset) {
            let mut numbers = Numbers { rest: entry };
            let parsed = key_of(&mut numbers, walk.shape, walk.chunk);
            let parsed = parsed.zip(numbers.address(sizes).flatten());
            let (key, child) = parsed.ok_or_else(|| self.damaged(WHAT, address))?;
            if level > 0 {
                self.below(child, walk, Some(level))?;
                continue;
            }
            // Keys rise, also those of chunks outside of the shape.
            if walk.last.as_ref().is_some_and(|last| *last >= key.firsts) {
                return Err(self.damaged(WHAT, address));
            }
            if let Some(number) = key.number {
                let (offset, bytes, mask) = (self.base.saturating_add(child), key.bytes, key.mask);
                walk.found.push(StoredChunk { number, offset, bytes, mask });
            }
            walk.last = Some(key.firsts);
        }
        Ok(())
    }
}

/// The chunks found so far.
struct Walk<'w> {
    shape: &'w [u64],
    chunk: &'w [u64],
    found: Vec<StoredChunk>,
    /// The first elements of the chunk before.
    last: Option<Vec<u64>>,
}

/// The key of a tree's entry.
struct ChunkKey {
    bytes: u32,
    mask: u32,
    /// Along each axis.
    firsts: Vec<u64>,
    /// `None`: the chunk is outside of the shape, which became smaller.
    number: Option<u64>,
}

fn key_of(numbers: &mut Numbers<'_>, shape: &[u64], chunk: &[u64]) -> Option<ChunkKey> {
    let (bytes, mask) = (numbers.u32()?, numbers.u32()?);
    let (mut number, mut firsts) = (Some(0_u64), Vec::with_capacity(shape.len()));
    for (side, each) in shape.iter().zip(chunk) {
        let (first, each) = (numbers.sized(8)?, (*each).max(1));
        let (place, count) = (first / each, side.div_ceil(each));
        first.is_multiple_of(each).then_some(())?;
        firsts.push(first);
        number = number
            .filter(|_| place < count)
            .and_then(|number| number.checked_mul(count)?.checked_add(place));
    }
    // The offset within an element.
    (numbers.sized(8)? == 0).then_some(())?;
    Some(ChunkKey { bytes, mask, firsts, number })
}

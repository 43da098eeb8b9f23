//! The chunks of a dataset, by the tree that lists them.

use forebay_dataset::error::DatasetError;

use super::{Hdf5, Numbers};

/// The most chunks of a dataset, and levels of its tree.
const MAX_CHUNKS: usize = 1 << 24;
const MAX_DEPTH: usize = 64;

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
    pub(in super::super) fn chunks(
        &mut self,
        tree: u64,
        shape: &[u64],
        chunk: &[u64],
    ) -> Result<Vec<StoredChunk>, DatasetError> {
        let mut found = Vec::new();
        self.below(tree, (shape, chunk), &mut found, 0)?;
        found.sort_unstable_by_key(|chunk: &StoredChunk| chunk.number);
        match found.windows(2).all(|pair| pair[0].number < pair[1].number) {
            true => Ok(found),
            false => Err(self.damaged("the list of chunks", tree)),
        }
    }

    fn below(
        &mut self,
        address: u64,
        (shape, chunk): (&[u64], &[u64]),
        found: &mut Vec<StoredChunk>,
        depth: usize,
    ) -> Result<(), DatasetError> {
        let what = "the list of chunks";
        if depth > MAX_DEPTH || found.len() > MAX_CHUNKS {
            return Err(self.damaged(what, address));
        }
        let sizes = self.sizes;
        let head = self.node(what, address, 8)?;
        if !head.starts_with(b"TREE\x01") {
            return Err(self.damaged(what, address));
        }
        let (level, count) = (head[5], usize::from(u16::from_le_bytes([head[6], head[7]])));
        let key = 8 + 8 * (shape.len() + 1);
        let bytes = count * (key + sizes.offset);
        let entries =
            self.get(address.saturating_add(8 + 2 * sizes.offset as u64), bytes as u64)?.to_vec();
        for entry in entries.chunks_exact(key + sizes.offset) {
            let mut numbers = Numbers { rest: entry };
            let parsed = stored(&mut numbers, shape, chunk).zip(numbers.address(sizes).flatten());
            let (stored, child) = parsed.ok_or_else(|| self.damaged(what, address))?;
            if level > 0 {
                self.below(child, (shape, chunk), found, depth + 1)?;
            } else if let Some(number) = stored.number {
                let offset = self.base.saturating_add(child);
                let StoredKey { bytes, mask, .. } = stored;
                found.push(StoredChunk { number, offset, bytes, mask });
            }
        }
        Ok(())
    }
}

/// The key of a tree's entry.
struct StoredKey {
    bytes: u32,
    mask: u32,
    /// `None`: the chunk is outside of the shape, which became smaller.
    number: Option<u64>,
}

fn stored(numbers: &mut Numbers<'_>, shape: &[u64], chunk: &[u64]) -> Option<StoredKey> {
    let (bytes, mask) = (numbers.u32()?, numbers.u32()?);
    let mut number = Some(0_u64);
    for (side, each) in shape.iter().zip(chunk) {
        let place = numbers.sized(8)? / (*each).max(1);
        let count = side.div_ceil((*each).max(1));
        number = number
            .filter(|_| place < count)
            .and_then(|number| number.checked_mul(count)?.checked_add(place));
    }
    // The offset within an element.
    numbers.skip(8)?;
    Some(StoredKey { bytes, mask, number })
}

//! The index of a shard: which of its chunks are where in its file.

use super::grid::Grid;
use super::metadata::{Shards, ZarrArray};

/// The size of a chunk's record: its offset and its bytes.
const RECORD_BYTES: usize = 16;
const CHECKSUM_BYTES: usize = 4;

/// A chunk in a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ShardChunk {
    /// Counted in the array.
    pub(crate) number: u64,
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
}

impl Shards {
    /// The chunks of a shard along each axis.
    fn sides(&self, array: &ZarrArray) -> Vec<u64> {
        self.files.chunk.iter().zip(&array.chunk).map(|(all, side)| all / side).collect()
    }

    /// The offset and the size of the index of a file of `file_bytes`. `None`: the file is shorter.
    pub(crate) fn place(&self, array: &ZarrArray, file_bytes: u64) -> Option<(u64, u64)> {
        let chunks = self.sides(array).into_iter().fold(1, u64::saturating_mul);
        let checksum = if self.has_checksum { CHECKSUM_BYTES as u64 } else { 0 };
        let bytes = chunks.saturating_mul(RECORD_BYTES as u64).saturating_add(checksum);
        let before = file_bytes.checked_sub(bytes)?;
        Some((if self.is_first { 0 } else { before }, bytes))
    }

    /// The chunks that the index of a shard has, except those beyond the array.
    ///
    /// # Errors
    /// The index is damaged.
    pub(crate) fn chunks(
        &self,
        array: &ZarrArray,
        shard: u64,
        (index, file_bytes): (&[u8], u64),
    ) -> Result<Vec<ShardChunk>, String> {
        let mut records = index;
        if self.has_checksum {
            let (before, checksum) = index
                .split_last_chunk::<CHECKSUM_BYTES>()
                .ok_or("its index ends within its checksum")?;
            if crc_fast::crc32_iscsi(before) != u32::from_le_bytes(*checksum) {
                return Err("its index does not have its checksum".to_owned());
            }
            records = before;
        }
        let (sides, grid) = (self.sides(array), Grid(array));
        let firsts: Vec<u64> = Grid(&self.files)
            .places(shard)
            .into_iter()
            .zip(&sides)
            .map(|(place, side)| place.saturating_mul(*side))
            .collect();
        let mut found = Vec::new();
        let records = records.as_chunks::<8>().0.as_chunks::<2>().0;
        for (mut place, [offset, bytes]) in (0_u64..).zip(records) {
            let (offset, bytes) = (u64::from_le_bytes(*offset), u64::from_le_bytes(*bytes));
            if (offset, bytes) == (u64::MAX, u64::MAX) {
                continue;
            }
            if offset.checked_add(bytes).is_none_or(|end| end > file_bytes) {
                return Err(format!(
                    "its index has a chunk of {bytes} bytes at byte {offset}, and it has {file_bytes} bytes"
                ));
            }
            let mut number = Some(0_u64);
            let mut step = 1_u64;
            for axis in (0..sides.len()).rev() {
                let at = firsts[axis].saturating_add(place % sides[axis]);
                place /= sides[axis];
                number = number
                    .filter(|_| at < grid.side(axis))
                    .and_then(|number| number.checked_add(at.checked_mul(step)?));
                step = step.saturating_mul(grid.side(axis));
            }
            found.extend(number.map(|number| ShardChunk { number, offset, bytes }));
        }
        Ok(found)
    }
}

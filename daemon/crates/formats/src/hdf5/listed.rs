//! Lists of chunks, and the chunks that are found by them.

use forebay_dataset::error::DatasetError;

use super::chunks::{MAX_CHUNKS, StoredChunk, WHAT};
use super::{Hdf5, Numbers};

/// The kinds of trees of chunks, without and with filters.
const RECORDS: u8 = 10;
const PACKED_RECORDS: u8 = 11;

/// Where the chunks of a dataset are listed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in super::super) struct ChunkList {
    pub(super) kind: ListKind,
    pub(super) address: u64,
    /// The greatest shape that the dataset may get; `u64::MAX`: it may grow along this axis without end.
    pub(super) most: Vec<u64>,
}

/// How chunks are listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ListKind {
    /// By a tree of their places.
    Tree,
    /// The only chunk, and its size and mask if it has filters.
    One(Option<(u64, u32)>),
    /// One after the other.
    Row,
    /// By an array of fixed length.
    FixedArray,
    /// By an array that grows.
    GrowingArray,
    /// By a tree of records.
    Records,
}

/// The chunks of a dataset.
#[derive(Debug, Clone, Copy)]
pub(in super::super) struct Chunking<'d> {
    pub(in super::super) shape: &'d [u64],
    pub(in super::super) chunk: &'d [u64],
    /// The bytes of an element.
    pub(in super::super) size: u64,
}

impl Chunking<'_> {
    /// The bytes of a chunk.
    fn whole(&self) -> u64 {
        self.chunk.iter().fold(self.size, |all, side| all.saturating_mul(*side))
    }

    /// The chunks along each axis.
    fn counts(&self) -> impl DoubleEndedIterator<Item = u64> + ExactSizeIterator {
        self.shape.iter().zip(self.chunk).map(|(side, each)| side.div_ceil((*each).max(1)))
    }

    /// The number of the chunk with these places along each axis; `None`: it is outside of the shape.
    fn number(&self, places: impl Iterator<Item = u64>) -> Option<u64> {
        let mut axes = self.counts().zip(places);
        axes.try_fold(0_u64, |number, (count, place)| {
            (place < count).then_some(number.checked_mul(count)?.checked_add(place)?)
        })
    }
}

/// An axis of an array of places.
struct Axis {
    /// The chunks along it in the array, and in the shape.
    listed: u64,
    count: u64,
    /// What a chunk further along it has more in its number.
    stride: u64,
}

/// The chunks found so far.
pub(super) struct Listed<'d> {
    chunking: Chunking<'d>,
    /// From the one along which neighbours in the array are.
    axes: Vec<Axis>,
    found: Vec<StoredChunk>,
    is_damaged: bool,
}

impl<'d> Listed<'d> {
    fn new(chunking: Chunking<'d>, most: &[u64]) -> Self {
        let mut stride = 1_u64;
        let mut axes = Vec::with_capacity(most.len());
        for (count, (most, each)) in chunking.counts().zip(most.iter().zip(chunking.chunk)).rev() {
            let listed = if *most == u64::MAX { *most } else { most.div_ceil((*each).max(1)) };
            axes.push(Axis { listed: listed.max(1), count, stride });
            stride = stride.saturating_mul(count);
        }
        // An axis along which the dataset grows is the slowest.
        axes.sort_by_key(|axis| axis.listed == u64::MAX);
        Self { chunking, axes, found: Vec::new(), is_damaged: false }
    }

    /// The number of the chunk at a place of an array; `None`: it is outside of the shape.
    pub(super) fn number_of_place(&self, mut place: u64) -> Option<u64> {
        let mut number = 0_u64;
        for Axis { listed, count, stride } in &self.axes {
            let along = place % listed;
            place /= listed;
            if along >= *count {
                return None;
            }
            number = number.saturating_add(along.saturating_mul(*stride));
        }
        (place == 0).then_some(number)
    }

    /// Adds a chunk. `packed`: its size and mask, if the dataset has filters.
    pub(super) fn add(&mut self, number: Option<u64>, offset: u64, packed: Option<(u64, u32)>) {
        let (bytes, mask) = packed.unwrap_or((self.chunking.whole(), 0));
        match (number, u32::try_from(bytes)) {
            (None, _) => {}
            (Some(number), Ok(bytes)) if self.found.len() < MAX_CHUNKS => {
                self.found.push(StoredChunk { number, offset, bytes, mask });
            }
            _ => self.is_damaged = true,
        }
    }
}

impl Hdf5<'_> {
    /// The chunks of a list, in the order of their numbers.
    ///
    /// # Errors
    /// The list is damaged, or cannot be read.
    pub(in super::super) fn chunks(
        &mut self,
        list: &ChunkList,
        chunking: Chunking<'_>,
    ) -> Result<Vec<StoredChunk>, DatasetError> {
        let ChunkList { kind, address, most } = list;
        let (address, at) = (*address, self.base.saturating_add(*address));
        let mut listed = Listed::new(chunking, most);
        match kind {
            ListKind::Tree => return self.chunks_of_tree(address, chunking.shape, chunking.chunk),
            ListKind::One(packed) => {
                let first = chunking.number(chunking.shape.iter().map(|_| 0));
                listed.add(first, at, *packed);
            }
            ListKind::Row => {
                let all =
                    listed.axes.iter().fold(1_u64, |all, axis| all.saturating_mul(axis.listed));
                if all > MAX_CHUNKS as u64 {
                    return Err(self.damaged(WHAT, address));
                }
                // No list is read, and so many places are kept.
                self.charge(all * size_of::<StoredChunk>() as u64)?;
                for place in 0..all {
                    let offset = at.saturating_add(place.saturating_mul(chunking.whole()));
                    listed.add(listed.number_of_place(place), offset, None);
                }
            }
            ListKind::FixedArray => self.fixed_array(address, &mut listed)?,
            ListKind::GrowingArray => self.growing_array(address, &mut listed)?,
            ListKind::Records => self.chunks_of_records(address, &mut listed)?,
        }
        let Listed { mut found, is_damaged, .. } = listed;
        found.sort_unstable_by_key(|chunk| chunk.number);
        let is_twice = found.windows(2).any(|pair| pair[0].number == pair[1].number);
        match is_damaged || is_twice {
            true => Err(self.damaged(WHAT, address)),
            false => Ok(found),
        }
    }

    /// Adds the chunks of a tree of records.
    fn chunks_of_records(
        &mut self,
        address: u64,
        listed: &mut Listed<'_>,
    ) -> Result<(), DatasetError> {
        let (sizes, rank) = (self.sizes, listed.chunking.shape.len());
        let (kind, records) = self.records(WHAT, address, &[RECORDS, PACKED_RECORDS])?;
        for record in records {
            let parse = || {
                let mut numbers = Numbers { rest: &record };
                let at = numbers.address(sizes)?;
                let packed = match kind {
                    RECORDS => None,
                    _ => {
                        let size = record.len().checked_sub(sizes.offset + 4 + 8 * rank)?;
                        (size <= 8).then_some(())?;
                        Some((numbers.sized(size)?, numbers.u32()?))
                    }
                };
                (numbers.rest.len() == 8 * rank).then_some((at, packed, numbers))
            };
            let parsed = parse().ok_or_else(|| self.damaged(WHAT, address))?;
            let (Some(at), packed, mut numbers) = parsed else { continue };
            let places = std::iter::from_fn(|| numbers.sized(8));
            let number = listed.chunking.number(places);
            listed.add(number, self.base.saturating_add(at), packed);
        }
        Ok(())
    }
}

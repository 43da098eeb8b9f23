//! HDF5 files: where the numbers of their datasets are.
//!
//! A file is a tree of objects. An object has a header ([`header`]) of messages; a group's lead to the objects in it
//! ([`group`], [`dense`]), and a dataset's are its type, shape, filters and the place of its bytes ([`dataset`]): one range, or chunks
//! that a tree lists ([`chunks`]). `filters` undoes what was done to a chunk. The specification:
//! <https://support.hdfgroup.org/documentation/hdf5/latest/_f_m_t3.html>. What the library writes with its usual settings is read;
//! what its newest ones write (`libver="latest"`), and types other than numbers, are refused with the remedy.

mod arrays;
mod chunks;
mod dataset;
mod dense;
mod filters;
mod group;
mod header;
mod listed;
mod records;

use std::collections::HashSet;

use forebay_dataset::error::DatasetError;
use forebay_index::window::{Bytes, InMemory, Window, WindowSize};

pub(super) use self::chunks::StoredChunk;
pub(super) use self::dataset::{Hdf5Dataset, Place};
pub(super) use self::filters::{Filter, Scratch, scratch_chunks, unfilter};
pub(super) use self::listed::Chunking;

/// The mark of a file, which a user's block of 512 × 2ⁿ bytes may precede.
const MARK: [u8; 8] = *b"\x89HDF\r\n\x1a\n";
/// The most places at which the mark is looked for.
const MARK_PLACES: u32 = 12;
/// The bytes of a superblock of any version, at most.
const SUPERBLOCK_BYTES: u64 = 96;
/// The size of the checksum of a part.
const CHECKSUM_BYTES: usize = 4;
/// The bytes of headers, trees, names and places of chunks that are read or kept of a file: at least this many, and this many for each of its bytes.
const READ_BYTES: (u64, u64) = (64 << 20, 8);
/// What a writer does to be read here.
const REWRITE: &str =
    "copy it into a new file that is made with h5py.File(new, \"w\", libver=\"earliest\")";

/// An open file.
pub(super) struct Hdf5<'f> {
    window: Window<'f>,
    /// The offset of the file's address 0.
    base: u64,
    /// The sizes of addresses and of lengths in the file, in bytes.
    sizes: Sizes,
    root: u64,
    /// The bytes that may still be read: parts of a damaged file may lead to each other.
    left: u64,
    /// The nodes of trees that were read, by their addresses; each is in one tree.
    nodes: HashSet<u64>,
    /// Whether checksums are compared; fuzzing reaches more without.
    compares_sums: bool,
}

/// The sizes of numbers in a file, in bytes.
#[derive(Debug, Clone, Copy)]
struct Sizes {
    offset: usize,
    length: usize,
}

/// Reads numbers from bytes, the lowest byte first; `None`: the bytes have ended.
#[derive(Debug, Clone, Copy)]
struct Numbers<'b> {
    rest: &'b [u8],
}

impl<'b> Numbers<'b> {
    fn take(&mut self, count: usize) -> Option<&'b [u8]> {
        let (taken, rest) = self.rest.split_at_checked(count)?;
        self.rest = rest;
        Some(taken)
    }

    fn skip(&mut self, count: usize) -> Option<()> {
        self.take(count).map(drop)
    }

    fn u8(&mut self) -> Option<u8> {
        Some(self.take(1)?[0])
    }

    /// A number of at most 8 bytes.
    fn sized(&mut self, size: usize) -> Option<u64> {
        let bytes = self.take(size)?;
        let mut wide = [0; 8];
        wide.get_mut(..size)?.copy_from_slice(bytes);
        Some(u64::from_le_bytes(wide))
    }

    fn u16(&mut self) -> Option<u16> {
        self.sized(2).and_then(|number| u16::try_from(number).ok())
    }

    fn u32(&mut self) -> Option<u32> {
        self.sized(4).and_then(|number| u32::try_from(number).ok())
    }

    /// An address; the inner `None`: it is undefined.
    fn address(&mut self, sizes: Sizes) -> Option<Option<u64>> {
        let address = self.sized(sizes.offset)?;
        let undefined = u64::MAX >> (64 - 8 * sizes.offset);
        Some((address != undefined).then_some(address))
    }
}

impl<'f> Hdf5<'f> {
    /// Opens a file, and reads where its root group is.
    ///
    /// # Errors
    /// It is no HDF5 file, or it cannot be read.
    pub(super) fn open(file: &'f dyn Bytes, size: WindowSize) -> Result<Self, DatasetError> {
        let mut window = Window::new(file, size);
        let length = file.length();
        let mut places = (0..MARK_PLACES).map(|place| if place == 0 { 0 } else { 256 << place });
        let found = places.find_map(|at| {
            if length.saturating_sub(at) < MARK.len() as u64 {
                return None;
            }
            match window.get(at, MARK.len() as u64) {
                Ok(bytes) => (bytes == MARK).then_some(Ok(at)),
                Err(error) => Some(Err(error)),
            }
        });
        let at = found
            .transpose()?
            .ok_or_else(|| file.fault("it is no HDF5 file: it has no mark of one".to_owned()))?;
        let bytes = window.get(at, SUPERBLOCK_BYTES.min(length - at))?.to_vec();
        let parsed = superblock(&bytes);
        let (sizes, root) = parsed.ok_or_else(|| {
            file.fault("its superblock is damaged, or of an unknown version".to_owned())
        })?;
        // What the superblock says of it is wrong where a user's block was added or removed.
        let base = at;
        let left = READ_BYTES.0.saturating_add(length.saturating_mul(READ_BYTES.1));
        Ok(Self { window, base, sizes, root, left, nodes: HashSet::new(), compares_sums: true })
    }

    fn fault(&self, reason: impl Into<String>) -> DatasetError {
        self.window.file.fault(reason.into())
    }

    /// The error for a part that is not as the specification has it.
    fn damaged(&self, what: &str, address: u64) -> DatasetError {
        self.fault(format!("{what} at byte {} is damaged", self.base.saturating_add(address)))
    }

    /// Bytes of the file.
    fn get(&mut self, address: u64, length: u64) -> Result<&[u8], DatasetError> {
        self.charge(length)?;
        self.window.get(self.base.saturating_add(address), length)
    }

    /// Counts bytes that are read or kept.
    ///
    /// # Errors
    /// They are more than a file of this size has.
    pub(super) fn charge(&mut self, bytes: u64) -> Result<(), DatasetError> {
        self.left = self.left.checked_sub(bytes).ok_or_else(|| {
            self.fault("its parts lead to each other again and again: it is damaged")
        })?;
        Ok(())
    }

    /// As [`get`](Self::get), of a node of a tree, which is read once. `what`: the tree.
    fn node(&mut self, what: &str, address: u64, length: u64) -> Result<Vec<u8>, DatasetError> {
        match self.nodes.insert(address) {
            true => Ok(self.get(address, length)?.to_vec()),
            false => Err(self.damaged(what, address)),
        }
    }

    /// As [`get`](Self::get), of fewer bytes at the end of the file.
    fn get_at_most(&mut self, address: u64, length: u64) -> Result<&[u8], DatasetError> {
        let rest = self.window.file.length().saturating_sub(self.base.saturating_add(address));
        self.get(address, length.min(rest))
    }
}

/// The sizes, and the address of the root group's header.
fn superblock(bytes: &[u8]) -> Option<(Sizes, u64)> {
    let mut numbers = Numbers { rest: bytes };
    numbers.skip(MARK.len())?;
    let version = numbers.u8()?;
    let is_old = version < 2;
    if is_old {
        // Versions of the free space, the root group and shared headers.
        numbers.skip(4)?;
    }
    let sizes = Sizes { offset: numbers.u8()?.into(), length: numbers.u8()?.into() };
    if ![sizes.offset, sizes.length].iter().all(|size| [2, 4, 8].contains(size)) {
        return None;
    }
    match version {
        0 | 1 => {
            // A reserved byte, the widths of trees, flags, and in version 1 the width of trees of chunks.
            numbers.skip(if version == 0 { 9 } else { 13 })?;
            // The base, free space, the end of the file, the driver; then the root's entry: its name and its header.
            numbers.skip(5 * sizes.offset)?;
            Some((sizes, numbers.address(sizes)??))
        }
        2 | 3 => {
            numbers.skip(1)?;
            // The base, the extension, and the end of the file.
            numbers.skip(3 * sizes.offset)?;
            let root = numbers.address(sizes)??;
            let end = bytes.len() - numbers.rest.len() + CHECKSUM_BYTES;
            has_checksum(bytes.get(..end)?).then_some((sizes, root))
        }
        _ => None,
    }
}

/// Whether a checksum follows the bytes of a part, as newer parts have one: Bob Jenkins's lookup3.
fn has_checksum(bytes: &[u8]) -> bool {
    bytes
        .split_last_chunk()
        .is_some_and(|(bytes, stored)| lookup3(bytes) == u32::from_le_bytes(*stored))
}

fn lookup3(bytes: &[u8]) -> u32 {
    let start = 0xdead_beef_u32.wrapping_add(u32::try_from(bytes.len()).unwrap_or(u32::MAX));
    let mut state = [start; 3];
    let mut rest = bytes;
    while rest.len() > 12 {
        let (words, after) = rest.split_at(12);
        for (word, bytes) in state.iter_mut().zip(words.as_chunks().0) {
            *word = word.wrapping_add(u32::from_le_bytes(*bytes));
        }
        let [a, b, c] = &mut state;
        for (turn, times) in [4, 6, 8, 16, 19, 4].into_iter().enumerate() {
            let (x, y, z) = match turn % 3 {
                0 => (&mut *a, &mut *b, &mut *c),
                1 => (&mut *b, &mut *c, &mut *a),
                _ => (&mut *c, &mut *a, &mut *b),
            };
            *x = x.wrapping_sub(*z) ^ z.rotate_left(times);
            *z = z.wrapping_add(*y);
        }
        rest = after;
    }
    if rest.is_empty() {
        return state[2];
    }
    let mut last = [0; 12];
    last[..rest.len()].copy_from_slice(rest);
    for (word, bytes) in state.iter_mut().zip(last.as_chunks().0) {
        *word = word.wrapping_add(u32::from_le_bytes(*bytes));
    }
    let [a, b, c] = &mut state;
    for (turn, times) in [14, 11, 25, 16, 4, 14, 24].into_iter().enumerate() {
        let (x, y) = match turn % 3 {
            0 => (&mut *c, &*b),
            1 => (&mut *a, &*c),
            _ => (&mut *b, &*a),
        };
        *x = (*x ^ *y).wrapping_sub(y.rotate_left(times));
    }
    state[2]
}

/// Reads all that a file says of its datasets, and some of their chunks; see `fuzzing`.
///
/// # Panics
/// A chunk has a number that its dataset does not have, or not the size of its elements.
pub(super) fn read_for_fuzzing(bytes: &[u8], limit_bytes: u64) {
    let file = InMemory(bytes);
    let Ok(opened) = Hdf5::open(&file, WindowSize::BLOCK) else { return };
    let mut hdf5 = Hdf5 { compares_sums: false, ..opened };
    for (path, header) in hdf5.datasets().unwrap_or_default().into_iter().take(64) {
        let Ok(Hdf5Dataset { shape, dtype, fill, place, .. }) = hdf5.dataset(&path, header) else {
            continue;
        };
        assert!(fill.len() as u64 == dtype.size_bytes() && !shape.is_empty());
        let Place::Chunks { chunk, filters, list: Some(list) } = place else { continue };
        let sides = shape.iter().zip(&chunk).map(|(side, each)| side.div_ceil(*each));
        let all = sides.fold(1, u64::saturating_mul);
        let whole = chunk.iter().fold(dtype.size_bytes(), |all, side| all.saturating_mul(*side));
        let chunking = Chunking { shape: &shape, chunk: &chunk, size: dtype.size_bytes() };
        for stored in hdf5.chunks(&list, chunking).unwrap_or_default().into_iter().take(4) {
            assert!(stored.number < all, "{stored:?}");
            let start = usize::try_from(stored.offset).unwrap_or(usize::MAX);
            let packed = bytes.get(start..).and_then(|rest| rest.get(..stored.bytes as usize));
            let (Some(packed), true) = (packed, whole <= limit_bytes) else { continue };
            let whole = usize::try_from(whole).unwrap_or(0);
            let mut scratch = Scratch::default();
            if let Ok(elements) = unfilter(&filters, stored.mask, packed, whole, &mut scratch) {
                assert_eq!(elements.len(), whole);
            }
        }
    }
}

#[cfg(test)]
mod tests;

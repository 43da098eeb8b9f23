//! Locations of a sample's bytes: files by number, ranges within them. Storages and datasets share these types and do
//! not depend on each other.

use std::ops::Range;

use crate::codec::Codec;
use crate::version::ObjectStamp;

/// A file of a dataset: its number in the dataset's table of files, from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileId(pub u64);

/// The files of a dataset. Paths are requested when a file is opened and for messages.
pub trait FileTable: Send + Sync {
    /// Appends a file's path, relative to the dataset's root, or to the root's folder if the root is a file.
    ///
    /// # Panics
    /// When there is no such file.
    fn append_path(&self, file: FileId, path: &mut Vec<u8>);

    /// A file's size and tag from a listing; `None`: unknown.
    fn stamp(&self, file: FileId) -> Option<ObjectStamp> {
        let _ = file;
        None
    }

    /// A file's path.
    fn path(&self, file: FileId) -> Vec<u8> {
        let mut path = Vec::with_capacity(64);
        self.append_path(file, &mut path);
        path
    }
}

/// A part of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ByteRange {
    /// From the file's start.
    pub offset: u64,
    /// `None`: to the file's end.
    pub length: Option<u64>,
}

impl ByteRange {
    /// All of a file.
    pub const WHOLE: Self = Self { offset: 0, length: None };
}

/// One part of a sample's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Location {
    /// The file.
    pub file: FileId,
    /// The part of it.
    pub range: ByteRange,
    /// Whether other samples share the location.
    pub unit: Unit,
}

impl Location {
    /// The compressed part to unpack, if there is one.
    pub const fn packed(&self) -> Option<Packed> {
        match self.unit {
            Unit::Packed(part) => Some(part),
            Unit::Block(Transform::Unpacked { codec, bytes }) => {
                Some(Packed { codec, unpacked_bytes: bytes, start: 0, length: bytes })
            }
            Unit::Sample | Unit::Block(Transform::None) => None,
        }
    }

    /// All of a file, for one sample.
    #[must_use]
    pub const fn whole(file: FileId) -> Self {
        Self { file, range: ByteRange::WHOLE, unit: Unit::Sample }
    }
}

/// What one read provides.
///
/// A sample has separate bytes, or shares a block with its neighbours if single samples cannot be read: a page of a
/// Parquet file, a compressed shard. All samples of a block have the same location, which identifies the block, and
/// `Dataset::read` finds their parts of it. A block is read once while samples that
/// need it are near, and its bytes are counted once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Unit {
    /// The bytes of one sample.
    Sample,
    /// The bytes of one sample, as a part of the unpacked range. Only for a dataset that returns the maximal size in
    /// `Dataset::page_bytes`.
    Packed(Packed),
    /// The bytes of several samples. Only for a dataset that `Dataset::shares_units`.
    Block(Transform),
}

/// A part of a compressed range, after unpacking.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Packed {
    /// The compression.
    pub codec: Codec,
    /// The size of the whole range after unpacking.
    pub unpacked_bytes: u32,
    /// The part's offset in it.
    pub start: u32,
    /// The part's size.
    pub length: u32,
}

/// Applied once to a block's bytes after reading; belongs to the block's identity, since the same range may be shared
/// in two forms.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Transform {
    /// None: samples get the bytes as stored.
    None,
    /// Unpacking: samples get the unpacked bytes. Only for a dataset that returns the maximal size in
    /// `Dataset::page_bytes`.
    Unpacked {
        /// The compression.
        codec: Codec,
        /// The size after unpacking.
        bytes: u32,
    },
}

/// The bytes of one sample as read: a part for each of its locations, in their order.
#[derive(Debug, Clone, Copy)]
pub struct SampleBytes<'a>(Parts<'a>);

#[derive(Debug, Clone, Copy)]
enum Parts<'a> {
    /// In a buffer that belongs to the sample.
    Own {
        all: &'a [u8],
        /// The end of each part; empty if there is one part.
        ends: &'a [usize],
    },
    /// In buffers that other samples use too.
    Shared(&'a [SharedBytes]),
}

/// A buffer that several samples use. Dropping it ends this sample's use.
pub struct SharedBytes(Box<dyn AsRef<[u8]> + Send + Sync>);

impl SharedBytes {
    /// `holder` provides the bytes; dropping it ends the sample's use.
    pub fn new(holder: impl AsRef<[u8]> + Send + Sync + 'static) -> Self {
        Self(Box::new(holder))
    }

    fn get(&self) -> &[u8] {
        (*self.0).as_ref()
    }
}

impl std::fmt::Debug for SharedBytes {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "SharedBytes({} bytes)", self.get().len())
    }
}

/// A slice's position in a sample's bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlaceInBytes {
    buffer: usize,
    range: Range<usize>,
}

impl<'a> SampleBytes<'a> {
    /// Parts with these ends; no ends: one part.
    #[must_use]
    pub const fn new(all: &'a [u8], ends: &'a [usize]) -> Self {
        Self(Parts::Own { all, ends })
    }

    /// A buffer for each part; at least one.
    #[must_use]
    pub const fn shared(parts: &'a [SharedBytes]) -> Self {
        Self(Parts::Shared(parts))
    }

    /// The bytes of a sample with one location. With several in one buffer: all of them without gaps.
    #[must_use]
    pub fn all(self) -> &'a [u8] {
        self.buffer(0).unwrap_or_default()
    }

    /// The bytes of one location; `None` if the number is too large.
    #[must_use]
    pub fn part(self, number: usize) -> Option<&'a [u8]> {
        match self.0 {
            Parts::Own { all, ends: [] } => (number == 0).then_some(all),
            Parts::Own { all, ends } => {
                let start = if number == 0 { 0 } else { *ends.get(number - 1)? };
                all.get(start..*ends.get(number)?)
            }
            Parts::Shared(parts) => parts.get(number).map(SharedBytes::get),
        }
    }

    /// Total number of bytes.
    #[must_use]
    pub fn length_bytes(self) -> u64 {
        match self.0 {
            Parts::Own { all, .. } => all.len() as u64,
            Parts::Shared(parts) => parts.iter().map(|part| part.get().len() as u64).sum(),
        }
    }

    fn buffer(self, number: usize) -> Option<&'a [u8]> {
        match self.0 {
            Parts::Own { all, .. } => (number == 0).then_some(all),
            Parts::Shared(parts) => parts.get(number).map(SharedBytes::get),
        }
    }

    /// The position of a slice in these bytes; `None` for other memory.
    #[must_use]
    pub fn find(self, slice: &[u8]) -> Option<PlaceInBytes> {
        let buffers = match self.0 {
            Parts::Own { .. } => 1,
            Parts::Shared(parts) => parts.len(),
        };
        (0..buffers).find_map(|buffer| {
            let bytes = self.buffer(buffer)?;
            let start = slice.as_ptr().addr().checked_sub(bytes.as_ptr().addr())?;
            let end = start.checked_add(slice.len())?;
            (end <= bytes.len()).then_some(PlaceInBytes { buffer, range: start..end })
        })
    }

    /// The bytes at a position; empty if it was found in other bytes.
    #[must_use]
    pub fn at(self, place: &PlaceInBytes) -> &'a [u8] {
        self.buffer(place.buffer)
            .and_then(|bytes| bytes.get(place.range.clone()))
            .unwrap_or_default()
    }
}

impl<'a> From<&'a [u8]> for SampleBytes<'a> {
    fn from(all: &'a [u8]) -> Self {
        Self::new(all, &[])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_found_in_single_and_shared_buffers() {
        let (bytes, ends) = (b"abcdef".to_vec(), [2, 2, 6]);
        let own = SampleBytes::new(&bytes, &ends);
        assert_eq!([0, 1, 2].map(|part| own.part(part).unwrap()), [&b"ab"[..], b"", b"cdef"]);
        assert_eq!(own.part(3), None);
        let place = own.find(&bytes[3..5]).unwrap();
        assert_eq!(own.at(&place), b"de");
        let shared = [b"one".to_vec(), b"other".to_vec()].map(SharedBytes::new);
        let shared = SampleBytes::shared(&shared);
        assert_eq!((shared.all(), shared.part(1)), (&b"one"[..], Some(&b"other"[..])));
        let inner = &shared.part(1).unwrap()[1..3];
        assert_eq!(shared.at(&shared.find(inner).unwrap()), b"th");
        assert_eq!(shared.find(&bytes), None);
        assert_eq!(own.find(inner), None);
    }
}

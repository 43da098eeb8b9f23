//! Where a sample's bytes lie: files by number, ranges within them. Storage and datasets share these types; neither
//! knows the other.

use std::ops::Range;

use crate::codec::Codec;

/// A file of a dataset: its number in the dataset's table of files, from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileId(pub u64);

/// The files of a dataset. Paths are asked for when a file is opened and for messages.
pub trait FileTable: Send + Sync {
    /// Appends a file's path, relative to the dataset's root (to a file's folder, where the root is a file).
    ///
    /// # Panics
    /// When there is no such file.
    fn append_path(&self, file: FileId, path: &mut Vec<u8>);

    /// What a listing said of a file; `None`: nothing.
    fn stamp(&self, file: FileId) -> Option<ObjectStamp> {
        let _ = file;
        None
    }

    /// The path alone.
    fn path(&self, file: FileId) -> Vec<u8> {
        let mut path = Vec::with_capacity(64);
        self.append_path(file, &mut path);
        path
    }
}

/// An object's size, and what tells it from another of the same name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ObjectStamp {
    /// Its size.
    pub bytes: u64,
    /// Of its ETag; 0: it has none.
    pub tag: u64,
}

impl ObjectStamp {
    /// Of a size and an ETag. Quotes, and the mark of a weak tag, do not count: listings and answers differ in them.
    #[must_use]
    pub fn new(bytes: u64, tag: Option<&str>) -> Self {
        let bare = tag.map(|tag| tag.strip_prefix("W/").unwrap_or(tag).trim_matches('"'));
        let digest = |tag: &str| {
            let digest = blake3::hash(tag.as_bytes());
            digest.as_bytes().first_chunk().map_or(1, |bytes| u64::from_le_bytes(*bytes).max(1))
        };
        Self { bytes, tag: bare.filter(|tag| !tag.is_empty()).map_or(0, digest) }
    }

    /// Whether both may be of the same object.
    #[must_use]
    pub fn agrees(self, other: Self) -> bool {
        let is_known = self.tag != 0 && other.tag != 0;
        self.bytes == other.bytes && (!is_known || self.tag == other.tag)
    }

    /// Whether both have one tag.
    #[must_use]
    pub fn has_tag_of(self, other: Self) -> bool {
        self.tag != 0 && self.tag == other.tag
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
    /// Whether other samples have the same location.
    pub unit: Unit,
}

impl Location {
    /// What is to be unpacked of it, if something is.
    pub(crate) const fn packed(&self) -> Option<Packed> {
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

/// What one read brings.
///
/// A sample has its bytes to itself, or shares a block with its neighbours where single samples cannot be read: a page of
/// a Parquet file, a compressed shard. All samples of a block give the same location, which is the block's identity, and
/// find their part of it in [`Dataset::read`](crate::dataset::Dataset::read). A block is read once while samples that
/// need it are near, and its bytes are counted once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Unit {
    /// The bytes are one sample's.
    Sample,
    /// The bytes are one sample's, a part of what the range unpacks to. Only of a dataset that says how much that may be:
    /// [`page_bytes`](crate::dataset::Dataset::page_bytes).
    Packed(Packed),
    /// The bytes are several samples'. Only of a dataset that
    /// [`shares_units`](crate::dataset::Dataset::shares_units).
    Block(Transform),
}

/// A part of what a compressed range unpacks to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Packed {
    /// How it is compressed.
    pub codec: Codec,
    /// The bytes that all of the range unpacks to.
    pub unpacked_bytes: u32,
    /// Where the part begins in them.
    pub start: u32,
    /// The part's bytes.
    pub length: u32,
}

/// What is done once to a block's bytes after they were read: part of the block's identity, since the same range may be
/// shared in two forms.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Transform {
    /// Nothing: samples get the bytes as they lie in the file.
    None,
    /// They are unpacked: samples get what they unpack to. Only of a dataset that says how much that may be:
    /// [`page_bytes`](crate::dataset::Dataset::page_bytes).
    Unpacked {
        /// How they are compressed.
        codec: Codec,
        /// How many bytes they unpack to.
        bytes: u32,
    },
}

/// The bytes of one sample as they were fetched: a part for each of its locations, in their order.
#[derive(Debug, Clone, Copy)]
pub struct SampleBytes<'a>(Parts<'a>);

#[derive(Debug, Clone, Copy)]
enum Parts<'a> {
    /// In one buffer of the sample's own.
    Own {
        all: &'a [u8],
        /// Where each part ends; empty where there is one.
        ends: &'a [usize],
    },
    /// Each in a buffer that other samples use too.
    Shared(&'a [SharedBytes]),
}

/// A buffer that several samples use. Dropped: this sample is done with it.
pub struct SharedBytes(Box<dyn AsRef<[u8]> + Send + Sync>);

impl SharedBytes {
    /// What gives the bytes, and is told by its drop that the sample is done.
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

/// Where something lies in a sample's fetched bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlaceInBytes {
    buffer: usize,
    range: Range<usize>,
}

impl<'a> SampleBytes<'a> {
    /// Parts that end there; no ends: one part.
    #[must_use]
    pub const fn new(all: &'a [u8], ends: &'a [usize]) -> Self {
        Self(Parts::Own { all, ends })
    }

    /// A buffer for each part; at least one.
    #[must_use]
    pub const fn shared(parts: &'a [SharedBytes]) -> Self {
        Self(Parts::Shared(parts))
    }

    /// The bytes of a dataset of one location a sample. Of several in one buffer: all of them without a gap.
    #[must_use]
    pub fn all(self) -> &'a [u8] {
        self.buffer(0).unwrap_or_default()
    }

    /// The bytes of one location; `None` where there are not so many.
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

    /// How many they are.
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

    /// Where a slice of these bytes lies in them; `None` for other memory.
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

    /// What lies there; nothing where these are not the bytes that it was found in.
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
    fn parts_are_found_in_one_buffer_and_in_shared_ones() {
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

//! Where a sample's bytes lie: files by number, ranges within them. Storage and datasets share these types; neither
//! knows the other.

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

    /// The path alone.
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
    /// Whether other samples have the same location.
    pub unit: Unit,
}

impl Location {
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
/// find their part of it in [`Dataset::read`](crate::dataset::Dataset::read).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Unit {
    /// The bytes are one sample's.
    Sample,
    /// The bytes are several samples'.
    Block,
}

/// The bytes of one sample as they were fetched: a part for each of its locations, in their order, in one buffer.
#[derive(Debug, Clone, Copy)]
pub struct SampleBytes<'a> {
    all: &'a [u8],
    /// Where each part ends; empty where there is one.
    ends: &'a [usize],
}

impl<'a> SampleBytes<'a> {
    /// Parts that end there; no ends: one part.
    #[must_use]
    pub const fn new(all: &'a [u8], ends: &'a [usize]) -> Self {
        Self { all, ends }
    }

    /// The parts without a gap: for datasets of one location a sample, all there is.
    #[must_use]
    pub const fn all(self) -> &'a [u8] {
        self.all
    }

    /// The bytes of one location; `None` where there are not so many.
    #[must_use]
    pub fn part(self, number: usize) -> Option<&'a [u8]> {
        if self.ends.is_empty() {
            return (number == 0).then_some(self.all);
        }
        let start = if number == 0 { 0 } else { *self.ends.get(number - 1)? };
        self.all.get(start..*self.ends.get(number)?)
    }
}

impl<'a> From<&'a [u8]> for SampleBytes<'a> {
    fn from(all: &'a [u8]) -> Self {
        Self::new(all, &[])
    }
}

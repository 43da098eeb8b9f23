//! The file of a saved index: a header, and sections that its kind defines. It is written once and read in place by all
//! daemons of a host.
//!
//! All numbers are little endian:
//!
//! ```text
//!   0 magic [8]     8 version u32     12 kind u16     14 version of the kind's sections u16
//!  16 checksum [32]: BLAKE3 of everything from byte 48 to the end
//!  48 identity [32]: of the dataset   80 options [32]: of everything else that determines the contents
//! 112 fingerprint [32]: of the samples
//! 144 samples u64                    152 start of the scan, seconds since 1970, i64
//! 160 numbers u64 [4]: defined by the kind
//! 192 ends u64 [8]: of the sections, from the start of the file; a section that the kind lacks is empty
//! 256 the sections, one after another; the last one is the version of all files, if their storage keeps versions
//! ```

use std::ops::Range;

use forebay_dataset::IndexBytes;
use forebay_protocol::ids::SampleId;

/// The size of the header.
pub const HEADER_BYTES: usize = 256;
/// The maximum number of sections.
const MAX_SECTIONS: usize = 8;
/// The section with the version of the files; empty: their storage keeps none.
const REVISION: usize = MAX_SECTIONS - 1;

const MAGIC: [u8; 8] = *b"FOREBIDX";
/// The first bytes of a folder's index when each kind had its own layout.
const EARLIER_FOLDER: &[u8] = b"FOREBIDX\x01\0\0\0";
/// Incremented whenever the meaning of a byte of the header changes.
const VERSION: u32 = 2;

const VERSION_AT: usize = 8;
const KIND_AT: usize = 12;
const CHECKSUM: Range<usize> = 16..48;
const IDENTITY: Range<usize> = 48..80;
const OPTIONS: Range<usize> = 80..112;
const FINGERPRINT: Range<usize> = 112..144;
const SAMPLES_AT: usize = 144;
const STARTED_AT: usize = 152;
const NUMBERS: Range<usize> = 160..192;
const ENDS: Range<usize> = 192..256;

/// What an index contains, and the version of its sections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kind {
    number: u16,
    version: u16,
}

impl Kind {
    /// The files of a folder.
    pub const FOLDER: Self = Self { number: 1, version: 2 };
    /// The samples of files that contain many.
    pub const SHARDS: Self = Self { number: 2, version: 1 };
    /// The rows of tables and manifests.
    pub const ROWS: Self = Self { number: 3, version: 1 };
    /// The rows of documents of tokens.
    pub const TOKENS: Self = Self { number: 4, version: 1 };
    /// The episodes of windows of rows.
    pub const WINDOWS: Self = Self { number: 5, version: 1 };
    /// The episodes of recordings, and the values of their frames.
    pub const EPISODES: Self = Self { number: 6, version: 1 };

    fn word(self) -> u32 {
        u32::from(self.number) | u32::from(self.version) << 16
    }

    /// The first bytes of its indexes when each kind had its own layout; `None`: it is younger.
    fn earlier(self) -> Option<&'static [u8]> {
        match self {
            Self::FOLDER => Some(EARLIER_FOLDER),
            Self::SHARDS => Some(b"FOREBTAR"),
            Self::ROWS => Some(b"FOREBMAN"),
            Self::TOKENS => Some(b"FOREBTOK"),
            _ => None,
        }
    }

    fn is_earlier(self, start: &[u8]) -> bool {
        self.earlier().is_some_and(|earlier| start.starts_with(earlier))
    }

    /// Whether a file begins with an index of this kind, of any version.
    pub fn begins(self, start: &[u8]) -> bool {
        let is_earlier = self.is_earlier(start);
        let is_kind = start.get(KIND_AT..KIND_AT + 2) == Some(&self.number.to_le_bytes());
        is_earlier || (start.starts_with(&MAGIC) && is_kind)
    }
}

/// BLAKE3 of what an index says of its files: everything but the time of its scan and what depends on it.
#[must_use]
pub fn contents_digest(index: &[u8]) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    for range in [OPTIONS, FINGERPRINT, NUMBERS, ENDS, HEADER_BYTES..index.len()] {
        hasher.update(index.get(range).unwrap_or_default());
    }
    *hasher.finalize().as_bytes()
}

/// Why an index is unusable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LayoutFault {
    /// Another kind of file.
    NoIndex,
    /// An index of another version of this program.
    OtherVersion,
    /// Truncated or modified.
    Damaged,
}

/// An index under construction. Its sections are written in their order.
#[derive(Debug)]
pub struct IndexDraft {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl IndexDraft {
    /// `keys`: the digests of the dataset and of the options. `expected_bytes`: the approximate size of all sections.
    #[must_use]
    pub fn new(kind: Kind, [identity, options]: [&[u8; 32]; 2], expected_bytes: usize) -> Self {
        let mut bytes = Vec::with_capacity(HEADER_BYTES.saturating_add(expected_bytes));
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&kind.word().to_le_bytes());
        bytes.resize(CHECKSUM.end, 0);
        bytes.extend_from_slice(identity);
        bytes.extend_from_slice(options);
        bytes.resize(HEADER_BYTES, 0);
        Self { bytes, ends: Vec::with_capacity(MAX_SECTIONS) }
    }

    /// The size of the section so far.
    #[must_use]
    pub fn section_bytes(&self) -> usize {
        self.bytes.len() - self.ends.last().copied().unwrap_or(HEADER_BYTES)
    }

    /// Appends to the section.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Appends numbers to the section.
    pub fn push_all(&mut self, numbers: impl IntoIterator<Item = u64>) {
        numbers.into_iter().for_each(|number| self.push(&number.to_le_bytes()));
    }

    /// The file so far, to append to the section.
    pub fn bytes(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// Ends the section; the next one follows.
    ///
    /// # Panics
    /// There are too many sections.
    pub fn end_section(&mut self) {
        assert!(self.ends.len() < MAX_SECTIONS);
        self.ends.push(self.bytes.len());
    }

    /// A complete section.
    ///
    /// # Panics
    /// The section does not exist.
    #[must_use]
    pub fn section(&self, section: usize) -> &[u8] {
        let start = section.checked_sub(1).map_or(HEADER_BYTES, |before| self.ends[before]);
        &self.bytes[start..self.ends[section]]
    }

    /// BLAKE3 of all sections so far.
    #[must_use]
    pub fn digest(&self) -> [u8; 32] {
        *blake3::hash(&self.bytes[HEADER_BYTES..]).as_bytes()
    }

    /// Completes the header.
    ///
    /// # Panics
    /// There are too many numbers.
    #[must_use]
    pub fn seal(
        self,
        samples: u64,
        started_seconds: i64,
        numbers: &[u64],
        fingerprint: [u8; 32],
    ) -> Vec<u8> {
        let Self { mut bytes, ends } = self;
        assert!(numbers.len() <= NUMBERS.len() / 8);
        let last = bytes.len();
        let ends = ends.into_iter().chain(std::iter::repeat(last)).take(MAX_SECTIONS);
        put(&mut bytes[SAMPLES_AT..], [samples, started_seconds.cast_unsigned()]);
        put(&mut bytes[NUMBERS], numbers.iter().copied());
        put(&mut bytes[ENDS], ends.map(|end| end as u64));
        seal(&mut bytes, fingerprint);
        bytes
    }
}

fn put(bytes: &mut [u8], numbers: impl IntoIterator<Item = u64>) {
    for (place, number) in bytes.chunks_exact_mut(8).zip(numbers) {
        place.copy_from_slice(&number.to_le_bytes());
    }
}

/// Writes the fingerprint, then the checksum, which covers it.
///
/// # Panics
/// The bytes are shorter than a header.
pub fn seal(bytes: &mut [u8], fingerprint: [u8; 32]) {
    bytes[FINGERPRINT].copy_from_slice(&fingerprint);
    let checksum = blake3::hash(&bytes[CHECKSUM.end..]);
    bytes[CHECKSUM].copy_from_slice(checksum.as_bytes());
}

/// A complete index with the version of the files that it describes, in the last section, which no kind uses.
///
/// # Panics
/// The bytes are shorter than a header.
#[must_use]
pub fn with_revision(mut bytes: Vec<u8>, revision: &str) -> Vec<u8> {
    bytes.extend_from_slice(revision.as_bytes());
    let end = bytes.len() as u64;
    let at = ENDS.start + 8 * REVISION;
    put(&mut bytes[at..at + 8], [end]);
    let fingerprint = bytes[FINGERPRINT].first_chunk().copied().unwrap_or_default();
    seal(&mut bytes, fingerprint);
    bytes
}

/// An intact index.
#[derive(Debug)]
pub struct IndexFile {
    bytes: IndexBytes,
    ends: [usize; MAX_SECTIONS],
}

impl IndexFile {
    /// Checks kind, versions, checksum and the places of the sections.
    ///
    /// # Errors
    /// The bytes are not an intact index of this kind and version.
    pub fn open(bytes: IndexBytes, kind: Kind) -> Result<Self, LayoutFault> {
        if kind.is_earlier(&bytes) {
            return Err(LayoutFault::OtherVersion);
        }
        if !bytes.starts_with(&MAGIC) || bytes.starts_with(EARLIER_FOLDER) {
            return Err(LayoutFault::NoIndex);
        }
        if u32_at(&bytes, VERSION_AT) != Some(VERSION) {
            return Err(LayoutFault::OtherVersion);
        }
        if !kind.begins(&bytes) {
            return Err(LayoutFault::NoIndex);
        }
        if u32_at(&bytes, KIND_AT) != Some(kind.word()) {
            return Err(LayoutFault::OtherVersion);
        }
        let is_sealed = bytes.get(CHECKSUM.end..).is_some_and(|covered| {
            covered.len() >= HEADER_BYTES - CHECKSUM.end
                && bytes[CHECKSUM] == *blake3::hash(covered).as_bytes()
        });
        let ends = read_ends(&bytes).filter(|_| is_sealed).ok_or(LayoutFault::Damaged)?;
        Ok(Self { bytes, ends })
    }

    /// The bytes that it was opened with.
    #[must_use]
    pub fn bytes(&self) -> &IndexBytes {
        &self.bytes
    }

    /// Returns the bytes.
    #[must_use]
    pub fn into_bytes(self) -> IndexBytes {
        self.bytes
    }

    fn digest(&self, range: Range<usize>) -> [u8; 32] {
        self.bytes.get(range).and_then(|bytes| bytes.first_chunk().copied()).unwrap_or_default()
    }

    /// The digests of the dataset and of everything else that determines the contents.
    #[must_use]
    pub fn keys(&self) -> [[u8; 32]; 2] {
        [self.digest(IDENTITY), self.digest(OPTIONS)]
    }

    /// The fingerprint of the samples.
    #[must_use]
    pub fn fingerprint(&self) -> [u8; 32] {
        self.digest(FINGERPRINT)
    }

    /// The number of samples.
    #[must_use]
    pub fn samples(&self) -> u64 {
        u64_at(&self.bytes, SAMPLES_AT).unwrap_or(0)
    }

    /// When the scan began, in seconds since 1970.
    #[must_use]
    pub fn scan_started_seconds(&self) -> i64 {
        u64_at(&self.bytes, STARTED_AT).unwrap_or(0).cast_signed()
    }

    /// One of the numbers that the kind defines.
    #[must_use]
    pub fn number(&self, place: usize) -> u64 {
        self.bytes.get(NUMBERS).and_then(|numbers| u64_at(numbers, 8 * place)).unwrap_or(0)
    }

    /// A section; empty if the kind lacks it.
    #[must_use]
    pub fn section(&self, section: usize) -> &[u8] {
        let start = section.checked_sub(1).map_or(HEADER_BYTES, |before| self.ends[before]);
        self.bytes.get(start..self.ends[section]).unwrap_or_default()
    }

    /// A section of text; empty if it is no UTF-8.
    #[must_use]
    pub fn text(&self, section: usize) -> &str {
        std::str::from_utf8(self.section(section)).unwrap_or_default()
    }

    /// The version of the files that it describes, if their storage keeps versions.
    #[must_use]
    pub fn revision(&self) -> Option<&str> {
        Some(self.text(REVISION)).filter(|text| !text.is_empty())
    }

    /// A record of a section of records of this size.
    #[must_use]
    pub fn record<const BYTES: usize>(&self, section: usize, place: usize) -> Option<&[u8; BYTES]> {
        self.section(section).get(place.checked_mul(BYTES)?..)?.first_chunk()
    }

    /// The number of records of this size in a section; `None` if a part of one is left.
    #[must_use]
    pub fn records(&self, section: usize, record_bytes: usize) -> Option<usize> {
        let bytes = self.section(section).len();
        bytes.is_multiple_of(record_bytes).then_some(bytes / record_bytes)
    }

    /// A number of a section of u64.
    #[must_use]
    pub fn u64(&self, section: usize, place: usize) -> Option<u64> {
        self.record(section, place).map(|bytes| u64::from_le_bytes(*bytes))
    }

    /// A number of a section of u32.
    #[must_use]
    pub fn u32(&self, section: usize, place: usize) -> Option<u32> {
        self.record(section, place).map(|bytes| u32::from_le_bytes(*bytes))
    }

    /// The group of a sample: the last of `groups` records whose first number, its first sample, is not after it.
    ///
    /// # Panics
    /// The sample does not exist.
    #[must_use]
    pub fn group_of<const BYTES: usize>(
        &self,
        section: usize,
        groups: usize,
        id: SampleId,
    ) -> usize {
        let samples = self.samples();
        assert!(id.0 < samples, "sample {} does not exist: the dataset has {samples}", id.0);
        let first = |group| u64_at(self.record::<BYTES>(section, group)?, 0);
        let (mut low, mut high) = (0, groups);
        while high - low > 1 {
            let middle = low.midpoint(high);
            if first(middle).is_some_and(|first| first <= id.0) {
                low = middle;
            } else {
                high = middle;
            }
        }
        low
    }
}

/// The ends of the sections, if each section is in the file and the last one ends with it.
fn read_ends(bytes: &[u8]) -> Option<[usize; MAX_SECTIONS]> {
    let mut ends = [0; MAX_SECTIONS];
    let mut before = HEADER_BYTES;
    for (place, end) in ends.iter_mut().enumerate() {
        *end = usize::try_from(u64_at(bytes, ENDS.start + 8 * place)?).ok()?;
        (*end >= before).then_some(())?;
        before = *end;
    }
    (before == bytes.len()).then_some(ends)
}

/// The u32 at a byte offset.
#[inline]
#[must_use]
pub fn u32_at(bytes: &[u8], offset: usize) -> Option<u32> {
    let bytes = bytes.get(offset..)?.first_chunk::<4>()?;
    Some(u32::from_le_bytes(*bytes))
}

/// The u64 at a byte offset.
#[inline]
#[must_use]
pub fn u64_at(bytes: &[u8], offset: usize) -> Option<u64> {
    let bytes = bytes.get(offset..)?.first_chunk::<8>()?;
    Some(u64::from_le_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn built() -> Vec<u8> {
        let mut draft = IndexDraft::new(Kind::ROWS, [&[1; 32], &[2; 32]], 0);
        draft.push_all([3, 5]);
        draft.end_section();
        draft.push(b"text");
        assert_eq!(draft.section_bytes(), 4);
        draft.end_section();
        draft.seal(2, -7, &[9], [4; 32])
    }

    fn open(bytes: Vec<u8>, kind: Kind) -> Result<IndexFile, LayoutFault> {
        IndexFile::open(IndexBytes::Owned(bytes), kind)
    }

    #[test]
    fn what_is_written_is_read() {
        let file = open(built(), Kind::ROWS).unwrap();
        assert_eq!((file.samples(), file.scan_started_seconds(), file.number(0)), (2, -7, 9));
        assert_eq!((file.keys(), file.fingerprint()), ([[1; 32], [2; 32]], [4; 32]));
        assert_eq!((file.u64(0, 1), file.u64(0, 2), file.records(0, 8)), (Some(5), None, Some(2)));
        assert_eq!((file.text(1), file.section(2), file.records(1, 3)), ("text", &[][..], None));
        assert_eq!(file.group_of::<8>(0, 2, SampleId(1)), 0);
        assert_eq!(file.revision(), None);
    }

    #[test]
    fn revision_is_added_to_a_complete_index() {
        let file = open(with_revision(built(), "0123abcd"), Kind::ROWS).unwrap();
        assert_eq!(file.revision(), Some("0123abcd"));
        assert_eq!((file.text(1), file.section(2)), ("text", &[][..]));
        assert_eq!((file.fingerprint(), file.samples()), ([4; 32], 2));
        let before = open(with_revision(built(), "ffff"), Kind::ROWS).unwrap();
        let said = crate::changes::with_revisions(&before, &file, "1 new".to_owned());
        assert_eq!(said, "commit 0123abcd instead of ffff; 1 new");
        assert_eq!(crate::changes::with_revisions(&file, &file, "1 new".to_owned()), "1 new");
    }

    #[test]
    fn another_kind_is_no_index_and_an_earlier_layout_another_version() {
        assert_eq!(open(built(), Kind::SHARDS).unwrap_err(), LayoutFault::NoIndex);
        let later = Kind { version: 2, ..Kind::ROWS };
        assert_eq!(open(built(), later).unwrap_err(), LayoutFault::OtherVersion);
        let kinds = [Kind::FOLDER, Kind::SHARDS, Kind::ROWS, Kind::TOKENS];
        for (kind, other) in kinds.into_iter().flat_map(|kind| kinds.map(|other| (kind, other))) {
            let mut earlier = built();
            let start = kind.earlier().unwrap();
            earlier[..start.len()].copy_from_slice(start);
            let expected =
                if kind == other { LayoutFault::OtherVersion } else { LayoutFault::NoIndex };
            assert_eq!(open(earlier, other).unwrap_err(), expected, "{kind:?} for {other:?}");
        }
    }

    #[test]
    fn sections_outside_the_file_are_refused_despite_a_correct_checksum() {
        for (place, byte) in [(ENDS.start, 255), (ENDS.start + 8, 0), (ENDS.end - 8, 1)] {
            let mut bytes = built();
            bytes[place] = byte;
            seal(&mut bytes, [0; 32]);
            assert_eq!(open(bytes, Kind::ROWS).unwrap_err(), LayoutFault::Damaged, "{place}");
        }
    }
}

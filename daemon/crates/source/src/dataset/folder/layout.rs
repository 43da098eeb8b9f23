//! The index file: its bytes, written once and read in place by all daemons of a host.
//!
//! All numbers are little endian. A header of [`HEADER_BYTES`], then the sections one behind the other:
//!
//! ```text
//! header       0 magic [8]           8 version u32        12 zero u32
//!             16 checksum [32]: BLAKE3 of everything from byte 48 to the end
//!             48 identity [32]: format and root          80 options [32]: lists, limit
//!            112 fingerprint [32]  144 samples u64      152 directories u64   160 blocks u64
//!            168 classes u64       176 scan's start, seconds since 1970, i64  184 bytes of names u64
//!            192 bytes of paths u64   200 bytes of classes u64               208 files skipped u64
//!            216 bytes of what was left out u64   224 bytes of objects u64    232 zero to 256
//! directories  one record each and one that ends the last; see [`DirectoryRecord`]
//! blocks       u32 each: where the block starts, counted from its directory's names
//! classes      in label order: length u32, then the name
//! left out     the hidden entries that the scan left out, as text; empty where it took them in or met none
//! paths        of the directories, relative to the root, one behind the other
//! names        front-coded blocks; see `names`
//! objects      of each sample: size u64, tag u64 (of all ones: nothing is known); none where no listing tells them
//! ```
//! This module encodes and finds numbers; what they mean for samples is `index`'s part.

use super::select::SelectedFolder;
use crate::location::ObjectStamp;

/// The header's size.
pub const HEADER_BYTES: usize = 256;
/// The size of a directory's record.
pub const DIRECTORY_BYTES: usize = 48;
/// The size of what is known of an object.
const OBJECT_BYTES: usize = 16;
/// The first bytes of every index.
pub const MAGIC: [u8; 8] = *b"FOREBIDX";
/// Raised whenever a byte of the layout changes its meaning.
pub const VERSION: u32 = 1;

/// Where the checksum lies, and where what it covers begins.
const CHECKSUM: std::ops::Range<usize> = 16..48;
const FINGERPRINT: std::ops::Range<usize> = 112..144;

/// The header's numbers, and where each section begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// BLAKE3 over format and root.
    pub identity: [u8; 32],
    /// BLAKE3 over everything else that decides what is in the index.
    pub options: [u8; 32],
    /// Of the dataset.
    pub fingerprint: [u8; 32],
    /// How many samples.
    pub samples: u64,
    /// How many directories.
    pub directories: u64,
    /// How many classes; 0: no labels.
    pub classes: u64,
    /// When the scan began, in seconds since 1970.
    pub scan_started_seconds: i64,
    /// Files that the scan left out.
    pub skipped: u64,
    /// Where the blocks' table begins.
    pub blocks_start: usize,
    /// Where the classes begin.
    pub classes_start: usize,
    /// Where the text about what was left out begins.
    pub left_out_start: usize,
    /// Where the paths begin.
    pub paths_start: usize,
    /// Where the names begin.
    pub names_start: usize,
    /// Where the objects begin.
    pub objects_start: usize,
}

/// One directory, or the end of the last one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DirectoryRecord {
    /// The id of its first sample.
    pub first_sample: u64,
    /// The place of its first block in the blocks' table.
    pub first_block: u64,
    /// Where its names begin in the names.
    pub names_offset: u64,
    /// Where its path begins in the paths.
    pub path_offset: u64,
    /// See `DirectoryStamp`.
    pub changed_seconds: i64,
    /// See `DirectoryStamp`.
    pub changed_nanoseconds: u32,
    /// The label of its samples; 0 where there are none.
    pub label: u32,
}

impl DirectoryRecord {
    fn to_bytes(self) -> [u8; DIRECTORY_BYTES] {
        let mut bytes = [0; DIRECTORY_BYTES];
        bytes[0..8].copy_from_slice(&self.first_sample.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.first_block.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.names_offset.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.path_offset.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.changed_seconds.to_le_bytes());
        bytes[40..44].copy_from_slice(&self.changed_nanoseconds.to_le_bytes());
        bytes[44..48].copy_from_slice(&self.label.to_le_bytes());
        bytes
    }

    /// Reads the record at a place of the directories' table.
    #[must_use]
    pub fn at(index: &[u8], place: usize) -> Option<Self> {
        let start = HEADER_BYTES.checked_add(place.checked_mul(DIRECTORY_BYTES)?)?;
        let bytes = index.get(start..start.checked_add(DIRECTORY_BYTES)?)?;
        Some(Self {
            first_sample: u64_at(bytes, 0)?,
            first_block: u64_at(bytes, 8)?,
            names_offset: u64_at(bytes, 16)?,
            path_offset: u64_at(bytes, 24)?,
            changed_seconds: u64_at(bytes, 32)?.cast_signed(),
            changed_nanoseconds: u32_at(bytes, 40)?,
            label: u32_at(bytes, 44)?,
        })
    }
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

/// Why bytes are no index that can be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LayoutFault {
    /// Another kind of file.
    NoIndex,
    /// An index of another version of this program.
    OtherVersion,
    /// Cut short or changed.
    Damaged,
}

impl Header {
    /// Reads and checks everything that the checksum covers, and the sections' sizes.
    ///
    /// # Errors
    /// The bytes are no index of this version, whole and unchanged.
    pub fn read(bytes: &[u8]) -> Result<Self, LayoutFault> {
        check_header(bytes, MAGIC, VERSION)?;
        Self::read_fields(bytes).ok_or(LayoutFault::Damaged)
    }

    fn read_fields(bytes: &[u8]) -> Option<Self> {
        let digest = |start: usize| bytes.get(start..)?.first_chunk::<32>().copied();
        let size = |offset: usize| usize::try_from(u64_at(bytes, offset)?).ok();
        let directories_bytes = size(152)?.checked_add(1)?.checked_mul(DIRECTORY_BYTES)?;
        let blocks_start = HEADER_BYTES.checked_add(directories_bytes)?;
        let classes_start = blocks_start.checked_add(size(160)?.checked_mul(4)?)?;
        let left_out_start = classes_start.checked_add(size(200)?)?;
        let paths_start = left_out_start.checked_add(size(216)?)?;
        let names_start = paths_start.checked_add(size(192)?)?;
        let objects_start = names_start.checked_add(size(184)?)?;
        let objects_bytes = size(224)?;
        let is_whole = objects_bytes == 0
            || size(144)?.checked_mul(OBJECT_BYTES).is_some_and(|all| all == objects_bytes);
        if objects_start.checked_add(objects_bytes)? != bytes.len() || !is_whole {
            return None;
        }
        Some(Self {
            identity: digest(48)?,
            options: digest(80)?,
            fingerprint: digest(112)?,
            samples: u64_at(bytes, 144)?,
            directories: u64_at(bytes, 152)?,
            classes: u64_at(bytes, 168)?,
            scan_started_seconds: u64_at(bytes, 176)?.cast_signed(),
            skipped: u64_at(bytes, 208)?,
            blocks_start,
            classes_start,
            left_out_start,
            paths_start,
            names_start,
            objects_start,
        })
    }

    /// What is known of a sample's object.
    #[must_use]
    pub fn object(&self, index: &[u8], sample: u64) -> Option<ObjectStamp> {
        let offset = usize::try_from(sample).ok()?.checked_mul(OBJECT_BYTES)?;
        let bytes = index.get(self.objects_start..)?.get(offset..)?;
        let stamp = ObjectStamp { bytes: u64_at(bytes, 0)?, tag: u64_at(bytes, 8)? };
        (stamp != UNKNOWN).then_some(stamp)
    }
}

/// Stands for an object of which nothing is known.
const UNKNOWN: ObjectStamp = ObjectStamp { bytes: u64::MAX, tag: u64::MAX };

/// What goes into an index besides the samples.
#[derive(Debug, Clone)]
pub struct IndexOrigin {
    /// See [`Header::identity`].
    pub identity: [u8; 32],
    /// See [`Header::options`].
    pub options: [u8; 32],
    /// See [`Header::scan_started_seconds`].
    pub scan_started_seconds: i64,
    /// See [`Header::skipped`].
    pub skipped: u64,
    /// The hidden entries that the scan left out.
    pub left_out: String,
}

/// Lays out an index; its fingerprint and checksum are still missing.
#[must_use]
pub fn lay_out(folder: &SelectedFolder, origin: &IndexOrigin) -> Vec<u8> {
    let sum = |part: fn(&super::scan::ScannedDirectory) -> usize| -> usize {
        folder.directories.iter().map(part).sum()
    };
    let names_bytes = sum(|directory| directory.encoded_names.len());
    let paths_bytes = sum(|directory| directory.path.len());
    let blocks = sum(|directory| directory.block_offsets.len());
    let classes_bytes: usize = folder.classes.iter().map(|class| 4 + class.len()).sum();
    let directories = folder.directories.len();
    let knows_objects = folder.directories.iter().any(|directory| !directory.stamps.is_empty());
    let samples: u64 = folder.directories.iter().map(|directory| directory.file_count).sum();
    let objects = if knows_objects { usize::try_from(samples).unwrap_or(usize::MAX) } else { 0 };
    let total = HEADER_BYTES
        + (directories + 1) * DIRECTORY_BYTES
        + blocks * 4
        + classes_bytes
        + origin.left_out.len()
        + paths_bytes
        + names_bytes
        + objects * OBJECT_BYTES;

    let mut bytes = Vec::with_capacity(total);
    begin(&mut bytes, MAGIC, VERSION, [&origin.identity, &origin.options]);
    set_numbers(
        &mut bytes,
        &[
            samples,
            directories as u64,
            blocks as u64,
            folder.classes.len() as u64,
            origin.scan_started_seconds.cast_unsigned(),
            names_bytes as u64,
            paths_bytes as u64,
            classes_bytes as u64,
            origin.skipped,
            origin.left_out.len() as u64,
            (objects * OBJECT_BYTES) as u64,
        ],
    );

    let mut record = DirectoryRecord::default();
    for directory in &folder.directories {
        record.changed_seconds = directory.stamp.changed_seconds;
        record.changed_nanoseconds = directory.stamp.changed_nanoseconds;
        record.label = folder.labels.get(directory.class as usize).copied().unwrap_or(0);
        bytes.extend_from_slice(&record.to_bytes());
        record.first_sample += directory.file_count;
        record.first_block += directory.block_offsets.len() as u64;
        record.names_offset += directory.encoded_names.len() as u64;
        record.path_offset += directory.path.len() as u64;
    }
    bytes.extend_from_slice(&record.to_bytes());
    for offset in folder.directories.iter().flat_map(|directory| &directory.block_offsets) {
        bytes.extend_from_slice(&offset.to_le_bytes());
    }
    for class in &folder.classes {
        // A folder's name has at most 255 bytes.
        bytes.extend_from_slice(&u32::try_from(class.len()).unwrap_or(0).to_le_bytes());
        bytes.extend_from_slice(class);
    }
    bytes.extend_from_slice(origin.left_out.as_bytes());
    for directory in &folder.directories {
        bytes.extend_from_slice(&directory.path);
    }
    for directory in &folder.directories {
        bytes.extend_from_slice(&directory.encoded_names);
    }
    for directory in folder.directories.iter().filter(|_| knows_objects) {
        for file in 0..directory.file_count {
            let file = usize::try_from(file).unwrap_or(usize::MAX);
            let stamp = directory.stamps.get(file).copied().unwrap_or(UNKNOWN);
            bytes.extend_from_slice(&stamp.bytes.to_le_bytes());
            bytes.extend_from_slice(&stamp.tag.to_le_bytes());
        }
    }
    bytes
}

/// Begins an index of any layout with the header that they share, up to the fingerprint: whose it is. Its numbers are zero.
pub fn begin(bytes: &mut Vec<u8>, magic: [u8; 8], version: u32, keys: [&[u8; 32]; 2]) {
    bytes.extend_from_slice(&magic);
    bytes.extend_from_slice(&version.to_le_bytes());
    bytes.resize(CHECKSUM.end, 0);
    bytes.extend(keys.into_iter().flatten());
    bytes.resize(HEADER_BYTES, 0);
}

/// Writes the header's numbers, which stand behind the fingerprint.
///
/// # Panics
/// When the header has no room for them.
pub fn set_numbers(bytes: &mut [u8], numbers: &[u64]) {
    for (place, number) in bytes[FINGERPRINT.end..HEADER_BYTES].chunks_exact_mut(8).zip(numbers) {
        place.copy_from_slice(&number.to_le_bytes());
    }
    assert!(numbers.len() <= (HEADER_BYTES - FINGERPRINT.end) / 8);
}

/// Checks what every layout begins with, and the checksum.
///
/// # Errors
/// The bytes are no index of this kind and version, whole and unchanged.
pub fn check_header(bytes: &[u8], magic: [u8; 8], version: u32) -> Result<(), LayoutFault> {
    if bytes.get(..8) != Some(&magic[..]) {
        return Err(LayoutFault::NoIndex);
    }
    if u32_at(bytes, 8) != Some(version) {
        return Err(LayoutFault::OtherVersion);
    }
    if bytes.len() < HEADER_BYTES || !is_sealed(bytes) {
        return Err(LayoutFault::Damaged);
    }
    Ok(())
}

/// Of which dataset an index is, and made with which options; its header was checked.
#[must_use]
pub fn keys(bytes: &[u8]) -> [&[u8]; 2] {
    [48..80, 80..112].map(|range| bytes.get(range).unwrap_or_default())
}

/// What tells the samples from others; the header was checked.
#[must_use]
pub fn fingerprint(bytes: &[u8]) -> [u8; 32] {
    bytes.get(FINGERPRINT).and_then(|bytes| bytes.first_chunk().copied()).unwrap_or_default()
}

/// Whether the checksum is right.
#[must_use]
pub fn is_sealed(bytes: &[u8]) -> bool {
    let covered = bytes.get(CHECKSUM.end..);
    covered.is_some_and(|covered| bytes[CHECKSUM] == *blake3::hash(covered).as_bytes())
}

/// Writes the fingerprint, then the checksum over all of it.
pub fn seal(bytes: &mut [u8], fingerprint: [u8; 32]) {
    bytes[FINGERPRINT].copy_from_slice(&fingerprint);
    let checksum = blake3::hash(&bytes[CHECKSUM.end..]);
    bytes[CHECKSUM].copy_from_slice(checksum.as_bytes());
}

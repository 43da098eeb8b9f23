//! The index file: its bytes, written once and read in place by all daemons of a host.
//!
//! All numbers are little endian. A header of [`HEADER_BYTES`], then the consecutive sections:
//!
//! ```text
//! header       0 magic [8]           8 version u32        12 zero u32
//!             16 checksum [32]: BLAKE3 of everything from byte 48 to the end
//!             48 identity [32]: format and root          80 options [32]: lists, limit
//!            112 fingerprint [32]  144 samples u64      152 directories u64   160 blocks u64
//!            168 classes u64       176 start of the scan, seconds since 1970, i64  184 bytes of names u64
//!            192 bytes of paths u64   200 bytes of classes u64               208 files skipped u64
//!            216 bytes of the text of hidden entries u64   224 bytes of objects u64    232 zero to 256
//! directories  one record each and a final one for the end; see [`DirectoryRecord`]
//! blocks       u32 each: start of the block, relative to its directory's names
//! classes      in label order: length u32, then the name
//! left out     the hidden entries that the scan excluded, as text; empty if it included them or found none
//! paths        of the directories, relative to the root, concatenated
//! names        front-coded blocks; see `names`
//! objects      per sample: size u64, tag u64 (all ones: unknown); empty if no listing has them
//! ```
//! This module encodes and locates numbers; `index` interprets them.

use super::select::SelectedFolder;
use forebay_storage::version::ObjectStamp;

/// The size of the header.
pub const HEADER_BYTES: usize = 256;
/// The size of a directory's record.
pub const DIRECTORY_BYTES: usize = 48;
/// The size of an object's stamp.
const OBJECT_BYTES: usize = 16;
/// The first bytes of every folder index.
pub const MAGIC: [u8; 8] = *b"FOREBIDX";
/// Incremented whenever the meaning of a byte of the layout changes.
pub const VERSION: u32 = 1;

/// The bytes of the checksum; the bytes that it covers begin at its end.
const CHECKSUM: std::ops::Range<usize> = 16..48;
const FINGERPRINT: std::ops::Range<usize> = 112..144;

/// The header's numbers, and the start of each section.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// BLAKE3 of format and root.
    pub identity: [u8; 32],
    /// BLAKE3 of everything else that determines the contents of the index.
    pub options: [u8; 32],
    /// The dataset's fingerprint.
    pub fingerprint: [u8; 32],
    /// The number of samples.
    pub samples: u64,
    /// The number of directories.
    pub directories: u64,
    /// The number of classes; 0: no labels.
    pub classes: u64,
    /// When the scan began, in seconds since 1970.
    pub scan_started_seconds: i64,
    /// The number of files that the scan skipped.
    pub skipped: u64,
    /// The start of the blocks' table.
    pub blocks_start: usize,
    /// The start of the classes.
    pub classes_start: usize,
    /// The start of the text about hidden entries.
    pub left_out_start: usize,
    /// The start of the paths.
    pub paths_start: usize,
    /// The start of the names.
    pub names_start: usize,
    /// The start of the objects.
    pub objects_start: usize,
}

/// One directory, or the end of the last one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DirectoryRecord {
    /// The id of its first sample.
    pub first_sample: u64,
    /// The index of its first block in the blocks' table.
    pub first_block: u64,
    /// The start of its names in the names section.
    pub names_offset: u64,
    /// The start of its path in the paths section.
    pub path_offset: u64,
    /// See `DirectoryStamp`.
    pub modified_seconds: i64,
    /// See `DirectoryStamp`.
    pub modified_nanoseconds: u32,
    /// The label of its samples; 0 if there are no labels.
    pub label: u32,
}

impl DirectoryRecord {
    fn to_bytes(self) -> [u8; DIRECTORY_BYTES] {
        let mut bytes = [0; DIRECTORY_BYTES];
        bytes[0..8].copy_from_slice(&self.first_sample.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.first_block.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.names_offset.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.path_offset.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.modified_seconds.to_le_bytes());
        bytes[40..44].copy_from_slice(&self.modified_nanoseconds.to_le_bytes());
        bytes[44..48].copy_from_slice(&self.label.to_le_bytes());
        bytes
    }

    /// Reads the record at an index of the directories' table.
    #[must_use]
    pub fn at(index: &[u8], place: usize) -> Option<Self> {
        let start = HEADER_BYTES.checked_add(place.checked_mul(DIRECTORY_BYTES)?)?;
        let bytes = index.get(start..start.checked_add(DIRECTORY_BYTES)?)?;
        Some(Self {
            first_sample: u64_at(bytes, 0)?,
            first_block: u64_at(bytes, 8)?,
            names_offset: u64_at(bytes, 16)?,
            path_offset: u64_at(bytes, 24)?,
            modified_seconds: u64_at(bytes, 32)?.cast_signed(),
            modified_nanoseconds: u32_at(bytes, 40)?,
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

impl Header {
    /// Reads the header, and checks the checksum and the sizes of the sections.
    ///
    /// # Errors
    /// The bytes are not an intact index of this version.
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

    /// The stamp of a sample's object, if it is known.
    #[must_use]
    pub fn object(&self, index: &[u8], sample: u64) -> Option<ObjectStamp> {
        let offset = usize::try_from(sample).ok()?.checked_mul(OBJECT_BYTES)?;
        let bytes = index.get(self.objects_start..)?.get(offset..)?;
        let stamp = ObjectStamp { bytes: u64_at(bytes, 0)?, tag: u64_at(bytes, 8)? };
        (stamp != UNKNOWN).then_some(stamp)
    }
}

/// Represents an unknown stamp.
const UNKNOWN: ObjectStamp = ObjectStamp { bytes: u64::MAX, tag: u64::MAX };

/// The contents of an index besides the samples.
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
    /// The hidden entries that the scan excluded.
    pub left_out: String,
}

/// Lays out an index without fingerprint and checksum.
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
        record.modified_seconds = directory.stamp.modified_seconds;
        record.modified_nanoseconds = directory.stamp.modified_nanoseconds;
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
        // A folder name has at most 255 bytes.
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

/// Begins an index of any kind with the common header: magic number, version and the two digests. The other fields are
/// zero.
pub fn begin(bytes: &mut Vec<u8>, magic: [u8; 8], version: u32, keys: [&[u8; 32]; 2]) {
    bytes.extend_from_slice(&magic);
    bytes.extend_from_slice(&version.to_le_bytes());
    bytes.resize(CHECKSUM.end, 0);
    bytes.extend(keys.into_iter().flatten());
    bytes.resize(HEADER_BYTES, 0);
}

/// Writes the header's numbers, which follow the fingerprint.
///
/// # Panics
/// The numbers do not fit the header.
pub fn set_numbers(bytes: &mut [u8], numbers: &[u64]) {
    for (place, number) in bytes[FINGERPRINT.end..HEADER_BYTES].chunks_exact_mut(8).zip(numbers) {
        place.copy_from_slice(&number.to_le_bytes());
    }
    assert!(numbers.len() <= (HEADER_BYTES - FINGERPRINT.end) / 8);
}

/// Checks the common header, and the checksum.
///
/// # Errors
/// The bytes are not an intact index of this kind and version.
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

/// The digests of an index's dataset and of its options; the header must have been checked.
#[must_use]
pub fn keys(bytes: &[u8]) -> [&[u8]; 2] {
    [48..80, 80..112].map(|range| bytes.get(range).unwrap_or_default())
}

/// The fingerprint of the samples; the header must have been checked.
#[must_use]
pub fn fingerprint(bytes: &[u8]) -> [u8; 32] {
    bytes.get(FINGERPRINT).and_then(|bytes| bytes.first_chunk().copied()).unwrap_or_default()
}

/// Whether the checksum is correct.
#[must_use]
pub fn is_sealed(bytes: &[u8]) -> bool {
    let covered = bytes.get(CHECKSUM.end..);
    covered.is_some_and(|covered| bytes[CHECKSUM] == *blake3::hash(covered).as_bytes())
}

/// Writes the fingerprint, then the checksum, which covers it.
pub fn seal(bytes: &mut [u8], fingerprint: [u8; 32]) {
    bytes[FINGERPRINT].copy_from_slice(&fingerprint);
    let checksum = blake3::hash(&bytes[CHECKSUM.end..]);
    bytes[CHECKSUM].copy_from_slice(checksum.as_bytes());
}

//! The sections of a folder's index.
//!
//! ```text
//! directories  one record each and a final one for the end; see [`DirectoryRecord`]
//! blocks       u32 each: start of the block, relative to its directory's names
//! classes      in label order: length u32, then the name
//! left out     the hidden entries that the scan excluded, as text; empty if it included them or found none
//! paths        of the directories, relative to the root, concatenated
//! names        front-coded blocks; see `names`
//! objects      per sample: size u64, tag u64 (all ones: unknown); empty if no listing has them
//! ```
//! This module encodes; `index` interprets.

use super::scan::ScannedDirectory;
use super::select::SelectedFolder;
use crate::index_file::{IndexDraft, Kind, u32_at, u64_at};
use forebay_storage::version::ObjectStamp;

/// The size of a directory's record.
pub(super) const DIRECTORY_BYTES: usize = 48;
/// The size of an object's stamp.
pub(super) const OBJECT_BYTES: usize = 16;

pub(super) const DIRECTORIES: usize = 0;
pub(super) const BLOCKS: usize = 1;
pub(super) const CLASSES: usize = 2;
pub(super) const LEFT_OUT: usize = 3;
pub(super) const PATHS: usize = 4;
pub(super) const NAMES: usize = 5;
pub(super) const OBJECTS: usize = 6;

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

    pub(super) fn read(bytes: &[u8; DIRECTORY_BYTES]) -> Option<Self> {
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

/// Represents an unknown stamp.
pub(super) const UNKNOWN: ObjectStamp = ObjectStamp { bytes: u64::MAX, tag: u64::MAX };

/// The contents of an index besides the samples.
#[derive(Debug, Clone)]
pub struct IndexOrigin {
    /// BLAKE3 of format and root.
    pub identity: [u8; 32],
    /// BLAKE3 of everything else that determines the contents of the index.
    pub options: [u8; 32],
    /// When the scan began, in seconds since 1970.
    pub scan_started_seconds: i64,
    /// The hidden entries that the scan excluded.
    pub left_out: String,
}

/// Lays out an index without a fingerprint.
#[must_use]
pub fn lay_out(folder: &SelectedFolder, origin: &IndexOrigin) -> Vec<u8> {
    let directories = &folder.directories;
    let sum =
        |part: fn(&ScannedDirectory) -> usize| -> usize { directories.iter().map(part).sum() };
    let samples: u64 = directories.iter().map(|directory| directory.file_count).sum();
    let knows_objects = directories.iter().any(|directory| !directory.stamps.is_empty());
    let objects = if knows_objects { usize::try_from(samples).unwrap_or(usize::MAX) } else { 0 };
    let expected_bytes = (directories.len() + 1) * DIRECTORY_BYTES
        + sum(|directory| 4 * directory.block_offsets.len())
        + folder.classes.iter().map(|class| 4 + class.len()).sum::<usize>()
        + origin.left_out.len()
        + sum(|directory| directory.path.len() + directory.encoded_names.len())
        + objects.saturating_mul(OBJECT_BYTES);
    let keys = [&origin.identity, &origin.options];
    let mut draft = IndexDraft::new(Kind::FOLDER, keys, expected_bytes);

    let mut record = DirectoryRecord::default();
    for directory in directories {
        record.modified_seconds = directory.stamp.modified_seconds;
        record.modified_nanoseconds = directory.stamp.modified_nanoseconds;
        record.label = folder.labels.get(directory.class as usize).copied().unwrap_or(0);
        draft.push(&record.to_bytes());
        record.first_sample += directory.file_count;
        record.first_block += directory.block_offsets.len() as u64;
        record.names_offset += directory.encoded_names.len() as u64;
        record.path_offset += directory.path.len() as u64;
    }
    draft.push(&record.to_bytes());
    draft.end_section();
    for offset in directories.iter().flat_map(|directory| &directory.block_offsets) {
        draft.push(&offset.to_le_bytes());
    }
    draft.end_section();
    for class in &folder.classes {
        // A folder name has at most 255 bytes.
        draft.push(&u32::try_from(class.len()).unwrap_or(0).to_le_bytes());
        draft.push(class);
    }
    draft.end_section();
    draft.push(origin.left_out.as_bytes());
    draft.end_section();
    directories.iter().for_each(|directory| draft.push(&directory.path));
    draft.end_section();
    directories.iter().for_each(|directory| draft.push(&directory.encoded_names));
    draft.end_section();
    for directory in directories.iter().filter(|_| knows_objects) {
        for file in 0..directory.file_count {
            let file = usize::try_from(file).unwrap_or(usize::MAX);
            let stamp = directory.stamps.get(file).copied().unwrap_or(UNKNOWN);
            draft.push_all([stamp.bytes, stamp.tag]);
        }
    }
    draft.end_section();
    draft.seal(samples, origin.scan_started_seconds, &[], [0; 32])
}

//! The files of an index that has a list of them: section 0 has a record for each, section 1 their paths.
//!
//! A record is the end of the path in section 1 and the file's stamp: bytes, seconds and nanoseconds of its last change, tag,
//! and the change of its status, 8 bytes each.

use forebay_storage::version::FileStamp;

use crate::index_file::{IndexDraft, IndexFile, u64_at};

/// The section of records.
pub const FILES: usize = 0;
/// The section of paths.
pub const PATHS: usize = 1;

const FILE_BYTES: usize = 48;

/// Writes both sections, which are the first of an index.
pub fn push_files<'f>(
    draft: &mut IndexDraft,
    files: impl Iterator<Item = (&'f [u8], FileStamp)> + Clone,
) {
    let mut end = 0;
    for (path, stamp) in files.clone() {
        end += path.len() as u64;
        draft.push_all([end, stamp.bytes, stamp.modified_seconds.cast_unsigned()]);
        draft.push_all([stamp.modified_nanoseconds.into(), stamp.tag, stamp.status_changed]);
    }
    draft.end_section();
    files.for_each(|(path, _)| draft.push(path));
    draft.end_section();
}

/// The number of files; `None`: the section is damaged.
#[must_use]
pub fn file_count(index: &IndexFile) -> Option<usize> {
    index.records(FILES, FILE_BYTES)
}

/// A file's path and its stamp when the index was made; `None`: there is no such file, or the index is damaged.
#[must_use]
pub fn file(index: &IndexFile, place: usize) -> Option<(&[u8], FileStamp)> {
    let record: &[u8; FILE_BYTES] = index.record(FILES, place)?;
    let end = |record: &[u8; FILE_BYTES]| usize::try_from(u64_at(record, 0)?).ok();
    let start = match place.checked_sub(1) {
        Some(before) => end(index.record(FILES, before)?)?,
        None => 0,
    };
    let stamp = FileStamp {
        bytes: u64_at(record, 8)?,
        modified_seconds: u64_at(record, 16)?.cast_signed(),
        modified_nanoseconds: u32::try_from(u64_at(record, 24)?).ok()?,
        tag: u64_at(record, 32)?,
        status_changed: u64_at(record, 40)?,
    };
    Some((index.section(PATHS).get(start..end(record)?)?, stamp))
}

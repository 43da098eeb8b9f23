//! Entry points of fuzzers for this format.

use super::dali_index;
use super::members::Members;
use crate::fields::parse_rules;
use forebay_index::saved_index::SavedIndex;
use forebay_index::shards;
use forebay_index::window::{InMemory, WindowSize};

/// Visits the members of an archive in memory, with name and extent.
///
/// # Errors
/// The defect of the archive.
pub(crate) fn walk_for_fuzzing(
    archive: &[u8],
    mut visit: impl FnMut(&[u8], u64, u64),
) -> Result<(), String> {
    let source = InMemory(archive);
    let mut members = Members::new(&source, WindowSize::LOCAL);
    while let Some(member) = members.next().map_err(|error| error.to_string())? {
        visit(member.name, member.offset, member.size);
    }
    Ok(())
}

/// Opens an index and reads its contents.
pub(crate) fn check_index(bytes: Vec<u8>) {
    if let Some(index) = shards::check_index(bytes) {
        let _ = parse_rules(index.rules());
    }
}

/// Parses an index file of DALI for an archive of 1 MiB.
pub(crate) fn check_list(bytes: &[u8]) {
    const ARCHIVE_BYTES: u64 = 1 << 20;
    let Ok(list) = dali_index::parse(bytes.to_vec(), ARCHIVE_BYTES) else {
        return;
    };
    let mut end = 0;
    for member in list.members() {
        assert!(member.offset >= end + 512, "{member:?} behind {end}");
        end = member.offset + member.size;
        assert!(end <= ARCHIVE_BYTES && member.name.len() <= bytes.len(), "{member:?}");
    }
}

//! What fuzzers run of this format.

use std::path::PathBuf;

use super::dali_index;
use super::members::Members;
use crate::dataset::error::DatasetError;
use crate::dataset::fields::parse_rules;
use crate::dataset::shards;
use crate::dataset::window::{Bytes, WindowSize};

/// Walks over an archive in memory; gives each member's name and extent.
///
/// # Errors
/// What is wrong with it.
pub(in crate::dataset) fn walk_for_fuzzing(
    archive: &[u8],
    mut visit: impl FnMut(&[u8], u64, u64),
) -> Result<(), String> {
    struct InMemory<'a>(&'a [u8]);
    impl Bytes for InMemory<'_> {
        fn read(&self, offset: u64, length: u64, buffer: &mut Vec<u8>) -> Result<(), DatasetError> {
            let start = usize::try_from(offset).unwrap();
            buffer.clear();
            buffer.extend_from_slice(&self.0[start..start + usize::try_from(length).unwrap()]);
            Ok(())
        }

        fn fault(&self, reason: String) -> DatasetError {
            DatasetError::BrokenFile { path: PathBuf::from("archive"), reason }
        }
    }
    let source = InMemory(archive);
    let mut members = Members::new(&source, archive.len() as u64, WindowSize::LOCAL);
    while let Some(member) = members.next().map_err(|error| error.to_string())? {
        visit(member.name, member.offset, member.size);
    }
    Ok(())
}

/// Opens an index and reads all that it holds.
pub(in crate::dataset) fn check_index(bytes: Vec<u8>) {
    if let Some(index) = shards::check_index(bytes) {
        let _ = parse_rules(index.rules());
    }
}

/// The list of an archive's members that lies beside it.
pub(in crate::dataset) fn check_list(bytes: &[u8]) {
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

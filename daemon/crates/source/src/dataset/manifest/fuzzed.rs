//! What fuzzers run of this format.

use std::path::PathBuf;

use forebay_protocol::ids::SampleId;

use super::table::{Bytes, Kind, Table};
use crate::dataset::IndexBytes;
use crate::dataset::columns::parse_rules;
use crate::dataset::error::DatasetError;
use crate::dataset::row_index::RowIndex;
use crate::dataset::saved_index::SavedIndex;

/// Reads a manifest in memory as CSV and as JSON; gives the line and the cells of each row, or why it is refused.
///
/// # Errors
/// What is wrong with it.
pub(in crate::dataset) fn read_for_fuzzing(
    manifest: &[u8],
    is_json: bool,
    mut visit: impl FnMut(usize, &[Option<&[u8]>]),
) -> Result<(), String> {
    struct InMemory<'a>(&'a [u8]);
    impl Bytes for InMemory<'_> {
        fn length(&self) -> u64 {
            self.0.len() as u64
        }

        fn read(&self, offset: u64, length: u64, buffer: &mut Vec<u8>) -> Result<(), DatasetError> {
            let start = usize::try_from(offset).unwrap();
            buffer.clear();
            buffer.extend_from_slice(&self.0[start..start + usize::try_from(length).unwrap()]);
            Ok(())
        }

        fn fault(&self, line: usize, message: String) -> DatasetError {
            DatasetError::List { path: PathBuf::from("manifest"), line, message }
        }
    }
    let source = InMemory(manifest);
    let kind = if is_json { Kind::Json } else { Kind::Delimited(b',') };
    // A small window, so that cells lie over its ends.
    let mut table = Table::new(&source, kind, 7).map_err(|error| error.to_string())?;
    while table.next(true).map_err(|error| error.to_string())? {
        let cells: Vec<_> = (0..table.columns().len()).map(|column| table.cell(column)).collect();
        visit(table.line(), &cells);
    }
    Ok(())
}

/// Opens an index and reads all that it holds.
pub(in crate::dataset) fn check_index(bytes: Vec<u8>) {
    let Ok(index) = RowIndex::open(IndexBytes::Owned(bytes)) else { return };
    let _ = parse_rules(index.rules());
    for place in 0..index.manifests().min(64) {
        let _ = (index.manifest_path(place), index.manifest_stamp(place));
    }
    for column in 0..index.columns().min(64) {
        let _ = index.longest(column);
    }
    for id in (0..index.samples().min(64)).map(SampleId) {
        let _ = index.cells(id).take(64).count();
        index.append_name(id, &mut Vec::new());
    }
}

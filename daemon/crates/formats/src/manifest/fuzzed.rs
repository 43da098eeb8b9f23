//! Entry points for fuzzers.

use forebay_protocol::ids::SampleId;

use super::table::{Kind, Table};
use crate::columns::parse_rules;
use forebay_dataset::IndexBytes;
use forebay_index::row_index::RowIndex;
use forebay_index::saved_index::SavedIndex;
use forebay_index::window::InMemory;

/// Reads a manifest in memory as CSV and as JSON; gives the line and the cells of each row.
///
/// # Errors
/// Describes the fault.
pub(crate) fn read_for_fuzzing(
    manifest: &[u8],
    is_json: bool,
    mut visit: impl FnMut(usize, &[Option<&[u8]>]),
) -> Result<(), String> {
    let source = InMemory(manifest);
    let kind = if is_json { Kind::Json } else { Kind::Delimited(b',') };
    // A small window, so that cells cross its ends.
    let mut table = Table::new(&source, kind, 7).map_err(|error| error.to_string())?;
    while table.next(true).map_err(|error| error.to_string())? {
        let cells: Vec<_> = (0..table.columns().len()).map(|column| table.cell(column)).collect();
        visit(table.line(), &cells);
    }
    Ok(())
}

/// Opens an index and reads all of its contents.
pub(crate) fn check_index(bytes: Vec<u8>) {
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

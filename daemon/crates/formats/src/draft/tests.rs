//! The row lengths of a proposed configuration.

use std::path::Path;

use zip::CompressionMethod;

use crate::propose;
use crate::testing::{config_for, make_files, npy_bytes, npz_bytes};
use forebay_dataset::OpenOptions;

/// Archives with a list of three numbers each, except one, which is not among the archives that are read first.
fn lists(root: &Path, count: usize, (place, rows): (usize, usize)) -> String {
    for number in 0..count {
        let rows = if number == place { rows } else { 3 };
        let list = npy_bytes("<i4", false, &format!("({rows},)"), &vec![0; 4 * rows]);
        let bytes = npz_bytes(&[("tokens.npy", &list)], CompressionMethod::Stored);
        make_files(root, &[&format!("{number:03}.npz")], &bytes);
    }
    let proposal = propose(&config_for("npz", root), true, OpenOptions::default()).unwrap();
    format!("{}{}", proposal.draft.tables, proposal.report.warnings.join("\n"))
}

#[test]
fn longest_row_is_found_by_reading_all_samples() {
    let folder = tempfile::tempdir().unwrap();
    let found = lists(folder.path(), 600, (11, 5000));
    // 20,000 bytes. Of 600 samples, every tenth is read at first.
    assert!(found.contains("tokens = { ragged = true, max_bytes = \"32KiB\" }"), "{found}");
    assert!(found.contains("3 to 5000 rows; a longer one") && !found.contains("guess"), "{found}");
}

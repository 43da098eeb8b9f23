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

/// A shard of MosaicML Streaming with a column `image` of bytes.
fn shard_of_bytes(root: &Path, values: &[&[u8]]) -> String {
    let mut records = Vec::new();
    let number = |length: usize| u32::try_from(length).unwrap();
    let mut ends = vec![4 * (number(values.len()) + 2)];
    for value in values {
        records.extend(number(value.len()).to_le_bytes());
        records.extend(*value);
        ends.push(ends[0] + number(records.len()));
    }
    let mut shard = number(values.len()).to_le_bytes().to_vec();
    ends.iter().for_each(|end| shard.extend(end.to_le_bytes()));
    shard.extend(records);
    let index = serde_json::json!({ "version": 2, "shards": [{
        "column_encodings": ["bytes"], "column_names": ["image"], "column_sizes": [null], "compression": null,
        "format": "mds", "hashes": [], "raw_data": { "basename": "shard.mds", "bytes": shard.len(), "hashes": {} },
        "samples": values.len(), "size_limit": null, "version": 2, "zip_data": null,
    }] });
    make_files(root, &["shard.mds"], &shard);
    make_files(root, &["index.json"], index.to_string().as_bytes());
    let proposal = propose(&config_for("mds", root), true, OpenOptions::default()).unwrap();
    format!("{}{}", proposal.draft.head, proposal.draft.tables)
}

#[test]
fn pictures_in_a_column_of_bytes_are_proposed_as_pictures() {
    let folder = tempfile::tempdir().unwrap();
    let (jpeg, png): (&[u8], &[u8]) = (b"\xff\xd8\xff\xe0 and more", b"\x89PNG\r\n\x1a\n and more");
    let found = shard_of_bytes(&folder.path().join("pictures"), &[jpeg, png]);
    assert!(found.contains("preset = \"imagenet-train\""), "{found}");
    assert!(found.contains("image = { from = \"image\", as = \"image\" }"), "{found}");
    let found = shard_of_bytes(&folder.path().join("others"), &[jpeg, b"no picture"]);
    assert!(found.contains("image = { from = \"image\", as = \"bytes\" }"), "{found}");
    assert!(!found.contains("preset"), "{found}");
}

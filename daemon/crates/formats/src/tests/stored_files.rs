//! A modified file is detected even if its size and modification time are unchanged.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::open;
use crate::testing::{config_for, sample, write_aged};
use forebay_dataset::OpenOptions;

/// Replaces a file's bytes by others of the same length, and restores its modification time.
fn rewrite_keeping_size_and_time(path: &Path, bytes: &[u8]) {
    let before = fs::metadata(path).unwrap();
    // Repeats until the clock of the file system, which is coarser than that of the processor, has advanced.
    loop {
        fs::write(path, bytes).unwrap();
        let file = fs::File::options().write(true).open(path).unwrap();
        file.set_modified(before.modified().unwrap()).unwrap();
        let now = fs::metadata(path).unwrap();
        if (now.ctime(), now.ctime_nsec()) != (before.ctime(), before.ctime_nsec()) {
            return;
        }
    }
}

#[test]
fn manifest_changed_with_equal_size_and_time_is_reindexed() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    for name in ["1.jpg", "2.jpg"] {
        write_aged(&root.join(name), b"picture");
    }
    let path = root.join("train.csv");
    write_aged(&path, b"file_name,label\n1.jpg,3\n2.jpg,4\n");
    let config = config_for("manifest", &path);
    let open = || open(&config, OpenOptions::default()).unwrap();
    let first = open();
    let again = open();
    assert!(again.report.reused);
    assert_eq!(sample(&again, 0), sample(&first, 0));
    rewrite_keeping_size_and_time(&path, b"file_name,label\n1.jpg,8\n2.jpg,9\n");
    let changed = open();
    assert!(!changed.report.reused);
    assert_ne!(sample(&changed, 0), sample(&first, 0));
    // The same rows with other times are the same dataset.
    rewrite_keeping_size_and_time(&path, b"file_name,label\n1.jpg,3\n2.jpg,4\n");
    assert_eq!(open().dataset.fingerprint(), first.dataset.fingerprint());
}

#[test]
fn file_added_below_an_unreached_limit_is_indexed() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("data");
    write_aged(&root.join("a.bin"), &[1; 32]);
    let mut config = config_for("test-fixed", &root);
    config.index = Some(folder.path().join("saved.index"));
    let mut count = |limit| {
        config.limit = Some(limit);
        open(&config, OpenOptions::default()).unwrap().dataset.sample_count()
    };
    assert_eq!(count(3), 2);
    write_aged(&root.join("b.bin"), &[2; 32]);
    assert_eq!(count(3), 3);
    // The limit is reached: further files do not matter.
    write_aged(&root.join("c.bin"), &[3; 32]);
    assert_eq!(count(3), 3);
}

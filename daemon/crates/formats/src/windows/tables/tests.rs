//! Windows of tables: the conformance suite, and what an interrupted or stopped process leaves.

use std::cell::Cell;
use std::fs;
use std::ops::ControlFlow;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use forebay_config::DatasetConfig;
use forebay_dataset::index_bytes::IndexBytes;
use forebay_dataset::progress::ScanProgress;
use forebay_dataset::{DatasetError, OpenOptions, Opened};

use super::super::tests::values;
use crate::conformance;
use crate::testing::{CACHED_EVERYWHERE, config_for, own_keys, write_aged};

const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/tables");
/// Where the only value of the column `label` is in the fixture, an int64.
const LABEL_AT: usize = 146;

/// Tables of one row each, written by pyarrow, with the label changed in place.
fn tables(root: &Path, count: usize) -> PathBuf {
    let template = fs::read(Path::new(FIXTURES).join("one.parquet")).unwrap();
    for number in 0..count {
        let mut bytes = template.clone();
        bytes[LABEL_AT..LABEL_AT + 8].copy_from_slice(&(1000 + number as u64).to_le_bytes());
        write_aged(&root.join(format!("train-{number:05}.parquet")), &bytes);
    }
    root.to_owned()
}

fn of_labels(config: &DatasetConfig) -> DatasetConfig {
    let own = own_keys("dataset.windows = { length = 1, fields = { label = {} } }");
    DatasetConfig { own, ..config.clone() }
}

#[test]
fn windows_of_tables_conform() {
    let openers: [crate::testing::Opener; 3] = [
        |config, options| CACHED_EVERYWHERE[0](&of_labels(config), options),
        |config, options| CACHED_EVERYWHERE[1](&of_labels(config), options),
        |config, options| CACHED_EVERYWHERE[2](&of_labels(config), options),
    ];
    for open in openers {
        conformance::run(&conformance::Format {
            open,
            name: "parquet",
            make: tables,
            has_names: false,
            refuses_cuts: true,
        });
    }
}

/// Tables in a folder, and windows of them.
fn fixture(count: usize) -> (tempfile::TempDir, DatasetConfig) {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("data");
    fs::create_dir(&root).unwrap();
    let mut config = of_labels(&config_for("parquet", &tables(&root, count)));
    config.cache.path = Some(folder.path().join("cache"));
    (folder, config)
}

fn open(config: &DatasetConfig) -> Result<Opened, DatasetError> {
    crate::open(config, OpenOptions::default())
}

fn labels(opened: &Opened) -> Vec<Vec<u8>> {
    (0..opened.dataset.sample_count()).map(|id| values(opened, id).concat()).collect()
}

#[test]
fn rows_of_an_opening_that_was_stopped_are_made_by_the_next() {
    let (_folder, config) = fixture(40);
    let all = labels(&open(&config).unwrap());
    assert_eq!(all.len(), 40);
    assert!(all.iter().zip(1000_u64..).all(|(found, label)| *found == label.to_le_bytes()));
    for after in [0, 1, 30] {
        let (_folder, other) = fixture(40);
        let progress = |seen: ScanProgress| match seen.samples > after {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        };
        let options = OpenOptions { progress: &progress, ..OpenOptions::default() };
        let stopped = crate::open(&other, options);
        assert!(matches!(stopped, Err(DatasetError::Cancelled)), "{stopped:?}");
        let first = Cell::new(None);
        let progress = |seen: ScanProgress| {
            let done = seen.files.map(|files| files.done);
            first.set(first.get().or(done));
            ControlFlow::Continue(())
        };
        let options = OpenOptions { progress: &progress, ..OpenOptions::default() };
        assert_eq!(labels(&crate::open(&other, options).unwrap()), all);
        // Of those before the stop, a checkpoint has 23 rows of 9 bytes.
        assert_eq!(first.get().unwrap() >= 23, after == 30, "{first:?} after {after}");
    }
}

#[test]
fn arrays_of_a_changed_table_are_made_anew() {
    let (_folder, config) = fixture(3);
    let before = open(&config).unwrap();
    let again = open(&config).unwrap();
    assert!(again.report.reused && again.dataset.fingerprint() == before.dataset.fingerprint());
    let path = config.path.join("train-00001.parquet");
    let mut bytes = fs::read(&path).unwrap();
    bytes[LABEL_AT] ^= 1;
    fs::write(&path, &bytes).unwrap();
    let changed = open(&config).unwrap();
    assert!(!changed.report.reused);
    let expected = [1000_u64, 1001 ^ 1, 1002].map(|label| label.to_le_bytes().to_vec());
    assert_eq!(labels(&changed), expected);
}

#[test]
fn tables_that_differ_are_named() {
    let (_folder, config) = fixture(2);
    fs::copy(Path::new(FIXTURES).join("lists-1.0.parquet"), config.path.join("z.parquet")).unwrap();
    let message = open(&config).unwrap_err().to_string();
    assert!(
        message.contains("z.parquet") && message.contains("it has no column \"label\""),
        "{message}"
    );
    let mut config = config;
    config.own = own_keys("dataset.windows = { length = 1, fields = { caption = {} } }");
    let message = open(&config).unwrap_err().to_string();
    assert!(message.contains("\"caption\", whose values are texts"), "{message}");
    config.own = own_keys("dataset.windows = { length = 1, fields = { y = {} } }");
    let message = open(&config).unwrap_err().to_string();
    assert!(
        message
            .contains("has \"y\", and the columns are `image`, `label`, `caption`, `image.path`"),
        "{message}"
    );
    config.condition = Some("label > 2".to_owned());
    let message = open(&config).unwrap_err().to_string();
    assert!(message.contains("`dataset.where` selects rows"), "{message}");
}

#[test]
fn a_table_that_changes_while_arrays_are_made_ends_the_opening() {
    let (_folder, config) = fixture(6);
    let progress = |seen: ScanProgress| {
        if seen.files.is_some_and(|files| files.done == 1) {
            let path = config.path.join("train-00000.parquet");
            fs::write(&path, fs::read(&path).unwrap()).unwrap();
        }
        ControlFlow::Continue(())
    };
    let options = OpenOptions { progress: &progress, ..OpenOptions::default() };
    let message = crate::open(&config, options).unwrap_err().to_string();
    assert!(
        message.contains("train-00000.parquet") && message.contains("it has changed"),
        "{message}"
    );
    assert_eq!(labels(&open(&config).unwrap()).len(), 6);
}

#[test]
fn a_table_of_the_future_is_named() {
    let (_folder, config) = fixture(2);
    let later = SystemTime::now() + Duration::from_secs(1000);
    let table = fs::File::options().append(true).open(config.path.join("train-00001.parquet"));
    table.unwrap().set_modified(later).unwrap();
    let warnings = open(&config).unwrap().report.warnings;
    let is_named =
        |warning: &String| warning.contains("train-00001.parquet has a time in the future");
    assert!(warnings.iter().any(is_named), "{warnings:?}");
}

#[test]
fn arrays_of_tables_that_were_just_written_are_not_trusted() {
    let (_folder, config) = fixture(1);
    let path = config.path.join("train-00000.parquet");
    fs::write(&path, fs::read(&path).unwrap()).unwrap();
    // The table may change again without another time.
    assert!(!open(&config).unwrap().report.reused && !open(&config).unwrap().report.reused);
}

#[test]
fn arrays_are_handed_over_without_their_tables_but_not_from_another_users_folder() {
    let (folder, config) = fixture(3);
    let opened = open(&config).unwrap();
    let Some(IndexBytes::Mapped(mapped)) = opened.dataset.index() else {
        panic!("the index was saved");
    };
    fs::remove_dir_all(&config.path).unwrap();
    let options = OpenOptions { previous_index: Some(mapped.file()), ..OpenOptions::default() };
    assert_eq!(labels(&crate::open(&config, options).unwrap()), labels(&opened));
    let rows = super::folder_of_all(&config);
    assert!(rows.starts_with(folder.path()));
    for made in fs::read_dir(rows).unwrap() {
        // Only root can give a folder away.
        if chown(made.unwrap().path(), Some(12345), None).is_err() {
            return;
        }
    }
    let error = crate::open(&config, options).unwrap_err();
    assert!(error.to_string().contains("data"), "{error}");
}

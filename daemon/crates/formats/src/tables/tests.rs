use std::fs;
use std::path::{Path, PathBuf};

use forebay_keys::Section;

use crate::open;
use crate::testing::{config_for, own_keys, sample, write_aged};
use forebay_dataset::{DatasetError, OpenOptions, Opened};

fn copied(name: &str) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/columns");
    write_aged(&path, &fs::read(fixtures.join(name)).unwrap());
    (folder, path)
}

fn open_with(path: &Path, own: Section) -> Result<Opened, DatasetError> {
    let format = path.extension().unwrap().to_str().unwrap();
    let mut config = config_for(format, path);
    config.index = Some(path.with_extension("index"));
    config.own = own;
    open(&config, OpenOptions::default())
}

fn field_names(opened: &Opened) -> Vec<&str> {
    opened.dataset.fields().iter().map(|field| &field.name[..]).collect()
}

fn refused(path: &Path, fields: &str) -> String {
    open_with(path, own_keys(&format!("[dataset.fields]\n{fields}"))).unwrap_err().to_string()
}

#[test]
fn unsupported_parquet_columns_are_left_out_with_type_and_remedy() {
    let (_folder, path) = copied("unread.parquet");
    let opened = open_with(&path, Section::default()).unwrap();
    assert_eq!(field_names(&opened), ["n", "text"]);
    assert_eq!(sample(&opened, 5).unwrap(), ["5", "\"text 5\""]);
    let [warning] = &opened.report.warnings[..] else { panic!("{:?}", opened.report.warnings) };
    for part in [
        "nothing (it has no values (its type is null))",
        "half (it is of float16, whose values have the encoding BYTE_STREAM_SPLIT",
        "fixed (it is of bytes of the fixed length 4, whose values have the encoding BYTE_STREAM_SPLIT",
        "pyarrow.parquet.write_table",
    ] {
        assert!(warning.contains(part), "{part}: {warning}");
    }
}

#[test]
fn warnings_of_a_scan_are_repeated_with_its_index_and_with_no_other() {
    let (folder, path) = copied("unread.parquet");
    let report = || open_with(&path, Section::default()).unwrap().report;
    let (first, second) = (report(), report());
    assert!(!first.reused && second.reused);
    assert_eq!((first.warnings.len(), &second.warnings), (1, &first.warnings));
    // A cut list, as a kill leaves it, and one of another index.
    let saved = folder.path().join("unread.index.warnings");
    let text = fs::read(&saved).unwrap();
    let other_index = [b"0123", &text[4..]].concat();
    for unusable in [&text[..20], &other_index] {
        fs::write(&saved, unusable).unwrap();
        assert_eq!(report().warnings, [""; 0]);
    }
    fs::write(&saved, text).unwrap();
    let other = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/tables/one.parquet");
    write_aged(&path, &fs::read(other).unwrap());
    let changed = report();
    assert!(!changed.reused && changed.warnings.is_empty(), "{:?}", changed.warnings);
    assert!(!saved.exists());
}

#[test]
fn unsupported_column_is_refused_if_the_configuration_names_it() {
    let (_folder, path) = copied("unread.parquet");
    let message = refused(&path, "n = { from = \"n\" }\nx = { from = \"half\" }");
    assert!(message.contains("column half: it is of float16"), "{message}");
    assert!(message.ends_with("or leave it out of dataset.fields"), "{message}");
    let message = refused(&path, "x = { from = \"nothing\", missing = \"skip\" }");
    assert!(
        message.contains("nothing of dataset.fields.x is not read: it has no values"),
        "{message}"
    );
    let (_folder, path) = copied("nulls-in-lists.arrow");
    let message = refused(&path, "tags = { from = \"tags\" }");
    assert!(
        message.contains("column tags: it is a list of int32 in which 1 elements"),
        "{message}"
    );
}

#[test]
fn table_without_supported_columns_is_refused_with_the_reasons() {
    let (_folder, path) = copied("none-read.parquet");
    let message = open_with(&path, Section::default()).unwrap_err().to_string();
    assert!(
        message.contains("it has no columns that can be read: half (it is of float16"),
        "{message}"
    );
}

#[test]
fn arrow_lists_with_null_elements_are_left_out_and_other_columns_are_read() {
    let (_folder, path) = copied("nulls-in-lists.arrow");
    let opened = open_with(&path, Section::default()).unwrap();
    assert_eq!(field_names(&opened), ["n", "boxes"]);
    assert_eq!(sample(&opened, 5).unwrap(), ["5", "F32 [1, 4]"]);
    let warnings = opened.report.warnings.join("\n");
    assert!(warnings.contains("tags (it is a list of int32 in which 1 elements"), "{warnings}");
    // From the saved index.
    let again = open_with(&path, Section::default()).unwrap();
    assert_eq!(field_names(&again), ["n", "boxes"]);
}

#[test]
fn parquet_times_have_the_units_of_the_arrow_schema() {
    let (_folder, path) = copied("times.arrow");
    let arrow = open_with(&path, Section::default()).unwrap();
    let first = ["1704153600", "0", "0", "0", "3723", "0", "0", "0", "0", "0"];
    assert_eq!(sample(&arrow, 0).unwrap(), first);
    for name in ["times.parquet", "times-1.0.parquet"] {
        let (_folder, path) = copied(name);
        let parquet = open_with(&path, Section::default()).unwrap();
        assert_eq!(field_names(&parquet), field_names(&arrow), "{name}");
        for row in 0..6 {
            assert_eq!(sample(&parquet, row), sample(&arrow, row), "{name} {row}");
        }
    }
    // Without the schema the units are unknown.
    let (_folder, path) = copied("times-without-schema.parquet");
    let plain = open_with(&path, Section::default()).unwrap();
    let values = sample(&plain, 1).unwrap();
    assert_eq!(values[..2], ["1704153601000", "-1000"]);
    assert_eq!(values[4..8], ["3724000", "1", "1", "1"]);
}

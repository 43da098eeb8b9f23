//! Lists of pictures' files and of bytes, in Parquet and Arrow files of the same rows.

use std::fs;
use std::path::{Path, PathBuf};

use crate::open;
use crate::testing::{config_for, own_keys, sample, write_aged};
use forebay_dataset::{DatasetError, OpenOptions, Opened};

const NAMES: [&str; 5] = [
    "pictured-plain.parquet",
    "pictured-dictionary.parquet",
    "pictured-packed.parquet",
    "pictured.arrow",
    "pictured-packed.arrow",
];

fn copied(name: &str) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/tables");
    write_aged(&path, &fs::read(fixtures.join(name)).unwrap());
    (folder, path)
}

fn open_with(path: &Path, fields: &str) -> Result<Opened, DatasetError> {
    let mut config = config_for(path.extension().unwrap().to_str().unwrap(), path);
    config.index = Some(path.with_extension("index"));
    if !fields.is_empty() {
        config.own = own_keys(&format!("[dataset.fields]\n{fields}"));
    }
    open(&config, OpenOptions::default())
}

/// The bytes of `blob` in `fixtures/tables.py`.
fn blob(i: usize, length: usize) -> Vec<u8> {
    (0..length).map(|k| u8::try_from((i * 31 + (k / 4).pow(2)) & 255).unwrap()).collect()
}

fn lengths(row: usize) -> impl Iterator<Item = usize> {
    (0..row % 5).map(move |k| (row * 5 + k * 7) % 11 * 60)
}

fn shown(files: impl Iterator<Item = Vec<u8>>) -> String {
    let file = |file: Vec<u8>| {
        let sum: u64 = file.iter().map(|byte| u64::from(*byte)).sum();
        format!(" {}:{sum}", file.len())
    };
    format!("images{}", files.map(file).collect::<String>())
}

#[test]
fn lists_of_pictures_have_their_files_in_order() {
    let fields = "images = { from = \"pictures\", as = \"images\", missing = \"empty\" }\n\
                  files = { from = \"files\", as = \"images\" }\nname = { from = \"name\" }";
    for name in NAMES {
        let (_folder, path) = copied(name);
        for is_again in [false, true] {
            let opened = open_with(&path, fields).unwrap();
            assert_eq!(opened.report.reused, is_again, "{name}");
            for row in 0..20 {
                let found = sample(&opened, row as u64);
                if row == 9 {
                    assert_eq!(
                        found.unwrap_err(),
                        "image 1 of `files` has no bytes in the table",
                        "{name}"
                    );
                    continue;
                }
                let pictures = lengths(row).filter(|_| row != 6);
                let expected = [
                    shown(pictures.map(|length| blob(length, length + 1))),
                    shown(lengths(row).map(|length| blob(row, length))),
                    format!("\"n{row}\""),
                ];
                assert_eq!(found.unwrap(), expected, "{name} {row}");
            }
        }
        // Without the column that has a null.
        let opened =
            open_with(&path, "pictures = { from = \"pictures\", missing = \"skip\" }").unwrap();
        assert_eq!(opened.dataset.sample_count(), 19, "{name}");
    }
}

#[test]
fn lists_of_bytes_are_pictures_if_the_configuration_says_so() {
    for name in NAMES {
        let (_folder, path) = copied(name);
        let opened = open_with(&path, "").unwrap();
        let names: Vec<_> = opened.dataset.fields().iter().map(|field| &field.name).collect();
        assert_eq!(names, ["name"], "{name}");
        let warnings = opened.report.warnings.join("\n");
        for part in [
            "pictures.bytes (it is of a list of pictures; name the list in dataset.fields, with as = \"images\")",
            "files (it is a list of texts or bytes, read only if dataset.fields names it with as = \"images\")",
        ] {
            assert!(warnings.contains(part), "{name} {part}: {warnings}");
        }
        let refused = |fields: &str| open_with(&path, fields).unwrap_err().to_string();
        let message = refused("files = { from = \"files\" }");
        assert!(message.contains("if they are pictures, add as = \"images\""), "{message}");
        for word in ["image", "bytes", "text"] {
            let message = refused(&format!("files = {{ from = \"pictures\", as = \"{word}\" }}"));
            assert!(message.contains("cannot be what `as` says"), "{message}");
        }
    }
}

#[test]
fn a_column_of_single_pictures_is_a_list_of_one() {
    for name in ["pictures.parquet", "hub.parquet"] {
        let (_folder, path) = copied(name);
        let plain = open_with(&path, "image = { from = \"image\", as = \"image\" }").unwrap();
        let lists = open_with(&path, "image = { from = \"image\", as = \"images\" }").unwrap();
        let length = sample(&plain, 0).unwrap().remove(0);
        let length = length.strip_prefix("image ").unwrap();
        let list = sample(&lists, 0).unwrap().remove(0);
        assert!(list.starts_with(&format!("images {length}:")), "{list}");
    }
}

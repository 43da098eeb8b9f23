use std::fs;
use std::path::{Path, PathBuf};

use forebay_keys::Section;
use forebay_protocol::ids::SampleId;

use crate::conformance::{self, Format};
use crate::open;
use crate::testing::{EVERYWHERE, config_for, names, own_keys, sample, write_aged};
use forebay_columnar::Cell;
use forebay_columnar::fuzzing::read_in_memory;
use forebay_columnar::parquet::READER;
use forebay_dataset::{DatasetError, OpenOptions, Opened};
use forebay_storage::location::{Location, Unit};

fn fixture(name: &str) -> Vec<u8> {
    fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/tables").join(name)).unwrap()
}

/// Files of one row each, written by pyarrow, with values changed in place.
fn files(root: &Path, count: usize) -> PathBuf {
    files_of("one.parquet", root, count)
}

/// The same with Snappy pages, which contain the changed words as literals.
fn packed_files(root: &Path, count: usize) -> PathBuf {
    files_of("single.parquet", root, count)
}

fn files_of(name: &str, root: &Path, count: usize) -> PathBuf {
    let template = fixture(name);
    for number in 0..count {
        let mut bytes = template.clone();
        for word in ["picture-", "caption-"] {
            let places = (0..bytes.len() - 10)
                .filter(|place| template[*place..].starts_with(word.as_bytes()));
            for place in places.collect::<Vec<_>>() {
                bytes[place + 8..place + 10].copy_from_slice(format!("{number:02}").as_bytes());
            }
        }
        write_aged(&root.join(format!("train-{number:05}.parquet")), &bytes);
    }
    root.to_owned()
}

#[test]
fn parquet_files_conform_on_disk_and_from_urls() {
    for open in EVERYWHERE {
        for make in [files as _, packed_files as _] {
            let (name, has_names, refuses_cuts) = ("parquet", true, true);
            conformance::run(&Format { open, name, make, has_names, refuses_cuts });
        }
    }
}

/// The same files, listed as LitData lists them.
fn indexed_by_litdata(root: &Path, count: usize) -> PathBuf {
    files(root, count);
    let chunk = |number| {
        format!(r#"{{"chunk_bytes": 1, "chunk_size": 1, "filename": "train-{number:05}.parquet"}}"#)
    };
    let chunks: Vec<String> = (0..count).map(chunk).collect();
    let index = format!(
        r#"{{"chunks": [{}], "config": {{"compression": null, "data_format": ["binary"], "item_loader": "ParquetLoader"}}}}"#,
        chunks.join(",")
    );
    write_aged(&root.join("index.json"), index.as_bytes());
    root.to_owned()
}

#[test]
fn parquet_files_that_litdata_indexed_conform_on_disk_and_from_urls() {
    for open in EVERYWHERE {
        let (name, has_names, refuses_cuts) = ("litdata", true, true);
        conformance::run(&Format { open, name, make: indexed_by_litdata, has_names, refuses_cuts });
    }
}

fn footer_bytes(file: &[u8]) -> u32 {
    u32::from_le_bytes(*file[..file.len() - 4].last_chunk().unwrap())
}

fn open_with(path: &Path, own: Section) -> Result<Opened, DatasetError> {
    let mut config = config_for("parquet", path);
    config.index = Some(path.with_extension("index"));
    config.own = own;
    open(&config, OpenOptions::default())
}

fn copied(name: &str) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    write_aged(&path, &fixture(name));
    (folder, path)
}

#[test]
fn files_written_by_hugging_face_are_read() {
    let (_folder, path) = copied("hub.parquet");
    let opened = open_with(&path, Section::default()).unwrap();
    let fields: Vec<_> = opened.dataset.fields().iter().map(|field| &field.name[..]).collect();
    let expected = [
        "image",
        "label",
        "caption",
        "score",
        "half",
        "small",
        "is_good",
        "info.author.name",
        "info.author.age",
        "when",
    ];
    assert_eq!(fields, expected);
    let warnings = opened.report.warnings.join("\n");
    assert!(
        warnings.contains("tokens (it is a list, read only if dataset.fields names it"),
        "{warnings}"
    );
    assert!(warnings.contains("1 row without caption"), "{warnings}");
    assert_eq!(opened.dataset.classes(), ["cat", "dog", "eel"]);
    assert_eq!(opened.dataset.description().classes.unwrap().to_string(), "3, cat to eel");
    for i in (0..7_u64).filter(|i| *i != 4) {
        let expected = [
            format!("image {}", 3 + 5 + i),
            (i % 3).to_string(),
            format!("{:?}", "ü".repeat(usize::try_from(i).unwrap())),
            format!("{} F32", i as f64 / 4.0),
            format!("{} F16", i as f64 / 2.0),
            (60_000 + i).to_string(),
            (i % 2 == 0).to_string(),
            format!("\"author {i}\""),
            i.to_string(),
            (1000 + i).to_string(),
        ];
        assert_eq!(sample(&opened, i).unwrap(), expected);
    }
    assert_eq!(sample(&opened, 4).unwrap_err(), "it has no caption for the field `caption`");
    assert_eq!(names(&opened)[5], "hub.parquet:5");
}

#[test]
fn compressed_and_dictionary_pages_of_both_versions_give_the_written_values() {
    for name in ["mixed-1.0.parquet", "mixed-2.0.parquet"] {
        let (_folder, path) = copied(name);
        let opened = open_with(&path, Section::default()).unwrap();
        assert_eq!(opened.dataset.sample_count(), 100, "{name}");
        for i in 0..100_u64 {
            let found = sample(&opened, i);
            if i == 3 || i % 2 == 1 {
                let reason = found.unwrap_err();
                assert!(reason.starts_with("it has no "), "{reason}");
                continue;
            }
            let expected = [
                (i % 3 == 0).to_string(),
                i.to_string(),
                (4_000_000_000 + i).to_string(),
                format!("{}", -i.cast_signed()),
                format!("{} F32", i as f64 / 4.0),
                "7".to_owned(),
                format!("\"text {}\"", i % 5),
                format!("{:?}", vec![i; 9]),
                format!("{:?}", vec![i; usize::try_from(i).unwrap()]),
                i.to_string(),
            ];
            assert_eq!(found.unwrap(), expected, "{name} {i}");
        }
    }
}

/// Delta-encoded numbers and texts, and numbers split into byte streams.
#[test]
fn encodings_of_the_second_version_give_the_written_values() {
    for name in ["differing-plain.parquet", "differing-snappy.parquet"] {
        let (_folder, path) = copied(name);
        let opened = open_with(&path, Section::default()).unwrap();
        assert_eq!(opened.dataset.sample_count(), 150, "{name}");
        for i in 0..150_i64 {
            let found = sample(&opened, i.cast_unsigned());
            if i % 7 == 5 {
                assert_eq!(found.unwrap_err(), "it has no n for the field `n`");
                continue;
            }
            let sign = if i % 2 == 0 { 1 } else { -1 };
            let text = format!(
                "a text of number {} {}",
                i / 4,
                "x".repeat(usize::try_from(i % 3).unwrap())
            );
            let text = if i % 11 == 0 { String::new() } else { text };
            let low = |number: i64| number.to_le_bytes()[0];
            let expected = [
                (sign * i.pow(3)).to_string(),
                (sign * (i64::MAX - i)).to_string(),
                (i * i).to_string(),
                (i * 400).to_string(),
                format!("{} F32", i as f64 / 8.0),
                (i as f64 / 3.0).to_string(),
                format!("{text:?}"),
                format!("{:?}", blob(i.cast_unsigned(), (i * 13 % 400).cast_unsigned())),
                format!("{:?}", [b's', b'a', b'm', b'e', low(i / 9), low(i)]),
            ];
            assert_eq!(found.unwrap(), expected, "{name} {i}");
        }
    }
    // Values that are preceded by their lengths stay in the file.
    let table = fixture("differing-plain.parquet");
    let (columns, rows) = read_in_memory(&READER, &table).unwrap();
    let place = columns.iter().position(|column| column.column.name == "blob").unwrap();
    assert!(rows.iter().all(|row| matches!(row[place], Cell::At { .. })));
    let (_folder, path) = copied("alike.parquet");
    let message = open_with(&path, Section::default()).unwrap_err().to_string();
    assert!(message.contains("DELTA_BYTE_ARRAY") && message.contains("write_table"), "{message}");
}

/// The definition level counts the structs around a value, and the value, that are not null.
#[test]
fn null_values_in_a_struct_that_is_not_null_are_null() {
    let (_folder, path) = copied("nested.parquet");
    let own = own_keys(
        "[dataset.fields]\nname = { from = \"info.name\", as = \"text\", missing = \"empty\" }\nage = { from = \"info.age\" }",
    );
    let opened = open_with(&path, own).unwrap();
    assert_eq!(sample(&opened, 0).unwrap(), ["\"a\"", "0"]);
    assert_eq!(sample(&opened, 1).unwrap(), ["\"\"", "1"]);
    for absent in [2, 3] {
        let reason = sample(&opened, absent).unwrap_err();
        assert_eq!(reason, "it has no info.age for the field `age`");
    }
    let (columns, rows) = read_in_memory(&READER, &fixture("nested.parquet")).unwrap();
    let name = columns.iter().position(|column| column.column.name == "info.name").unwrap();
    let is_null: Vec<bool> = rows.iter().map(|row| matches!(row[name], Cell::Null)).collect();
    assert_eq!(is_null, [false, true, true, false]);
}

/// As `blob` of tables.py.
fn blob(i: u64, length: u64) -> Vec<u8> {
    (0..length).map(|k| (i * 31 + (k / 4).pow(2)).to_le_bytes()[0]).collect()
}

#[test]
fn long_values_in_compressed_pages_equal_the_written_bytes() {
    for codec in ["snappy", "gzip", "zstd", "lz4", "brotli"] {
        let (_folder, path) = copied(&format!("long-{codec}.parquet"));
        let own = own_keys(
            "[dataset.fields]\nimage = { from = \"image\", as = \"bytes\", missing = \"empty\" }\n\
             fixed = { from = \"fixed\" }\nshort = { from = \"short\" }\nlabel = { from = \"label\" }",
        );
        let opened = open_with(&path, own).unwrap();
        let mut packed = 0;
        for i in 0..24 {
            let image = if i == 5 { Vec::new() } else { blob(i % 9, 300 + 40 * (i % 9)) };
            let expected = [
                format!("{image:?}"),
                format!("{:?}", blob(i, 260)),
                format!("{:?}", blob(i, 5)),
                i.to_string(),
            ];
            assert_eq!(sample(&opened, i).unwrap(), expected, "{codec} {i}");
            let mut locations = Vec::new();
            opened.dataset.locate(SampleId(i), &mut locations);
            let is_packed = |location: &&Location| matches!(location.unit, Unit::Packed(_));
            packed += locations.iter().filter(is_packed).count();
        }
        assert_eq!(packed, 23 + 24, "{codec}: a location for each long value");
        let page_bytes = opened.dataset.page_bytes().unwrap();
        assert!((600..60_000).contains(&page_bytes), "{page_bytes}");
        let warnings = opened.report.warnings.join("\n");
        assert!(warnings.contains("bytes read for each one used"), "{codec}: {warnings}");
        assert!(warnings.contains("compression=\"none\" and use_dictionary=False"), "{warnings}");
    }
}

#[test]
fn page_that_changes_after_indexing_is_a_bad_sample() {
    let (_folder, path) = copied("long-snappy.parquet");
    let own = own_keys("[dataset.fields]\nfixed = { from = \"fixed\" }");
    let opened = open_with(&path, own).unwrap();
    let mut locations = Vec::new();
    opened.dataset.locate(SampleId(0), &mut locations);
    let start = usize::try_from(locations[0].range.offset).unwrap();
    let mut bytes = fs::read(&path).unwrap();
    bytes[start] ^= 0x40;
    fs::write(&path, &bytes).unwrap();
    let (dataset, mut buffer) = (opened.dataset.as_ref(), Vec::new());
    let error = opened.storage.read(dataset, locations[0], 1 << 20, &mut buffer).unwrap_err();
    assert!(error.to_string().contains("cannot be unpacked at byte"), "{error}");
    assert!(error.is_bad_sample() && buffer.is_empty());
}

#[test]
fn unsupported_files_are_refused_with_lines_that_rewrite_them() {
    let (_folder, path) = copied("usual.parquet");
    let opened = open_with(&path, Section::default()).unwrap();
    let found = sample(&opened, 98).unwrap();
    assert_eq!(found[6..9], ["\"text 3\"", &format!("{:?}", [98; 9]), &format!("{:?}", [98; 98])]);
    let own = own_keys("[dataset.fields]\ntext = { from = \"text\" }\nn = { from = \"i64\" }");
    let (_folder, path) = copied("zstd.parquet");
    let opened = open_with(&path, own).unwrap();
    assert_eq!(sample(&opened, 99).unwrap(), ["\"text 4\"", "-99"]);
    // The codec's number in the footer: 3 is LZO.
    let mut bytes = fixture("single.parquet");
    let footer = bytes.len() - 8 - usize::try_from(footer_bytes(&bytes)).unwrap();
    let words: &[u8] = b"bytes\x15\x02\x16";
    let place = (footer..bytes.len()).find(|place| bytes[*place..].starts_with(words)).unwrap();
    bytes[place + 6] = 6;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("lzo.parquet");
    write_aged(&path, &bytes);
    let own = own_keys("[dataset.fields]\nimage = { from = \"image\" }");
    let message = open_with(&path, own).unwrap_err().to_string();
    assert!(
        message.contains("its pages are compressed by LZO")
            && message.contains("compression=\"none\", use_dictionary=False"),
        "{message}"
    );
    // Splits are detected by file names.
    let folder = tempfile::tempdir().unwrap();
    let data = files(&folder.path().join("data"), 2);
    fs::rename(data.join("train-00001.parquet"), data.join("test-00000.parquet")).unwrap();
    let message = open_with(&data, Section::default()).unwrap_err().to_string();
    assert!(
        message.contains("the splits test, train") && message.contains("test-*.parquet"),
        "{message}"
    );
    let one = open_with(&data.join("train-*.parquet"), Section::default()).unwrap();
    assert_eq!(one.dataset.sample_count(), 1);
}

#[test]
fn rows_with_equal_values_are_read() {
    let (_folder, path) = copied("repeated.parquet");
    let opened = open_with(&path, Section::default()).unwrap();
    assert_eq!(opened.dataset.sample_count(), 300_000);
    for i in [0, 4, 6, 99_999, 200_004, 200_006, 299_999_u64] {
        let turn = (i % 7).to_string();
        let expected = ["\"the same text\"", "3", "true", &turn];
        assert_eq!(sample(&opened, i).unwrap(), expected, "{i}");
    }
    assert_eq!(sample(&opened, 200_005).unwrap_err(), "it has no n for the field `n`");
}

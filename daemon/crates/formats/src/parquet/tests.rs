use std::cell::RefCell;
use std::fs;
use std::path::{Path, PathBuf};

use forebay_keys::Section;
use forebay_protocol::ids::SampleId;

use super::TABLES;
use super::footer::{Footer, Leaf};
use super::pages::Pages;
use crate::conformance::{self, Format};
use crate::open;
use crate::tables::{Cell, Reads, read_in_memory};
use crate::testing::{EVERYWHERE, config_for, names, own_keys, sample, write_aged};
use forebay_dataset::{DatasetError, OpenOptions, Opened};
use forebay_index::window::{Bytes, InMemory, Window, WindowSize};
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
    assert!(warnings.contains("tokens (it is a list, which is not read"), "{warnings}");
    assert!(warnings.contains("1 rows have no caption"), "{warnings}");
    assert_eq!(opened.dataset.classes(), ["cat", "dog", "eel"]);
    assert_eq!(opened.dataset.class_summary().unwrap().to_string(), "3, cat to eel");
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
    let (columns, rows) = read_in_memory(&TABLES, &table).unwrap();
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
    let (columns, rows) = read_in_memory(&TABLES, &fixture("nested.parquet")).unwrap();
    let name = columns.iter().position(|column| column.column.name == "info.name").unwrap();
    let is_null: Vec<bool> = rows.iter().map(|row| matches!(row[name], Cell::Null)).collect();
    assert_eq!(is_null, [false, true, true, false]);
}

#[test]
fn page_of_nulls_may_lack_its_compressed_body() {
    let (_, rows) = read_in_memory(&TABLES, &fixture("nulls.parquet")).unwrap();
    assert_eq!(rows.len(), 4);
    for (cells, number) in rows.iter().zip(1_i32..) {
        let mut bytes = [0; 8];
        bytes[..4].copy_from_slice(&number.to_le_bytes());
        assert_eq!(cells[..], [Cell::Null, Cell::Number { bytes, length: 4 }]);
    }
}

#[test]
fn pages_of_old_arrow_are_compressed_although_their_headers_deny_it() {
    let (columns, rows) = read_in_memory(&TABLES, &fixture("old-pages.parquet")).unwrap();
    let names: Vec<_> = columns.iter().map(|column| &column.column.name[..]).collect();
    assert_eq!(names[..3], ["col1", "col2", "col3"]);
    for ((cells, number), text) in rows.iter().zip(1_u8..).zip(b'a'..) {
        let number_cell = |bytes: [u8; 8], length| Cell::Number { bytes, length };
        assert_eq!(cells[0], number_cell([number, 0, 0, 0, 0, 0, 0, 0], 4));
        assert_eq!(cells[1], Cell::Value(vec![text]));
        assert_eq!(cells[2], number_cell(f64::from(number).to_le_bytes(), 8));
    }
    assert_eq!(rows.len(), 5);
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
fn broken_files_are_reported_without_a_panic() {
    for name in [
        "hub.parquet",
        "mixed-1.0.parquet",
        "mixed-2.0.parquet",
        "differing-plain.parquet",
        "differing-snappy.parquet",
        "one.parquet",
        "single.parquet",
        "long-brotli.parquet",
        "long-gzip.parquet",
        "long-lz4.parquet",
        "long-snappy.parquet",
        "long-zstd.parquet",
    ] {
        let whole = fixture(name);
        let (_, rows) = read_in_memory(&TABLES, &whole).unwrap();
        for length in (0..whole.len()).step_by(97) {
            read_in_memory(&TABLES, &whole[..length]).unwrap_err();
        }
        let mut noise = 1_u64;
        let mut refused = 0;
        for round in 0..3000 {
            let mut bytes = whole.clone();
            // Every other time only in the footer, where most faults can occur.
            let first = if round % 2 == 0 { 0 } else { whole.len() - whole.len() / 4 };
            for _ in 0..2 {
                noise = noise.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(1);
                let place = first + usize::try_from(noise >> 33).unwrap() % (whole.len() - first);
                bytes[place] = noise.to_le_bytes()[3];
            }
            refused += usize::from(read_in_memory(&TABLES, &bytes).is_err());
            crate::fuzzing::parquet_table(&bytes);
        }
        println!("{name}: {} rows, {refused} of 3000 damaged ones refused", rows.len());
        assert!(refused > 100, "{refused}");
    }
}

#[test]
fn values_that_stay_in_the_file_equal_the_written_bytes() {
    let table = fixture("mixed-1.0.parquet");
    let (columns, rows) = read_in_memory(&TABLES, &table).unwrap();
    let place = columns.iter().position(|column| column.column.name == "blob").unwrap();
    for (number, row) in (0_u8..).zip(&rows) {
        let Cell::At { offset, length } = row[place] else { panic!("{row:?}") };
        let value = &table[usize::try_from(offset).unwrap()..][..usize::try_from(length).unwrap()];
        assert_eq!(value, vec![number; usize::from(number)]);
    }
}

/// A Thrift varint.
fn number(mut number: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while number >= 0x80 {
        bytes.push(number.to_le_bytes()[0] | 0x80);
        number >>= 7;
    }
    bytes.push(number.to_le_bytes()[0]);
    bytes
}

/// A file without rows: nested structs with names of these lengths, and `columns` columns `a` in the innermost.
fn named(structs: &[usize], columns: usize) -> Vec<u8> {
    let text = |text: &str| [number(text.len() as u64), text.into()].concat();
    let group = |name: &str, children: usize| {
        [b"\x48", &text(name)[..], b"\x15", &number(2 * children as u64), b"\0"].concat()
    };
    let mut schema = group("r", if structs.is_empty() { columns } else { 1 });
    for (place, length) in structs.iter().enumerate() {
        let children = if place + 1 == structs.len() { columns } else { 1 };
        schema.extend(group(&"n".repeat(*length), children));
    }
    schema.extend([b"\x15\x02\x38", &text("a")[..], b"\0"].concat().repeat(columns));
    let elements = number((1 + structs.len() + columns) as u64);
    let footer = [b"\x15\x02\x19\xfc", &elements[..], &schema, b"\x16\0\x19\x0c\0"].concat();
    let size = u32::try_from(footer.len()).unwrap().to_le_bytes();
    [b"PAR1", &footer[..], &size, b"PAR1"].concat()
}

#[test]
fn small_footer_with_many_long_names_is_refused_before_names_are_copied() {
    let (columns, _) = read_in_memory(&TABLES, &named(&[7, 3], 2)).unwrap();
    assert_eq!(columns[1].column.name, "nnnnnnn.nnn.a");
    let refused = |structs: &[usize], columns| {
        let file = named(structs, columns);
        assert!(file.len() < 1_600_000, "{}", file.len());
        read_in_memory(&TABLES, &file).unwrap_err()
    };
    assert!(read_in_memory(&TABLES, &named(&[32_767, 32_766], 1)).is_ok());
    assert_eq!(
        refused(&[32_767, 32_767], 1),
        "memory: a column's name, with those of the structs around it, has 65537 bytes, and at most 65536 are read"
    );
    assert!(read_in_memory(&TABLES, &named(&[16_382], 1024)).is_ok());
    assert_eq!(
        refused(&[20_000], 20_000),
        "memory: the names of its 20000 columns have 400040000 bytes, and at most 16777216 are read"
    );
    assert!(read_in_memory(&TABLES, &named(&[], 65_536)).is_ok());
    assert_eq!(refused(&[], 65_537), "memory: it has 65537 columns, and at most 65536 are read");
    let elements = refused(&[], 262_144);
    assert!(
        elements.contains("262145 columns and groups of them, and at most 262144"),
        "{elements}"
    );
}

#[test]
fn class_names_are_copied_once_for_all_columns() {
    let file = named(&[], 2_000);
    let classes = "\"c\",".repeat(2_000);
    let features = format!(
        "{{\"info\":{{\"features\":{{\"a\":{{\"_type\":\"ClassLabel\",\"names\":[{}]}}}}}}}}",
        classes.trim_end_matches(',')
    );
    let text = |text: &str| [number(text.len() as u64), text.into()].concat();
    let said = [b"\x19\x1c\x18", &text("huggingface")[..], b"\x18", &text(&features), b"\0"];
    let size = usize::try_from(footer_bytes(&file)).unwrap();
    let footer = [&file[4..3 + size], &said.concat(), b"\0"].concat();
    let size = u32::try_from(footer.len()).unwrap().to_le_bytes();
    let file = [b"PAR1", &footer[..], &size, b"PAR1"].concat();
    let (columns, _) = read_in_memory(&TABLES, &file).unwrap();
    assert_eq!(columns[1_999].classes.len(), 2_000);
    assert!(std::sync::Arc::ptr_eq(&columns[0].classes, &columns[1_999].classes));
}

/// A file in memory, and the lengths of its reads.
struct Counted<'a>(InMemory<'a>, RefCell<Vec<u64>>);

impl Bytes for Counted<'_> {
    fn length(&self) -> u64 {
        self.0.length()
    }

    fn read(&self, offset: u64, length: u64, buffer: &mut Vec<u8>) -> Result<(), DatasetError> {
        self.1.borrow_mut().push(length);
        self.0.read(offset, length, buffer)
    }

    fn fault(&self, reason: String) -> DatasetError {
        self.0.fault(reason)
    }
}

/// A file with a column `a` of three values of 20,000 bytes, uncompressed in one page.
fn long_values() -> Vec<u8> {
    let value = [&20_000_u32.to_le_bytes()[..], &[7; 20_000]].concat();
    let size = number(2 * 3 * value.len() as u64);
    let head = [b"\x15\0\x15", &size[..], b"\x15", &size, b"\x2c\x15\x06\x15\0\0\0"].concat();
    let page = [&head[..], &value, &value, &value].concat();
    let size = number(2 * page.len() as u64);
    let schema = b"\x15\x02\x19\x2c\x48\x01r\x15\x02\0\x15\x0c\x38\x01a\0\x16\x06";
    let chunk = [b"\x3c\x45\0\x26", &size[..], b"\x16", &size, b"\x26\x08\0\0"].concat();
    let footer = [&schema[..], b"\x19\x1c\x19\x1c", &chunk, b"\x26\x06\0\0"].concat();
    let size = u32::try_from(footer.len()).unwrap().to_le_bytes();
    [b"PAR1", &page[..], &footer, &size, b"PAR1"].concat()
}

#[test]
fn lengths_of_long_values_are_read_alone_from_local_files_only() {
    let table = long_values();
    for (is_local, expected) in [(true, 3), (false, 0)] {
        let file = Counted(InMemory(&table), RefCell::default());
        let mut rows = 0;
        let mut visit = |_: u64, cells: &[Cell]| {
            assert!(matches!(cells, [Cell::At { length: 20_000, .. }]), "{cells:?}");
            rows += 1;
            Ok(std::ops::ControlFlow::Continue(()))
        };
        (TABLES.rows)(&file, &[0], Reads { piece: 1 << 20, is_local }, &mut visit).unwrap();
        let short = file.1.borrow().iter().filter(|length| **length == 16).count();
        assert_eq!((rows, short), (3, expected));
    }
}

/// The number of cells in memory for each column of the first group.
fn held(file: &[u8]) -> Vec<usize> {
    let file = InMemory(file);
    let footer = Footer::read(&mut Window::new(&file, WindowSize::fixed(1 << 16))).unwrap();
    let (mut window, mut values) =
        (Window::new(&file, WindowSize::fixed(1 << 16)), Window::new(&file, WindowSize::fixed(16)));
    let (group, mut budget) = (&footer.groups[0], u64::MAX);
    let of = |leaf: &Leaf| {
        let chunk = &group.chunks[leaf.place];
        let (window, values, budget) = (&mut window, &mut values, &mut budget);
        let runs = Pages { leaf, chunk, window, values, budget, room: 1 << 20, unread: None }
            .read(group.rows);
        runs.unwrap().held()
    };
    footer.leaves.iter().map(of).collect()
}

#[test]
fn rows_with_equal_values_are_held_as_one_value() {
    // A text, a number that is null three times, a boolean, and seven numbers in turn.
    assert_eq!(held(&fixture("repeated.parquet")), [1, 7, 1, 300_000]);
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

#[test]
fn small_file_with_too_many_rows_is_refused() {
    let table = fixture("repeated.parquet");
    assert!(table.len() < 50_000, "{}", table.len());
    let rows = |columns: &[usize]| {
        let mut count = 0_u64;
        let reads = Reads { piece: 1 << 16, is_local: true };
        let found = (TABLES.rows)(&InMemory(&table), columns, reads, &mut |_, _: &[Cell]| {
            count += 1;
            Ok(std::ops::ControlFlow::Continue(()))
        });
        found.map(|()| count).map_err(|error| error.to_string())
    };
    // A column that is requested several times counts several times.
    assert_eq!(rows(&[3; 13]).unwrap(), 300_000);
    let message = rows(&[3; 14]).unwrap_err();
    assert!(
        message.contains("column turn: a group of rows has more values that differ")
            && message.contains(&format!("of a file of {} bytes", table.len())),
        "{message}"
    );
    assert_eq!(rows(&[2; 55]).unwrap(), 300_000);
    let message = rows(&[2; 56]).unwrap_err();
    assert!(
        message.contains(&format!(
            "it has {} bytes, and 300000 rows or more of 56 columns; at most 16777216 values",
            table.len()
        )),
        "{message}"
    );
}

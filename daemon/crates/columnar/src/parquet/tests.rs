use std::cell::RefCell;
use std::fs;
use std::path::Path;

use super::READER;
use super::footer::Footer;
use super::pages::Pages;
use super::schema::Leaf;
use crate::fuzzing::{read_for_fuzzing, read_in_memory};
use crate::{Cell, Reads};
use forebay_dataset::error::DatasetError;
use forebay_index::window::{Bytes, InMemory, Window, WindowSize};

/// The fixtures are those of `formats`.
pub(super) fn fixture(name: &str) -> Vec<u8> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../formats/fixtures/tables");
    fs::read(Path::new(folder).join(name)).unwrap()
}

#[test]
fn page_of_nulls_may_lack_its_compressed_body() {
    let (_, rows) = read_in_memory(&READER, &fixture("nulls.parquet")).unwrap();
    assert_eq!(rows.len(), 4);
    for (cells, number) in rows.iter().zip(1_i32..) {
        let mut bytes = [0; 8];
        bytes[..4].copy_from_slice(&number.to_le_bytes());
        assert_eq!(cells[..], [Cell::Null, Cell::Number { bytes, length: 4 }]);
    }
}

#[test]
fn pages_of_old_arrow_are_compressed_although_their_headers_deny_it() {
    let (columns, rows) = read_in_memory(&READER, &fixture("old-pages.parquet")).unwrap();
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
        "lists-1.0.parquet",
        "lists-2.0.parquet",
        "told-1.0.parquet",
        "told-2.0.parquet",
    ] {
        let whole = fixture(name);
        let (_, rows) = read_in_memory(&READER, &whole).unwrap();
        for length in (0..whole.len()).step_by(97) {
            read_in_memory(&READER, &whole[..length]).unwrap_err();
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
            refused += usize::from(read_in_memory(&READER, &bytes).is_err());
            read_for_fuzzing(&READER, &bytes);
        }
        println!("{name}: {} rows, {refused} of 3000 damaged ones refused", rows.len());
        assert!(refused > 100, "{refused}");
    }
}

#[test]
fn values_that_stay_in_the_file_equal_the_written_bytes() {
    let table = fixture("mixed-1.0.parquet");
    let (columns, rows) = read_in_memory(&READER, &table).unwrap();
    let place = columns.iter().position(|column| column.column.name == "blob").unwrap();
    for (number, row) in (0_u8..).zip(&rows) {
        let Cell::At { offset, length } = row[place] else { panic!("{row:?}") };
        let value = &table[usize::try_from(offset).unwrap()..][..usize::try_from(length).unwrap()];
        assert_eq!(value, vec![number; usize::from(number)]);
    }
}

/// A Thrift varint.
pub(super) fn number(mut number: u64) -> Vec<u8> {
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
    let (columns, _) = read_in_memory(&READER, &named(&[7, 3], 2)).unwrap();
    assert_eq!(columns[1].column.name, "nnnnnnn.nnn.a");
    let refused = |structs: &[usize], columns| {
        let file = named(structs, columns);
        assert!(file.len() < 1_600_000, "{}", file.len());
        read_in_memory(&READER, &file).unwrap_err()
    };
    assert!(read_in_memory(&READER, &named(&[32_767, 32_766], 1)).is_ok());
    assert_eq!(
        refused(&[32_767, 32_767], 1),
        "memory: a column's name, with those of the structs around it, has 65537 bytes, and at most 65536 are read"
    );
    assert!(read_in_memory(&READER, &named(&[16_382], 1024)).is_ok());
    assert_eq!(
        refused(&[20_000], 20_000),
        "memory: the names of its 20000 columns have 400040000 bytes, and at most 16777216 are read"
    );
    assert!(read_in_memory(&READER, &named(&[], 65_536)).is_ok());
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
    let size = u32::from_le_bytes(*file[..file.len() - 4].last_chunk().unwrap());
    let size = usize::try_from(size).unwrap();
    let footer = [&file[4..3 + size], &said.concat(), b"\0"].concat();
    let size = u32::try_from(footer.len()).unwrap().to_le_bytes();
    let file = [b"PAR1", &footer[..], &size, b"PAR1"].concat();
    let (columns, _) = read_in_memory(&READER, &file).unwrap();
    assert_eq!(columns[1_999].classes.len(), 2_000);
    assert!(std::sync::Arc::ptr_eq(&columns[0].classes, &columns[1_999].classes));
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
        (READER.rows)(&file, &[0], Reads { piece: 1 << 20, is_local }, &mut visit).unwrap();
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
    footer.schema.leaves.iter().map(of).collect()
}

#[test]
fn rows_with_equal_values_are_held_as_one_value() {
    // A text, a number that is null three times, a boolean, and seven numbers in turn.
    assert_eq!(held(&fixture("repeated.parquet")), [1, 7, 1, 300_000]);
}

#[test]
fn small_file_with_too_many_rows_is_refused() {
    let table = fixture("repeated.parquet");
    assert!(table.len() < 50_000, "{}", table.len());
    let rows = |columns: &[usize]| {
        let mut count = 0_u64;
        let reads = Reads { piece: 1 << 16, is_local: true };
        let found = (READER.rows)(&InMemory(&table), columns, reads, &mut |_, _: &[Cell]| {
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

#[test]
fn footer_with_too_many_groups_or_entries_is_refused_before_they_are_held() {
    let with = |groups: u64, entries: u64| {
        let list = |count: u64| {
            let empty = vec![0; usize::try_from(count).unwrap()];
            [b"\x19\xfc", &number(count)[..], &empty].concat()
        };
        let schema = b"\x15\x02\x19\x2c\x48\x01r\x15\x02\0\x15\x02\x38\x01a\0\x16\0";
        let footer = [&schema[..], &list(groups), &list(entries), b"\0"].concat();
        let size = u32::try_from(footer.len()).unwrap().to_le_bytes();
        read_in_memory(&READER, &[b"PAR1", &footer[..], &size, b"PAR1"].concat())
    };
    assert!(with(0, 65_536).is_ok());
    let refused = with(0, 65_537).unwrap_err();
    assert!(refused.contains("metadata has 65537 entries, and at most 65536"), "{refused}");
    let refused = with((1 << 20) + 1, 0).unwrap_err();
    assert!(refused.contains("1048577 row groups, and at most 1048576"), "{refused}");
}

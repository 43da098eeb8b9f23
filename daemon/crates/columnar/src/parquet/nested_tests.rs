//! Lists and structs: the files of pyarrow, the layouts of old writers, and broken levels.

use half::f16;

use super::READER;
use super::tests::{fixture, number};
use crate::fuzzing::read_in_memory;
use crate::{Cell, Encoding, TableColumn, arrow};

/// The bytes of a value; `None`: null.
fn bytes_of(file: &[u8], cell: &Cell) -> Option<Vec<u8>> {
    let range = |offset: u64, length: u64| {
        file[usize::try_from(offset).unwrap()..][..usize::try_from(length).unwrap()].to_vec()
    };
    Some(match cell {
        Cell::Null => return None,
        Cell::Number { bytes, length } => bytes[..usize::from(*length)].to_vec(),
        Cell::Value(value) => value.clone(),
        Cell::At { offset, length } => range(*offset, *length),
        other => panic!("{other:?}"),
    })
}

/// The values of a column by its name.
fn values(
    file: &[u8],
    columns: &[TableColumn],
    rows: &[Vec<Cell>],
    name: &str,
) -> Vec<Option<Vec<u8>>> {
    let place = columns.iter().position(|column| column.column.name == name);
    let place = place.unwrap_or_else(|| panic!("{name}: {columns:?}"));
    rows.iter().map(|row| bytes_of(file, &row[place])).collect()
}

fn texts(file: &[u8], name: &str) -> Vec<Option<String>> {
    let (columns, rows) = read_in_memory(&READER, file).unwrap();
    let found = values(file, &columns, &rows, name).into_iter();
    found.map(|value| value.map(|text| String::from_utf8(text).unwrap())).collect()
}

fn shown(file: &[u8], name: &str) -> Vec<String> {
    texts(file, name).into_iter().map(|text| text.unwrap_or_default()).collect()
}

fn integers(file: &[u8], name: &str) -> Vec<Option<Vec<i32>>> {
    let (columns, rows) = read_in_memory(&READER, file).unwrap();
    let column = columns.iter().find(|column| column.column.name == name).unwrap();
    assert_eq!(column.column.encoding.element(), Some("int32"), "{column:?}");
    let integer = |bytes: &[u8]| i32::from_le_bytes(bytes.try_into().unwrap());
    let of = |bytes: Vec<u8>| bytes.chunks(4).map(integer).collect();
    values(file, &columns, &rows, name).into_iter().map(|value| value.map(of)).collect()
}

#[test]
fn lists_of_numbers_are_the_written_ones_in_pages_of_both_versions() {
    for name in ["lists-1.0.parquet", "lists-2.0.parquet"] {
        let file = fixture(name);
        let (columns, rows) = read_in_memory(&READER, &file).unwrap();
        assert_eq!(rows.len(), 20, "{name}");
        let at = |name| values(&file, &columns, &rows, name);
        let (ids, small, boxes, half) = (at("ids"), at("small"), at("boxes"), at("inner.half"));
        for i in 0..20_usize {
            let count = |count: usize| 0..i32::try_from(count).unwrap();
            let row = i32::try_from(i).unwrap();
            let expected = count(i * 3 % 11).flat_map(|k| (row * 1000 + k).to_le_bytes()).collect();
            assert_eq!(ids[i], (i != 4).then_some(expected), "{name} {i}");
            let of = |k: i32| u16::try_from(row * 7 + k).unwrap().to_le_bytes();
            assert_eq!(small[i], Some(count(i % 4).flat_map(of).collect()), "{name} {i}");
            let whole = |number: i32| f32::from(i16::try_from(number).unwrap());
            let of = |k: i32| [whole(row), whole(row) + 0.5, whole(k), whole(-k)];
            let expected = count(i % 3).flat_map(of).flat_map(f32::to_le_bytes).collect();
            assert_eq!(boxes[i], (i != 5).then_some(expected), "{name} {i}");
            let expected = [whole(row) / 2.0, 0.0 - whole(row)].map(f16::from_f32);
            let expected = expected.into_iter().flat_map(f16::to_le_bytes).collect();
            assert_eq!(half[i], (i != 7).then_some(expected), "{name} {i}");
        }
    }
}

#[test]
fn nested_columns_are_the_same_json_as_in_arrow() {
    let table = fixture("told.arrow");
    let (columns, rows) = read_in_memory(&arrow::READER, &table).unwrap();
    for name in ["messages", "info", "tags", "grid"] {
        let expected = values(&table, &columns, &rows, name);
        let packed = fixture("told-packed.arrow");
        let (others, packed_rows) = read_in_memory(&arrow::READER, &packed).unwrap();
        assert_eq!(values(&packed, &others, &packed_rows, name), expected, "{name}");
        for file in ["told-1.0.parquet", "told-2.0.parquet"] {
            let table = fixture(file);
            let (columns, rows) = read_in_memory(&READER, &table).unwrap();
            assert_eq!(values(&table, &columns, &rows, name), expected, "{file} {name}");
        }
    }
    let of = |name| texts(&fixture("told-1.0.parquet"), name);
    let (messages, info) = (of("messages"), of("info"));
    assert_eq!((&messages[6], &info[8], messages[0].as_deref()), (&None, &None, Some("[]")));
    let message = |role: &str, content: &str| {
        format!("{{\"role\":\"{role}\",\"content\":{content},\"calls\":null}}")
    };
    let first = message("user", r#""\"2\"\n\\""#);
    let expected = format!("[{first},{}]", message("assistant", "null"));
    assert_eq!(messages[2].as_deref(), Some(&expected[..]));
    assert_eq!(messages[9].as_deref().unwrap().matches("null,{").count(), 1);
    let expected = r#"{"name":"n5","scores":[0.0,0.25],"is_good":false}"#;
    assert_eq!(info[5].as_deref(), Some(expected));
    assert_eq!(of("tags")[4].as_deref(), Some(r#"["t0","t1",null,"t3"]"#));
    assert_eq!(of("grid")[5].as_deref(), Some("[[],[5]]"));
}

#[test]
fn parts_that_json_does_not_have_are_named() {
    let parquet = read_in_memory(&READER, &fixture("no-json.parquet")).unwrap().0;
    let arrow = read_in_memory(&arrow::READER, &fixture("no-json.arrow")).unwrap().0;
    for columns in [parquet, arrow] {
        let encoding = |name: &str| {
            let column = columns.iter().find(|column| column.column.name == name);
            &column.unwrap_or_else(|| panic!("{name}: {columns:?}")).column.encoding
        };
        let Encoding::Unread(why) = encoding("event") else { panic!("{:?}", encoding("event")) };
        assert!(why.starts_with("event.at in it is a time, which JSON does not have"));
        assert_eq!(encoding("files"), &Encoding::ByteLists);
    }
}

/// An element of a schema: its physical type, repetition, name, number of members and converted type.
fn element(
    stored: Option<u8>,
    repetition: u8,
    name: &str,
    children: u8,
    converted: Option<u8>,
) -> Vec<u8> {
    let (mut bytes, mut last) = (Vec::new(), 0);
    let mut field = |number: u8, kind: u8, value: &[u8]| {
        bytes.push((number - last) << 4 | kind);
        bytes.extend_from_slice(value);
        last = number;
    };
    if let Some(stored) = stored {
        field(1, 5, &[2 * stored]);
    }
    field(3, 5, &[2 * repetition]);
    field(4, 8, &[&number(name.len() as u64)[..], name.as_bytes()].concat());
    if children > 0 {
        field(5, 5, &[2 * children]);
    }
    if let Some(converted) = converted {
        field(6, 5, &[2 * converted]);
    }
    bytes.push(0);
    bytes
}

const LIST: Option<u8> = Some(3);

fn group(repetition: u8, name: &str, children: u8, converted: Option<u8>) -> Vec<u8> {
    element(None, repetition, name, children, converted)
}

/// A column of int32.
fn leaf(repetition: u8, name: &str) -> Vec<u8> {
    element(Some(1), repetition, name, 0, None)
}

/// A level of repetition, one of definition, and a number.
type Value = (u8, u8, Option<i32>);

/// A page of version 1, plain and uncompressed.
fn page(values: &[Value]) -> Vec<u8> {
    let levels = |of: fn(&Value) -> u8| {
        let runs: Vec<u8> = values.iter().flat_map(|value| [2, of(value)]).collect();
        [&u32::try_from(runs.len()).unwrap().to_le_bytes()[..], &runs].concat()
    };
    let numbers = values.iter().filter_map(|value| value.2).flat_map(i32::to_le_bytes);
    let body = [levels(|value| value.0), levels(|value| value.1), numbers.collect()].concat();
    let (size, count) = (number(2 * body.len() as u64), number(2 * values.len() as u64));
    [b"\x15\0\x15", &size[..], b"\x15", &size, b"\x2c\x15", &count, b"\x15\0\0\0", &body].concat()
}

/// A file of one group of rows: the columns of its schema, and of each the pages and the number of its values.
fn file(schema: &[Vec<u8>], columns: &[(Vec<Vec<u8>>, usize)], rows: u64) -> Vec<u8> {
    let list = |count: usize| [b"\xfc", &number(count as u64)[..]].concat();
    let root = group(0, "root", 1, None);
    let mut bytes = b"PAR1".to_vec();
    let mut chunks = Vec::new();
    for (pages, count) in columns {
        let (start, pages) = (number(2 * bytes.len() as u64), pages.concat());
        bytes.extend_from_slice(&pages);
        let (size, count) = (number(2 * pages.len() as u64), number(2 * *count as u64));
        let meta = [
            b"\x3c\x45\0\x16",
            &count[..],
            b"\x16",
            &size,
            b"\x16",
            &size,
            b"\x26",
            &start,
            b"\0\0",
        ];
        chunks.push(meta.concat());
    }
    let rows = number(2 * rows);
    let footer = [
        &b"\x15\x02\x19"[..],
        &list(1 + schema.len()),
        &root,
        &schema.concat(),
        b"\x16",
        &rows,
        b"\x19\x1c\x19",
        &list(columns.len()),
        &chunks.concat(),
        b"\x26",
        &rows,
        b"\0\0",
    ]
    .concat();
    let size = u32::try_from(footer.len()).unwrap().to_le_bytes();
    [&bytes[..], &footer, &size, b"PAR1"].concat()
}

fn column(pages: &[&[Value]]) -> (Vec<Vec<u8>>, usize) {
    let count = pages.iter().map(|values| values.len()).sum();
    (pages.iter().map(|values| page(values)).collect(), count)
}

/// Null, empty, and two lists of numbers, where a list that is there has level 1.
const LISTED: [Value; 5] =
    [(0, 0, None), (0, 1, None), (0, 2, Some(7)), (1, 2, Some(8)), (0, 2, Some(9))];

#[test]
fn layouts_of_old_writers_are_lists() {
    let two_levels = [group(1, "my", 1, LIST), leaf(2, "element")];
    let usual = [group(1, "my", 1, LIST), group(2, "list", 1, None), leaf(0, "element")];
    // The repeated group has another name than that of a struct.
    let other_name = [group(1, "my", 1, LIST), group(2, "element", 1, None), leaf(0, "a")];
    for schema in [&two_levels[..], &usual, &other_name] {
        let file = file(schema, &[column(&[&LISTED])], 4);
        let expected = [None, Some(vec![]), Some(vec![7, 8]), Some(vec![9])];
        assert_eq!(integers(&file, "my"), expected);
    }
    // Without a group around it, there is always a list.
    let values = [(0, 0, None), (0, 1, Some(7)), (1, 1, Some(8))];
    let alone = file(&[leaf(2, "my")], &[column(&[&values])], 2);
    assert_eq!(integers(&alone, "my"), [Some(vec![]), Some(vec![7, 8])]);
    // Structs of one number, by their names.
    for name in ["array", "my_tuple"] {
        let schema = [group(1, "my", 1, LIST), group(2, name, 1, None), leaf(0, "a")];
        let file = file(&schema, &[column(&[&LISTED])], 4);
        assert_eq!(shown(&file, "my"), ["", "[]", r#"[{"a":7},{"a":8}]"#, r#"[{"a":9}]"#]);
        assert_eq!(integers(&file, "my.a")[2], Some(vec![7, 8]));
    }
    // Structs of two numbers.
    let schema = [group(1, "my", 1, LIST), group(2, "x", 2, None), leaf(0, "a"), leaf(0, "b")];
    let two = file(&schema, &[column(&[&LISTED]), column(&[&LISTED])], 4);
    assert_eq!(shown(&two, "my")[2], r#"[{"a":7,"b":7},{"a":8,"b":8}]"#);
    // Lists of lists: the repeated group is a list itself.
    let values = [(0, 0, None), (0, 2, None), (0, 3, Some(1)), (2, 3, Some(2)), (1, 3, Some(3))];
    let schema = [group(1, "my", 1, LIST), group(2, "array", 1, LIST), leaf(2, "array")];
    let lists = file(&schema, &[column(&[&values])], 3);
    assert_eq!(shown(&lists, "my"), ["", "[[]]", "[[1,2],[3]]"]);
    // Its only member is repeated.
    let schema = [group(1, "my", 1, LIST), group(2, "list", 1, None), leaf(2, "x")];
    let lists = file(&schema, &[column(&[&values])], 3);
    assert_eq!(shown(&lists, "my"), ["", r#"[{"x":[]}]"#, r#"[{"x":[1,2]},{"x":[3]}]"#]);
}

#[test]
fn rows_go_on_in_the_next_page() {
    let schema = [group(1, "my", 1, LIST), leaf(2, "element")];
    for cuts in [&[3][..], &[4], &[2, 3], &[1, 2, 3, 4]] {
        let mut pages = Vec::new();
        let mut start = 0;
        for end in cuts.iter().copied().chain([5]) {
            pages.push(&LISTED[start..end]);
            start = end;
        }
        let file = file(&schema, &[column(&pages)], 4);
        let expected = [None, Some(vec![]), Some(vec![7, 8]), Some(vec![9])];
        assert_eq!(integers(&file, "my"), expected, "{cuts:?}");
    }
}

#[test]
fn broken_levels_are_reported() {
    let schema = [group(1, "my", 1, LIST), leaf(2, "element")];
    let refused = |columns: &[(Vec<Vec<u8>>, usize)], rows: u64| {
        read_in_memory(&READER, &file(&schema, columns, rows)).unwrap_err()
    };
    let of = |values: &[Value], rows| refused(&[column(&[values])], rows);
    let checks = [
        (of(&[(1, 2, Some(1))], 1), "its first list has no beginning"),
        (of(&[(0, 1, None), (1, 2, Some(1))], 1), "null or empty and goes on"),
        (of(&[(0, 0, None), (1, 2, Some(1))], 1), "null or empty and goes on"),
        (of(&[(0, 3, Some(1))], 1), "a level is higher than its schema allows"),
        (of(&[(2, 2, Some(1))], 1), "a level is higher than its schema allows"),
        (of(&LISTED, 3), "more than 3 rows"),
        (of(&LISTED, 5), "its lists are 4 rows, and its group has 5"),
        (of(&[(0, 2, None)], 1), "a page ends before its values do"),
        (
            refused(&[(vec![page(&LISTED)], 4)], 4),
            "a page has 5 values, and 4 of its group are left",
        ),
        (refused(&[(vec![page(&LISTED)], 6)], 4), "is cut off or damaged"),
    ];
    for (message, expected) in checks {
        assert!(message.contains(expected) && message.contains("column my"), "{message}");
    }
    // A page without numbers, as a run of a million values of the highest levels.
    let run = |level: u8| [&number(2 << 20)[..], &[level]].concat();
    let levels: Vec<u8> = [run(1), run(2)]
        .iter()
        .flat_map(|run| [&u32::try_from(run.len()).unwrap().to_le_bytes()[..], run].concat())
        .collect();
    let size = number(2 * levels.len() as u64);
    let count = number(2 << 20);
    let many =
        [b"\x15\0\x15", &size[..], b"\x15", &size, b"\x2c\x15", &count, b"\x15\0\0\0", &levels];
    let message = refused(&[(vec![many.concat()], 1 << 20)], 4);
    assert!(message.contains("a page ends before its values do"), "{message}");
    // More levels than are read of a page.
    let count = number(2 << 25);
    let many =
        [b"\x15\0\x15", &size[..], b"\x15", &size, b"\x2c\x15", &count, b"\x15\0\0\0", &levels];
    let bytes = file(&schema, &[(vec![many.concat()], 1 << 25)], 4);
    let (_, rows) = read_in_memory(&READER, &bytes).unwrap();
    assert!(matches!(&rows[0][0], Cell::Unread(why) if why.contains("at most 16777216 are read")));
}

#[test]
fn null_numbers_in_a_list_leave_out_its_column() {
    let schema = [group(1, "my", 1, LIST), group(2, "list", 1, None), leaf(1, "element")];
    let values = [(0, 3, Some(1)), (1, 2, None), (0, 1, None)];
    let (_, rows) = read_in_memory(&READER, &file(&schema, &[column(&[&values])], 2)).unwrap();
    for row in &rows {
        let Cell::Unread(why) = &row[0] else { panic!("{row:?}") };
        assert!(why.starts_with("it is a list of int32 in which elements are null"), "{why}");
    }
}

#[test]
fn columns_of_a_struct_that_disagree_are_reported() {
    let schema = [group(1, "my", 1, LIST), group(2, "x", 2, None), leaf(0, "a"), leaf(0, "b")];
    let other_lists: [&[Value]; 5] = [
        &[(0, 0, None), (0, 1, None), (0, 2, Some(7)), (0, 2, Some(8)), (0, 2, Some(9))],
        &[(0, 1, None), (0, 1, None), (0, 2, Some(7)), (1, 2, Some(8)), (0, 2, Some(9))],
        &[(0, 0, None), (0, 0, None), (0, 2, Some(7)), (1, 2, Some(8)), (0, 2, Some(9))],
        &[(0, 0, None), (0, 1, None), (0, 2, Some(7)), (1, 2, Some(8))],
        &[(0, 0, None), (0, 1, None), (0, 2, Some(7)), (1, 2, Some(8)), (1, 2, Some(9))],
    ];
    // Only the list, which is behind its columns.
    let read = |bytes: &[u8]| {
        let memory = forebay_index::window::InMemory(bytes);
        let reads = crate::Reads { piece: 64, is_local: true };
        let columns = (READER.columns)(&memory).unwrap();
        let place = columns.iter().position(|column| column.column.name == "my").unwrap();
        let mut visit = |_: u64, _: &[Cell]| Ok(std::ops::ControlFlow::Continue(()));
        (READER.rows)(&memory, &[place], reads, &mut visit).map_err(|error| error.to_string())
    };
    for (number, other) in other_lists.iter().enumerate() {
        for columns in
            [[column(&[&LISTED]), column(&[other])], [column(&[other]), column(&[&LISTED])]]
        {
            let message = read(&file(&schema, &columns, 4)).unwrap_err();
            let is_named =
                message.contains("do not have the same lists") || message.contains("rows");
            assert!(is_named && message.contains("column my"), "{number}: {message}");
        }
    }
    read(&file(&schema, &[column(&[&LISTED]), column(&[&LISTED[..2], &LISTED[2..]])], 4)).unwrap();
}

/// A page as [`page`] makes it, compressed by Snappy as one literal. Its header has its size, or the one that is given.
fn packed_page(values: &[Value], header_size: Option<u64>) -> Vec<u8> {
    let plain = page(values);
    let levels = 2 * (4 + 2 * values.len());
    let numbers = 4 * values.iter().filter(|value| value.2.is_some()).count();
    let body = &plain[plain.len() - levels - numbers..];
    let length = u16::try_from(body.len() - 1).unwrap().to_le_bytes();
    let packed = [&number(body.len() as u64)[..], &[61 << 2], &length, body].concat();
    let size = number(2 * header_size.unwrap_or(body.len() as u64));
    let (packed_size, count) = (number(2 * packed.len() as u64), number(2 * values.len() as u64));
    [b"\x15\0\x15", &size[..], b"\x15", &packed_size, b"\x2c\x15", &count, b"\x15\0\0\0", &packed]
        .concat()
}

/// A file of lists in such pages.
fn packed_file(pages: Vec<Vec<u8>>, count: usize) -> Vec<u8> {
    let schema = [group(1, "my", 1, LIST), leaf(2, "element")];
    let mut file = file(&schema, &[(pages, count)], 1);
    let codec = file.windows(3).rposition(|bytes| bytes == b"\x3c\x45\0").unwrap() + 2;
    file[codec] = 2;
    file
}

#[test]
fn page_without_values_within_a_row_keeps_its_beginning() {
    let values: Vec<Value> = (0..2000).map(|at| (u8::from(at > 0), 2, Some(at))).collect();
    let pages = [&values[..1999], &[], &values[1999..]].map(|values| packed_page(values, None));
    let file = packed_file(pages.into(), values.len());
    assert_eq!(integers(&file, "my"), [Some((0..2000).collect())]);
}

#[test]
fn page_that_is_too_large_leaves_out_its_column_with_the_remedy() {
    let page = packed_page(&[(0, 2, Some(7))], Some(65 << 20));
    let (_, rows) = read_in_memory(&READER, &packed_file(vec![page], 1)).unwrap();
    let Cell::Unread(reason) = &rows[0][0] else { panic!("{rows:?}") };
    assert!(
        reason.contains("has 68157440 bytes, and at most 67108864 are read at once"),
        "{reason}"
    );
    assert!(reason.contains("write the file once more"), "{reason}");
}

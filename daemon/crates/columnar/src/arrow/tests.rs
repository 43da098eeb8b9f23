use std::fs;
use std::path::Path;

use super::READER;
use super::packed::Budget;
use crate::Cell;
use crate::fuzzing::{message_ends, read_for_fuzzing, read_in_memory};
use forebay_index::window::InMemory;

/// The fixtures are those of `formats`.
fn fixture(name: &str) -> Vec<u8> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../formats/fixtures");
    fs::read(Path::new(folder).join(name)).unwrap()
}

#[test]
fn values_equal_the_written_bytes() {
    let table = fixture("tables/rows.arrow");
    let (_, rows) = read_in_memory(&READER, &table).unwrap();
    assert_eq!(rows.len(), 40);
    for (number, row) in (0_u8..).zip(&rows) {
        let at = |place: usize| match row[place] {
            Cell::At { offset, length } => {
                &table[usize::try_from(offset).unwrap()..][..usize::try_from(length).unwrap()]
            }
            _ => panic!("{row:?}"),
        };
        assert_eq!(
            at(0),
            [b"\xff\xd8\xff".to_vec(), vec![number; 5 + usize::from(number)]].concat()
        );
        assert_eq!(at(2), format!("row {number}").as_bytes());
    }
}

#[test]
fn compressed_rows_above_the_memory_limits_are_refused() {
    let whole = fixture("tables/packed-long.arrow");
    let frames = || {
        let frames = whole.windows(4).enumerate();
        frames.filter(|(_, bytes)| *bytes == [0x28, 0xB5, 0x2F, 0xFD]).map(|(place, _)| place)
    };
    assert!(frames().count() > 10);
    let reasons = [(u64::MAX - 1, "unpacks to -2"), (1 << 40, "at most 67108864 are read")];
    for place in frames() {
        for (number, reason) in reasons {
            let mut bent = whole.clone();
            bent[place - 8..place].copy_from_slice(&number.to_le_bytes());
            // Buffers of unsupported columns are not checked.
            if let Err(message) = read_in_memory(&READER, &bent) {
                assert!(message.contains(reason), "{message}");
            }
        }
        let mut bent = whole.clone();
        bent[place + 5] ^= 0x55;
        if let Err(message) = read_in_memory(&READER, &bent) {
            assert!(!message.contains('\n') && message.len() > 10, "{message}");
        }
    }
    let budget = Budget::of(&InMemory(&whole));
    budget.count(1 << 24).unwrap();
    assert!(budget.count(1).unwrap_err().contains("more values than are read"));
}

#[test]
fn broken_streams_are_reported_without_a_panic() {
    for name in [
        "tables/rows.arrow",
        "tables/plain.arrow",
        "tables/told.arrow",
        "tables/told-packed.arrow",
        "hugging-face/data-00000-of-00002.arrow",
    ] {
        let whole = fixture(name);
        let (_, rows) = read_in_memory(&READER, &whole).unwrap();
        let magic = if whole.starts_with(b"ARROW1") { 8 } else { 0 };
        let end = magic + message_ends(&whole).last().copied().unwrap_or(0) - magic;
        for length in (0..end).step_by(61) {
            let reason = read_in_memory(&READER, &whole[..length]).unwrap_err();
            assert!(reason.contains("cut off") || reason.contains("damaged"), "{length}: {reason}");
        }
        let mut noise = 1_u64;
        let mut refused = 0;
        for _ in 0..4000 {
            let mut bytes = whole.clone();
            for _ in 0..2 {
                noise = noise.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(1);
                let place = usize::try_from(noise >> 33).unwrap() % end;
                bytes[place] = noise.to_le_bytes()[3];
            }
            refused += usize::from(read_in_memory(&READER, &bytes).is_err());
            read_for_fuzzing(&READER, &bytes);
        }
        println!("{name}: {} rows, {refused} of 4000 damaged ones refused", rows.len());
        assert!(refused > 100, "{refused}");
    }
}

/// Appends a FlatBuffers table; each field has a number and bytes. Returns the offset of the table, and the offset of
/// each field.
fn add_table(bytes: &mut Vec<u8>, fields: &[(usize, &[u8])]) -> (usize, Vec<usize>) {
    let slots = fields.iter().map(|(number, _)| number + 1).max().unwrap_or(0);
    let (mut offsets, mut body) = (vec![0_u16; slots], vec![0; 4]);
    for (number, value) in fields {
        offsets[*number] = u16::try_from(body.len()).unwrap();
        body.extend_from_slice(value);
    }
    let place = bytes.len();
    let sizes = [4 + 2 * slots, body.len()].map(|size| u16::try_from(size).unwrap());
    for number in sizes.iter().chain(&offsets) {
        bytes.extend_from_slice(&number.to_le_bytes());
    }
    let start = bytes.len();
    body[..4].copy_from_slice(&u32::try_from(start - place).unwrap().to_le_bytes());
    bytes.extend_from_slice(&body);
    let at = |(number, _): &(usize, &[u8])| start + usize::from(offsets[*number]);
    (start, fields.iter().map(at).collect())
}

/// Sets the offset at `place` to lead to `to`.
fn link(bytes: &mut [u8], place: usize, to: usize) {
    bytes[place..place + 4].copy_from_slice(&u32::try_from(to - place).unwrap().to_le_bytes());
}

/// A stream without rows: integer columns, all with the same table in the header, in `depth` structs. All have one name
/// of `name` bytes.
fn named(name: usize, columns: usize, depth: usize) -> Vec<u8> {
    let mut bytes = vec![0; 4];
    let (start, message) =
        add_table(&mut bytes, &[(0, &4_i16.to_le_bytes()), (1, &[1]), (2, &[0; 4]), (3, &[0; 8])]);
    link(&mut bytes, 0, start);
    let (start, schema) = add_table(&mut bytes, &[(1, &[0; 4])]);
    link(&mut bytes, message[2], start);
    let (mut vector, mut names) = (schema[0], Vec::new());
    for level in 0..=depth {
        let count = if level == depth { columns } else { 1 };
        let start = bytes.len();
        link(&mut bytes, vector, start);
        bytes.extend_from_slice(&u32::try_from(count).unwrap().to_le_bytes());
        bytes.resize(bytes.len() + 4 * count, 0);
        let kind: &[u8] = if level == depth { &[2] } else { &[13] };
        let fields = [(0, &[0; 4][..]), (2, kind), (3, &[0; 4]), (5, &[0; 4])];
        let given = if level == depth { &fields[..3] } else { &fields };
        let (field, places) = add_table(&mut bytes, given);
        (0..count).for_each(|place| link(&mut bytes, start + 4 + 4 * place, field));
        names.push(places[0]);
        let (own, _) = match level == depth {
            true => add_table(&mut bytes, &[(0, &32_i32.to_le_bytes()), (1, &[1])]),
            false => add_table(&mut bytes, &[]),
        };
        link(&mut bytes, places[2], own);
        vector = places.last().copied().unwrap();
    }
    let start = bytes.len();
    names.into_iter().for_each(|place| link(&mut bytes, place, start));
    bytes.extend_from_slice(&u32::try_from(name).unwrap().to_le_bytes());
    bytes.extend(std::iter::repeat_n(b'n', name));
    bytes.resize(bytes.len().next_multiple_of(8), 0);
    let size = u32::try_from(bytes.len()).unwrap().to_le_bytes();
    [&b"\xff\xff\xff\xff"[..], &size, &bytes, b"\xff\xff\xff\xff\0\0\0\0"].concat()
}

#[test]
fn small_schema_with_many_long_names_is_refused_before_names_are_copied() {
    let (columns, _) = read_in_memory(&READER, &named(3, 2, 1)).unwrap();
    assert_eq!(columns[1].column.name, "nnn.nnn");
    let refused =
        |name, columns, depth| read_in_memory(&READER, &named(name, columns, depth)).unwrap_err();
    assert!(read_in_memory(&READER, &named(21_844, 1, 2)).is_ok());
    assert_eq!(
        refused(21_845, 1, 2),
        "memory: a column's name, with those of the structs around it, has 65537 bytes, and at most 65536 are read"
    );
    assert!(read_in_memory(&READER, &named(65_536, 256, 0)).is_ok());
    assert_eq!(
        refused(65_536, 257, 0),
        "memory: the names of its 257 columns have 16842752 bytes, and at most 16777216 are read"
    );
    assert!(refused(1, 65_537, 0).contains("more than 65536 columns"));
}

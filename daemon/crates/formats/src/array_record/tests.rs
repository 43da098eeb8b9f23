use std::io::Read as _;
use std::path::{Path, PathBuf};

use forebay_keys::Section;
use forebay_storage::riegeli;
use forebay_synth::array_record::{Compression, file, file_listing, numbers};
use forebay_synth::tfrecord::{Values, example, field, push_varint};

use super::footer::Chunks;
use crate::conformance;
use crate::indexed::Format;
use crate::testing::{EVERYWHERE, config_for, names, own_keys, sample, write_aged};
use crate::{open, recognize};
use forebay_dataset::{DatasetError, OpenOptions, Opened};
use forebay_index::window::{InMemory, WindowSize};

fn compress(bytes: &[u8]) -> Vec<u8> {
    zstd::bulk::compress(bytes, 3).unwrap()
}

const ZSTD: Option<Compression> = Some(Compression { name: b'z', compress });

fn record(number: usize) -> Vec<u8> {
    let image = [&[0xff, 0xd8, 0xff][..], &vec![u8::try_from(number).unwrap(); number]].concat();
    let (label, text) = (i64::try_from(number).unwrap(), format!("text {number}"));
    example(&[
        ("image", Values::Bytes(&[&image])),
        ("label", Values::Integers(&[-label])),
        ("text", Values::Bytes(&[text.as_bytes()])),
        ("pair", Values::Integers(&[label, -label])),
    ])
}

fn write(root: &Path, count: usize, together: usize, compression: Option<Compression>) -> PathBuf {
    let records: Vec<_> = (0..count).map(record).collect();
    for (place, records) in records.chunks(count.div_ceil(3)).enumerate() {
        let name = format!("sub/train.array_record-{place:05}-of-00003");
        write_aged(&root.join(name), &file(records, together, compression));
    }
    root.to_owned()
}

#[test]
fn files_conform_on_disk_and_behind_urls() {
    let makes: [fn(&Path, usize) -> PathBuf; 3] = [
        |root, count| write(root, count, 1, None),
        |root, count| write(root, count, 1, ZSTD),
        |root, count| write(root, count, 5, ZSTD),
    ];
    for make in makes {
        for open in EVERYWHERE {
            let (name, has_names, refuses_cuts) = ("arrayrecord", true, true);
            conformance::run(&conformance::Format { open, name, make, has_names, refuses_cuts });
        }
    }
}

fn open_with(path: &Path, own: Section) -> Result<Opened, DatasetError> {
    let mut config = config_for("arrayrecord", path);
    config.own = own;
    let data = path.ancestors().find(|folder| folder.ends_with("data")).unwrap();
    config.index = Some(data.with_extension("index"));
    open(&config, OpenOptions::default())
}

/// A file with these records.
fn file_of(records: &[Vec<u8>]) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data/a.arrayrecord");
    write_aged(&path, &file(records, 2, None));
    (folder, path)
}

#[test]
fn files_are_recognized_by_name() {
    for (name, is_one) in [
        ("a.array_record", true),
        ("x/a.ArrayRecord", true),
        ("mnist-train.array_record-00000-of-00001", true),
        ("train.arrayrecord-{00000..00003}-of-00004", true),
        ("train-00000-of-01024", false),
        ("a.tfrecord-00000-of-00001", false),
        ("array_record", false),
    ] {
        assert_eq!(super::ArrayRecord::reads(name.as_bytes()), is_one, "{name}");
    }
    let (_folder, path) = file_of(&[record(1)]);
    let config = config_for("auto", path.parent().unwrap());
    assert_eq!(recognize(&config, OpenOptions::default()).unwrap(), "arrayrecord");
}

#[test]
fn examples_have_their_features_as_fields() {
    let (_folder, path) = file_of(&(0..7).map(record).collect::<Vec<_>>());
    let opened = open_with(&path, Section::default()).unwrap();
    let fields: Vec<_> = opened.dataset.fields().iter().map(|field| &field.name[..]).collect();
    assert_eq!(fields, ["image", "label", "pair", "text"]);
    assert_eq!(sample(&opened, 3).unwrap(), ["image 6", "-3", "I64 [2]", "\"text 3\""]);
    assert_eq!(names(&opened)[6], "a.arrayrecord/6");
}

#[test]
fn records_that_are_no_examples_are_one_value() {
    let texts = [b"one".to_vec(), b"two \xc3\xbc".to_vec(), Vec::new()];
    let (_folder, path) = file_of(&texts);
    let opened = open_with(&path, Section::default()).unwrap();
    assert_eq!(opened.dataset.fields()[0].name, "record");
    assert_eq!(
        [0, 1, 2].map(|id| sample(&opened, id).unwrap().concat()),
        ["\"one\"", "\"two ü\"", "\"\""]
    );
    let pictures = [0, 1].map(|number| [&[0xff, 0xd8, 0xff][..], &[number; 4]].concat());
    let (_folder, path) = file_of(&pictures);
    let opened = open_with(&path, Section::default()).unwrap();
    assert_eq!(opened.dataset.fields()[0].name, "image");
    // By name and form.
    let keys = own_keys(
        "dataset.records = \"values\"\n[dataset.fields]\nraw = { from = \"record\", as = \"bytes\" }",
    );
    let opened = open_with(&path, keys).unwrap();
    assert_eq!(sample(&opened, 1).unwrap(), ["[255, 216, 255, 1, 1, 1, 1]"]);
    for (keys, expected) in [
        (
            "[dataset.fields]\nimage = { from = \"image\", as = \"image\" }",
            "the value is \"record\"",
        ),
        ("dataset.records = \"examples\"", "its record 0: it is no tf.train.Example"),
        ("dataset.records = \"examples\"", "set dataset.records to \"values\""),
    ] {
        let refused = open_with(&path, own_keys(keys)).unwrap_err().to_string();
        assert!(refused.contains(expected), "{refused}");
    }
}

#[test]
fn records_across_blocks_are_read() {
    let long: Vec<u8> =
        (0..200_000_u32).map(|number| (number.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let records = [record(1), example(&[("text", Values::Bytes(&[&long]))]), record(2)];
    for compression in [None, ZSTD] {
        for together in [1, 2, 3] {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("data/a.arrayrecord");
            write_aged(&path, &file(&records, together, compression));
            let fields = "[dataset.fields]\ntext = { from = \"text\", as = \"bytes\" }";
            let opened = open_with(&path, own_keys(fields)).unwrap();
            assert_eq!(sample(&opened, 1).unwrap(), [format!("{long:?}")]);
            assert_eq!(sample(&opened, 2).unwrap(), [format!("{:?}", b"text 2")]);
        }
    }
}

#[test]
fn damage_is_refused_or_a_bad_sample() {
    let records: Vec<_> = (0..5).map(record).collect();
    for (together, compression) in [(1, None), (1, ZSTD), (2, None), (2, ZSTD)] {
        let good = file(&records, together, compression);
        let chunks = |bytes: &[u8]| -> Result<Vec<Vec<u8>>, String> {
            let source = InMemory(bytes);
            let mut chunks =
                Chunks::of(&source, WindowSize::LOCAL).map_err(|error| error.to_string())?;
            let (mut found, mut unpacked) = (Vec::new(), Vec::new());
            while let Some(chunk) = chunks.next().map_err(|error| error.to_string())? {
                let start = usize::try_from(chunk.place.offset).unwrap();
                let stored = &bytes[start..start + usize::try_from(chunk.place.bytes).unwrap()];
                chunk.unpack(stored, &mut unpacked)?;
                found.extend(chunk.records.iter().map(|record| {
                    let [start, bytes] =
                        [record.offset, record.bytes].map(|n| usize::try_from(n).unwrap());
                    unpacked[start..start + bytes].to_vec()
                }));
            }
            Ok(found)
        };
        assert_eq!(chunks(&good).unwrap(), records);
        let mut refused = 0;
        for place in (0..1500).chain(good.len() - (64 << 10)..good.len() - (64 << 10) + 300) {
            let mut bytes = good.clone();
            bytes[place] ^= 0x10;
            match chunks(&bytes) {
                Ok(found) => assert_eq!(found, records, "{place}"),
                Err(_) => refused += 1,
            }
        }
        assert!(refused > 500, "{refused}");
        for end in [0, 100, 64 << 10, good.len() - 1] {
            let refused = chunks(&good[..end]).unwrap_err();
            assert!(refused.contains("is cut off"), "{refused}");
        }
    }
}

/// A file that the format's own writer wrote.
fn written(name: &str) -> (tempfile::TempDir, PathBuf) {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/arrayrecord");
    let packed = std::fs::File::open(fixtures.join(name).with_extension("arrayrecord.gz")).unwrap();
    let mut bytes = Vec::new();
    flate2::read::GzDecoder::new(packed).read_to_end(&mut bytes).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data/a.arrayrecord");
    write_aged(&path, &bytes);
    (folder, path)
}

#[test]
fn files_of_the_own_writer_are_read() {
    for name in ["alone", "plain", "together", "brotli", "snappy"] {
        let (_folder, path) = written(name);
        let opened = open_with(&path, Section::default()).unwrap();
        let fields: Vec<_> = opened.dataset.fields().iter().map(|field| &field.name[..]).collect();
        assert_eq!(fields, ["label", "line", "score", "text"], "{name}");
        for number in 0..7_u64 {
            let expected = [
                format!("{}", -number.cast_signed()),
                "F32 [3]".to_owned(),
                format!("{} F32", number as f64 / 4.0),
                format!("{:?}", "ü".repeat(usize::try_from(number).unwrap())),
            ];
            assert_eq!(sample(&opened, number).unwrap(), expected, "{name}");
        }
    }
    let (_folder, path) = written("transposed");
    let refused = open_with(&path, Section::default()).unwrap_err().to_string();
    assert!(refused.contains("without the option \"transpose\""), "{refused}");
}

#[test]
fn records_of_which_some_are_examples_are_refused_with_the_reason() {
    let sequence = [field(1, &[]), field(2, b"")].concat();
    for (records, expected) in [
        (vec![record(0), b"none".to_vec()], "its record 1: it is no tf.train.Example"),
        (vec![sequence], "its record 0: it is a tf.train.SequenceExample"),
        (
            vec![record(0), Vec::new()],
            "its record 1: it is no tf.train.Example: it has no features",
        ),
    ] {
        let (_folder, path) = file_of(&records);
        let refused = open_with(&path, Section::default()).unwrap_err().to_string();
        assert!(refused.contains(expected), "{refused}");
        let opened = open_with(&path, own_keys("dataset.records = \"values\"")).unwrap();
        assert_eq!(names(&opened).len(), records.len());
    }
}

/// Reads the list of a file in memory, and the sizes of its records.
fn walk(file: &[u8]) -> Result<(), String> {
    let source = InMemory(file);
    let mut chunks = Chunks::of(&source, WindowSize::LOCAL).map_err(|error| error.to_string())?;
    while chunks.next().map_err(|error| error.to_string())?.is_some() {}
    Ok(())
}

#[test]
fn lists_that_do_not_match_the_file_are_refused() {
    type Change = fn(&mut Vec<Vec<u8>>, u64);
    let records: Vec<_> = (0..5).map(record).collect();
    let length = record(0).len() as u64;
    let changes: [(Change, &str); 6] = [
        (|list, _| drop(list.pop()), "has 4 chunks, and says that it has 5"),
        (|list, length| list[1] = numbers(&[64, length, 1 << 23]), "smaller group_size"),
        (|list, _| list[1] = numbers(&[64, 1 << 40, 1]), "smaller group_size"),
        (|list, _| list[1] = numbers(&[64, 0, 1 << 20]), "the list of chunks is damaged"),
        (|list, length| list[1] = numbers(&[64, length, 2]), "sizes of a chunk's records"),
        (|list, _| list.swap(1, 2), "is not before the next one"),
    ];
    for (change, expected) in changes {
        let file = file_listing(&records, 1, None, |list| change(list, length));
        let refused = walk(&file).unwrap_err();
        assert!(refused.contains(expected), "{refused}");
    }
}

#[test]
fn memory_is_that_of_a_record_for_arrays_and_of_a_chunk_for_reading() {
    let folder = tempfile::tempdir().unwrap();
    let data = write(&folder.path().join("data"), 30, 10, None);
    let mut config = config_for("arrayrecord", &data);
    config.index = Some(data.with_extension("index"));
    let opened = open(&config, OpenOptions { by_blocks: true, ..OpenOptions::default() }).unwrap();
    let chunk: Vec<u8> = (0..10).flat_map(record).collect();
    let longest = record(29).len() as u64;
    assert!(chunk.len() as u64 > 2 * longest);
    assert_eq!(opened.dataset.unpacked_bytes((&chunk[..]).into()), 8 * longest);
    // The stored chunk with its block headers and without, what it unpacks to, and a decoder's history.
    let most: Vec<u8> = (20..30).flat_map(record).collect();
    let page = opened.dataset.page_bytes().unwrap();
    assert!((4 * most.len() as u64..4 * most.len() as u64 + 200).contains(&page), "{page}");
}

#[test]
fn counts_that_no_file_can_have_take_no_memory() {
    let good = file(&(0..5).map(record).collect::<Vec<_>>(), 5, ZSTD);
    let last = good.len() - (64 << 10);
    walk(&good).unwrap();
    let chunk = 64;
    let length = |at: usize| u64::from_le_bytes(*good[at + 8..].first_chunk().unwrap());
    let footer = chunk + 40 + usize::try_from(length(chunk)).unwrap();
    for at in [chunk, footer, last + 24] {
        for records in [1 << 22, 1 << 40, (1 << 56) - 1] {
            // The header says so, and the sizes unpack to as many.
            let mut file = good.clone();
            file[at + 24..at + 32].copy_from_slice(&(b'r' as u64 | records << 8).to_le_bytes());
            file[at + 32..at + 40].copy_from_slice(&0_u64.to_le_bytes());
            let mut data = vec![b'z', 30];
            push_varint(&mut data, records * 9);
            data.extend_from_slice(&[0; 20]);
            file[at + 40..at + 40 + data.len()].copy_from_slice(&data);
            riegeli::seal_for_fuzzing(&mut file[at..]).unwrap();
            assert!(walk(&file).is_err(), "{at} {records}");
        }
    }
}

#[test]
fn transposed_single_records_are_refused_in_any_file() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    write_aged(&data.join("a.arrayrecord"), &file(&[record(1)], 1, None));
    let mut other = file(&[record(2), record(3)], 1, None);
    other[64 + 24] = b't';
    riegeli::seal_for_fuzzing(&mut other[64..]).unwrap();
    write_aged(&data.join("b.arrayrecord"), &other);
    let refused = open_with(&data, Section::default()).unwrap_err().to_string();
    assert!(refused.contains("b.arrayrecord") && refused.contains("transpose"), "{refused}");
}

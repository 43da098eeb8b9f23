use std::fs;
use std::path::{Path, PathBuf};

use forebay_config::Section;

use super::{TABLES, walk};
use crate::dataset::conformance::{self, Format};
use crate::dataset::tables::{Cell, InMemory, read_in_memory};
use crate::dataset::testing::{EVERYWHERE, config_for, names, own_keys, sample, write_aged};
use crate::dataset::{DatasetError, OpenOptions, Opened, open};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(name)
}

/// Where each message of a stream ends.
fn ends(stream: &[u8]) -> Vec<usize> {
    let mut ends = Vec::new();
    walk(&InMemory(stream), 64, |message, _| {
        ends.push(usize::try_from(message.body.0 + message.body.1).unwrap());
        Ok(std::ops::ControlFlow::Continue(()))
    })
    .unwrap();
    ends
}

/// The first rows of a stream that pyarrow has written, a batch each, in three streams as `save_to_disk` lists them.
fn saved(root: &Path, count: usize) -> PathBuf {
    let stream = fs::read(fixture("tables/rows.arrow")).unwrap();
    let ends = ends(&stream);
    let step = count.div_ceil(3);
    let mut listed = Vec::new();
    for first in (0..count).step_by(step) {
        let last = count.min(first + step);
        let rows = &stream[ends[first]..ends[last]];
        let name = format!("data-{:05}-of-00003.arrow", listed.len());
        let bytes = [&stream[..ends[0]], rows, b"\xff\xff\xff\xff\0\0\0\0"].concat();
        write_aged(&root.join(&name), &bytes);
        listed.push(format!("{{\"filename\": \"{name}\"}}"));
    }
    let state = format!("{{\"_data_files\": [{}]}}", listed.join(", "));
    write_aged(&root.join("state.json"), state.as_bytes());
    root.to_owned()
}

#[test]
fn saved_datasets_conform_on_disk_and_behind_urls() {
    for open in EVERYWHERE {
        let (name, make, has_names, refuses_cuts) = ("arrow", saved as _, true, true);
        conformance::run(&Format { open, name, make, has_names, refuses_cuts });
    }
}

fn open_with(path: &Path, own: Section) -> Result<Opened, DatasetError> {
    let mut config = config_for("arrow", path);
    config.index = Some(path.with_extension("index"));
    config.own = own;
    open(&config, OpenOptions::default())
}

fn copied(name: &str) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    for entry in fs::read_dir(fixture(name)).unwrap() {
        let path = entry.unwrap().path();
        write_aged(&data.join(path.file_name().unwrap()), &fs::read(&path).unwrap());
    }
    (folder, data)
}

#[test]
fn what_save_to_disk_writes_is_read() {
    let (_folder, data) = copied("hugging-face");
    let opened = open_with(&data, Section::default()).unwrap();
    let fields: Vec<_> = opened.dataset.fields().iter().map(|field| &field.name[..]).collect();
    let expected = [
        "image",
        "label",
        "caption",
        "score",
        "half",
        "small",
        "is_good",
        "blob",
        "tokens",
        "boxes",
        "fixed",
        "grid",
        "info.author.name",
        "info.author.age",
        "objects.bbox",
        "objects.kind",
        "parts.x",
        "parts.y",
        "when",
    ];
    assert_eq!(fields, expected);
    let warnings = opened.report.warnings.join("\n");
    assert!(warnings.contains("info.tags (it is a list of texts or bytes"), "{warnings}");
    assert!(warnings.contains("1 rows have no caption"), "{warnings}");
    assert_eq!(opened.dataset.classes(), ["cat", "dog", "eel"]);
    for i in (0..7_u64).filter(|i| *i != 4) {
        let expected = [
            format!("image {}", 3 + 5 + i),
            (i % 3).to_string(),
            format!("{:?}", "ü".repeat(usize::try_from(i).unwrap())),
            (i as f64 / 4.0).to_string(),
            (i as f64 / 2.0).to_string(),
            (60_000 + i).to_string(),
            u8::from(i % 2 == 0).to_string(),
            format!("{:?}", (0..i).collect::<Vec<_>>()),
            format!("I32 [{i}]"),
            format!("F32 [{}, 4]", i % 3),
            "I16 [3]".to_owned(),
            "U8 [2, 2]".to_owned(),
            format!("\"author {i}\""),
            i.to_string(),
            format!("F32 [{i}, 4]"),
            format!("I64 [{i}]"),
            format!("I16 [{i}]"),
            format!("F64 [{i}]"),
            (1000 + i).to_string(),
        ];
        assert_eq!(sample(&opened, i).unwrap(), expected);
    }
    assert_eq!(sample(&opened, 4).unwrap_err(), "it has no caption for the field `caption`");
    assert_eq!(names(&opened)[5], "data-00001-of-00002.arrow:1");
    // Other fields, and those that cannot be.
    let own = |fields: &str| own_keys(&format!("[dataset.fields]\n{fields}"));
    let chosen = "text = { from = \"caption\", as = \"text\", missing = \"empty\" }\nkind = { from = \"label\", as = \"float\" }\nfile = { from = \"image\", as = \"bytes\" }";
    let opened = open_with(&data, own(chosen)).unwrap();
    assert_eq!(sample(&opened, 4).unwrap()[..2], ["\"\"".to_owned(), "1".to_owned()]);
    let skipping = "text = { from = \"caption\", missing = \"skip\" }";
    let opened = open_with(&data, own(skipping)).unwrap();
    assert_eq!((opened.dataset.sample_count(), opened.report.warnings.len()), (6, 1));
    assert_eq!(names(&opened)[4], "data-00001-of-00002.arrow:1");
    for (fields, reason) in [
        ("x = { from = \"info.tags\" }", "is not read: it is a list of texts"),
        ("x = { from = \"lable\" }", "no column lable for dataset.fields.x; it has image, label"),
        ("x = { from = \"caption\", as = \"image\" }", "is no such value"),
        ("x = { from = \"label\", missing = \"empty\" }", "can be \"empty\" for text and bytes"),
    ] {
        let message = open_with(&data, own(fields)).unwrap_err().to_string();
        assert!(message.contains(reason), "{message}");
    }
}

#[test]
fn values_are_the_bytes_that_the_writer_was_given() {
    let table = fs::read(fixture("tables/rows.arrow")).unwrap();
    let (_, rows) = read_in_memory(&TABLES, &table).unwrap();
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
fn files_of_other_writers_are_read_or_refused_by_column() {
    let (_folder, data) = copied("tables");
    let opened = open_with(&data.join("plain.arrow"), Section::default()).unwrap();
    let fields: Vec<_> = opened.dataset.fields().iter().map(|field| &field.name[..]).collect();
    assert_eq!(fields, ["image", "n"]);
    assert_eq!(sample(&opened, 3).unwrap(), ["image 4", "4"]);
    assert_eq!(sample(&opened, 1).unwrap_err(), "it has no n for the field `n`");
    let warnings = opened.report.warnings.join("\n");
    for column in ["of (it is encoded by a dictionary", "at (it is a view", "many (it is a map"] {
        assert!(warnings.contains(column), "{warnings}");
    }
    let refused = |path: PathBuf| open_with(&path, Section::default()).unwrap_err().to_string();
    let message = refused(data.join("packed.arrow"));
    assert!(
        message.contains("compressed (ZSTD)") && message.contains("compression=None"),
        "{message}"
    );
    // Two kinds of tables in one folder.
    let message = refused(data.join("*.arrow"));
    assert!(message.contains("compressed") || message.contains("tables of one kind"), "{message}");
}

#[test]
fn splits_and_old_forms_are_named() {
    let (_folder, data) = copied("hugging-face");
    let refused = || open_with(&data, Section::default()).unwrap_err().to_string();
    for (state, reason) in [
        ("{\"_data_files\": [], \"_indices_files\": [{\"filename\": \"x\"}]}", "flatten_indices()"),
        ("{\"_data_files\": [{\"filename\": \"../x.arrow\"}]}", "no path within its folder"),
        ("{\"_data_files\": [{\"filename\": \"a\"}, {\"filename\": \"a\"}]}", "names it twice"),
        ("{\"_data_files\": []}", "no .arrow files"),
        ("[", "it is no state of a dataset"),
    ] {
        write_aged(&data.join("state.json"), state.as_bytes());
        let message = refused();
        assert!(message.contains(reason), "{message}");
    }
    write_aged(&data.join("dataset_dict.json"), b"{\"splits\": [\"train\", \"test\"]}");
    let message = refused();
    assert!(message.contains("train, test; set dataset.path to one, such as"), "{message}");
}

#[test]
fn broken_streams_are_named_and_never_a_panic() {
    for name in
        ["tables/rows.arrow", "tables/plain.arrow", "hugging-face/data-00000-of-00002.arrow"]
    {
        let whole = fs::read(fixture(name)).unwrap();
        let (_, rows) = read_in_memory(&TABLES, &whole).unwrap();
        let magic = if whole.starts_with(b"ARROW1") { 8 } else { 0 };
        let end = magic + ends(&whole).last().copied().unwrap_or(0) - magic;
        for length in (0..end).step_by(61) {
            let reason = read_in_memory(&TABLES, &whole[..length]).unwrap_err();
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
            refused += usize::from(read_in_memory(&TABLES, &bytes).is_err());
            crate::dataset::fuzzing::arrow_table(&bytes);
        }
        println!("{name}: {} rows, {refused} of 4000 damaged ones refused", rows.len());
        assert!(refused > 100, "{refused}");
    }
}

#[test]
fn lying_numbers_are_named() {
    let (_folder, data) = copied("tables");
    let whole = fs::read(data.join("rows.arrow")).unwrap();
    let ends = ends(&whole);
    let opened = |bytes: &[u8]| {
        write_aged(&data.join("rows.arrow"), bytes);
        open_with(&data.join("rows.arrow"), Section::default()).unwrap_err().to_string()
    };
    // The first batch's description: each of its 8-byte numbers is set to a large one.
    let size = u32::from_le_bytes(whole[ends[0] + 4..ends[0] + 8].try_into().unwrap());
    let (mut named, text) = (0, ends[0] + 8..ends[0] + 8 + usize::try_from(size).unwrap());
    for place in text.step_by(8) {
        let mut bytes = whole.clone();
        bytes[place..place + 8].copy_from_slice(&(1_u64 << 40).to_le_bytes());
        if let Err(message) = read_in_memory(&TABLES, &bytes) {
            assert!(message.contains("table: "), "{message}");
            named += 1;
        }
    }
    assert!(named > 10, "{named}");
    let message = opened(&whole[..whole.len() - 1]);
    assert!(message.contains("rows.arrow: it ends at byte 18431 without the mark"), "{message}");
    assert!(opened(b"PAR1 and more").contains("no Arrow stream of version 0.15"));
}

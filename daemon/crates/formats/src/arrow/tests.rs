use std::fs;
use std::path::{Path, PathBuf};

use forebay_keys::Section;

use crate::conformance::{self, Format};
use crate::testing::{EVERYWHERE, config_for, names, own_keys, sample, write_aged};
use crate::{open, propose};
use forebay_columnar::arrow::READER;
use forebay_columnar::fuzzing::{message_ends, read_in_memory};
use forebay_dataset::{DatasetError, OpenOptions, Opened};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(name)
}

/// The first rows of a stream written by pyarrow, one per batch, in three streams as `save_to_disk` lists them.
fn saved(root: &Path, count: usize) -> PathBuf {
    saved_of("tables/rows.arrow", root, count)
}

fn saved_of(name: &str, root: &Path, count: usize) -> PathBuf {
    let stream = fs::read(fixture(name)).unwrap();
    let ends = message_ends(&stream);
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

fn saved_packed(root: &Path, count: usize) -> PathBuf {
    saved_of("tables/packed-rows.arrow", root, count)
}

#[test]
fn saved_datasets_conform_on_disk_and_from_urls() {
    for make in [saved as fn(&Path, usize) -> PathBuf, saved_packed] {
        for open in EVERYWHERE {
            let (name, has_names, refuses_cuts) = ("arrow", true, true);
            conformance::run(&Format { open, name, make, has_names, refuses_cuts });
        }
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
fn datasets_written_by_save_to_disk_are_read() {
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
    assert!(warnings.contains("1 row without caption"), "{warnings}");
    assert_eq!(opened.dataset.classes(), ["cat", "dog", "eel"]);
    for i in (0..7_u64).filter(|i| *i != 4) {
        let expected = [
            format!("image {}", 3 + 5 + i),
            (i % 3).to_string(),
            format!("{:?}", "ü".repeat(usize::try_from(i).unwrap())),
            format!("{} F32", i as f64 / 4.0),
            format!("{} F16", i as f64 / 2.0),
            (60_000 + i).to_string(),
            (i % 2 == 0).to_string(),
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
    // Other fields, and fields that are refused.
    let own = |fields: &str| own_keys(&format!("[dataset.fields]\n{fields}"));
    let chosen = "text = { from = \"caption\", as = \"text\", missing = \"empty\" }\nkind = { from = \"label\", as = \"float\" }\nfile = { from = \"image\", as = \"bytes\" }";
    let opened = open_with(&data, own(chosen)).unwrap();
    assert_eq!(sample(&opened, 4).unwrap()[..2], ["\"\"".to_owned(), "1".to_owned()]);
    let skipping = "text = { from = \"caption\", missing = \"skip\" }";
    let opened = open_with(&data, own(skipping)).unwrap();
    assert_eq!((opened.dataset.sample_count(), opened.report.warnings.len()), (6, 1));
    assert_eq!(names(&opened)[4], "data-00001-of-00002.arrow:1");
    let nested = "tags = { from = \"info.tags\" }\nparts = { from = \"parts\" }";
    let opened = open_with(&data, own(nested)).unwrap();
    assert_eq!(sample(&opened, 2).unwrap()[0], format!("{:?}", r#"["a","a"]"#));
    let expected = r#"[{"x":0,"y":2.0},{"x":1,"y":2.0}]"#;
    assert_eq!(sample(&opened, 2).unwrap()[1], format!("{expected:?}"));
    for (fields, reason) in [
        ("x = { from = \"lable\" }", "no column lable for dataset.fields.x; it has image, label"),
        ("x = { from = \"caption\", as = \"image\" }", "cannot be what `as` says"),
        ("x = { from = \"label\", missing = \"empty\" }", "can be \"empty\" for text and bytes"),
    ] {
        let message = open_with(&data, own(fields)).unwrap_err().to_string();
        assert!(message.contains(reason), "{message}");
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
    let message = refused(data.join("packed-lz4.arrow"));
    assert!(
        message.contains("compressed by LZ4") && message.contains("compression=None"),
        "{message}"
    );
    // Two kinds of tables in one folder.
    let message = refused(data.join("*.arrow"));
    assert!(message.contains("compressed") || message.contains("tables of one kind"), "{message}");
}

#[test]
fn compressed_rows_equal_rows_of_the_plain_file() {
    let (_folder, data) = copied("tables");
    for (plain, packed) in [("plain", "packed"), ("plain-long", "packed-long")] {
        let all = [plain, packed].map(|name| {
            let opened = open_with(&data.join(format!("{name}.arrow")), Section::default());
            let opened = opened.unwrap();
            let rows: Vec<_> =
                (0..opened.dataset.sample_count()).map(|id| sample(&opened, id)).collect();
            (opened, rows)
        });
        assert_eq!(all[0].1, all[1].1, "{packed}");
        assert_eq!(all[0].0.dataset.fields(), all[1].0.dataset.fields());
        let longest = |opened: &Opened| {
            let fields = 0..opened.dataset.fields().len();
            fields.map(|field| opened.dataset.max_row_bytes(field)).collect::<Vec<_>>()
        };
        assert_eq!(longest(&all[0].0), longest(&all[1].0), "{packed}");
        assert_eq!(all[0].0.dataset.page_bytes(), None);
        // Values of up to 256 bytes are kept in the index.
        assert_eq!(all[1].0.dataset.page_bytes().is_some(), packed == "packed-long");
        let warnings = all[1].0.report.warnings.join("\n");
        let has_remedy = warnings.contains("IpcWriteOptions(compression=None)");
        assert_eq!(has_remedy, packed == "packed-long", "{warnings}");
        assert!(!warnings.contains("page"), "{warnings}");
    }
    // Bytes and arrays, to the byte.
    let fields = "[dataset.fields]\na = { from = \"image\", as = \"bytes\", missing = \"empty\" }";
    let bytes = ["plain-long", "packed-long"].map(|name| {
        let opened = open_with(&data.join(format!("{name}.arrow")), own_keys(fields)).unwrap();
        (0..24).map(|id| sample(&opened, id).unwrap()).collect::<Vec<_>>()
    });
    assert_eq!(bytes[0], bytes[1]);
}

#[test]
fn splits_and_unusable_states_are_reported() {
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
fn wrong_numbers_are_reported() {
    let (_folder, data) = copied("tables");
    let whole = fs::read(data.join("rows.arrow")).unwrap();
    let ends = message_ends(&whole);
    let opened = |bytes: &[u8]| {
        write_aged(&data.join("rows.arrow"), bytes);
        open_with(&data.join("rows.arrow"), Section::default()).unwrap_err().to_string()
    };
    // Each 8-byte number in the first batch's description is replaced by a large one.
    let size = u32::from_le_bytes(whole[ends[0] + 4..ends[0] + 8].try_into().unwrap());
    let (mut named, text) = (0, ends[0] + 8..ends[0] + 8 + usize::try_from(size).unwrap());
    for place in text.step_by(8) {
        let mut bytes = whole.clone();
        bytes[place..place + 8].copy_from_slice(&(1_u64 << 40).to_le_bytes());
        if let Err(message) = read_in_memory(&READER, &bytes) {
            assert!(message.contains("memory: "), "{message}");
            named += 1;
        }
    }
    assert!(named > 10, "{named}");
    let message = opened(&whole[..whole.len() - 1]);
    assert!(message.contains("rows.arrow: it ends at byte 18431 without the mark"), "{message}");
    assert!(opened(b"PAR1 and more").contains("no Arrow stream of version 0.15"));
}

#[test]
fn list_rows_have_the_length_of_the_longest_list_in_any_file() {
    let (_folder, data) = copied("hugging-face");
    fs::remove_file(data.join("state.json")).unwrap();
    let stream = fs::read(data.join("data-00000-of-00002.arrow")).unwrap();
    let ends = message_ends(&stream);
    let rows = stream[ends[0]..*ends.last().unwrap()].repeat(100);
    let many = [&stream[..ends[0]], &rows, b"\xff\xff\xff\xff\0\0\0\0"].concat();
    write_aged(&data.join("data-00000-of-00002.arrow"), &many);
    let fields = "[dataset.fields]\ntokens = { from = \"tokens\" }\nfixed = { from = \"fixed\" }";
    let mut config = config_for("arrow", &data);
    config.own = own_keys(fields);
    let opened = open(&config, OpenOptions::default()).unwrap();
    let dataset = opened.dataset.as_ref();
    // The last file has the longest list, of six numbers.
    assert_eq!((dataset.max_row_bytes(0), dataset.max_row_bytes(1)), (Some(24), Some(6)));
    assert_eq!((dataset.rows_differ(0), dataset.rows_differ(1)), (Some(true), Some(false)));
    let tables = propose(&config, true, OpenOptions::default()).unwrap().draft.tables;
    assert!(tables.contains("\ntokens = { ragged = true }  # rows differ in length"), "{tables}");
}

use std::fs;
use std::path::{Path, PathBuf};

use forebay_config::DatasetConfig;
use forebay_keys::Section;
use forebay_synth::lance;
use forebay_synth::tfrecord::{field, push_varint};

use crate::conformance::{self, Format};
use crate::testing::{
    EVERYWHERE, age_directories, config_for, names, own_keys, sample, with_values, write_aged,
};
use crate::{open, recognize};
use forebay_dataset::{DatasetError, FieldValue, OpenOptions, Opened};

/// Images of lengths that differ, in files of 16 rows.
fn files(root: &Path, count: usize) -> PathBuf {
    let row = |number: usize| {
        let byte = u8::try_from(number).unwrap();
        (number, [&[0xff, 0xd8, 0xff][..], &vec![byte; 20 + number]].concat())
    };
    let rows: Vec<_> = (0..count).map(row).collect();
    let mut listed = Vec::new();
    for (number, rows) in rows.chunks(16).enumerate() {
        let path = lance::data_path(number);
        write_aged(&root.join(&path), &lance::file(rows));
        listed.push((path.trim_start_matches("data/").to_owned(), rows.len()));
    }
    write_aged(&root.join(lance::MANIFEST), &lance::manifest(&listed));
    root.to_owned()
}

#[test]
fn datasets_conform_on_disk_and_from_urls() {
    for open in EVERYWHERE {
        let (name, has_names, refuses_cuts) = ("lance", true, true);
        conformance::run(&Format { open, name, make: files, has_names, refuses_cuts });
    }
}

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/lance").join(format!("{name}.lance"))
}

fn open_with(path: &Path, own: Section) -> Result<Opened, DatasetError> {
    let folder = tempfile::tempdir().unwrap();
    let mut config = config_for("lance", path);
    config.index = Some(folder.path().join("saved.index"));
    config.own = own;
    open(&config, OpenOptions::default())
}

fn of(name: &str, fields: &[&str]) -> Opened {
    let fields: String = fields.iter().map(|field| field_line(field)).collect();
    open_with(&fixture(name), own_keys(&format!("[dataset.fields]\n{fields}"))).unwrap()
}

fn field_line(field: &str) -> String {
    let (name, rest) = field.split_once(' ').unwrap_or((field, ""));
    format!("{} = {{ from = \"{name}\"{rest} }}\n", name.replace('.', "_"))
}

#[test]
fn small_values_of_both_versions_are_read() {
    const FIELDS: [&str; 14] = [
        "id",
        "tiny",
        "maybe , missing = \"skip\"",
        "class",
        "run",
        "is_good",
        "same",
        "score",
        "text",
        "packed",
        "tokens",
        "pair",
        "seen",
        "info.size",
    ];
    for version in ["small-2.1", "small-2.2"] {
        let opened = of(version, &FIELDS);
        let rows = (0..1500_i64).filter(|row| row % 3 != 0);
        assert_eq!(opened.dataset.sample_count(), 1000);
        for (id, row) in (0..).zip(rows) {
            let tokens: Vec<_> = (0..row % 4).map(|token| i32::try_from(token).unwrap()).collect();
            let expected = [
                (3 * row).to_string(),
                (row % 7 - 3).to_string(),
                row.to_string(),
                format!("\"class {}\"", row % 5),
                (row / 100 * 10_i64.pow(12)).to_string(),
                "false".to_owned(),
                "\"same\"".to_owned(),
                format!("{} F32", row as f64 / 4.0),
                format!("\"a text, and another, {row}\""),
                format!("\"packed {row}\""),
                format!("I32 [{}]", tokens.len()),
                "I16 [2]".to_owned(),
                (row * 1000).to_string(),
                row.to_string(),
            ];
            assert_eq!(sample(&opened, id).unwrap(), expected);
            let pair = [row, -row].map(|number| i16::try_from(number).unwrap());
            let bytes = |numbers: &[i32]| numbers.iter().flat_map(|n| n.to_le_bytes()).collect();
            let expected: [Vec<u8>; 2] = [bytes(&tokens), pair.map(i16::to_le_bytes).concat()];
            assert_eq!(arrays(&opened, id), expected);
        }
    }
}

#[test]
fn large_values_of_both_versions_are_read_alone() {
    for version in ["large-2.1", "large-2.2"] {
        let opened = of(
            version,
            &[
                "image , as = \"image\"",
                "label",
                "maybe , missing = \"skip\"",
                "packed",
                "text",
                "embedding",
                "other",
                "constant",
            ],
        );
        assert_eq!(opened.dataset.classes(), ["cat", "dog"]);
        assert_eq!(opened.dataset.sample_count(), 8);
        for (id, row) in (0..).zip([0_u8, 1, 2, 3, 5, 6, 7, 8]) {
            let maybe = if row == 5 { Vec::new() } else { vec![row; 300] };
            let expected = [
                "image 403".to_owned(),
                (row % 2).to_string(),
                format!("{maybe:?}"),
                format!("{:?}", vec![row; 40_000]),
                format!("{:?}", format!("a long text, {row} ").repeat(200)),
                "F32 [80]".to_owned(),
                "F32 [80]".to_owned(),
                format!("{:?}", [b'c'; 100]),
            ];
            assert_eq!(sample(&opened, id).unwrap(), expected);
            let embedding = f32::from(row).to_le_bytes().repeat(80);
            assert_eq!(arrays(&opened, id), [embedding.clone(), embedding]);
        }
        let whole = open_with(&fixture(version), Section::default()).unwrap();
        assert_eq!(whole.dataset.fields()[0].name, "image");
        let lacking = sample(&whole, 4).unwrap_err();
        assert_eq!(lacking, "it has no maybe for the field `maybe`");
    }
}

/// The bytes of a sample's arrays.
fn arrays(opened: &Opened, id: u64) -> Vec<Vec<u8>> {
    let array = |value: &FieldValue<'_>| match value {
        FieldValue::Array(array) if !array.shape.is_empty() => Some(array.bytes.to_vec()),
        _ => None,
    };
    with_values(opened, id, |values| values.iter().filter_map(array).collect()).unwrap()
}

#[test]
fn blobs_are_read_from_their_places() {
    let opened = of("blobs", &["b , missing = \"skip\""]);
    let values: Vec<_> = (0..3).map(|id| sample(&opened, id).unwrap()[0].clone()).collect();
    assert_eq!(values, [&b"one"[..], b"", b"four"].map(|bytes| format!("{bytes:?}")));
}

#[test]
fn deleted_rows_are_left_out_and_a_new_version_is_noticed() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("deleted.lance");
    copy(&fixture("deleted"), &data);
    age_directories(&data);
    let mut config = config_for("lance", &data);
    config.index = Some(folder.path().join("saved.index"));
    let rows = |config: &DatasetConfig| {
        let opened = open(config, OpenOptions::default()).unwrap();
        let all = 0..opened.dataset.sample_count();
        let all: Vec<u64> =
            all.map(|id| sample(&opened, id).unwrap()[0].parse().unwrap()).collect();
        (opened.report.reused, names(&opened)[0].clone(), all)
    };
    let expected = |left_out: &[u64]| -> Vec<u64> {
        let thousands = (48..60).filter(|thousand| !left_out.contains(thousand));
        thousands.flat_map(|thousand| std::iter::repeat_n(thousand, 1000)).collect()
    };
    let newest = data.join("_versions/18446744073709551612.manifest");
    let aside = folder.path().join("newest");
    fs::rename(&newest, &aside).unwrap();
    let (is_known, first, all) = rows(&config);
    assert_eq!((is_known, all), (false, expected(&[])));
    assert!(first.ends_with(".lance:48000"), "{first}");
    assert!(rows(&config).0);
    fs::rename(&aside, &newest).unwrap();
    let (is_known, _, all) = rows(&config);
    assert_eq!((is_known, all), (false, expected(&[55])));
    config.limit = Some(1500);
    assert_eq!(rows(&config).2, expected(&[55])[..1500]);
}

fn copy(from: &Path, to: &Path) {
    for folder in ["data", "_versions", "_deletions"] {
        for entry in fs::read_dir(from.join(folder)).unwrap() {
            let path = entry.unwrap().path();
            let target = to.join(folder).join(path.file_name().unwrap());
            write_aged(&target, &fs::read(&path).unwrap());
        }
    }
}

#[test]
fn what_is_not_read_is_named_with_the_remedy() {
    let refused = |name| open_with(&fixture(name), Section::default()).unwrap_err().to_string();
    let anew = "write it anew: lance.write_dataset(ds, \"new.lance\"";
    for (name, reason) in [
        ("old", "it is of a version before 2.1"),
        ("added", "its fragment 0 has 2 data files, as after add_columns"),
    ] {
        let message = refused(name);
        assert!(message.contains(reason) && message.contains(anew), "{message}");
    }
    let dropped = refused("dropped");
    assert!(dropped.contains("renamed or dropped without rewriting the file"), "{dropped}");
    let opened = open_with(&fixture("lists"), Section::default()).unwrap();
    let warnings = opened.report.warnings.join("\n");
    for part in [
        "lists (it is a list of lists or structs, which are not read of Lance)",
        "texts (it is a list of texts or bytes, which are not read of Lance)",
        "holes (a list has an item without a value; write it without nulls)",
    ] {
        assert!(warnings.contains(part), "{part}: {warnings}");
    }
    let folder = tempfile::tempdir().unwrap();
    let message = open_with(folder.path(), Section::default()).unwrap_err().to_string();
    assert!(message.contains("it has no manifest in _versions"), "{message}");
}

#[test]
fn manifests_that_ask_for_more_are_refused() {
    let data = [field(1, b"00000.lance"), packed(2, 0)].concat();
    let fragment = |parts: &[Vec<u8>]| field(2, &parts.concat());
    let is_elsewhere = "is outside its folder, as in a clone";
    for (message, reason) in [
        (lance::number(9, 64), "it has a feature of newer versions of Lance"),
        (fragment(&[]), "its fragment 0 has 0 data files"),
        (fragment(&[field(2, &[&data[..], &lance::number(7, 1)].concat())]), is_elsewhere),
        (
            fragment(&[field(2, &data), field(3, &lance::number(7, 1))]),
            "a list of deleted rows is outside its folder",
        ),
        (
            fragment(&[field(2, &data), field(3, &lance::number(1, 5))]),
            "its deleted rows are listed in a way that is not read",
        ),
        (
            fragment(&[field(2, &[&data[..], &packed(2, u64::MAX - 1)].concat())]),
            "columns were dropped or replaced without rewriting its files",
        ),
        (fragment(&[field(2, &field(1, b"../../x.lance"))]), "is no path within its folder"),
        (vec![8], "it is damaged"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        write_aged(&folder.path().join(lance::MANIFEST), &lance::manifest_of(&message));
        let found = open_with(folder.path(), Section::default()).unwrap_err().to_string();
        assert!(found.contains(reason), "{reason}: {found}");
    }
}

fn packed(key: u64, value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    push_varint(&mut bytes, value);
    field(key, &bytes)
}

#[test]
fn the_newest_version_is_found_by_both_kinds_of_names() {
    for names in [["3", "12"], ["18446744073709551612", "18446744073709551603"]] {
        let folder = tempfile::tempdir().unwrap();
        let root = files(&folder.path().join("data"), 20);
        let newest = fs::read(root.join(lance::MANIFEST)).unwrap();
        fs::remove_file(root.join(lance::MANIFEST)).unwrap();
        let [older, newer] = names.map(|name| root.join(format!("_versions/{name}.manifest")));
        write_aged(&older, &lance::manifest(&[("00000.lance".to_owned(), 16)]));
        write_aged(&newer, &newest);
        write_aged(&root.join("_versions/d17.manifest"), b"detached");
        let opened = open_with(&root, Section::default()).unwrap();
        assert_eq!(opened.dataset.sample_count(), 20);
    }
}

#[test]
fn damaged_lists_of_deleted_rows_are_refused() {
    for (extension, reason) in
        [("bin", "it is no bitmap of deleted rows"), ("arrow", "it is no Arrow stream")]
    {
        let folder = tempfile::tempdir().unwrap();
        copy(&fixture("deleted"), folder.path());
        for entry in fs::read_dir(folder.path().join("_deletions")).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().unwrap() == extension {
                fs::write(&path, [7; 40]).unwrap();
            }
        }
        let found = open_with(folder.path(), Section::default()).unwrap_err().to_string();
        assert!(found.contains(reason) && found.contains("_deletions/"), "{found}");
    }
}

#[test]
fn the_first_row_decides_about_pictures_although_the_first_file_has_none() {
    let folder = tempfile::tempdir().unwrap();
    let opened = open_with(&files(folder.path(), 3), Section::default()).unwrap();
    assert_eq!(sample(&opened, 2).unwrap(), ["image 25", "2"]);
}

#[test]
fn datasets_are_recognised_by_their_versions() {
    let config = config_for("auto", &fixture("large-2.2"));
    assert_eq!(recognize(&config, OpenOptions::default()).unwrap(), "lance");
}

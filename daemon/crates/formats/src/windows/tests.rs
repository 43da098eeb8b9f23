//! Windows of `.npy` files and Zarr arrays: the conformance suite, values against rows, and what is refused.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use forebay_config::DatasetConfig;
use forebay_protocol::ids::SampleId;

use crate::conformance;
use crate::testing::{
    EVERYWHERE, config_for, npy_bytes, own_keys, sample, with_values, write_aged,
};
use forebay_dataset::{DatasetError, FieldKind, FieldValue, OpenOptions, Opened};

/// The rows `first..end`, each of which has two numbers: ten times the row, and one more.
fn rows(first: i16, end: i16) -> Vec<u8> {
    (first..end).flat_map(|row| [10 * row, 10 * row + 1]).flat_map(i16::to_le_bytes).collect()
}

/// A `.npy` file of these rows.
fn write_rows(path: &Path, first: i16, end: i16) {
    let shape = format!("({}, 2)", end - first);
    write_aged(path, &npy_bytes("<i2", false, &shape, &rows(first, end)));
}

fn write_ids(path: &Path, ids: &[i64]) {
    let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
    write_aged(path, &npy_bytes("<i8", false, &format!("({},)", ids.len()), &bytes));
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// An array of format 2 of these rows, five of which are in a chunk.
fn write_zarr(root: &Path, count: i16, is_packed: bool) {
    let compressor = if is_packed { r#"{"id": "gzip", "level": 5}"# } else { "null" };
    let text = format!(
        r#"{{"zarr_format": 2, "shape": [{count}, 2], "chunks": [5, 2], "dtype": "<i2", "compressor": {compressor},
            "fill_value": 0, "order": "C", "filters": null}}"#
    );
    write_aged(&root.join(".zarray"), text.as_bytes());
    for (place, first) in (0..count).step_by(5).enumerate() {
        let chunk = rows(first, first + 5);
        let chunk = if is_packed { gzip(&chunk) } else { chunk };
        write_aged(&root.join(format!("{place}.0")), &chunk);
    }
}

fn with(config: &DatasetConfig, keys: &str) -> DatasetConfig {
    DatasetConfig { own: own_keys(keys), ..config.clone() }
}

const PAIRS: &str = "dataset.windows.length = 2";

fn open_with(format: &str, path: &Path, keys: &str) -> Result<Opened, DatasetError> {
    crate::open(&with(&config_for(format, path), keys), OpenOptions::default())
}

/// The values of each field of a sample, as its bytes.
pub(super) fn values(opened: &Opened, id: u64) -> Vec<Vec<u8>> {
    let bytes = |value: &FieldValue<'_>| match value {
        FieldValue::Array(array) => array.bytes.to_vec(),
        other => panic!("{other:?}"),
    };
    with_values(opened, id, |values| values.iter().map(bytes).collect()).unwrap()
}

fn name(opened: &Opened, id: u64) -> String {
    let mut name = Vec::new();
    opened.dataset.append_name(SampleId(id), &mut name);
    String::from_utf8(name).unwrap()
}

fn refused(format: &str, path: &Path, keys: &str) -> String {
    open_with(format, path, keys).unwrap_err().to_string()
}

fn rows_of(count: usize) -> i16 {
    i16::try_from(2 * count).unwrap()
}

#[test]
fn windows_of_arrays_conform() {
    let make = |root: &Path, count: usize| {
        write_rows(&root.join("a.npy"), 0, 3);
        if count > 1 {
            write_rows(&root.join("b/c.npy"), 10, 10 + rows_of(count - 1));
        }
        root.to_owned()
    };
    let openers: [crate::testing::Opener; 3] = [
        |config, options| EVERYWHERE[0](&with(config, PAIRS), options),
        |config, options| EVERYWHERE[1](&with(config, PAIRS), options),
        |config, options| EVERYWHERE[2](&with(config, PAIRS), options),
    ];
    for open in openers {
        conformance::run(&conformance::Format {
            open,
            name: "npy",
            make,
            has_names: false,
            refuses_cuts: true,
        });
    }
}

#[test]
fn windows_of_zarr_conform() {
    let packed = |root: &Path, count| {
        write_zarr(root, rows_of(count), true);
        root.to_owned()
    };
    let openers: [crate::testing::Opener; 3] = [
        |config, options| EVERYWHERE[0](&with(config, PAIRS), options),
        |config, options| EVERYWHERE[1](&with(config, PAIRS), options),
        |config, options| EVERYWHERE[2](&with(config, PAIRS), options),
    ];
    for open in openers {
        conformance::run_permuted(&conformance::Format {
            open,
            name: "zarr",
            make: packed,
            has_names: false,
            refuses_cuts: true,
        });
    }
    conformance::run_permuted(&conformance::Format {
        open: openers[0],
        name: "zarr",
        make: |root, count| {
            write_zarr(root, rows_of(count), false);
            root.to_owned()
        },
        has_names: false,
        refuses_cuts: true,
    });
}

#[test]
fn window_does_not_cross_the_end_of_its_episode() {
    let folder = tempfile::tempdir().unwrap();
    write_rows(&folder.path().join("x.npy"), 0, 10);
    write_ids(&folder.path().join("episode.npy"), &[7, 7, 7, 7, 2, 2, 7, 7, 7, 1]);
    let opened = open_with(
        "npy",
        folder.path(),
        "dataset.windows = { length = 3, stride = 1, by = \"episode\" }",
    )
    .unwrap();
    let found: Vec<_> = (0..opened.dataset.sample_count()).map(|id| values(&opened, id)).collect();
    assert_eq!(found, [[rows(0, 3)], [rows(1, 4)], [rows(6, 9)]]);
    assert_eq!(name(&opened, 2), "x.npy:6");
    let [warning] = &opened.report.warnings[..] else { panic!("{:?}", opened.report.warnings) };
    assert!(warning.contains("2 of 4 episodes, with 3 rows"), "{warning}");
}

#[test]
fn arrays_in_step_have_fields_of_their_own_rows() {
    let folder = tempfile::tempdir().unwrap();
    for (place, rows) in [("a", 6), ("b", 3)] {
        write_rows(&folder.path().join(place).join("state.npy"), 0, rows);
        write_ids(
            &folder.path().join(place).join("reward.npy"),
            &(0..rows.into()).collect::<Vec<_>>(),
        );
        write_ids(&folder.path().join(place).join("other.npy"), &[1]);
    }
    let keys = "\
        dataset.windows.length = 2\ndataset.windows.stride = 2\n\
        dataset.windows.fields.x.from = \"state\"\n\
        dataset.windows.fields.y = { from = \"state.npy\", start = 2, length = 1 }\n\
        dataset.windows.fields.reward = {}\n";
    let opened = open_with("npy", folder.path(), keys).unwrap();
    let reward = |first: i64| [first, first + 1].map(i64::to_le_bytes).concat();
    let found: Vec<_> = (0..opened.dataset.sample_count()).map(|id| values(&opened, id)).collect();
    assert_eq!(
        found,
        [
            [rows(0, 2), rows(2, 3), reward(0)],
            [rows(2, 4), rows(4, 5), reward(2)],
            [rows(0, 2), rows(2, 3), reward(0)],
        ]
    );
    fs::remove_file(folder.path().join("b/reward.npy")).unwrap();
    let message = refused("npy", folder.path(), keys);
    assert!(
        message.contains("\"reward.npy\" is missing beside the other arrays of \"b/\""),
        "{message}"
    );
    let message =
        refused("npy", folder.path(), "dataset.windows = { length = 1, fields = { z = {} } }");
    assert!(message.contains("none of its .npy files is \"z.npy\""), "{message}");
}

#[test]
fn padded_windows_say_which_rows_exist() {
    let folder = tempfile::tempdir().unwrap();
    write_rows(&folder.path().join("x.npy"), 0, 3);
    let keys = |pad: &str| {
        format!(
            "dataset.windows.length = 1\ndataset.windows.pad = {pad}\n\
             dataset.windows.fields.past = {{ from = \"array\", start = -2, length = 3 }}\n\
             dataset.windows.fields.next = {{ from = \"array\", start = 1 }}\n"
        )
    };
    let opened = open_with("npy", folder.path(), &keys("\"repeat\"")).unwrap();
    let names: Vec<_> = opened.dataset.fields().iter().map(|field| &field.name[..]).collect();
    assert_eq!(names, ["past", "next", "past_mask", "next_mask"]);
    let first = [rows(0, 1), rows(0, 1), rows(0, 1)].concat();
    assert_eq!(values(&opened, 0), [first, rows(1, 2), vec![0, 0, 1], vec![1]]);
    assert_eq!(values(&opened, 2), [rows(0, 3), rows(2, 3), vec![1, 1, 1], vec![0]]);
    let opened = open_with("npy", folder.path(), &keys("-1")).unwrap();
    let first = [vec![255; 8], rows(0, 1)].concat();
    assert_eq!(values(&opened, 0), [first, rows(1, 2), vec![0, 0, 1], vec![1]]);
    let message = refused("npy", folder.path(), &keys("0.5"));
    assert!(message.contains("dataset.windows.pad is 0.5"), "{message}");
}

#[test]
fn index_of_a_billion_rows_is_small() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.npy");
    write_aged(&path, &npy_bytes("|u1", false, "(1000000000,)", &[]));
    let file = fs::File::options().write(true).open(&path).unwrap();
    let header = file.metadata().unwrap().len();
    file.set_len(header + 1_000_000_000).unwrap();
    let opened = open_with("npy", &path, "dataset.windows = { length = 512, stride = 1 }").unwrap();
    assert_eq!(opened.dataset.sample_count(), 1_000_000_000 - 511);
    assert!(opened.report.bytes < 4096, "{}", opened.report.bytes);
    assert_eq!(values(&opened, 999_999_488), [vec![0; 512]]);
}

#[test]
fn what_windows_cannot_be_of_is_refused_with_a_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    write_rows(&root.join("a.npy"), 0, 3);
    let expect = |path: &Path, keys: &str, part: &str| {
        let message = refused("npy", path, keys);
        assert!(message.contains(part), "{message}");
    };
    expect(
        root,
        "dataset.windows.length = 4",
        "a window needs 4 rows, and the longest of 1 episodes has 3",
    );
    expect(root, "dataset.windows = { length = 1, by = \"id\" }", "\"id.npy\"");
    expect(root, "dataset.windows.stride = 1", "dataset.windows.length");
    expect(
        root,
        "dataset.windows = { length = 1, fields = { x = { start = 0.5 } } }",
        "a whole number",
    );
    expect(root, "dataset.windows.length = 1\ndataset.fields.x = \"y\"", "dataset.windows.fields");
    write_ids(&root.join("b.npy"), &[1, 2, 3]);
    expect(root, PAIRS, "named in dataset.windows.fields");
    write_rows(&root.join("b.npy"), 0, 2);
    let both = "dataset.windows = { length = 1, fields = { a = {}, b = {} } }";
    expect(root, both, "arrays in step have the same first axis");
    let broken = fs::read(root.join("b.npy")).unwrap();
    write_aged(&root.join("b.npy"), &broken[..broken.len() - 1]);
    expect(root, both, "b.npy");
    let message = refused("npz", root, PAIRS);
    assert!(message.contains("rows of npy, zarr") && message.contains("\"npz\""), "{message}");
}

#[test]
fn file_that_became_longer_is_indexed_anew() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.npy");
    write_rows(&path, 0, 4);
    assert_eq!(open_with("npy", &path, PAIRS).unwrap().dataset.sample_count(), 2);
    assert!(open_with("npy", &path, PAIRS).unwrap().report.reused);
    write_rows(&path, 0, 8);
    let opened = open_with("npy", &path, PAIRS).unwrap();
    assert!(!opened.report.reused);
    assert_eq!(opened.dataset.sample_count(), 4);
}

#[test]
fn chunk_that_is_written_after_the_index_is_read() {
    let folder = tempfile::tempdir().unwrap();
    write_zarr(folder.path(), 15, true);
    let (chunk, later) = (folder.path().join("1.0"), folder.path().join("later"));
    fs::rename(&chunk, &later).unwrap();
    let open = || open_with("zarr", folder.path(), "dataset.windows = { length = 5 }").unwrap();
    let before = open();
    assert_eq!(values(&before, 1), [vec![0; 20]]);
    assert!(open().report.reused);
    fs::rename(&later, &chunk).unwrap();
    let opened = open();
    assert!(!opened.report.reused);
    assert_ne!(opened.dataset.fingerprint(), before.dataset.fingerprint());
    assert_eq!(values(&opened, 1), [rows(5, 10)]);
    assert!(open().report.reused);
}

/// Arrays of 11 rows that zarr-python wrote (`fixtures/zarr_arrays.py`).
fn fixture() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/zarr")
}

/// The blocks of the first chunk of an array that Blosc compressed.
fn packed_blosc_blocks(array: &Path) -> u32 {
    let chunk = ["0.0.0", "c/0/0/0"].iter().find_map(|name| fs::read(array.join(name)).ok());
    let chunk = chunk.unwrap();
    assert_eq!(chunk[2] & 2, 0, "{}: its bytes are stored as they are", array.display());
    let number = |at: usize| u32::from_le_bytes(chunk[at..at + 4].try_into().unwrap());
    number(4).div_ceil(number(8))
}

#[test]
fn chunks_of_every_codec_are_what_zarr_python_wrote() {
    let temporary = tempfile::tempdir().unwrap();
    let (mut arrays, mut blocks) = (0, 0);
    for store in ["v2.zarr", "v3.zarr"] {
        let mut entries: Vec<_> = fs::read_dir(fixture().join(store))
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .collect();
        entries.retain(|path| path.is_dir());
        entries.sort();
        for path in entries {
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            let mut config =
                with(&config_for("zarr", &path), "dataset.windows = { length = 4, stride = 3 }");
            config.index = Some(temporary.path().join(format!("{store}.{name}.index")));
            if let Some(codec) = name.strip_prefix("refused_") {
                let message = crate::open(&config, OpenOptions::default()).unwrap_err().to_string();
                assert!(message.contains(codec), "{message}");
                continue;
            }
            if name.starts_with("blosc") {
                blocks += packed_blosc_blocks(&path);
            }
            let opened = crate::open(&config, OpenOptions::default()).unwrap();
            assert_eq!(opened.dataset.sample_count(), 3, "{name}");
            let FieldKind::Array { shape, .. } = &opened.dataset.fields()[0].kind else {
                panic!("{name}")
            };
            let row: u64 = shape[1..].iter().product();
            let is_big = name.contains("big");
            for window in 0..3 {
                // Chunks of the last rows do not exist in one of the arrays; 5 is their fill value.
                let element = |place: u64| match name.contains("absent") && place >= 6 * row {
                    true => 5,
                    false => i32::try_from(7 * place).unwrap(),
                };
                let elements = (3 * window * row..(3 * window + 4) * row).map(element);
                let bytes = |element: i32| match is_big {
                    true => element.to_be_bytes(),
                    false => element.to_le_bytes(),
                };
                let expected: Vec<u8> = elements.flat_map(bytes).collect();
                assert_eq!(values(&opened, window), [expected], "{store} {name} {window}");
            }
            arrays += 1;
        }
    }
    assert!(arrays >= 22, "{arrays}");
    assert_eq!(blocks, 1 + 1 + 2 + 4 + 1 + 1);
}

#[test]
fn damaged_indexes_of_shards_are_refused_with_their_file() {
    for name in ["shards_absent", "shards_first"] {
        let from = fixture().join("v3.zarr").join(name);
        let metadata = fs::read(from.join("zarr.json")).unwrap();
        let shard = fs::read(from.join("c/0/0/0")).unwrap();
        let folder = tempfile::tempdir().unwrap();
        write_aged(&folder.path().join("zarr.json"), &metadata);
        let path = folder.path().join("c/0/0/0");
        let keys = "dataset.windows = { length = 2 }";
        write_aged(&path, &shard);
        let first = values(&open_with("zarr", folder.path(), keys).unwrap(), 0);
        assert!(open_with("zarr", folder.path(), keys).unwrap().report.reused);
        // The indexes have more than 50 bytes.
        for at in [0, 40] {
            let mut damaged = shard.clone();
            let at = if name == "shards_first" { at } else { shard.len() - 1 - at };
            damaged[at] ^= 1;
            write_aged(&path, &damaged);
            let message = refused("zarr", folder.path(), keys);
            assert!(message.contains("checksum") && message.contains("c/0/0/0"), "{message}");
        }
        write_aged(&path, &shard[..40]);
        let message = refused("zarr", folder.path(), keys);
        assert!(message.contains("shorter than the index"), "{message}");
        // A chunk that is damaged, in a file whose index is not, is a bad sample.
        let mut damaged = shard.clone();
        let at = if name == "shards_first" { shard.len() - 3 } else { 3 };
        damaged[at] ^= 0x55;
        write_aged(&path, &damaged);
        let opened = open_with("zarr", folder.path(), keys).unwrap();
        let mut samples = 0..opened.dataset.sample_count();
        assert!(samples.any(|id| sample(&opened, id).is_err()), "{name}");
        write_aged(&path, &shard);
        assert_eq!(values(&open_with("zarr", folder.path(), keys).unwrap(), 0), first);
    }
}

#[test]
fn arrays_of_a_group_are_in_step() {
    let folder = tempfile::tempdir().unwrap();
    write_zarr(&folder.path().join("x"), 10, true);
    write_zarr(&folder.path().join("y"), 10, false);
    write_aged(&folder.path().join(".zgroup"), br#"{"zarr_format": 2}"#);
    let opened =
        open_with("auto", folder.path(), "dataset.windows = { length = 4, stride = 4 }").unwrap();
    assert_eq!(values(&opened, 1), [rows(4, 8), rows(4, 8)]);
    let only = "dataset.windows = { length = 4, fields = { b = { from = \"y\" } } }";
    assert_eq!(values(&open_with("zarr", folder.path(), only).unwrap(), 0), [rows(0, 4)]);
    write_zarr(&folder.path().join("z"), 9, true);
    let message = refused("zarr", folder.path(), PAIRS);
    assert!(message.contains("it has 9 rows, and `x` has 10"), "{message}");
    let message =
        refused("zarr", folder.path(), "dataset.windows = { length = 1, fields = { b = {} } }");
    assert!(message.contains("it has no array \"b\""), "{message}");
}

#[test]
fn window_of_chunks_that_do_not_exist_has_their_fill_value() {
    let folder = tempfile::tempdir().unwrap();
    write_zarr(folder.path(), 15, true);
    fs::remove_file(folder.path().join("1.0")).unwrap();
    let opened = open_with("zarr", folder.path(), "dataset.windows = { length = 5 }").unwrap();
    let found: Vec<_> = (0..3).map(|id| values(&opened, id)).collect();
    assert_eq!(found, [[rows(0, 5)], [vec![0; 20]], [rows(10, 15)]]);
}

#[test]
fn array_of_a_group_may_be_named_array() {
    let folder = tempfile::tempdir().unwrap();
    write_zarr(&folder.path().join("array"), 10, true);
    write_aged(&folder.path().join(".zgroup"), br#"{"zarr_format": 2}"#);
    for fields in ["", ", fields = { array = {} }"] {
        let keys = format!("dataset.windows = {{ length = 4{fields} }}");
        assert_eq!(values(&open_with("zarr", folder.path(), &keys).unwrap(), 1), [rows(4, 8)]);
    }
}

#[test]
fn bad_chunk_of_by_is_named_and_read_within_the_limit() {
    let folder = tempfile::tempdir().unwrap();
    write_zarr(&folder.path().join("x"), 15, true);
    write_zarr(&folder.path().join("id"), 15, true);
    write_aged(&folder.path().join(".zgroup"), br#"{"zarr_format": 2}"#);
    let keys = "dataset.windows = { length = 1, by = \"id\" }";
    write_aged(&folder.path().join("id/1.0"), &[7; 4096]);
    let message = refused("zarr", folder.path(), keys);
    assert!(message.contains("id/1.0"), "{message}");
    let mut config = with(&config_for("zarr", folder.path()), keys);
    config.limits.sample_bytes = 1024;
    let message = crate::open(&config, OpenOptions::default()).unwrap_err().to_string();
    assert!(message.contains("id/1.0") && message.contains("sample_bytes"), "{message}");
}

#[test]
fn long_rows_of_by_are_refused_before_they_are_read() {
    let folder = tempfile::tempdir().unwrap();
    write_zarr(&folder.path().join("x"), 2, true);
    // Chunks that do not exist take no room in files.
    let text = r#"{"zarr_format": 2, "shape": [2, 70368744177664], "chunks": [1, 1048576], "dtype": "|u1",
        "compressor": null, "fill_value": 0, "order": "C", "filters": null}"#;
    write_aged(&folder.path().join("id/.zarray"), text.as_bytes());
    write_aged(&folder.path().join(".zgroup"), br#"{"zarr_format": 2}"#);
    let message = refused("zarr", folder.path(), "dataset.windows = { length = 1, by = \"id\" }");
    assert!(message.contains("rows have 70368744177664 bytes"), "{message}");
}

#[test]
fn column_of_many_chunks_is_read_in_pieces() {
    let folder = tempfile::tempdir().unwrap();
    write_zarr(&folder.path().join("x"), 3000, true);
    write_zarr(&folder.path().join("id"), 3000, true);
    write_aged(&folder.path().join(".zgroup"), br#"{"zarr_format": 2}"#);
    let keys = "dataset.windows = { length = 1, by = \"id\" }";
    let opened = open_with("zarr", folder.path(), keys).unwrap();
    assert_eq!(opened.dataset.sample_count(), 3000);
    assert_eq!(values(&opened, 2999), [rows(2999, 3000)]);
}

#[test]
fn arrays_of_too_many_chunks_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let text = r#"{"zarr_format": 2, "shape": [1099511627776], "chunks": [1], "dtype": "<i2", "compressor": null,
        "fill_value": 0, "order": "C", "filters": null}"#;
    write_aged(&folder.path().join(".zarray"), text.as_bytes());
    let message = refused("zarr", folder.path(), PAIRS);
    assert!(message.contains("at most 1099511627776"), "{message}");
}

#[test]
fn extension_is_in_letters_of_either_case() {
    let folder = tempfile::tempdir().unwrap();
    write_rows(&folder.path().join("X.NPY"), 0, 4);
    write_ids(&folder.path().join("episode.NPY"), &[1, 1, 2, 2]);
    let opened =
        open_with("npy", folder.path(), "dataset.windows = { length = 2, by = \"episode\" }")
            .unwrap();
    assert_eq!(opened.dataset.sample_count(), 2);
    assert_eq!(values(&opened, 1), [rows(2, 4)]);
    write_rows(&folder.path().join("X.npy"), 0, 4);
    let message =
        refused("npy", folder.path(), "dataset.windows = { length = 2, fields = { X = {} } }");
    assert!(message.contains("\"X.NPY\" and \"X.npy\" are both the array"), "{message}");
}

#[test]
fn changed_metadata_are_noticed_also_behind_a_url() {
    for open in EVERYWHERE {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("data");
        let config = with(&config_for("zarr", &root), "dataset.windows = { length = 5 }");
        write_zarr(&root, 5, true);
        assert_eq!(open(&config, OpenOptions::default()).unwrap().dataset.sample_count(), 1);
        assert!(open(&config, OpenOptions::default()).unwrap().report.reused);
        write_zarr(&root, 15, true);
        let opened = open(&config, OpenOptions::default()).unwrap();
        assert_eq!(opened.dataset.sample_count(), 3);
        assert_eq!(values(&opened, 2), [rows(10, 15)]);
    }
}

use std::fs;
use std::path::{Path, PathBuf};

use forebay_keys::Section;

use crate::conformance::{self, Format};
use crate::testing::{
    CACHED_EVERYWHERE, EVERYWHERE, compress_files, config_for, names, own_keys, sample, write_aged,
};
use crate::{open, recognize};
use forebay_dataset::{DatasetError, FieldKind, OpenOptions, Opened};

/// The bytes of a shard of such records.
fn shard(config: &str, records: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = u32::try_from(records.len()).unwrap().to_le_bytes().to_vec();
    let mut end = 4 * (records.len() + 2) + config.len();
    for length in [0].into_iter().chain(records.iter().map(Vec::len)) {
        end += length;
        bytes.extend(u32::try_from(end).unwrap().to_le_bytes());
    }
    bytes.extend(config.as_bytes());
    bytes.extend(records.concat());
    bytes
}

fn record(number: usize, are_all_sized: bool) -> Vec<u8> {
    let text = format!("text {number}");
    let label = i64::try_from(number).unwrap().to_le_bytes();
    let image = vec![u8::try_from(number).unwrap(); 30 + number];
    let sizes = match are_all_sized {
        true => vec![image.len(), label.len(), text.len()],
        false => vec![image.len(), text.len()],
    };
    let sizes = sizes.iter().flat_map(|size| u32::try_from(*size).unwrap().to_le_bytes());
    sizes.chain(image.iter().copied()).chain(label).chain(text.bytes()).collect()
}

fn mds(root: &Path, count: usize) -> PathBuf {
    let columns = r#""column_names": ["image", "label", "text"], "column_encodings": ["jpeg", "int", "str"], "column_sizes": [null, 8, null]"#;
    let records: Vec<_> = (0..count).map(|number| record(number, false)).collect();
    let mut shards = Vec::new();
    for (place, records) in records.chunks(count.div_ceil(3)).enumerate() {
        let name = format!("shard.{place:05}.mds");
        let bytes = shard("{\"format\": \"mds\"}", records);
        shards.push(format!(
            r#"{{{columns}, "compression": null, "format": "mds", "hashes": [], "raw_data": {{"basename": "{name}", "bytes": {}, "hashes": {{}}}}, "samples": {}, "version": 2, "zip_data": null}}"#,
            bytes.len(),
            records.len()
        ));
        write_aged(&root.join(name), &bytes);
    }
    let index = format!(r#"{{"version": 2, "shards": [{}]}}"#, shards.join(","));
    write_aged(&root.join("index.json"), index.as_bytes());
    root.to_owned()
}

const LIT_SPEC: &str = r#"[1, {"type": "builtins.dict", "context": "[\"image\", \"label\", \"text\"]", "children_spec": [{"type": null, "context": null, "children_spec": []}, {"type": null, "context": null, "children_spec": []}, {"type": null, "context": null, "children_spec": []}]}]"#;

pub(super) fn litdata(root: &Path, count: usize) -> PathBuf {
    let records: Vec<_> = (0..count).map(|number| record(number, true)).collect();
    let mut chunks = Vec::new();
    for (place, records) in records.chunks(count.div_ceil(3)).enumerate() {
        let name = format!("chunk-0-{place}.bin");
        let bytes = shard("", records);
        chunks.push(format!(
            r#"{{"chunk_bytes": {}, "chunk_size": {}, "dim": null, "filename": "{name}"}}"#,
            bytes.len(),
            records.len()
        ));
        write_aged(&root.join(name), &bytes);
    }
    let spec = serde_json::to_string(LIT_SPEC).unwrap();
    let index = format!(
        r#"{{"chunks": [{}], "config": {{"chunk_bytes": 1, "chunk_size": null, "compression": null, "data_format": ["jpeg", "int", "str"], "data_spec": {spec}, "encryption": null, "item_loader": "PyTreeLoader"}}, "updated_at": "0"}}"#,
        chunks.join(",")
    );
    write_aged(&root.join("index.json"), index.as_bytes());
    root.to_owned()
}

fn compressed_mds(root: &Path, count: usize) -> PathBuf {
    mds(root, count);
    compress_files(root, ".mds", |name| format!("{name}.zstd"));
    let text = fs::read_to_string(root.join("index.json")).unwrap();
    let mut index: serde_json::Value = serde_json::from_str(&text).unwrap();
    for shard in index["shards"].as_array_mut().unwrap() {
        let name = format!("{}.zstd", shard["raw_data"]["basename"].as_str().unwrap());
        shard["compression"] = "zstd:3".into();
        shard["zip_data"] = serde_json::json!({ "basename": name, "bytes": 1, "hashes": {} });
    }
    write_aged(&root.join("index.json"), index.to_string().as_bytes());
    root.to_owned()
}

fn compressed_litdata(root: &Path, count: usize) -> PathBuf {
    litdata(root, count);
    let rename = |name: &str| name.replace(".bin", ".zstd.bin");
    compress_files(root, ".bin", rename);
    let text = fs::read_to_string(root.join("index.json")).unwrap();
    let text = rename(&text).replace("\"compression\": null", "\"compression\": \"zstd\"");
    write_aged(&root.join("index.json"), text.as_bytes());
    root.to_owned()
}

#[test]
fn compressed_shards_of_records_conform_with_a_cache() {
    let folder = tempfile::tempdir().unwrap();
    compressed_mds(folder.path(), 3);
    let unsaid = config_for("auto", folder.path());
    assert_eq!(recognize(&unsaid, OpenOptions::default()).unwrap(), "mds");
    for (name, make) in [("mds", compressed_mds as _), ("litdata", compressed_litdata as _)] {
        for open in CACHED_EVERYWHERE {
            let (has_names, refuses_cuts) = (true, true);
            conformance::run(&Format { open, name, make, has_names, refuses_cuts });
        }
    }
}

#[test]
fn shards_of_records_conform_on_disk_and_from_urls() {
    for (name, make) in [("mds", mds as fn(&Path, usize) -> PathBuf), ("litdata", litdata)] {
        for open in EVERYWHERE {
            let (has_names, refuses_cuts) = (true, true);
            conformance::run(&Format { open, name, make, has_names, refuses_cuts });
        }
    }
}

#[test]
fn text_rows_have_the_length_of_the_longest_text_not_of_the_record() {
    for (name, make) in [("mds", mds as fn(&Path, usize) -> PathBuf), ("litdata", litdata)] {
        let longest = EVERYWHERE.map(|open| {
            let folder = tempfile::tempdir().unwrap();
            let data = make(&folder.path().join("data"), 12);
            let opened = open(&config_for(name, &data), OpenOptions::default()).unwrap();
            opened.dataset.max_row_bytes(2)
        });
        // From URLs, the sizes are not read: the bound of a text is the longest record less the minimum of its other
        // parts.
        let beside_nothing = Some(7 + 30 + 11 + if name == "mds" { 0 } else { 8 });
        assert_eq!(longest, [Some(7), beside_nothing, beside_nothing], "{name}");
    }
}

pub(super) fn open_with(format: &str, folder: &Path, own: Section) -> Result<Opened, DatasetError> {
    let mut config = config_for(format, folder);
    config.index = Some(folder.with_extension("index"));
    config.own = own;
    open(&config, OpenOptions::default())
}

/// A copy of a fixture that a format's own writer has written.
pub(super) fn written(name: &str) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    for entry in
        fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(name)).unwrap()
    {
        let path = entry.unwrap().path();
        write_aged(&data.join(path.file_name().unwrap()), &fs::read(&path).unwrap());
    }
    (folder, data)
}

#[test]
fn shards_written_by_mosaicml_are_read() {
    let (_folder, data) = written("mds");
    let opened = open_with("mds", &data, Section::default()).unwrap();
    let fields: Vec<_> = opened.dataset.fields().iter().map(|field| &field.name[..]).collect();
    let expected = [
        "count", "fixed", "free", "half", "image", "info", "label", "raw", "score", "small",
        "text", "typed",
    ];
    assert_eq!(fields, expected);
    assert!(opened.report.warnings[0].contains("blob (it is pickled"), "{:?}", opened.report);
    assert_eq!(opened.dataset.sample_count(), 7);
    for number in 0..7 {
        let values = sample(&opened, number).unwrap();
        let expected = [
            10_u64.pow(u32::try_from(number).unwrap()).to_string(),
            "I16 [2, 2]".to_owned(),
            format!("U8 [{}, 3]", number + 1),
            format!("{} F16", number as f64 / 2.0),
            format!("image {}", 2 + 5 + number),
            format!("{:?}", format!("{{\"caption\": \"no {number}\", \"n\": {number}}}")),
            format!("{}", -number.cast_signed()),
            format!("{:?}", (0..number).collect::<Vec<_>>()),
            format!("{} F32", number as f64 / 4.0),
            (60_000 + number).to_string(),
            format!("{:?}", "ü".repeat(usize::try_from(number).unwrap())),
            format!("F32 [{}]", number + 1),
        ];
        assert_eq!(values, expected);
    }
    assert_eq!(names(&opened)[3], "shard.00001.mds/0");
    // Other fields, and fields that are refused.
    let own = |fields: &str| own_keys(&format!("[dataset.fields]\n{fields}"));
    let opened = open_with("mds", &data, own("c = { from = \"info:caption\" }\nn = { from = \"info:n\", as = \"integer\" }\nx = { from = \"label\", as = \"float\" }")).unwrap();
    assert_eq!(sample(&opened, 2).unwrap(), ["\"no 2\"", "2", "-2"]);
    for (fields, reason) in [
        (
            "x = { from = \"blob\" }",
            "the column blob of dataset.fields.x is not read: it is pickled",
        ),
        ("x = { from = \"lable\" }", "no column lable for dataset.fields.x; it has blob, count"),
        ("x = { from = \"text\", as = \"image\" }", "cannot be what `as` says"),
        ("x = { from = [\"text\", \"raw\"] }", "is one column"),
    ] {
        let message = open_with("mds", &data, own(fields)).unwrap_err().to_string();
        assert!(message.contains(reason), "{message}");
    }
}

#[test]
fn chunks_written_by_litdata_are_read() {
    let (_folder, data) = written("litdata");
    let opened = open_with("litdata", &data, Section::default()).unwrap();
    let fields: Vec<_> = opened.dataset.fields().iter().map(|field| &field.name[..]).collect();
    assert_eq!(fields, ["file", "label", "score", "text", "flat", "deep", "line", "tensor"]);
    for number in 0..7 {
        let values = sample(&opened, number).unwrap();
        let expected = [
            format!("{:?}", vec![number; 5]),
            number.to_string(),
            (number as f64 / 4.0).to_string(),
            format!("{:?}", "ü".repeat(usize::try_from(number).unwrap())),
            format!("I16 [{}]", number + 1),
            format!("U8 [2, {}]", number + 1),
            "F32 [3]".to_owned(),
            "I64 [1, 2]".to_owned(),
        ];
        assert_eq!(values, expected);
    }
}

#[test]
fn litdata_lists_and_dicts_become_json_text() {
    let (_folder, data) = written("litdata-nested");
    let opened = open_with("litdata", &data, Section::default()).unwrap();
    let fields: Vec<_> = opened.dataset.fields().iter().map(|field| &field.name[..]).collect();
    let names = ["numbers", "words", "scores", "flags", "mixed", "records", "empty", "x"];
    assert_eq!(fields, names);
    for i in 0..7 {
        let values = sample(&opened, i).unwrap();
        let text = |json: String| format!("{json:?}");
        let expected = [
            text(format!("[{i},{}]", i as i64 - 10)),
            text(format!("[\"a\",\"{}\"]", "ü".repeat(usize::try_from(i).unwrap()))),
            text(format!("[{:?},0.5]", i as f64 / 4.0)),
            text(format!("[true,{}]", i == 0)),
            text(format!("[1,{{\"z\":{i}}},null,\"q\\\"q\"]")),
            text(format!(
                "[{{\"start\":{:?},\"word\":\"w\"}},{{\"start\":2.5,\"word\":null}}]",
                i as f64 / 2.0
            )),
            text("[]".to_owned()),
            "I16 [2]".to_owned(),
        ];
        assert_eq!(values, expected);
    }
}

#[test]
fn litdata_rows_in_arrow_are_read() {
    let (_folder, data) = written("litdata-rows");
    let opened = open_with("litdata", &data, Section::default()).unwrap();
    let fields: Vec<_> = opened.dataset.fields().iter().map(|field| &field.name[..]).collect();
    assert_eq!(fields, ["image", "label", "caption", "score", "flag", "ids"]);
    for i in 0..7 {
        let values = sample(&opened, i).unwrap();
        assert_eq!(values[0], format!("image {}", 8 + i));
        assert_eq!(values[1], (-i64::try_from(i).unwrap()).to_string());
        assert_eq!(values[2], format!("{:?}", "ü".repeat(usize::try_from(i).unwrap())));
        assert_eq!(values[5], format!("I64 [{i}]"));
    }
    let again = open_with("litdata", &data, Section::default()).unwrap();
    assert!(again.report.reused);
    // The bytes come from their offset in the chunk, not from the same offset in its rows.
    let raw = open_with(
        "litdata",
        &data,
        own_keys("[dataset.fields]\nraw = { from = \"image\", as = \"bytes\" }"),
    )
    .unwrap();
    for i in 0..7 {
        let image = [&[255, 216, 255][..], &vec![i; 5 + usize::try_from(i).unwrap()]].concat();
        assert_eq!(sample(&raw, i).unwrap(), [format!("{image:?}")]);
    }
    // Truncated rows, a chunk of another kind, and a length past the chunk are reported.
    let chunk = data.join("chunk-0-1.bin");
    let whole = fs::read(&chunk).unwrap();
    let beyond = [&whole[..whole.len() - 12], &[0xff; 4], &whole[whole.len() - 8..]].concat();
    for (bytes, reason) in [
        (&whole[..whole.len() - 1], "it has no rows of Arrow, and other chunks"),
        (&beyond[..], "its rows are to have 4294967295 bytes"),
    ] {
        write_aged(&chunk, bytes);
        let message = open_with("litdata", &data, Section::default()).unwrap_err().to_string();
        assert!(message.contains("chunk-0-1.bin: ") && message.contains(reason), "{message}");
    }
}

#[test]
fn parquet_files_that_litdata_indexed_are_read_in_its_order() {
    let (_folder, data) = written("litdata-parquet");
    fs::write(data.join("c.parquet"), "not in the index").unwrap();
    for reused in [false, true] {
        let opened = open_with("litdata", &data, Section::default()).unwrap();
        let fields: Vec<_> = opened.dataset.fields().iter().map(|field| &field.name[..]).collect();
        assert_eq!(fields, ["image", "label", "caption", "score", "flag"]);
        assert_eq!((opened.dataset.sample_count(), opened.report.reused), (7, reused));
        for i in 0..7 {
            let values = sample(&opened, i).unwrap();
            assert_eq!(values[0], format!("image {}", 8 + i));
            assert_eq!(values[1], (-i64::try_from(i).unwrap()).to_string());
            assert_eq!(values[2], format!("{:?}", "ü".repeat(usize::try_from(i).unwrap())));
        }
    }
    let lists = own_keys("[dataset.fields]\nids = { from = \"ids\", as = \"array\" }");
    let opened = open_with("litdata", &data, lists).unwrap();
    for i in 0..7 {
        assert_eq!(sample(&opened, i).unwrap(), [format!("I64 [{i}]")]);
    }
    fs::remove_file(data.join("a.parquet")).unwrap();
    let message = open_with("litdata", &data, Section::default()).unwrap_err().to_string();
    assert!(message.contains("a.parquet"), "{message}");
}

#[test]
fn compressed_litdata_rows_in_arrow_are_read() {
    let (_folder, data) = written("litdata-rows-zstd");
    let opened = open_with("litdata", &data, Section::default()).unwrap();
    let fields: Vec<_> = opened.dataset.fields().iter().map(|field| &field.name[..]).collect();
    assert_eq!(fields, ["text", "label", "short", "ids", "flag"]);
    assert_eq!(opened.dataset.sample_count(), 7);
    for i in 0..7 {
        let expected = [
            format!("{:?}", format!("text {i} ").repeat(40 * (usize::try_from(i).unwrap() + 1))),
            (-i64::try_from(i).unwrap()).to_string(),
            format!("\"row {i}\""),
            format!("I64 [{i}]"),
            (i > 3).to_string(),
        ];
        assert_eq!(sample(&opened, i).unwrap(), expected);
    }
    // Texts that are not kept in the index are ranges of their unpacked buffer, for which memory is planned.
    assert!(opened.dataset.page_bytes().is_some_and(|bytes| bytes > 2 * 5 * 7 * 40));
}

#[test]
fn images_that_litdata_read_from_paths_are_images() {
    let (_folder, data) = written("litdata-pictures");
    let opened = open_with("litdata", &data, Section::default()).unwrap();
    let kinds: Vec<_> = opened.dataset.fields().iter().map(|field| field.kind.clone()).collect();
    assert_eq!(kinds[..2], [FieldKind::EncodedImage, FieldKind::EncodedImage]);
    assert_eq!(opened.report.warnings, [""; 0]);
    let raw = "[dataset.fields]\na = { from = \"image\", as = \"bytes\" }\nb = { from = \"other\", as = \"bytes\" }";
    let raw = open_with("litdata", &data, own_keys(raw)).unwrap();
    for i in 0..7 {
        assert_eq!(sample(&opened, i).unwrap()[2], i.to_string());
        let bytes = sample(&raw, i).unwrap();
        assert!(bytes[0].starts_with("[255, 216, 255, "), "{bytes:?}");
        assert!(bytes[1].starts_with("[137, 80, 78, 71, "), "{bytes:?}");
    }
}

#[test]
fn broken_shards_and_descriptions_are_reported() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let number = |value: u32| value.to_le_bytes();
    for (place, bytes, reason) in [
        (0, number(14), "it has 14 samples, and 13 by index.json"),
        (4, number(20), "its first sample begins at byte 20, within its table of 60 bytes"),
        (8, number(u32::MAX), "its sample 0 lies from byte 77 to 4294967295"),
        (12, number(70), "its sample 1 lies from byte"),
    ] {
        mds(&data, 37);
        let path = data.join("shard.00000.mds");
        let mut shard = fs::read(&path).unwrap();
        shard[place..place + 4].copy_from_slice(&bytes);
        write_aged(&path, &shard);
        let message = open_with("mds", &data, Section::default()).unwrap_err().to_string();
        assert!(message.contains("shard.00000.mds: ") && message.contains(reason), "{message}");
    }
    mds(&data, 37);
    let whole = fs::read(data.join("shard.00001.mds")).unwrap();
    for length in [0, 3, 8, 59, 60, 100, whole.len() - 1] {
        write_aged(&data.join("shard.00001.mds"), &whole[..length]);
        let message = open_with("mds", &data, Section::default()).unwrap_err().to_string();
        assert!(message.contains("shard.00001.mds: it"), "{length}: {message}");
    }
    let edit = |from: &str, to: &str| {
        mds(&data, 37);
        let text = fs::read_to_string(data.join("index.json")).unwrap().replacen(from, to, 1);
        write_aged(&data.join("index.json"), text.as_bytes());
        open_with("mds", &data, Section::default()).unwrap_err().to_string()
    };
    for (from, to, reason) in [
        ("\"version\": 2, \"shards", "\"version\": 3, \"shards", "its version is 3, and 2 is read"),
        ("\"format\": \"mds\"", "\"format\": \"json\"", "is of the format \"json\""),
        ("shard.00000.mds", "../shard.mds", "which is no path within its folder"),
        ("shard.00000.mds", "/etc/passwd", "which is no path within its folder"),
        ("shard.00000.mds", "shard.00001.mds", "names it twice"),
        ("\"jpeg\"", "\"png\", \"int\"", "other numbers of encodings or sizes"),
        ("\"str\"", "\"bytes\"", "has other columns than the first one"),
        ("\"samples\": 13", "\"samples\": 9999999999999999999", "which is less than the table"),
        ("{\"version\"", "[{\"version\"", "is no index of MosaicML Streaming"),
    ] {
        let message = edit(from, to);
        assert!(message.contains(reason), "{reason}: {message}");
    }
    // Compressed shards are read if decompressed copies are in the folder.
    let text = mds(&data, 37).join("index.json");
    let text = fs::read_to_string(text)
        .unwrap()
        .replace("\"compression\": null", "\"compression\": \"zstd:3\"");
    write_aged(&data.join("index.json"), text.as_bytes());
    assert_eq!(open_with("mds", &data, Section::default()).unwrap().dataset.sample_count(), 37);
    fs::remove_file(data.join("shard.00002.mds")).unwrap();
    fs::remove_file(folder.path().join("data.index")).unwrap();
    let message = open_with("mds", &data, Section::default()).unwrap_err().to_string();
    assert!(
        message.contains("compressed (zstd:3)") && message.contains("unzstd --keep"),
        "{message}"
    );
}

#[test]
fn compressed_chunks_need_decompressed_copies_and_are_else_refused_with_the_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let index = litdata(&data, 37).join("index.json");
    let text = fs::read_to_string(&index).unwrap();
    // As litdata 0.2.76 writes it with compression_level "chunk": chunk-0-0.zstd.bin.
    let whole = text
        .replace("\"compression\": null", "\"compression\": \"zstd\"")
        .replace(".bin\"", ".zstd.bin\"");
    write_aged(&index, whole.as_bytes());
    assert_eq!(open_with("litdata", &data, Section::default()).unwrap().dataset.sample_count(), 37);
    fs::rename(data.join("chunk-0-1.bin"), data.join("chunk-0-1.zstd.bin")).unwrap();
    fs::remove_file(folder.path().join("data.index")).unwrap();
    let message = open_with("litdata", &data, Section::default()).unwrap_err().to_string();
    let remedy = "for f in *.zstd.bin; do unzstd \"$f\" -o \"${f%.zstd.bin}.bin\"; done";
    assert!(message.contains("compressed (zstd)") && message.contains(remedy), "{message}");
}

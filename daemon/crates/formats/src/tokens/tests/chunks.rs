use std::fs;
use std::path::{Path, PathBuf};

use forebay_keys::Value;
use forebay_protocol::ids::SampleId;
use forebay_protocol::tensor::DType;

use super::{length, open_at, own, text};
use crate::conformance::{self, Format};
use crate::open;
use crate::testing::{config_for, write_aged};
use forebay_dataset::{DatasetError, FieldValue, OpenOptions, Opened};
use forebay_storage::location::SampleBytes;

/// Chunks of 5 tokens, as two items: a row of 4 and the token that its last label is.
fn make(folder: &Path, count: usize) -> PathBuf {
    let mut chunks = Vec::new();
    for number in 0..u32::try_from(count).unwrap() {
        let tokens: Vec<u8> = (number..number + 5).flat_map(u32::to_le_bytes).collect();
        let end = 16 + u32::try_from(tokens.len()).unwrap();
        let table: Vec<u8> = [2, 16, 24, end].into_iter().flat_map(u32::to_le_bytes).collect();
        let name = format!("chunk-0-{number}.bin");
        write_aged(&folder.join(&name), &[table, tokens.clone()].concat());
        chunks.push(format!(
            r#"{{"chunk_bytes": {end}, "chunk_size": 2, "dim": {}, "filename": "{name}"}}"#,
            tokens.len() / 4
        ));
    }
    let index = format!(
        r#"{{"chunks": [{}], "config": {{"compression": null, "data_format": ["no_header_numpy:6"], "data_spec": null, "encryption": null, "item_loader": "TokensLoader"}}}}"#,
        chunks.join(", ")
    );
    write_aged(&folder.join("index.json"), index.as_bytes());
    folder.to_owned()
}

#[test]
fn chunks_of_tokens_conform() {
    for open in [open_at::<0>, open_at::<1>, open_at::<2>] {
        let (name, has_names, refuses_cuts) = ("tokens", true, true);
        // LitData's order is not that of the names.
        conformance::run_permuted(&Format { open, name, make, has_names, refuses_cuts });
    }
}

/// A copy of what LitData's writer has written.
fn fixture(name: &str) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures");
    for entry in fs::read_dir(fixtures.join(name)).unwrap() {
        let path = entry.unwrap().path();
        write_aged(&data.join(path.file_name().unwrap()), &fs::read(&path).unwrap());
    }
    (folder, data)
}

fn opened(data: &Path, keys: &[(&str, Value)]) -> Result<Opened, DatasetError> {
    let mut config = config_for("tokens", data);
    config.own = own(keys);
    open(&config, OpenOptions::default())
}

#[test]
fn what_litdatas_tokens_loader_reads_is_read_block_by_block() {
    for (name, dtype) in
        [("litdata-tokens-torch", DType::I32), ("litdata-tokens-numpy", DType::U16)]
    {
        let (_folder, data) = fixture(name);
        let keys = [length(4), ("labels", text("none"))];
        let opened = opened(&data, &keys).unwrap();
        // 18, 15 and 9 tokens: as many blocks as LitData has, and the same ones.
        let all: Vec<u64> = (0..7_u64).flat_map(|i| 100 * i..100 * i + 3 + i).collect();
        let (first, rest) = all.split_at(18);
        let (second, third) = rest.split_at(15);
        let blocks = [first, second, third].into_iter().flat_map(|tokens| tokens.chunks_exact(4));
        let blocks: Vec<Vec<u64>> = blocks.map(<[u64]>::to_vec).collect();
        assert_eq!(opened.dataset.sample_count(), blocks.len() as u64);
        for (id, block) in (0..).zip(&blocks) {
            let (mut locations, mut bytes, mut values) = (Vec::new(), Vec::new(), Vec::new());
            opened.dataset.locate(SampleId(id), &mut locations);
            let storage = opened.storage.as_ref();
            storage.read(opened.dataset.as_ref(), locations[0], u64::MAX, &mut bytes).unwrap();
            opened.dataset.read(SampleId(id), SampleBytes::new(&bytes, &[]), &mut values).unwrap();
            let FieldValue::Array(array) = &values[0] else { panic!("{values:?}") };
            assert_eq!(array.dtype, dtype);
            let width = usize::try_from(dtype.size_bytes()).unwrap();
            let found = array.bytes.chunks_exact(width).map(|bytes| {
                bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
            });
            assert_eq!(found.collect::<Vec<_>>(), *block);
        }
    }
}

#[test]
fn chunks_that_are_not_tokens_are_named_with_what_to_set() {
    let (_folder, data) = fixture("litdata-tokens-torch");
    let index = data.join("index.json");
    let whole = fs::read_to_string(&index).unwrap();
    for (from, to, reason) in [
        ("TokensLoader", "PyTreeLoader", "set dataset.format to \"litdata\""),
        ("no_header_tensor:16", "no_header_tensor:1", "are float32, and tokens are integers"),
        ("no_header_tensor:16", "bytes", "one array of integers"),
        ("\"compression\": null", "\"compression\": \"zstd\"", "its chunks are compressed (zstd)"),
        ("\"dim\": 18", "\"dim\": null", "does not say how many tokens"),
        ("\"dim\": 18", "\"dim\": 19", "has 96 bytes and 4 items, and by index.json 19 tokens"),
        ("\"chunk_size\": 4", "\"chunk_size\": 3", "by index.json 18 tokens of int32 in 3 items"),
        ("\"chunk_size\": 4", "\"chunk_size\": 18446744073709551615", "it is cut off, or"),
        ("chunk-0-0.bin", "../chunk-0-0.bin", "which is no file of its folder"),
        ("chunk-0-0.bin", "chunk-0-1.bin", "names it twice"),
    ] {
        write_aged(&index, whole.replacen(from, to, 1).as_bytes());
        let message = opened(&data, &[length(4)]).unwrap_err().to_string();
        assert!(message.contains(reason), "{message}");
    }
    write_aged(&index, whole.as_bytes());
    // And by the format of the other items.
    let mut config = config_for("litdata", &data);
    config.index = Some(data.with_extension("index"));
    let message = open(&config, OpenOptions::default()).unwrap_err().to_string();
    let remedy = "set dataset.format to \"tokens\", and dataset.tokens.length";
    assert!(message.contains(remedy), "{message}");
}

#[test]
fn listed_file_that_is_not_a_chunk_is_named() {
    let (folder, data) = fixture("litdata-tokens-torch");
    write_aged(&data.join("chunk-9-9.bin"), &[0; 64]);
    let ids = folder.path().join("ids.txt");
    let mut config = config_for("tokens", &data);
    config.own = own(&[length(4)]);
    config.ids = Some(ids.clone());
    fs::write(&ids, "chunk-0-0.bin\nchunk-9-9.bin\n").unwrap();
    let message = open(&config, OpenOptions::default()).unwrap_err().to_string();
    assert!(message.contains("\"chunk-9-9.bin\", which is not in index.json"), "{message}");
    fs::write(&ids, "chunk-0-0.bin\n").unwrap();
    assert!(open(&config, OpenOptions::default()).is_ok());
}

#[test]
fn document_index_of_raw_files_is_not_that_of_the_same_chunks() {
    let (folder, data) = fixture("litdata-tokens-numpy");
    let index = data.join("index.json");
    let list = fs::read(&index).unwrap();
    let mut config = config_for("tokens", &data);
    config.index = Some(folder.path().join("saved.index"));
    config.own = own(&[
        length(4),
        ("cut", text("concatenate")),
        ("end", Value::Integer(100)),
        ("dtype", text("uint16")),
    ]);
    let reused = || open(&config, OpenOptions::default()).unwrap().report.reused;
    fs::remove_file(&index).unwrap();
    assert_eq!([reused(), reused()], [false, true]);
    write_aged(&index, &list);
    assert!(!reused(), "tokens of a chunk begin after its table");
}

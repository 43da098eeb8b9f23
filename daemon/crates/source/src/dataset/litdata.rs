//! `litdata`: the chunks that LitData's `optimize` writes.
//!
//! A folder has an `index.json` that lists the chunks and the forms of an item's leaves. What is in a chunk is
//! [`records`]' part: this file knows the description and the names of forms.

use forebay_config::DatasetConfig;
use forebay_protocol::tensor::DType;
use serde::Deserialize;

use super::folder::scan::FolderFormat;
use super::opening::{OpenOptions, OpenedFormat};
use super::records::{self, ArrayForm, Column, Compression, Described, DescribedShard, Encoding};
use crate::storage::Storage;

/// What is read.
pub(super) const FORMAT: FolderFormat =
    FolderFormat { name: "litdata", extensions: &[], flat_is_valid: true };

/// The first chunk of every folder.
pub(super) const FIRST_CHUNKS: [&str; 2] = ["chunk-0-0.bin", "chunk-0-0.zstd.bin"];

/// Opens a folder of chunks.
pub(super) fn open(
    config: &DatasetConfig,
    storage: &dyn Storage,
    options: OpenOptions<'_>,
) -> OpenedFormat {
    records::open(config, storage, options, FORMAT, describe)
}

#[derive(Deserialize)]
struct Index {
    chunks: Vec<Chunk>,
    config: Config,
}

#[derive(Deserialize)]
struct Chunk {
    chunk_size: u64,
    filename: String,
}

#[derive(Deserialize)]
struct Config {
    compression: Option<String>,
    /// Of newer versions: where the compressed parts lie.
    compression_level: Option<String>,
    #[serde(default)]
    encryption: Option<serde_json::Value>,
    data_format: Vec<String>,
    /// PyTorch's description of the item: its type, the keys of a dict as JSON, and the same of its leaves.
    data_spec: Option<String>,
    item_loader: Option<String>,
}

/// Takes `index.json` apart.
///
/// # Errors
/// What is wrong with it.
pub(super) fn describe(text: &[u8]) -> Result<Described, String> {
    let index: Index = serde_json::from_slice(text)
        .map_err(|error| format!("it is no index of LitData: {error}"))?;
    let config = index.config;
    if config.encryption.is_some_and(|encryption| !encryption.is_null()) {
        return Err("its chunks are encrypted; write them without".to_owned());
    }
    if let Some(loader) = config.item_loader.filter(|loader| loader != "PyTreeLoader") {
        return Err(format!(
            "its items are those of {loader}, and those of PyTreeLoader are read; tokens can be written as .bin for the format tokens"
        ));
    }
    if let Some(level) = config.compression_level.filter(|level| level != "chunk") {
        return Err(format!(
            "its items are compressed within the chunks (compression_level \"{level}\"), and one cannot be read alone; write \
             them without `compression`"
        ));
    }
    let leaves = config.data_format.len();
    let names = config.data_spec.as_deref().and_then(|spec| leaf_names(spec, leaves));
    // A list's leaves, and others without names, are numbered.
    let names = names.unwrap_or_else(|| (0..leaves).map(|leaf| format!("field{leaf}")).collect());
    let columns = names.into_iter().zip(&config.data_format);
    let columns = columns
        .map(|(name, form)| Column { name, encoding: encoding_of(form), bytes: None })
        .collect();
    // A compressed chunk is `chunk-0-0.zstd.bin`, and `chunk-0-0.bin` where it lies there decompressed.
    let ending = config.compression.as_ref().map(|name| format!(".{name}.bin"));
    let shards = index.chunks.into_iter().map(|chunk| {
        let stem = ending.as_ref().and_then(|ending| chunk.filename.strip_suffix(ending.as_str()));
        let path = stem.map(|stem| format!("{stem}.bin"));
        let compression = ending.as_ref().zip(config.compression.as_ref());
        DescribedShard {
            path: path.unwrap_or_else(|| chunk.filename.clone()),
            samples: chunk.chunk_size,
            compression: compression.map(|(ending, name)| Compression {
                path: Some(chunk.filename),
                name: name.clone(),
                remedy: format!(
                    "for f in *{ending}; do unzstd \"$f\" -o \"${{f%{ending}}}.bin\"; done"
                ),
            }),
        }
    });
    Ok(Described { shards: shards.collect(), columns })
}

/// The keys of a dict of leaves.
fn leaf_names(spec: &str, leaves: usize) -> Option<Vec<String>> {
    let spec: serde_json::Value = serde_json::from_str(spec).ok()?;
    let node = spec.as_array()?.get(1)?;
    let is_leaf = |child: &serde_json::Value| {
        child.get("type").is_some_and(serde_json::Value::is_null)
            && child
                .get("children_spec")
                .and_then(|below| below.as_array())
                .is_none_or(Vec::is_empty)
    };
    let children = node.get("children_spec")?.as_array()?;
    if node.get("type")?.as_str()? != "builtins.dict" || !children.iter().all(is_leaf) {
        return None;
    }
    let keys: Vec<String> = serde_json::from_str(node.get("context")?.as_str()?).ok()?;
    (keys.len() == leaves).then_some(keys)
}

fn encoding_of(form: &str) -> Encoding {
    let unread = |why: &str| Encoding::Unread(why.to_owned());
    match form.split_once(':').unwrap_or((form, "")) {
        ("bytes" | "file", _) => Encoding::Bytes,
        ("str" | "text", "") => Encoding::Text,
        ("int", "") => Encoding::Number("int64".to_owned()),
        ("float", "") => Encoding::Number("float64".to_owned()),
        ("bool", "") => Encoding::Number("uint8".to_owned()),
        ("jpeg", "") => Encoding::Image,
        ("json", "") => Encoding::Json,
        ("numpy", "") => Encoding::Array(ArrayForm::Lit),
        ("tensor", "") => Encoding::Array(ArrayForm::LitTensor),
        ("no_header_numpy", code) => flat(code, records::lit_dtype),
        ("no_header_tensor", code) => flat(code, records::lit_tensor_dtype),
        ("pickle", _) => {
            unread("it is pickled, and pickles are never run; give numbers, text, arrays or bytes")
        }
        _ => Encoding::Unread(format!("its form is {form:?}; give numbers, text, arrays or bytes")),
    }
}

fn flat(code: &str, dtype: fn(u32) -> Option<DType>) -> Encoding {
    match code.parse().ok().and_then(dtype) {
        Some(dtype) => Encoding::Array(ArrayForm::Plain(dtype.name().to_owned(), None)),
        None => Encoding::Unread(format!("its elements are of the type {code}, which is not read")),
    }
}

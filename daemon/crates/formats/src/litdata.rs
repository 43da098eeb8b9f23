//! `litdata`: the chunks that LitData's `optimize` writes.
//!
//! A folder has an `index.json` that lists the chunks and the types of an item's leaves. This file parses the
//! description and the type names. [`records`](crate::records) reads chunks of records; chunks that are tables are read as
//! such ([`tables`]).

pub(crate) mod nested;

mod tables;
pub(crate) mod tokens;

use forebay_config::DatasetConfig;
use forebay_protocol::tensor::DType;
use serde::Deserialize;

use self::tables::TableChunks;
use crate::indexed;
use crate::records::{Compression, Described, DescribedShard, Description, Packing, Records};
use crate::tables::Tables;
use forebay_columnar::{ArrayForm, Column, Encoding, lit_dtype, lit_tensor_dtype};
use forebay_dataset::opening::{OpenOptions, OpenedFormat};
use forebay_index::folder::scan::{FolderFormat, LooseFiles};
use forebay_index::row_index::is_row_index;
use forebay_storage::Storage;

pub(super) const FORMAT: FolderFormat =
    FolderFormat { name: "litdata", extensions: &[], loose: LooseFiles::NoFolders };

/// Possible names of the first chunk. The compression's name includes its level, if one was given.
pub(super) const FIRST_CHUNKS: [&str; 24] = [
    "chunk-0-0.bin",
    "chunk-0-0.zstd.bin",
    "chunk-0-0.zstd:1.bin",
    "chunk-0-0.zstd:2.bin",
    "chunk-0-0.zstd:3.bin",
    "chunk-0-0.zstd:4.bin",
    "chunk-0-0.zstd:5.bin",
    "chunk-0-0.zstd:6.bin",
    "chunk-0-0.zstd:7.bin",
    "chunk-0-0.zstd:8.bin",
    "chunk-0-0.zstd:9.bin",
    "chunk-0-0.zstd:10.bin",
    "chunk-0-0.zstd:11.bin",
    "chunk-0-0.zstd:12.bin",
    "chunk-0-0.zstd:13.bin",
    "chunk-0-0.zstd:14.bin",
    "chunk-0-0.zstd:15.bin",
    "chunk-0-0.zstd:16.bin",
    "chunk-0-0.zstd:17.bin",
    "chunk-0-0.zstd:18.bin",
    "chunk-0-0.zstd:19.bin",
    "chunk-0-0.zstd:20.bin",
    "chunk-0-0.zstd:21.bin",
    "chunk-0-0.zstd:22.bin",
];

/// Opens a folder of chunks.
pub(super) fn open(
    config: &DatasetConfig,
    storage: &dyn Storage,
    options: OpenOptions<'_>,
) -> OpenedFormat {
    let are_tables = match options.previous_index {
        // A restart does not read the storage.
        Some(index) => is_row_index(index),
        None => tables::are_here(storage)?,
    };
    match are_tables {
        true => indexed::open::<Tables<TableChunks>>(config, storage, options),
        false => indexed::open::<Records<Chunks>>(config, storage, options),
    }
}

/// Whether an index of this dataset was saved.
pub(super) fn has_saved_index(
    config: &DatasetConfig,
    _format: FolderFormat,
    options: OpenOptions<'_>,
) -> bool {
    indexed::has_saved_index::<Records<Chunks>>(config, options)
        || indexed::has_saved_index::<Tables<TableChunks>>(config, options)
}

/// Chunks whose items are records.
#[derive(Debug)]
struct Chunks;

impl Description for Chunks {
    const FORMAT: FolderFormat = FORMAT;
    // 1: reads `image` and files of other types, which were left out before.
    const READING: &'static str = "1";

    /// Chunk names do not differ from names of other binary files.
    fn reads(_name: &[u8]) -> bool {
        false
    }

    fn describe(text: &[u8]) -> Result<Described, String> {
        describe(text)
    }
}

/// The file that describes a folder.
pub(crate) const INDEX: &str = "index.json";
/// Real files are smaller.
pub(crate) const MAX_INDEX_BYTES: u64 = 256 << 20;

#[derive(Deserialize)]
struct Index {
    chunks: Vec<Chunk>,
    config: Config,
}

#[derive(Deserialize)]
struct Chunk {
    chunk_size: u64,
    /// The number of tokens; for chunks of tokens only.
    #[serde(default)]
    dim: Option<u64>,
    filename: String,
}

#[derive(Deserialize)]
struct Config {
    compression: Option<String>,
    /// What is compressed; written by newer versions.
    compression_level: Option<String>,
    #[serde(default)]
    encryption: Option<serde_json::Value>,
    data_format: Vec<String>,
    /// PyTorch's description of the item: its type, the keys of a dict as JSON, and the same for its leaves.
    data_spec: Option<String>,
    item_loader: Option<String>,
    /// The types of the values, if items may be rows of Arrow; written by newer versions.
    #[serde(default)]
    types: Option<serde_json::Value>,
}

/// Parses `index.json`.
///
/// # Errors
/// Describes the fault.
pub(super) fn describe(text: &[u8]) -> Result<Described, String> {
    let index: Index = serde_json::from_slice(text)
        .map_err(|error| format!("it is no index of LitData: {error}"))?;
    let config = index.config;
    if config.encryption.is_some_and(|encryption| !encryption.is_null()) {
        return Err("its chunks are encrypted; write them without".to_owned());
    }
    match config.item_loader.as_deref() {
        None | Some("PyTreeLoader") => {}
        Some(tokens::LOADER) => {
            return Err(format!(
                "its items are tokens ({}); set dataset.format to \"tokens\", and dataset.tokens.length to what is the block_size \
                 of LitData's loader",
                tokens::LOADER
            ));
        }
        Some(loader) => {
            return Err(format!(
                "its items are those of {loader}, and those of PyTreeLoader and {} are read; write them with one of these",
                tokens::LOADER
            ));
        }
    }
    let packing = packing_of(config.compression_level.as_deref(), config.compression.as_deref())?;
    let leaves = config.data_format.len();
    let names = config.data_spec.as_deref().and_then(|spec| leaf_names(spec, leaves));
    // Leaves without names are numbered.
    let names = names.unwrap_or_else(|| (0..leaves).map(|leaf| format!("field{leaf}")).collect());
    let columns = names.into_iter().zip(&config.data_format);
    let columns = columns
        .map(|(name, form)| Column { name, encoding: encoding_of(form), bytes: None })
        .collect();
    // A compressed chunk is `chunk-0-0.zstd.bin`; a decompressed copy of it is `chunk-0-0.bin`.
    let of_chunks = config.compression.as_ref().filter(|_| packing == Packing::Plain);
    let ending = of_chunks.map(|name| format!(".{name}.bin"));
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
    Ok(Described { shards: shards.collect(), columns, packing })
}

/// How items are compressed within the chunks, by `compression_level` and `compression`.
fn packing_of(level: Option<&str>, codec: Option<&str>) -> Result<Packing, String> {
    let packing = match level {
        None | Some("chunk") => return Ok(Packing::Plain),
        Some("batch") => Packing::ByFrame,
        Some("sample") => Packing::ByRecord,
        Some(other) => {
            return Err(format!(
                "its compression_level is {other:?}, and \"chunk\", \"batch\" and \"sample\" are read; write it with one of these"
            ));
        }
    };
    match codec.and_then(|codec| codec.split(':').next()) {
        Some("zstd") => Ok(packing),
        _ => Err(format!(
            "its items are compressed by {}, and those by zstd are read; write them with compression=\"zstd\"",
            codec.unwrap_or("a codec that it does not name")
        )),
    }
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
        // Unchanged bytes of files.
        ("bytes" | "file" | "audio" | "video" | "nifti" | "mesh" | "pdf", _) => Encoding::Bytes,
        ("str" | "text", "") => Encoding::Text,
        ("int", "") => Encoding::Number("int64".to_owned()),
        ("float", "") => Encoding::Number("float64".to_owned()),
        ("bool", "") => Encoding::Number("uint8".to_owned()),
        ("jpeg", "") | ("image" | "tiff" | "tifffile", _) => Encoding::Image,
        ("json", "") => Encoding::Nested,
        ("numpy", "") => Encoding::Array(ArrayForm::Lit),
        ("tensor", "") => Encoding::Array(ArrayForm::LitTensor),
        ("no_header_numpy", code) => flat(code, lit_dtype),
        ("no_header_tensor", code) => flat(code, lit_tensor_dtype),
        ("pil", _) => unread(
            "it is the pixels of a PIL picture; give the path or the bytes of its file, or numpy.asarray(picture)",
        ),
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

//! `mds`: the shards that MosaicML Streaming writes.
//!
//! A folder has an `index.json` that lists the shards and their columns. This file parses the description and the names
//! of encodings; [`records`] reads the shards.

use serde::Deserialize;

use crate::records::{self, Compression, Described, DescribedShard, Description, Packing};
use forebay_columnar::{ArrayForm, Column, Encoding};
use forebay_index::folder::scan::{FolderFormat, LooseFiles};
use forebay_index::shard_paths::has_extension;

/// Folders of shards.
#[derive(Debug)]
pub(super) struct Mds;

impl Description for Mds {
    const FORMAT: FolderFormat =
        FolderFormat { name: "mds", extensions: &[".mds"], loose: LooseFiles::NoFolders };

    fn reads(name: &[u8]) -> bool {
        let packed = name.rsplitn(2, |byte| *byte == b'.').nth(1).unwrap_or_default();
        [name, packed].iter().any(|name| has_extension(name, Self::FORMAT.extensions))
    }

    fn describe(text: &[u8]) -> Result<Described, String> {
        describe(text)
    }
}

#[derive(Deserialize)]
struct Index {
    version: u64,
    shards: Vec<Shard>,
}

#[derive(Deserialize)]
struct Shard {
    #[serde(default)]
    column_encodings: Vec<String>,
    #[serde(default)]
    column_names: Vec<String>,
    #[serde(default)]
    column_sizes: Vec<Option<u64>>,
    compression: Option<String>,
    format: String,
    raw_data: RawData,
    samples: u64,
    /// The compressed file.
    zip_data: Option<RawData>,
}

#[derive(Deserialize)]
struct RawData {
    basename: String,
}

/// Parses `index.json`.
///
/// # Errors
/// Describes the fault.
pub(super) fn describe(text: &[u8]) -> Result<Described, String> {
    let index: Index = serde_json::from_slice(text)
        .map_err(|error| format!("it is no index of MosaicML Streaming: {error}"))?;
    if index.version != 2 {
        return Err(format!("its version is {}, and 2 is read", index.version));
    }
    let mut columns: Option<Vec<Column>> = None;
    let mut shards = Vec::with_capacity(index.shards.len());
    for shard in index.shards {
        let path = shard.raw_data.basename;
        if shard.format != "mds" {
            return Err(format!(
                "its shard {path} is of the format {:?}, and \"mds\" is read; write it with MDSWriter",
                shard.format
            ));
        }
        let count = shard.column_names.len();
        if shard.column_encodings.len() != count || shard.column_sizes.len() != count {
            return Err(format!(
                "its shard {path} has {count} names of columns and other numbers of encodings or sizes"
            ));
        }
        let names =
            shard.column_names.into_iter().zip(shard.column_encodings).zip(shard.column_sizes);
        let own: Vec<Column> = names
            .map(|((name, encoding), bytes)| {
                // A size of 0 means that the size varies, as in Streaming's own reader.
                Column {
                    name,
                    encoding: encoding_of(&encoding),
                    bytes: bytes.filter(|bytes| *bytes > 0),
                }
            })
            .collect();
        match &columns {
            Some(columns) if *columns != own => {
                return Err(format!(
                    "its shard {path} has other columns than the first one; write all with the same"
                ));
            }
            Some(_) => {}
            None => columns = Some(own),
        }
        shards.push(DescribedShard {
            path,
            samples: shard.samples,
            compression: shard
                .compression
                .map(|name| compression_of(name, shard.zip_data.map(|packed| packed.basename))),
        });
    }
    let columns = columns.unwrap_or_default();
    Ok(Described { shards, columns, packing: Packing::Plain })
}

/// The compression algorithms of Streaming, with an optional level as in `zstd:3`.
fn compression_of(name: String, path: Option<String>) -> Compression {
    let remedy = match name.split(':').next().unwrap_or_default() {
        "zstd" => "unzstd --keep *.zstd",
        "gz" => "gunzip --keep *.gz",
        "bz2" => "bunzip2 --keep *.bz2",
        "br" => "brotli --decompress *.br",
        "snappy" => {
            "python3 -c 'import glob, snappy; [open(name[:-7], \"wb\").write(snappy.decompress(open(name, \"rb\").read())) for name in glob.glob(\"*.snappy\")]'"
        }
        _ => "write them again without `compression`",
    };
    Compression { path, name, remedy: remedy.to_owned() }
}

fn encoding_of(name: &str) -> Encoding {
    match name {
        "bytes" => Encoding::Bytes,
        "str" => Encoding::Text,
        "int" => Encoding::Number("int64".to_owned()),
        "jpeg" | "png" => Encoding::Image,
        "json" => Encoding::Json,
        "str_int" => Encoding::IntegerText,
        "str_float" => Encoding::FloatText,
        "str_decimal" => Encoding::Text,
        "pkl" => Encoding::Unread(
            "it is pickled, and pickles are never run; write it as json, ndarray or bytes"
                .to_owned(),
        ),
        name if records::is_number(name) => Encoding::Number(name.to_owned()),
        name => array_of(name).map_or_else(
            || {
                Encoding::Unread(format!(
                    "its encoding is {name:?}; write it as jpeg, png, ndarray, json or bytes"
                ))
            },
            Encoding::Array,
        ),
    }
}

/// `ndarray`, `ndarray:DTYPE` or `ndarray:DTYPE:SHAPE`.
fn array_of(name: &str) -> Option<ArrayForm> {
    let mut parts = name.split(':');
    if parts.next() != Some("ndarray") {
        return None;
    }
    let dtype = match parts.next() {
        None => return Some(ArrayForm::Mosaic(None)),
        Some(dtype) => records::is_number(dtype).then(|| dtype.to_owned())?,
    };
    match (parts.next(), parts.next()) {
        (None, _) => Some(ArrayForm::Mosaic(Some(dtype))),
        (Some(shape), None) => {
            let shape =
                shape.split(',').map(|dimension| dimension.parse().ok()).collect::<Option<_>>()?;
            Some(ArrayForm::Plain(dtype, Some(shape)))
        }
        _ => None,
    }
}

//! Shards of MosaicML Streaming and of LitData: records of an image and a label, each shard with a table of their
//! offsets.

use std::fs;
use std::io;
use std::path::Path;

use serde_json::json;

/// The writer of the shards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Writer {
    /// `MDSWriter` of MosaicML Streaming.
    Mosaic,
    /// `BinaryWriter` of LitData.
    Lit,
}

/// The number of records, their offsets and the last one's end, and the records.
fn shard(before: &[u8], records: &[Vec<u8>]) -> Vec<u8> {
    let narrow = |number: usize| u32::try_from(number).unwrap_or(u32::MAX).to_le_bytes();
    let mut bytes = narrow(records.len()).to_vec();
    let mut end = 4 * (records.len() + 2) + before.len();
    bytes.extend(narrow(end));
    for record in records {
        end += record.len();
        bytes.extend(narrow(end));
    }
    bytes.extend(before);
    records.iter().for_each(|record| bytes.extend(record));
    bytes
}

/// Packs a folder of class folders into shards of a fixed number of records: `image`, and `label`, the class's number.
///
/// # Errors
/// A system error.
pub fn pack_classes(
    folder: &Path,
    target: &Path,
    records_each: usize,
    writer: Writer,
) -> io::Result<()> {
    fs::create_dir_all(target)?;
    let files = crate::class_folders::files(folder)?;
    let mut shards = Vec::new();
    for (number, files) in files.chunks(records_each.max(1)).enumerate() {
        let mut records = Vec::new();
        for (label, name) in files {
            let image = fs::read(folder.join(name))?;
            let label = i64::try_from(*label).unwrap_or(0).to_le_bytes();
            let size = u32::try_from(image.len()).unwrap_or(u32::MAX).to_le_bytes();
            let sizes = match writer {
                // Records do not contain the size of a column with values of one length.
                Writer::Mosaic => size.to_vec(),
                Writer::Lit => [size, 8_u32.to_le_bytes()].concat(),
            };
            records.push([&sizes[..], &image, &label].concat());
        }
        let (name, bytes) = match writer {
            Writer::Mosaic => {
                (format!("shard.{number:05}.mds"), shard(b"{\"format\": \"mds\"}", &records))
            }
            Writer::Lit => (format!("chunk-0-{number}.bin"), shard(b"", &records)),
        };
        fs::write(target.join(&name), &bytes)?;
        shards.push(match writer {
            Writer::Mosaic => json!({
                "column_names": ["image", "label"], "column_encodings": ["jpeg", "int"], "column_sizes": [null, 8],
                "compression": null, "format": "mds", "hashes": [], "samples": records.len(), "version": 2, "zip_data": null,
                "raw_data": { "basename": name, "bytes": bytes.len(), "hashes": {} },
            }),
            Writer::Lit => json!({
                "chunk_bytes": bytes.len(), "chunk_size": records.len(), "dim": null, "filename": name,
            }),
        });
    }
    let leaf = json!({ "type": null, "context": null, "children_spec": [] });
    let names = "[\"image\", \"label\"]";
    let tree = json!({ "type": "builtins.dict", "context": names, "children_spec": [leaf, leaf] });
    let index = match writer {
        Writer::Mosaic => json!({ "version": 2, "shards": shards }),
        Writer::Lit => json!({
            "chunks": shards, "updated_at": "0",
            "config": {
                "chunk_bytes": 1, "chunk_size": null, "compression": null, "data_format": ["jpeg", "int"],
                "data_spec": json!([1, tree]).to_string(), "encryption": null, "item_loader": "PyTreeLoader",
            },
        }),
    };
    fs::write(target.join("index.json"), index.to_string())
}

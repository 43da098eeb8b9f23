//! Infers fields from the first records, and describes how to decompress compressed files.

use super::TfRecord;
use super::frame::{self, Compression, Frames};
use crate::columns::ColumnRule;
use crate::examples::rules::read_rules;
use crate::examples::{self, INFERRED_FROM, SeenKeys};
use crate::indexed::Opening;
use forebay_dataset::error::DatasetError;
use forebay_index::saved_index::open_file;
use forebay_index::window::WindowSize;

/// The rules of the configuration, or rules inferred from the first records.
pub(super) fn settle(
    opening: &Opening<'_, TfRecord>,
    shards: &[Vec<u8>],
    warnings: &mut Vec<String>,
) -> Result<Vec<ColumnRule>, DatasetError> {
    let (mut seen, mut path) = (SeenKeys::default(), &[][..]);
    for shard in shards {
        path = shard;
        if read_first_records(opening, shard, &mut seen)? > 0 {
            break;
        }
    }
    let configured = read_rules(opening.keys.fields.as_deref())?;
    examples::settle(opening, configured, (&seen, path), warnings)
}

/// Reads the first records of a file; returns their number.
fn read_first_records(
    opening: &Opening<'_, TfRecord>,
    path: &[u8],
    seen: &mut SeenKeys,
) -> Result<usize, DatasetError> {
    let file = open_file(opening.storage, path)?;
    let mut frames = Frames::new(&file, WindowSize::for_storage(opening.storage));
    let mut bytes = Vec::new();
    for number in 0..INFERRED_FROM {
        let Some(extent) = frames.next(|compression| remedy(path, compression))? else {
            return Ok(number);
        };
        let limit = opening.request.config.limits.sample_bytes;
        if extent.bytes > limit {
            return Err(file.fault(format!(
                "its record {number} has {} bytes, more than limits.sample_bytes ({limit})",
                extent.bytes
            )));
        }
        file.read(extent.offset, extent.bytes, &mut bytes)?;
        let example = frame::data(&bytes).map_err(str::to_owned);
        let added =
            example.and_then(|data| seen.add(data).map_err(|fault| fault.words().to_owned()));
        added.map_err(|reason| file.fault(format!("its record {number}: {reason}")))?;
    }
    Ok(INFERRED_FROM)
}

/// The error text with a command that decompresses the file.
pub(super) fn remedy(path: &[u8], compression: Compression) -> String {
    let path = String::from_utf8_lossy(path);
    let stem = [".gz", ".zz", ".zlib"].iter().find_map(|end| path.strip_suffix(end));
    let plain = stem.map_or_else(|| format!("plain/{path}"), str::to_owned);
    let (name, program) = match compression {
        Compression::Gzip => ("GZIP", "gzip -dc".to_owned()),
        Compression::Zlib => (
            "ZLIB",
            "python3 -c 'import sys, zlib; sys.stdout.buffer.write(zlib.decompress(sys.stdin.buffer.read()))'".to_owned(),
        ),
    };
    format!(
        "it is compressed ({name}), and a record of it cannot be read alone; name a folder in cache.path, where files of gzip \
         whose names end in .gz are unpacked once, or decompress it in the dataset's folder: \
         {program} < '{path}' > '{plain}'"
    )
}

//! Zarr arrays, of format 2 and 3: what their metadata say, where chunks are, and how a chunk becomes elements.
//!
//! `metadata` reads `.zarray` and `zarr.json`, `grid` finds the chunks of rows and copies their elements, `codec` and
//! `blosc` decode chunks. The specifications: <https://zarr-specs.readthedocs.io>. Samples of Zarr arrays are windows of
//! rows (`windows::zarr`). `shards` reads the index of a file of several chunks. Filters and data types other than numbers are refused by name.

pub(super) mod blosc;
mod blosclz;
mod codec;
mod grid;
mod metadata;
mod shards;

pub(super) use self::codec::decode;
pub(super) use self::grid::{Chunk, Grid};
pub(super) use self::metadata::{Shards, V2, V3, ZarrArray, is_group};
pub(super) use self::shards::ShardChunk;

/// Reads an array's metadata and a chunk; see `fuzzing`.
///
/// # Panics
/// A chunk does not have the size of its elements, or the name of a chunk is not found again.
pub(super) fn read_for_fuzzing(bytes: &[u8], limit_bytes: u64) {
    let Some(([version, low, high], rest)) = bytes.split_first_chunk() else { return };
    let length = usize::from(u16::from_le_bytes([*low, *high])).min(rest.len());
    let (json, chunk) = rest.split_at(length);
    let _ = is_group(json);
    let Ok(array) = ZarrArray::parse(json, *version == 3) else { return };
    let row_bytes = array.shape[1..]
        .iter()
        .fold(array.fill.len() as u64, |all, side| all.saturating_mul(*side));
    let rows = array.shape[0].min(array.chunk[0]);
    let is_small =
        array.chunk_bytes() <= limit_bytes && row_bytes.saturating_mul(rows) <= limit_bytes;
    if !is_small || rows == 0 || row_bytes == 0 {
        return;
    }
    if let Some(shards) = &array.shards
        && let Some((offset, bytes)) = shards.place(&array, chunk.len() as u64)
        && let Some(index) = usize::try_from(offset).ok().zip(usize::try_from(bytes).ok())
    {
        let index = &chunk[index.0..][..index.1];
        for found in shards.chunks(&array, 0, (index, chunk.len() as u64)).into_iter().flatten() {
            assert!(found.number < Grid(&array).chunks(), "{found:?}");
            assert!(found.offset + found.bytes <= chunk.len() as u64, "{found:?}");
        }
    }
    let grid = Grid(array.files());
    let last = grid.chunks() - 1;
    let mut name = Vec::new();
    grid.append_name(last, &mut name);
    let name = name.strip_prefix(array.prefix.as_bytes()).expect("it begins with the prefix");
    let separator = u8::try_from(array.separator).unwrap_or(b'/');
    let places = name.split(|byte| *byte == separator).filter(|text| !text.is_empty());
    let number =
        places.enumerate().try_fold(0, |before, (axis, text)| grid.number(before, axis, text));
    assert_eq!(number, Some(last));
    let grid = Grid(&array);
    let mut buffers = [Vec::new(), Vec::new()];
    let Ok(bytes) = decode(&array, chunk, &mut buffers) else { return };
    assert_eq!(bytes.len() as u64, array.chunk_bytes());
    let mut into = vec![0; usize::try_from(rows * row_bytes).unwrap_or(0)];
    assert!(grid.copy(Chunk { number: 0, first_row: 0, bytes }, &(0..rows), &mut into));
}

#[cfg(test)]
mod tests;

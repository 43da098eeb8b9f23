//! The entry point of fuzzers for this format.

use forebay_storage::riegeli::{BLOCK_BYTES, seal_for_fuzzing};

use super::footer::Chunks;
use forebay_index::window::{InMemory, WindowSize};

/// What of the bytes is the last block.
const LAST_BYTES: usize = 256;
/// Where a block's first chunk begins.
const CHUNKS: usize = 24;

/// A file of two blocks, whose chunks have the hashes of their bytes.
fn file_of(bytes: &[u8]) -> Vec<u8> {
    let block = usize::try_from(BLOCK_BYTES).unwrap();
    let (first, last) = bytes.split_at(bytes.len().saturating_sub(LAST_BYTES));
    let mut file = vec![0; 2 * block];
    for (part, start) in [(&first[..first.len().min(block)], 0), (last, block)] {
        file[start..start + part.len()].copy_from_slice(part);
        let mut next = start + CHUNKS;
        while next < start + part.len()
            && let Some(length) = seal_for_fuzzing(&mut file[next..start + block])
        {
            next += length;
        }
    }
    file
}

/// Visits the chunks of a file in memory: offset and length, unpacked bytes, and offset and length of each record.
///
/// # Errors
/// The defect of the file.
pub(crate) fn walk_for_fuzzing(
    bytes: &[u8],
    mut visit: impl FnMut((u64, u64), u64, &[(u64, u64)]),
) -> Result<(), String> {
    let file = file_of(bytes);
    let source = InMemory(&file);
    let mut chunks = Chunks::of(&source, WindowSize::LOCAL).map_err(|error| error.to_string())?;
    let mut unpacked = Vec::new();
    while let Some(chunk) = chunks.next().map_err(|error| error.to_string())? {
        let records: Vec<_> = chunk.records.iter().map(|at| (at.offset, at.bytes)).collect();
        visit((chunk.place.offset, chunk.place.bytes), chunk.unpacked_bytes, &records);
        let start = usize::try_from(chunk.place.offset).unwrap();
        let stored = &file[start..start + usize::try_from(chunk.place.bytes).unwrap()];
        if chunk.unpack(stored, &mut unpacked).is_ok() {
            assert_eq!(unpacked.len() as u64, chunk.unpacked_bytes);
        }
    }
    Ok(())
}

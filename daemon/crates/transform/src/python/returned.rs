//! Reads the bytes of a result from a worker's arena.

use forebay_dataset::Defect;
use forebay_workers::{Arena, ReplyValue};

/// The error for a result outside the arena.
pub(crate) const RETURNED_NONE: &str = "the worker's answer is none";
/// Maximal size of a sample's result (1 GiB): a larger one is a mistake, or an attack on this process's memory.
const MAX_RESULT_BYTES: u64 = 1 << 30;

/// Reads a result into a buffer.
///
/// # Errors
/// The result is too long, or outside the arena.
pub(super) fn read_into(
    buffer: &mut Vec<u8>,
    value: &ReplyValue,
    arena: &Arena,
) -> Result<(), Defect> {
    if !arena.has(value.offset, value.bytes) || value.bytes > MAX_RESULT_BYTES {
        return Err(Defect(RETURNED_NONE.to_owned()));
    }
    buffer.resize(usize::try_from(value.bytes).unwrap_or(0), 0);
    arena.read(buffer, value.offset).map_err(|_| Defect(RETURNED_NONE.to_owned()))
}

//! Rows that are in chunks: of Zarr arrays, a file each or several in a file, and of HDF5.

use std::borrow::Cow;
use std::ops::Range;

use super::rows::Parts;
use crate::zarr::{Chunk, Grid, ZarrArray};
use forebay_dataset::Defect;
use forebay_storage::location::{ByteRange, FileId, Location, Transform, Unit};

/// A chunk that exists: its number, and where it is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stored {
    pub(super) number: u64,
    pub(super) file: FileId,
    /// From the start of its file, with a length if it is not all of the file.
    pub(super) range: ByteRange,
    /// As the format defines it.
    pub(super) form: u64,
}

/// Finds and unpacks the chunks of a column.
pub(super) trait Chunks<'c> {
    /// The array, with the shape of a chunk.
    fn array(&self) -> &'c ZarrArray;

    /// Whether the elements of a chunk are stored as they are, in the order of rows.
    fn is_plain(&self) -> bool;

    /// The chunks of a range of numbers that exist.
    fn stored(&self, numbers: Range<u64>) -> impl Iterator<Item = Stored>;

    /// Unpacks a chunk.
    ///
    /// # Errors
    /// The bytes are defective.
    fn unpack<'b>(&'b mut self, stored: Stored, packed: &'b [u8]) -> Result<&'b [u8], Defect>;

    /// A defect, with the chunk that has it.
    fn named(&self, stored: Stored, defect: Defect) -> Defect;
}

/// The size of the elements of a chunk that have the same row.
fn chunk_row_bytes(array: &ZarrArray) -> u64 {
    let size = array.element().size_bytes();
    array.chunk[1..].iter().fold(size, |all, side| all.saturating_mul(*side))
}

/// Whether each chunk has whole rows, as an array in C order has them.
fn has_whole_rows(array: &ZarrArray) -> bool {
    array.chunk[1..] == array.shape[1..]
}

/// Appends the locations of rows.
pub(super) fn locate<'c>(
    chunks: &impl Chunks<'c>,
    rows: &Range<u64>,
    locations: &mut Vec<Location>,
) {
    let array = chunks.array();
    let (grid, row_bytes, is_plain) = (Grid(array), chunk_row_bytes(array), chunks.is_plain());
    for (place, numbers) in grid.of_rows(rows) {
        for Stored { file, range, .. } in chunks.stored(numbers) {
            locations.push(match is_plain {
                false => Location { file, range, unit: Unit::Block(Transform::None) },
                true => {
                    let Range { start, end } = grid.rows_in(place, rows);
                    let before = (start - place * array.chunk[0]).saturating_mul(row_bytes);
                    let offset = range.offset.saturating_add(before);
                    let length = Some((end - start).saturating_mul(row_bytes));
                    Location { range: ByteRange { offset, length }, ..Location::whole(file) }
                }
            });
        }
    }
}

/// The bytes of rows, which have `bytes` in all. `name`: the column's.
///
/// # Errors
/// A chunk is defective.
pub(super) fn values<'a, 'c>(
    chunks: &mut impl Chunks<'c>,
    (rows, bytes, name): (&Range<u64>, u64, &str),
    parts: &mut Parts<'a>,
) -> Result<Cow<'a, [u8]>, Defect> {
    let (is_plain, array) = (chunks.is_plain(), chunks.array());
    let grid = Grid(array);
    let row_bytes = chunk_row_bytes(array);
    let is_one = rows.start / array.chunk[0] == (rows.end - 1) / array.chunk[0];
    if is_one && is_plain && has_whole_rows(array) {
        let mut numbers = grid.of_rows(rows).map(|(_, numbers)| numbers);
        if numbers.any(|numbers| chunks.stored(numbers).next().is_some()) {
            return parts.take_exact(bytes, name).map(Cow::Borrowed);
        }
    }
    let bytes =
        usize::try_from(bytes).map_err(|_| Defect("a window is larger than memory".to_owned()))?;
    // Elements of chunks that do not exist.
    let mut into = match array.fill.iter().all(|byte| *byte == 0) {
        true => vec![0; bytes],
        false => array.fill.repeat(bytes / array.fill.len()),
    };
    for (place, numbers) in grid.of_rows(rows) {
        let found: Vec<_> = chunks.stored(numbers).collect();
        for stored in found {
            let number = stored.number;
            let is_whole = if is_plain {
                let Range { start, end } = grid.rows_in(place, rows);
                let bytes = parts.take_exact((end - start).saturating_mul(row_bytes), name)?;
                grid.copy(Chunk { number, first_row: start, bytes }, rows, &mut into)
            } else {
                let first_row = place * array.chunk[0];
                match chunks.unpack(stored, parts.take()) {
                    Ok(bytes) => grid.copy(Chunk { number, first_row, bytes }, rows, &mut into),
                    Err(defect) => return Err(chunks.named(stored, defect)),
                }
            };
            if !is_whole {
                return Err(chunks.named(stored, Defect("a chunk is too short".to_owned())));
            }
        }
    }
    Ok(into.into())
}

//! The chunks of an array: their numbers, their names, and the elements of rows in them.
//!
//! Chunks are numbered in C order, so that those of the same rows follow one another.

use std::ops::Range;

use super::metadata::ZarrArray;

/// The chunks of an array.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Grid<'a>(pub(crate) &'a ZarrArray);

/// A part of a chunk in memory: its number, the row of its first bytes, and the bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Chunk<'b> {
    pub(crate) number: u64,
    pub(crate) first_row: u64,
    pub(crate) bytes: &'b [u8],
}

/// An axis of a copy: how many elements, and from one to the next in both memories.
#[derive(Debug, Clone, Copy)]
struct Axis {
    count: usize,
    from: usize,
    into: usize,
}

impl Grid<'_> {
    /// The number of chunks along an axis.
    pub(crate) fn side(&self, axis: usize) -> u64 {
        self.0.shape[axis].div_ceil(self.0.chunk[axis])
    }

    fn product(&self, axes: Range<usize>) -> u64 {
        axes.fold(1, |all, axis| all.saturating_mul(self.side(axis)))
    }

    /// The number of chunks.
    pub(crate) fn chunks(&self) -> u64 {
        self.product(0..self.0.shape.len())
    }

    /// The number of chunks that have the same rows.
    pub(crate) fn chunks_of_row(&self) -> u64 {
        self.product(1..self.0.shape.len())
    }

    /// The chunks of rows, which are not empty: for each range of chunks, the number of its first rows' chunk.
    pub(crate) fn of_rows(&self, rows: &Range<u64>) -> impl Iterator<Item = (u64, Range<u64>)> {
        let (side, each) = (self.0.chunk[0], self.chunks_of_row());
        let places = rows.start / side..rows.end.div_ceil(side);
        places.map(move |place| {
            let first = place.saturating_mul(each);
            (place, first..first.saturating_add(each))
        })
    }

    /// The rows of a window that are in the chunks of a place along the first axis.
    pub(crate) fn rows_in(&self, place: u64, rows: &Range<u64>) -> Range<u64> {
        let first = place.saturating_mul(self.0.chunk[0]);
        first.max(rows.start)..first.saturating_add(self.0.chunk[0]).min(rows.end)
    }

    /// A chunk's place along each axis.
    pub(super) fn places(&self, mut number: u64) -> Vec<u64> {
        let mut places: Vec<_> = (0..self.0.shape.len())
            .rev()
            .map(|axis| {
                let side = self.side(axis).max(1);
                let place = number % side;
                number /= side;
                place
            })
            .collect();
        places.reverse();
        places
    }

    /// Appends a chunk's name, relative to the array's folder.
    pub(crate) fn append_name(&self, number: u64, name: &mut Vec<u8>) {
        name.extend_from_slice(self.0.prefix.as_bytes());
        for (axis, place) in self.places(number).into_iter().enumerate() {
            if axis > 0 || !self.0.prefix.is_empty() {
                name.push(u8::try_from(self.0.separator).unwrap_or(b'/'));
            }
            name.extend_from_slice(place.to_string().as_bytes());
        }
    }

    /// The number of the chunk whose place is `text` along an axis, within the chunk `before` of the axes before it.
    pub(crate) fn number(&self, before: u64, axis: usize, text: &[u8]) -> Option<u64> {
        let text = std::str::from_utf8(text).ok()?;
        let is_usual = text == "0" || !text.starts_with(['0', '+']);
        let place: u64 = text.parse().ok().filter(|place| is_usual && *place < self.side(axis))?;
        before.checked_mul(self.side(axis))?.checked_add(place)
    }

    /// Copies the elements of `rows` that a chunk has into the memory of these rows. False: they are not all in it.
    pub(crate) fn copy(&self, chunk: Chunk<'_>, rows: &Range<u64>, into: &mut [u8]) -> bool {
        self.try_copy(chunk, rows, into).is_some()
    }

    fn try_copy(&self, chunk: Chunk<'_>, rows: &Range<u64>, into: &mut [u8]) -> Option<()> {
        let ZarrArray { shape, chunk: sides, order, .. } = self.0;
        let size = usize::try_from(self.0.element().size_bytes()).ok()?;
        let usize_of = |number: u64| usize::try_from(number).ok();
        // From an element to the next along each axis.
        let mut from = vec![0; shape.len()];
        let mut step = size;
        for axis in order.iter().rev() {
            *from.get_mut(*axis)? = step;
            step = step.checked_mul(usize_of(sides[*axis])?)?;
        }
        let (mut axes, mut starts) = (Vec::<Axis>::with_capacity(shape.len()), (0_usize, 0_usize));
        let mut step = size;
        for (axis, place) in self.places(chunk.number).into_iter().enumerate().rev() {
            let first = place.checked_mul(sides[axis])?;
            let end = first.checked_add(sides[axis])?;
            let (start, end, offset, out) = match axis {
                0 => {
                    let (start, end) = (first.max(rows.start), end.min(rows.end));
                    (start, end, start.checked_sub(chunk.first_row)?, start - rows.start)
                }
                _ => (first, end.min(shape[axis]), 0, first),
            };
            let count = usize_of(end.checked_sub(start)?)?;
            starts.0 = starts.0.checked_add(usize_of(offset)?.checked_mul(from[axis])?)?;
            starts.1 = starts.1.checked_add(usize_of(out)?.checked_mul(step)?)?;
            let outer = Axis { count, from: from[axis], into: step };
            let length = if axis == 0 { rows.end - rows.start } else { shape[axis] };
            step = step.checked_mul(usize_of(length)?)?;
            match axes.last_mut() {
                // Both memories go on from one axis to the next.
                Some(inner)
                    if inner.from.checked_mul(inner.count) == Some(outer.from)
                        && inner.into.checked_mul(inner.count) == Some(outer.into) =>
                {
                    inner.count = inner.count.checked_mul(count)?;
                }
                _ => axes.push(outer),
            }
        }
        let span = match axes.first() {
            Some(first) if (first.from, first.into) == (size, size) => {
                let span = first.count.checked_mul(size)?;
                axes.remove(0);
                span
            }
            _ => size,
        };
        if span == 0 {
            return Some(());
        }
        copy_axes(&axes, span, chunk.bytes.get(starts.0..)?, into.get_mut(starts.1..)?)
    }
}

/// Copies spans along axes, of which the last is the outermost.
fn copy_axes(axes: &[Axis], span: usize, from: &[u8], into: &mut [u8]) -> Option<()> {
    let Some((outer, inner)) = axes.split_last() else {
        into.get_mut(..span)?.copy_from_slice(from.get(..span)?);
        return Some(());
    };
    for place in 0..outer.count {
        let from = from.get(place.checked_mul(outer.from)?..)?;
        let into = into.get_mut(place.checked_mul(outer.into)?..)?;
        copy_axes(inner, span, from, into)?;
    }
    Some(())
}

//! The values of a list, and the stretches of a file that are read for them: values that lie next to each other are read
//! together.

use super::cells::Stored;
use forebay_columnar::PackedCell;
use forebay_storage::location::Packed;

/// Values with at most this many bytes between them are read together: in Parquet, a length of 4 bytes.
const MAX_GAP_BYTES: u64 = 4096;

/// The cells of a list, as the index stores them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct StoredList<'r>(pub(super) &'r [u8]);

impl<'r> StoredList<'r> {
    /// The cells of its values; `None` for null. A damaged list ends early.
    pub(super) fn values(self) -> impl Iterator<Item = Option<Stored<'r>>> {
        let mut rest = self.0;
        std::iter::from_fn(move || {
            let (length, behind) = rest.split_first_chunk::<4>()?;
            let length = usize::try_from(u32::from_le_bytes(*length)).ok()?;
            let (cell, behind) = behind.split_at_checked(length)?;
            rest = behind;
            let value = (!cell.is_empty()).then(|| match Stored::of(cell) {
                // There are no lists in lists; a damaged index must not lead deep into itself.
                Stored::List(_) => Stored::Value(&[]),
                stored => stored,
            });
            Some(value)
        })
    }

    /// The stretches that are read for the values, in order, and the place of each value.
    pub(super) fn stretches(self) -> Stretches<'r> {
        let mut all = Stretches::default();
        for value in self.values() {
            let found = match value {
                None => Found::Null,
                Some(Stored::Value(value)) => Found::Value(value),
                Some(Stored::At { length: 0, .. }) => Found::Value(&[]),
                Some(stored) => all.add(stored),
            };
            all.values.push(found);
        }
        all
    }
}

/// A value of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Found<'r> {
    Null,
    /// In the index.
    Value(&'r [u8]),
    /// The number of its stretch, and its start and length in it.
    In(usize, u64, u64),
}

/// See [`StoredList::stretches`].
#[derive(Debug, Default)]
pub(super) struct Stretches<'r> {
    pub(super) places: Vec<Stored<'r>>,
    pub(super) values: Vec<Found<'r>>,
}

impl<'r> Stretches<'r> {
    /// Adds a value to the last stretch if it directly follows it, or else as a new stretch.
    fn add(&mut self, value: Stored<'r>) -> Found<'r> {
        let joined = self.places.last().and_then(|last| join(*last, value));
        let (stretch, start) = match joined {
            Some((stretch, start)) => {
                self.places.pop();
                (stretch, start)
            }
            None => (value, 0),
        };
        self.places.push(stretch);
        Found::In(self.places.len() - 1, start, value.value_bytes())
    }
}

/// A stretch with a value behind it, and where the value begins in it.
fn join<'r>(stretch: Stored<'r>, value: Stored<'r>) -> Option<(Stored<'r>, u64)> {
    let is_near =
        |end: u64, start: u64| start.checked_sub(end).is_some_and(|gap| gap <= MAX_GAP_BYTES);
    match (stretch, value) {
        (Stored::At { offset, length }, Stored::At { offset: next, length: more }) => {
            let end = offset.checked_add(length)?;
            is_near(end, next).then_some(())?;
            let start = next - offset;
            Some((Stored::At { offset, length: start.checked_add(more)? }, start))
        }
        (Stored::Packed(stretch), Stored::Packed(value)) => {
            let (part, more) = (stretch.part, value.part);
            let is_of_page = (stretch.offset, stretch.bytes) == (value.offset, value.bytes)
                && (part.codec, part.unpacked_bytes) == (more.codec, more.unpacked_bytes);
            let end = u64::from(part.start) + u64::from(part.length);
            (is_of_page && is_near(end, more.start.into())).then_some(())?;
            let start = more.start - part.start;
            let part = Packed { length: start.checked_add(more.length)?, ..part };
            Some((Stored::Packed(PackedCell { part, ..stretch }), start.into()))
        }
        _ => None,
    }
}

//! Batches of several samples of each of their groups.
//!
//! In each epoch the samples of a group are permuted and divided into tuples of `size`; what is left of a group fills no
//! tuple and is not in this epoch, but in the next one. The epoch's tuples are dealt to its batches like a table that is
//! filled column by column: a batch is a row. The groups follow each other in an order of the epoch, so a group is in as
//! many rows as it has tuples, once in each, unless it has more tuples than there are batches. Groups that lie within
//! one column take its rows in an order of the column, and the rows are permuted: any two groups may meet.
//!
//! The ends of the groups are summed once per epoch, eight bytes per group; a position is then found in logarithmic
//! time. Everything is a function of (groups, size, batch size, seed, epoch, position), independent of the world size
//! and of earlier positions.

use std::sync::Arc;

use super::classes::{ClassDraws, Classes};
use super::draw::{DrawKey, Drawn, Draws};
use super::error::OrderError;
use super::permutation::{Permutation, shuffled};
use super::purpose;

/// What an order of groups draws, as the number of a key.
const GROUPS: u64 = 0;
const ROWS: u64 = 1;
const FIRST_COLUMN: u64 = 2;

/// Groups of samples, and the size of tuples and batches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grouped {
    classes: Arc<Classes>,
    /// The groups that have a tuple.
    groups: Vec<u32>,
    /// Samples of a tuple.
    size: u64,
    /// Tuples of a batch.
    width: u64,
    /// Tuples of an epoch.
    tuples: u64,
}

impl Grouped {
    /// Batches of `batch_size` samples that consist of `size` samples of each group.
    ///
    /// # Errors
    /// The batch size is not a multiple of the size, or no group has so many samples.
    pub fn new(classes: Arc<Classes>, size: u32, batch_size: u32) -> Result<Self, OrderError> {
        if size == 0 || batch_size == 0 || !batch_size.is_multiple_of(size) {
            return Err(OrderError::SplitGroups { batch_size, size });
        }
        let width = u64::from(batch_size / size);
        let size = u64::from(size);
        let groups: Vec<u32> =
            (0..classes.count()).filter(|group| classes.samples_of(*group) >= size).collect();
        let tuples = groups.iter().map(|group| classes.samples_of(*group) / size).sum();
        if tuples == 0 {
            return Err(OrderError::NoGroups { size });
        }
        Ok(Self { classes, groups, size, width, tuples })
    }

    /// The positions of an epoch.
    #[must_use]
    pub const fn draws_per_epoch(&self) -> u64 {
        self.tuples * self.size
    }

    /// The samples of a rank's batch.
    #[must_use]
    pub const fn batch_size(&self) -> u64 {
        self.width * self.size
    }

    /// The samples of a group in a batch.
    #[must_use]
    pub const fn size(&self) -> u64 {
        self.size
    }

    /// All groups, with those that have too few samples.
    #[must_use]
    pub fn classes(&self) -> &Classes {
        &self.classes
    }

    /// The groups with too few samples for a tuple, and their samples: none of them is ever drawn.
    #[must_use]
    pub fn too_small(&self) -> (u64, u64) {
        let drawn = self.groups.iter().map(|group| self.classes.samples_of(*group)).sum::<u64>();
        let groups = u64::from(self.classes.count()) - self.groups.len() as u64;
        (groups, self.classes.samples() - drawn)
    }

    /// The samples of the other groups that an epoch leaves out, because they fill no tuple; each epoch leaves out others.
    #[must_use]
    pub fn left_out(&self) -> u64 {
        self.classes.samples() - self.too_small().1 - self.draws_per_epoch()
    }

    /// Whether the groups of a batch differ: unless a group has more tuples than there are batches.
    #[must_use]
    pub fn differ(&self) -> bool {
        let of_group = |group: &u32| self.classes.samples_of(*group) / self.size;
        let most = self.groups.iter().map(of_group).max().unwrap_or(0);
        most <= (self.tuples / self.width).max(1)
    }

    /// Their memory, with the orders of this number of epochs.
    #[must_use]
    pub fn memory_bytes(&self, orders: u64) -> u64 {
        let groups = self.groups.len() as u64;
        self.classes.memory_bytes()
            + 4 * groups
            + (8 * groups + 24 * self.width).saturating_mul(orders)
    }
}

/// A column of the table.
#[derive(Debug, Clone, Copy)]
struct Column {
    /// The tuples before it.
    start: u64,
    /// Its first rows, of a group that began in an earlier column. They are in order, as are those of a group that
    /// continues in the next column: otherwise such a group could be in a row twice.
    head: u64,
    /// The rows after them that are in an order of the column.
    middle: u64,
}

/// The order of one epoch of groups.
#[derive(Debug, Clone)]
pub(super) struct GroupEpoch {
    grouped: Arc<Grouped>,
    seed: u64,
    epoch: u64,
    /// The order of the groups.
    order: Permutation,
    /// The end of each group among the tuples, in the order of the epoch.
    ends: Arc<[u64]>,
    /// The order of the rows that are whole batches.
    rows: Permutation,
    columns: Arc<[Column]>,
}

impl GroupEpoch {
    /// Takes some tens of nanoseconds per group.
    pub(super) fn new(grouped: Arc<Grouped>, seed: u64, epoch: u64) -> Self {
        let count = grouped.groups.len() as u64;
        let order = Permutation::drawn(count, draws(seed, epoch, GROUPS));
        let mut end = 0;
        let ends: Arc<[u64]> = (0..count)
            .map(|number| {
                let group = grouped.groups[index(order.at(number))];
                end += grouped.classes.samples_of(group) / grouped.size;
                end
            })
            .collect();
        let (rows, rest) = (grouped.tuples / grouped.width, grouped.tuples % grouped.width);
        let used = if rows == 0 { rest } else { grouped.width };
        let mut start = 0;
        // The first columns have the tuples of the rest in a row below the others.
        let columns = (0..used).map(|number| {
            let column = Column::new(&ends, start, start + rows + u64::from(number < rest));
            start += rows + u64::from(number < rest);
            column
        });
        let columns = columns.collect();
        let rows = Permutation::drawn(rows, draws(seed, epoch, ROWS));
        Self { grouped, seed, epoch, order, ends, rows, columns }
    }

    /// The draw at a position.
    pub(super) fn draw_at(&self, position: u64) -> Drawn {
        let Grouped { classes, groups, size, width, tuples } = &*self.grouped;
        let tuple = position / size;
        let (batch, slot) = (tuple / width, tuple % width);
        let row = if batch < tuples / width { self.rows.at(batch) } else { batch };
        let column = self.columns[index(slot)];
        let in_middle = row.checked_sub(column.head).filter(|row| *row < column.middle);
        let offset = in_middle.map_or(row, |row| {
            let draws = draws(self.seed, self.epoch, FIRST_COLUMN + slot);
            column.head + shuffled(column.middle, row, draws)
        });
        let tuple = column.start + offset;
        let number = number_of(&self.ends, tuple);
        let group = groups[index(self.order.at(number as u64))];
        let samples = classes.samples_of(group);
        let drawn = samples - samples % size;
        let of_epoch =
            ClassDraws { before: u128::from(self.epoch) * u128::from(drawn), draws: drawn };
        let place = (tuple - start_of(&self.ends, number)) * size + position % size;
        classes.draw((self.seed, self.epoch), (group, of_epoch), place, *size)
    }
}

impl Column {
    /// The tuples from `start` until `stop`.
    fn new(ends: &[u64], start: u64, stop: u64) -> Self {
        let (first, last) = (number_of(ends, start), number_of(ends, stop - 1));
        let has_begun = start_of(ends, first) < start;
        let head = if has_begun { ends[first].min(stop) - start } else { 0 };
        let last_start = start_of(ends, last).max(start + head);
        let tail = if ends[last] > stop { stop - last_start } else { 0 };
        Self { start, head, middle: stop - start - head - tail }
    }
}

const fn draws(seed: u64, epoch: u64, number: u64) -> Draws {
    Draws::new(DrawKey { seed, epoch, sample: number }, purpose::GROUPS)
}

/// The number of the group of a tuple, in the order of the epoch.
fn number_of(ends: &[u64], tuple: u64) -> usize {
    ends.partition_point(|end| *end <= tuple)
}

/// The first tuple of the group with this number.
const fn start_of(ends: &[u64], number: usize) -> u64 {
    if number == 0 { 0 } else { ends[number - 1] }
}

#[expect(clippy::cast_possible_truncation, reason = "an index into memory")]
const fn index(place: u64) -> usize {
    place as usize
}

#[cfg(test)]
#[path = "grouped_tests.rs"]
mod tests;

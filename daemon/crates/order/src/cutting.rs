//! Cuts the samples of a pool into steps by their lengths: each step has one batch for every rank, of nearly equal cost.
//!
//! The cost of a batch is its number of rows times its longest row, so a batch of rows of different lengths costs what
//! it takes when its rows are padded to the longest one. Samples are taken from the longest to the shortest, so that the
//! rows of a batch, and the batches of a step, are of similar length. For each step the cheapest of three divisions is
//! used that keeps the ranks' costs close together:
//!
//! 1. consecutive rows, as many in each batch as its own longest row allows;
//! 2. consecutive rows, as many in each batch as the longest row of the step allows;
//! 3. the same number, the first half of a batch's rows from the front and the other half from the back of the step.
//!
//! The result depends on nothing but the lengths in their order and the [`Cut`].

use forebay_protocol::cuts::Cut;

use super::cutting_by_shape::cut_by_shape;

/// Ranks' costs this close together, in per cent of the least, are equal enough for the cheaper division.
const CLOSE_PERCENT: u128 = 101;

/// The steps of a pool, or of what is left of one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Steps {
    /// The places of the samples, by step, rank and row.
    pub rows: Vec<u32>,
    /// By step and rank: the end of each batch among `rows`.
    pub ends: Vec<u32>,
    /// Places of samples that give no step: fewer than ranks, of each shape.
    pub rest: Vec<u32>,
    /// The ends among `rest` of what is padded to a step together: all of it, or the samples of each shape.
    pub rest_ends: Vec<u32>,
}

/// A row's length as it is counted.
const fn counted(length: u32, multiple_of: u32) -> u64 {
    (length as u64).next_multiple_of(if multiple_of == 0 { 1 } else { multiple_of as u64 })
}

/// Cuts `places`, which are indices into `lengths`: in the order of the pool, which decides among samples of one length.
/// A row above the budget is alone in its batch. With a budget of 0 `lengths` are the numbers of the samples' shapes.
#[must_use]
pub fn cut_into_steps(places: &[u32], lengths: &[u32], cut: &Cut) -> Steps {
    if cut.budget == 0 {
        return cut_by_shape(places, lengths, cut);
    }
    let length_at = |place: u32| lengths.get(place as usize).copied().unwrap_or(0);
    let mut keys: Vec<u64> = places
        .iter()
        .map(|place| u64::from(!length_at(*place)) << 32 | u64::from(*place))
        .collect();
    keys.sort_unstable();
    #[expect(clippy::cast_possible_truncation, reason = "the lower half is the place")]
    let sorted: Vec<u32> = keys.into_iter().map(|key| key as u32).collect();
    let costs: Vec<u64> =
        sorted.iter().map(|place| counted(length_at(*place), cut.multiple_of)).collect();
    let mut cutter = Cutter {
        costs: &costs,
        cut,
        ranks: cut.world_size.max(1) as usize,
        sizes: Vec::new(),
        most: Vec::new(),
    };
    let mut steps = Steps { rows: Vec::with_capacity(sorted.len()), ..Steps::default() };
    let mut at = 0;
    while sorted.len() - at >= cutter.ranks {
        let taken = cutter.next_step(at);
        let run = &sorted[at..at + taken.rows];
        let mut next = 0;
        for rank in 0..cutter.ranks {
            let rows = cutter.sizes[rank];
            match taken.fold {
                Some(front) => {
                    let back = rows - front;
                    let behind = cutter.ranks * front + (cutter.ranks - 1 - rank) * back;
                    steps.rows.extend(&run[rank * front..][..front]);
                    steps.rows.extend(&run[behind..][..back]);
                }
                None => steps.rows.extend(&run[next..][..rows]),
            }
            next += rows;
            #[expect(clippy::cast_possible_truncation, reason = "places are numbered by u32")]
            steps.ends.push(steps.rows.len() as u32);
        }
        at += taken.rows;
    }
    steps.rest.extend(&sorted[at..]);
    #[expect(clippy::cast_possible_truncation, reason = "places are numbered by u32")]
    steps.rest_ends.extend((at < sorted.len()).then_some(steps.rest.len() as u32));
    steps
}

/// The next step's samples.
struct Taken {
    rows: usize,
    /// How many rows of each batch are from the front, if the others are from the back.
    fold: Option<usize>,
}

struct Cutter<'a> {
    /// The counted lengths, longest first.
    costs: &'a [u64],
    cut: &'a Cut,
    ranks: usize,
    /// The rows of each rank in the step that was made last.
    sizes: Vec<usize>,
    /// As many as each batch may have.
    most: Vec<usize>,
}

impl Cutter<'_> {
    /// The most rows of a batch whose longest row is the sample at this place.
    fn most_at(&self, at: usize) -> usize {
        let rows = self.cut.budget.checked_div(self.costs[at]).unwrap_or(u64::MAX);
        let rows = rows.clamp(1, self.cut.max_rows.max(1).into());
        usize::try_from(rows).unwrap_or(usize::MAX)
    }

    fn next_step(&mut self, at: usize) -> Taken {
        let (ranks, left) = (self.ranks, self.costs.len() - at);
        let most = self.most_at(at);
        let whole = ranks.saturating_mul(most);
        self.sizes.clear();
        if left <= whole {
            // Everything that is left, in batches that differ by a row at most.
            let (base, longer) = (left / ranks, left % ranks);
            self.sizes.extend((0..ranks).map(|rank| base + usize::from(rank < longer)));
            return Taken { rows: left, fold: None };
        }
        if most >= 2 && left < whole.saturating_mul(2) {
            // What is left is less than two steps: half of it, so that the last step is not a small one.
            let rows = left / (2 * ranks);
            self.sizes.extend(std::iter::repeat_n(rows, ranks));
            return self.folded_if_closer(at, rows);
        }
        if most == 1 && left < 2 * ranks && self.fits_in_one_step(at) {
            return Taken { rows: left, fold: None };
        }
        let mut next = at;
        self.most.clear();
        for _ in 0..ranks {
            let rows = if next < self.costs.len() { self.most_at(next) } else { 1 };
            self.most.push(rows);
            next = next.saturating_add(rows);
        }
        let own = next - at;
        // What follows is still a step.
        if own + 2 * ranks <= left && self.spread(at, &self.most).is_close() {
            std::mem::swap(&mut self.sizes, &mut self.most);
            return Taken { rows: own, fold: None };
        }
        self.sizes.extend(std::iter::repeat_n(most, ranks));
        let equal = self.folded_if_closer(at, most);
        if own + 2 * ranks <= left
            && self.spread(at, &self.most).is_below(&self.spread_of_equal(at, most, equal.fold))
        {
            std::mem::swap(&mut self.sizes, &mut self.most);
            return Taken { rows: own, fold: None };
        }
        equal
    }

    /// Whether all that is left fits in one step, whose first batches have a row each; then these are its sizes.
    fn fits_in_one_step(&mut self, at: usize) -> bool {
        let mut next = at;
        for rank in 0..self.ranks {
            let others = self.ranks - 1 - rank;
            let rows = self.most_at(next).min(self.costs.len() - next - others);
            self.sizes.push(rows);
            next += rows;
        }
        let fits = next == self.costs.len();
        if !fits {
            self.sizes.clear();
        }
        fits
    }

    /// A step of batches of so many rows.
    fn folded_if_closer(&self, at: usize, rows: usize) -> Taken {
        let straight = self.spread_of_equal(at, rows, None);
        let fold = (rows >= 2 && !straight.is_close()).then_some(rows.div_ceil(2));
        Taken { rows: rows * self.ranks, fold }
    }

    /// The costs of a step of batches of equal numbers of rows: each costs its first row.
    fn spread_of_equal(&self, at: usize, rows: usize, fold: Option<usize>) -> Spread {
        let last = at + (self.ranks - 1) * fold.unwrap_or(rows);
        Spread { most: self.costs[at], least: self.costs[last] }
    }

    /// The costs of a step of consecutive batches of these sizes.
    fn spread(&self, at: usize, sizes: &[usize]) -> Spread {
        let mut spread = Spread { most: 0, least: u64::MAX };
        let mut next = at;
        for rows in sizes {
            let longest = self.costs.get(next).copied().unwrap_or(0);
            let cost = longest.saturating_mul(*rows as u64);
            spread = Spread { most: spread.most.max(cost), least: spread.least.min(cost) };
            next += rows;
        }
        spread
    }
}

/// The greatest and the least cost of a step's batches.
struct Spread {
    most: u64,
    least: u64,
}

impl Spread {
    fn is_close(&self) -> bool {
        u128::from(self.most) * 100 <= u128::from(self.least) * CLOSE_PERCENT
    }

    fn is_below(&self, other: &Self) -> bool {
        u128::from(self.most) * u128::from(other.least)
            < u128::from(other.most) * u128::from(self.least)
    }
}

#[cfg(test)]
#[path = "cutting_tests.rs"]
mod tests;

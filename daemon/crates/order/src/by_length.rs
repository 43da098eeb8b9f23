//! Batches by length: an epoch's positions in pools, whose samples are cut into steps of one batch for each rank.
//!
//! A pool is a run of consecutive positions of the epoch's order. Its samples are sorted by length and cut
//! ([`super::cutting`]); the steps are then permuted. So inside a pool positions get another order, in which the rows of a
//! batch, the batches of a step and the steps follow each other: a batch is a run of consecutive positions, as in
//! batches of one size. If a pool begins with other bounds, its consumed samples are not repeated, and its other samples
//! are cut with the new bounds.
//!
//! With shapes in place of lengths the samples of a pool are cut into steps of one shape ([`super::cutting_by_shape`]); all
//! else is the same.
//!
//! Everything is a function of (lengths, selection, seed, epoch, pool, chain of cuts). What is kept here are results that
//! would otherwise be computed again.

use std::collections::BTreeSet;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use forebay_protocol::cuts::{Cut, MAX_CUT_SAMPLES, MAX_CUTS, Pools};
use forebay_protocol::ids::Position;

use super::cutting::{Steps, cut_into_steps};
use super::draw::{DrawKey, Draws};
use super::error::OrderError;
use super::permutation::Permutation;
use super::planning_ahead::PoolKey;
use super::purpose;
use super::schedule::EpochOrder;

/// The most plans, and the most epochs whose steps are kept counted: of the present and the next pool or epoch of as many
/// sessions as may be at different places or world sizes. What was not used for longest goes first.
const MOST_KEPT: usize = 64;
/// Plans of large pools are kept up to this memory, and at least [`FEWEST_PLANS`].
const KEPT_PLAN_BYTES: u64 = 32 << 20;
const FEWEST_PLANS: usize = 16;
/// Counts of many pools are kept up to this memory, and at least [`FEWEST_COUNTS`].
const KEPT_COUNT_BYTES: u64 = 4 << 20;
const FEWEST_COUNTS: usize = 4;
/// A sample's place, and the ends of its batch and step if it is the only one in them.
const PLAN_BYTES_PER_SAMPLE: u64 = 3 * 4;
/// Lengths, keys, costs and steps while a pool is cut.
const CUTTING_BYTES_PER_SAMPLE: u64 = 40;
/// As many pools are cut at once: one by the thread that counts an epoch, and the others to be planned.
const CUT_AT_ONCE: u64 = 4;
/// The steps before a pool, and its rest.
const COUNT_BYTES_PER_POOL: u64 = 8 + 4 + 4;

/// The pools that are cut to be planned, and who waits to cut one: threads of sessions at different places.
#[derive(Debug, Default)]
struct Cutting {
    pools: Mutex<u64>,
    ended: Condvar,
}

/// The turn to cut a pool, until it is dropped.
struct CutTurn<'a>(&'a Cutting);

impl Cutting {
    fn turn(&self) -> CutTurn<'_> {
        let pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
        let are_many = |pools: &mut u64| *pools >= CUT_AT_ONCE - 1;
        let waited = self.ended.wait_while(pools, are_many);
        *waited.unwrap_or_else(PoisonError::into_inner) += 1;
        CutTurn(self)
    }
}

impl Drop for CutTurn<'_> {
    fn drop(&mut self) {
        *self.0.pools.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        self.0.ended.notify_one();
    }
}

/// The lengths of a dataset's samples, or the numbers of their shapes, and the bounds of a batch.
#[derive(Debug)]
pub struct ByLength {
    /// By sample id.
    lengths: Arc<[u32]>,
    /// Samples of a pool.
    pool: u64,
    /// Their mean, rounded down.
    mean: u64,
    longest: u32,
    /// How many shapes there are; 0 for lengths.
    shapes: u64,
    /// The bounds; `from` and `world_size` are those of a session.
    bounds: Cut,
    kept: Mutex<Kept>,
    /// Held while an epoch is counted, so that ranks that begin together count it once.
    counts_one: Mutex<()>,
    cutting: Cutting,
}

/// A pool and its plan.
type KeptPlan = (PoolKey, Arc<PoolPlan>);

/// Results that were computed.
#[derive(Debug, Default)]
struct Kept {
    plans: Vec<KeptPlan>,
    counts: Vec<((u64, Cut), Arc<Counts>)>,
    counting: BTreeSet<(u64, Cut)>,
    /// Pools that somebody is planning.
    planning: BTreeSet<PoolKey>,
}

/// The steps of every pool of an epoch that is cut by one cut.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    /// By pool: the steps of all pools before it; all steps at the end.
    before: Vec<u64>,
    /// By pool: the samples that give no step to every rank; fewer than ranks, of each shape.
    rests: Vec<u32>,
    /// By pool: how many steps these are, if they are padded.
    padded: Vec<u32>,
}

/// The steps of a pool in their order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct PoolPlan {
    /// By place in the order of batches: the place in the order of the epoch.
    order: Vec<u32>,
    /// The places at which the steps of the last cut begin, and the end of the last one.
    starts: Vec<u32>,
    /// By step of the last cut and rank: the ends of the batches, as places.
    ends: Vec<u32>,
    /// After the last step: the ends, as places, of what is padded to a step each.
    rest_ends: Vec<u32>,
    /// The steps of earlier cuts.
    steps_before: u64,
    /// The number of ranks of the last cut.
    ranks: usize,
}

/// A step of a pool.
pub(super) struct Step {
    /// The place of this rank's first row, and the end of its rows.
    pub(super) rows: (u32, u32),
    /// The end of the step.
    pub(super) end: u32,
}

impl ByLength {
    /// For samples of these lengths: pools of `pool` samples, and batches whose rows times the longest row, rounded up to
    /// `multiple_of`, are at most `budget`, with at most `max_rows` rows.
    #[must_use]
    pub fn new(
        lengths: Arc<[u32]>,
        pool: u64,
        budget: u64,
        multiple_of: u32,
        max_rows: u32,
    ) -> Self {
        let (multiple_of, max_rows) = (multiple_of.max(1), max_rows.max(1));
        let bounds = Cut { from: 0, world_size: 1, budget, multiple_of, max_rows };
        let sum: u64 = lengths.iter().map(|length| u64::from(*length)).sum();
        let mean = sum / (lengths.len() as u64).max(1);
        let longest = lengths.iter().copied().max().unwrap_or(0);
        let (pool, kept, counts_one) = (pool.max(1), Mutex::default(), Mutex::default());
        let cutting = Cutting::default();
        Self { lengths, pool, mean, longest, shapes: 0, bounds, kept, counts_one, cutting }
    }

    /// For samples whose shapes have these numbers: pools of `pool` samples, and batches of `batch_size` samples of one
    /// shape.
    #[must_use]
    pub fn by_shape(shapes: Arc<[u32]>, pool: u64, batch_size: u32) -> Self {
        let mut numbers = shapes.to_vec();
        numbers.sort_unstable();
        numbers.dedup();
        let count = numbers.len() as u64;
        Self { shapes: count, ..Self::new(shapes, pool, 0, 1, batch_size) }
    }

    /// Whether samples have shapes in place of lengths.
    #[must_use]
    pub const fn is_by_shape(&self) -> bool {
        self.bounds.budget == 0
    }

    /// The samples that every pool must have so that one of its shapes gives a step to so many ranks.
    pub(super) const fn fewest_of_pool(&self, world_size: u32) -> u64 {
        let ranks = world_size as u64;
        match self.shapes {
            0 => ranks,
            shapes => shapes.saturating_mul(ranks.saturating_sub(1)).saturating_add(1),
        }
    }

    /// The length of a sample, or the number of its shape.
    #[must_use]
    pub fn length(&self, sample: u64) -> u32 {
        usize::try_from(sample).ok().and_then(|id| self.lengths.get(id).copied()).unwrap_or(0)
    }

    /// Whether a sample may replace another one in a batch of so many rows: it has the same shape, or the rows stay within
    /// the budget if they are its length.
    #[must_use]
    pub fn may_replace(&self, bad: u64, sample: u64, rows: u32) -> bool {
        if self.is_by_shape() {
            return self.length(sample) == self.length(bad);
        }
        let counted =
            u64::from(self.length(sample)).next_multiple_of(self.bounds.multiple_of.into());
        rows <= 1 || counted.saturating_mul(rows.into()) <= self.bounds.budget
    }

    /// The mean length of all samples, rounded down.
    #[must_use]
    pub const fn mean(&self) -> u64 {
        self.mean
    }

    /// About the number of rows of a batch.
    #[must_use]
    pub fn usual_rows(&self) -> u32 {
        if self.is_by_shape() {
            return self.bounds.max_rows;
        }
        let rows = self.bounds.budget / self.mean.max(1);
        u32::try_from(rows).unwrap_or(u32::MAX).clamp(1, self.bounds.max_rows)
    }

    /// The length of the longest sample.
    #[must_use]
    pub const fn longest(&self) -> u32 {
        self.longest
    }

    /// The memory of the lengths and of what is kept, for an epoch of so many positions.
    #[must_use]
    pub fn memory_bytes(&self, positions: u64) -> u64 {
        let pools = positions / self.pool + 1;
        let of_sample = PLAN_BYTES_PER_SAMPLE * self.kept_plans() as u64
            + CUTTING_BYTES_PER_SAMPLE * CUT_AT_ONCE;
        let of_pool = COUNT_BYTES_PER_POOL * kept_counts(pools) as u64;
        (self.lengths.len() as u64 * 4)
            .saturating_add(self.pool.min(positions).saturating_mul(of_sample))
            .saturating_add(pools.saturating_mul(of_pool))
    }

    /// The most plans that are kept.
    fn kept_plans(&self) -> usize {
        kept_within(KEPT_PLAN_BYTES, PLAN_BYTES_PER_SAMPLE.saturating_mul(self.pool), FEWEST_PLANS)
    }

    /// The pools of an epoch of so many positions, and the cut for a world size.
    #[must_use]
    pub const fn pools(&self, samples: u64, world_size: u32) -> Pools {
        Pools { pool: self.pool, samples, cut: Cut { world_size, ..self.bounds } }
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        // The values are complete whenever the lock is free.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The lengths of a pool's samples, in the order of the epoch.
    fn lengths_of(&self, order: &EpochOrder, pools: &Pools, pool: u64) -> Vec<u32> {
        let positions = pools.start_of(pool)..pools.end_of(pool);
        positions.map(|position| self.length(order.sample_at(position).0)).collect()
    }

    /// The plan of a pool with this chain of cuts. `order` makes the order of the pool's epoch, without lengths.
    ///
    /// # Errors
    /// A cut begins where the one before it has no border of steps.
    pub(super) fn plan(
        &self,
        pools: &Pools,
        (epoch, pool): (u64, u64),
        chain: &Arc<[Cut]>,
        seed: u64,
        order: impl FnOnce() -> EpochOrder,
    ) -> Result<Arc<PoolPlan>, OrderError> {
        let key = (epoch, pool, Arc::clone(chain));
        if let Some(plan) = self.kept_plan(&key) {
            return Ok(plan);
        }
        let _turn = self.cutting.turn();
        // Planned meanwhile.
        if let Some(plan) = self.kept_plan(&key) {
            return Ok(plan);
        }
        let lengths = self.lengths_of(&order(), pools, pool);
        let start = pools.start_of(pool);
        let plan = Arc::new(PoolPlan::new(&lengths, start, chain, (seed, epoch, pool))?);
        let mut kept = self.kept();
        if kept.plans.iter().all(|(of, _)| *of != key) {
            if kept.plans.len() >= self.kept_plans() {
                kept.plans.remove(0);
            }
            kept.plans.push((key, Arc::clone(&plan)));
        }
        Ok(plan)
    }

    /// The plan of a pool, if it is kept.
    pub(super) fn kept_plan(&self, key: &PoolKey) -> Option<Arc<PoolPlan>> {
        let mut kept = self.kept();
        let number = kept.plans.iter().position(|(of, _)| of == key)?;
        kept.plans[number..].rotate_left(1);
        kept.plans.last().map(|(_, plan)| Arc::clone(plan))
    }

    /// Whether a pool is not planned and the caller is the first to plan it.
    pub(super) fn begin_to_plan(&self, key: &PoolKey) -> bool {
        let mut kept = self.kept();
        kept.plans.iter().all(|(of, _)| of != key) && kept.planning.insert(key.clone())
    }

    /// Called when nobody plans a pool any longer.
    pub(super) fn end_planning(&self, key: &PoolKey) {
        self.kept().planning.remove(key);
    }

    /// The steps of an epoch. Takes about a quarter of a second for a million samples, the first time.
    pub(super) fn counts(
        &self,
        pools: &Pools,
        epoch: u64,
        order: impl FnOnce() -> EpochOrder,
    ) -> Arc<Counts> {
        let key = (epoch, pools.cut);
        if let Some(counts) = self.kept_counts_of(key) {
            return counts;
        }
        let _alone = self.counts_one.lock().unwrap_or_else(PoisonError::into_inner);
        // Counted meanwhile.
        if let Some(counts) = self.kept_counts_of(key) {
            return counts;
        }
        let order = order();
        let mut counts = Counts { before: vec![0], ..Counts::default() };
        let mut all = 0;
        let mut places: Vec<u32> = Vec::new();
        for pool in 0..pools.count() {
            let lengths = self.lengths_of(&order, pools, pool);
            places.clear();
            places.extend((0..).take(lengths.len()));
            let steps = cut_into_steps(&places, &lengths, &pools.cut);
            all += steps.count(pools.cut.world_size) as u64;
            counts.before.push(all);
            counts.rests.push(place(steps.rest.len()));
            counts.padded.push(place(steps.rest_ends.len()));
        }
        let counts = Arc::new(counts);
        let mut kept = self.kept();
        kept.counting.remove(&key);
        if kept.counts.iter().all(|(of, _)| *of != key) {
            if kept.counts.len() >= kept_counts(pools.count()) {
                kept.counts.remove(0);
            }
            kept.counts.push((key, Arc::clone(&counts)));
        }
        counts
    }

    fn kept_counts_of(&self, key: (u64, Cut)) -> Option<Arc<Counts>> {
        let mut kept = self.kept();
        let number = kept.counts.iter().position(|(of, _)| *of == key)?;
        kept.counts[number..].rotate_left(1);
        kept.counts.last().map(|(_, counts)| Arc::clone(counts))
    }

    /// How many plans and counts are kept.
    #[cfg(test)]
    pub(super) fn results_kept(&self) -> (usize, usize) {
        let kept = self.kept();
        (kept.plans.len(), kept.counts.len())
    }

    /// Whether the steps of an epoch are counted.
    pub(super) fn is_counted(&self, epoch: u64, cut: Cut) -> bool {
        self.kept_counts_of((epoch, cut)).is_some()
    }

    /// Whether the caller is the first to count the steps of an epoch.
    pub(super) fn begin_to_count(&self, epoch: u64, cut: Cut) -> bool {
        let mut kept = self.kept();
        kept.counts.iter().all(|(of, _)| *of != (epoch, cut)) && kept.counting.insert((epoch, cut))
    }
}

/// The most epochs of so many pools whose steps are kept counted.
fn kept_counts(pools: u64) -> usize {
    kept_within(KEPT_COUNT_BYTES, COUNT_BYTES_PER_POOL.saturating_mul(pools), FEWEST_COUNTS)
}

/// How many results of `each` bytes are kept within `bytes`.
fn kept_within(bytes: u64, each: u64, fewest: usize) -> usize {
    usize::try_from(bytes / each.max(1)).unwrap_or(usize::MAX).clamp(fewest, MOST_KEPT)
}

impl Steps {
    fn count(&self, world_size: u32) -> usize {
        self.ends.len() / world_size.max(1) as usize
    }
}

impl Counts {
    /// The steps of the pools from this one on, and those of their rests if they are padded.
    pub(super) fn since_pool(&self, pool: u64) -> (u64, u64) {
        let pool = usize::try_from(pool).unwrap_or(usize::MAX);
        let all = self.before.last().copied().unwrap_or(0);
        let before = self.before.get(pool).copied().unwrap_or(all);
        let padded = self.padded.iter().skip(pool).map(|steps| u64::from(*steps)).sum();
        (all - before, padded)
    }

    /// The samples of all rests.
    pub(super) fn rest(&self) -> u64 {
        self.rests.iter().map(|rest| u64::from(*rest)).sum()
    }

    /// The steps of all rests, if they are padded.
    pub(super) fn padded(&self) -> u64 {
        self.since_pool(0).1
    }
}

impl PoolPlan {
    /// The plan of a pool that begins at `start`, for samples of these lengths.
    fn new(
        lengths: &[u32],
        start: u64,
        chain: &[Cut],
        (seed, epoch, pool): (u64, u64, u64),
    ) -> Result<Self, OrderError> {
        let mut plan = Self {
            order: Vec::with_capacity(lengths.len()),
            starts: vec![0],
            ends: Vec::new(),
            rest_ends: Vec::new(),
            steps_before: 0,
            ranks: 1,
        };
        let mut left: Vec<u32> = (0..).take(lengths.len()).collect();
        for (number, cut) in chain.iter().enumerate() {
            let until = chain.get(number + 1).map(|next| next.from);
            let steps = cut_into_steps(&left, lengths, cut);
            let ranks = cut.world_size.max(1) as usize;
            let count = steps.count(cut.world_size);
            // The key names what was consumed, so that each cut of a pool has another order.
            let key = DrawKey { seed, epoch, sample: pool };
            let draws = Draws::new(key, purpose::STEPS_OF_POOL).of_entry(cut.from - start);
            let permutation = Permutation::drawn(count as u64, draws);
            let before = plan.order.len();
            (plan.starts, plan.ends, plan.ranks) = (vec![place(before)], Vec::new(), ranks);
            let mut taken = 0;
            for step in 0..count {
                if until == Some(start + plan.order.len() as u64) {
                    break;
                }
                let step = usize::try_from(permutation.at(step as u64)).unwrap_or(0);
                let begin = if step == 0 { 0 } else { steps.ends[step * ranks - 1] };
                let ends = &steps.ends[step * ranks..][..ranks];
                let base = plan.order.len();
                plan.order.extend(&steps.rows[begin as usize..ends[ranks - 1] as usize]);
                plan.ends.extend(ends.iter().map(|end| place(base) + (end - begin)));
                plan.starts.push(place(plan.order.len()));
                taken += 1;
            }
            let base = plan.order.len();
            let Some(until) = until else {
                plan.order.extend(&steps.rest);
                plan.rest_ends.extend(steps.rest_ends.iter().map(|end| place(base) + end));
                break;
            };
            // What was padded.
            for end in &steps.rest_ends {
                let length = plan.order.len();
                if until == start + length as u64 {
                    break;
                }
                plan.order.extend(&steps.rest[length - base..*end as usize]);
                taken += 1;
            }
            if until != start + plan.order.len() as u64 {
                return Err(OrderError::BetweenSteps { samples: until, epoch });
            }
            plan.steps_before += taken;
            let mut is_consumed = vec![false; lengths.len()];
            plan.order.iter().for_each(|place| is_consumed[*place as usize] = true);
            left.retain(|place| !is_consumed[*place as usize]);
        }
        plan.starts.shrink_to_fit();
        plan.ends.shrink_to_fit();
        Ok(plan)
    }

    /// The place in the order of the epoch of a place in the order of batches.
    pub(super) fn at(&self, place: u64) -> u64 {
        let place = usize::try_from(place).ok();
        place.and_then(|place| self.order.get(place)).map_or(0, |place| u64::from(*place))
    }

    /// The number of the step of the last cut that begins at a place, or else of the next one.
    pub(super) fn step_from(&self, place: u64) -> usize {
        self.starts.partition_point(|start| u64::from(*start) < place)
    }

    /// Whether a step of the last cut begins or ends at a place, padded ones included.
    pub(super) fn is_border(&self, place: u64) -> bool {
        let is_place = |border: &u32| u64::from(*border) == place;
        self.starts.get(self.step_from(place)).is_some_and(is_place)
            || self.rest_ends.iter().any(is_place)
    }

    /// The end of the rest that is padded to a step, at a place after the last step.
    pub(super) fn rest_end(&self, place: u64) -> Option<u64> {
        self.rest_ends.get(self.rests_before(place)).map(|end| u64::from(*end))
    }

    /// How many steps are padded from a place on.
    pub(super) fn padded_from(&self, place: u64) -> u64 {
        (self.rest_ends.len() - self.rests_before(place)) as u64
    }

    fn rests_before(&self, place: u64) -> usize {
        self.rest_ends.partition_point(|end| u64::from(*end) <= place)
    }

    /// The steps of the last cut.
    pub(super) fn steps(&self) -> usize {
        self.starts.len() - 1
    }

    /// The steps of the pool: of all cuts.
    pub(super) fn all_steps(&self) -> u64 {
        self.steps_before + self.steps() as u64
    }

    /// A step of the last cut; `None` after the last one.
    pub(super) fn step(&self, number: usize, rank: u32) -> Option<Step> {
        let end = *self.starts.get(number + 1)?;
        let place = number * self.ranks + rank as usize;
        let first = if rank == 0 { self.starts[number] } else { *self.ends.get(place - 1)? };
        Some(Step { rows: (first, *self.ends.get(place)?), end })
    }

    /// The place at which the last step ends.
    pub(super) fn end_of_steps(&self) -> u64 {
        self.starts.last().map_or(0, |end| u64::from(*end))
    }
}

#[expect(clippy::cast_possible_truncation, reason = "a pool has less than 2^32 samples")]
const fn place(place: usize) -> u32 {
    place as u32
}

/// The batches of a rank by length, as a schedule uses them.
#[derive(Debug, Clone)]
pub(super) struct LengthBatches {
    pub(super) of: Arc<ByLength>,
    pub(super) pools: Pools,
    /// The pool that was begun with earlier cuts, by epoch and number, and its chain.
    begun: Option<(u64, u64, Arc<[Cut]>)>,
}

impl LengthBatches {
    pub(super) const fn new(of: Arc<ByLength>, pools: Pools) -> Self {
        Self { of, pools, begun: None }
    }

    /// The chain of a pool.
    pub(super) fn chain_of(&self, epoch: u64, pool: u64) -> Arc<[Cut]> {
        match &self.begun {
            Some((of, number, chain)) if (*of, *number) == (epoch, pool) => Arc::clone(chain),
            _ => Arc::new([self.pools.cut.starting_at(self.pools.start_of(pool))]),
        }
    }

    /// The pool that was begun earlier, if it is of this epoch.
    pub(super) fn begun_in(&self, epoch: u64) -> Option<u64> {
        self.begun.as_ref().filter(|(of, ..)| *of == epoch).map(|(_, pool, _)| *pool)
    }

    /// The same from a position on that was reached with these cuts.
    ///
    /// # Errors
    /// The cuts do not lead to the position, or are too many.
    pub(super) fn begin(&self, position: Position, cuts: &[Cut]) -> Result<Self, OrderError> {
        let pool = self.pools.pool_of(position.samples);
        let start = self.pools.start_of(pool);
        let at_border = position.samples == start || position.samples >= self.pools.samples;
        let mut begun = Self { begun: None, ..self.clone() };
        if at_border || cuts.is_empty() {
            return Ok(begun);
        }
        let mut chain = cuts.to_vec();
        // A cut that has consumed nothing.
        chain.pop_if(|last| last.from == position.samples);
        let cut = self.pools.cut.starting_at(position.samples);
        if chain.last().is_none_or(|last| !last.is_like(&cut)) {
            chain.push(cut);
        }
        let Position { epoch, samples } = position;
        let is_sound = chain.first().is_some_and(|first| first.from == start)
            && chain.is_sorted_by(|one, next| one.from < next.from)
            && chain.iter().all(|cut| cut.from <= samples && cut.world_size > 0);
        if !is_sound {
            return Err(OrderError::WrongCuts { samples, epoch });
        }
        if chain.len() > MAX_CUTS {
            return Err(OrderError::TooManyCuts { samples, epoch });
        }
        let (cuts, pool_samples) = (chain.len(), self.pools.end_of(pool) - start);
        // A single cut is what every pool is planned with.
        if cuts > 1 && pool_samples.saturating_mul(cuts as u64) > MAX_CUT_SAMPLES {
            return Err(OrderError::CutsTooLong { samples, epoch, cuts, pool: pool_samples });
        }
        begun.begun = Some((epoch, pool, chain.into()));
        Ok(begun)
    }
}

#[cfg(test)]
#[path = "by_length_tests.rs"]
mod tests;

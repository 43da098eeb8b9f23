//! Finds the number of threads of an `auto` stage at run time.
//!
//! The rule: a row costs stage *s* the time c on a core and the time b asleep (in a `delay`, on a disk). The cores that
//! the daemon may use can process cores ÷ Σc rows per second over all stages, or less if a stage with a fixed number of
//! threads takes longer. At that rate, by Little's law (Little 1961), rate·c threads of the stage are on a core and m =
//! rate·b are asleep at a time. The stage gets the first, rounded up, plus m + 2√m: the number asleep varies like a
//! Poisson count, and twice its standard deviation covers all but a few moments (square-root staffing, Halfin and Whitt
//! 1981). Time in which a thread was runnable but had no core counts as neither ([`crate::ground::meter`]): more
//! threads would not help.
//!
//! It does not oscillate, since c and b are properties of a row and do not depend on the number of threads. In
//! addition, a stage is raised only while rows wait for it and the rings have room, at most to twice its threads at a
//! time, after two consecutive updates; it is lowered after eight, and only if at least a fifth of its threads are not
//! needed. The bytes of a batch do not depend on any of this: a limit only decides which threads may start a row now.

use crate::ground::stage_cost::Cost;

/// A smaller share of sleep in a row's time is noise.
const MIN_ASLEEP: f64 = 0.1;
/// Minimal number of rows in an update.
const MIN_ROWS: u64 = 8;
/// Consecutive updates before a stage is raised, and lowered.
const UPDATES_TO_RAISE: u32 = 2;
const UPDATES_TO_LOWER: u32 = 8;
/// A stage is lowered only to this share of its threads or less.
const LOWERED_TO: f64 = 0.8;
/// If the input queue was occupied for this share of the time, rows wait.
const ROWS_WAIT: f64 = 0.5;

/// The measurements of one stage.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StageSeen {
    /// Its current maximal number of threads.
    pub(crate) limit: u32,
    pub(crate) is_auto: bool,
    /// Total of all its rows so far.
    pub(crate) total: Cost,
    /// Share of the time since the last update in which rows waited for the stage.
    pub(crate) occupancy: f64,
}

/// Resources shared by all stages of the daemon.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Resources {
    /// Number of cores that the daemon may use: below the machine's number if there is a limit.
    pub(crate) cores: f64,
    /// Maximal number of threads of all stages together.
    pub(crate) max_threads: u32,
    /// Whether a ring has room for another batch.
    pub(crate) rings_have_room: bool,
}

/// Finds the number of threads of one stream's stages.
#[derive(Debug, Default)]
pub(crate) struct Tuner {
    stages: Vec<StageState>,
}

#[derive(Debug, Clone, Default)]
struct StageState {
    before: Cost,
    /// A row's time on a core and asleep, in seconds; smoothed.
    row: Option<(f64, f64)>,
    raise_votes: u32,
    lower_votes: u32,
    why: String,
}

impl Tuner {
    /// Returns the new limit of each stage.
    pub(crate) fn update(&mut self, stages: &[StageSeen], resources: Resources) -> Vec<u32> {
        self.stages.resize_with(stages.len(), StageState::default);
        for (state, seen) in self.stages.iter_mut().zip(stages) {
            state.measure(seen.total);
        }
        let rows: Vec<(f64, f64)> =
            self.stages.iter().map(|state| state.row.unwrap_or_default()).collect();
        let wanted = wanted_threads(&rows, stages, resources);
        self.stages
            .iter_mut()
            .zip(stages)
            .zip(wanted)
            .map(|((state, seen), wanted)| state.step(seen, &wanted, resources))
            .collect()
    }

    /// The reason for a stage's number of threads.
    pub(crate) fn why(&self, stage: usize) -> &str {
        self.stages.get(stage).map_or("", |state| state.why.as_str())
    }
}

/// The rule's result for one stage.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Wanted {
    threads: u32,
    /// Mean numbers of threads on a core and asleep.
    on_core: f64,
    asleep: f64,
    /// Whether the rule's result exceeds the maximum.
    is_bounded: bool,
}

/// The rule of the module's head; `rows`: a row's time on a core and asleep, by stage.
fn wanted_threads(rows: &[(f64, f64)], stages: &[StageSeen], resources: Resources) -> Vec<Wanted> {
    let on_core_in_all: f64 = rows.iter().map(|(on_core, _)| on_core).sum();
    let mut rate = resources.cores / on_core_in_all.max(1e-9);
    for ((on_core, asleep), seen) in rows.iter().zip(stages) {
        if !seen.is_auto && on_core + asleep > 0.0 {
            rate = rate.min(f64::from(seen.limit) / (on_core + asleep));
        }
    }
    let fixed: u32 = stages.iter().filter(|seen| !seen.is_auto).map(|seen| seen.limit).sum();
    let autos = stages.iter().filter(|seen| seen.is_auto).count().max(1);
    let autos = u32::try_from(autos).unwrap_or(u32::MAX);
    // Each `auto` stage may have all threads that the others leave; each of those gets at least one.
    let most = resources.max_threads.saturating_sub(fixed).saturating_sub(autos - 1).max(1);
    rows.iter()
        .map(|(on_core, asleep)| {
            let is_asleep = *asleep >= MIN_ASLEEP * (on_core + asleep);
            let on_core = rate * on_core;
            let asleep = if is_asleep { rate * asleep } else { 0.0 };
            // A slight excess over a whole number is a measurement error.
            let threads = (on_core - 0.05).ceil().max(1.0) + (asleep + 2.0 * asleep.sqrt()).ceil();
            let threads_wanted = whole(threads);
            Wanted {
                threads: threads_wanted.min(most),
                on_core,
                asleep,
                is_bounded: threads_wanted > most,
            }
        })
        .collect()
}

impl StageState {
    /// Adds the rows since the last update to the means.
    #[expect(clippy::cast_precision_loss, reason = "a count of rows")]
    fn measure(&mut self, total: Cost) {
        let seen = total.since(self.before);
        if seen.rows < MIN_ROWS {
            return;
        }
        self.before = total;
        let rows = seen.rows as f64;
        let on_core = seen.cpu.as_secs_f64() / rows;
        let asleep = seen.asleep.as_secs_f64() / rows;
        let mix = |old: f64, new: f64| 0.5 * old + 0.5 * new;
        self.row = Some(self.row.map_or((on_core, asleep), |(old_on_core, old_asleep)| {
            (mix(old_on_core, on_core), mix(old_asleep, asleep))
        }));
    }

    fn step(&mut self, seen: &StageSeen, wanted: &Wanted, resources: Resources) -> u32 {
        if !seen.is_auto {
            self.why = "as configured".to_owned();
            return seen.limit;
        }
        if self.row.is_none() {
            self.why = format!("{} threads: not enough rows measured yet", seen.limit);
            return seen.limit;
        }
        let raise =
            wanted.threads > seen.limit && seen.occupancy >= ROWS_WAIT && resources.rings_have_room;
        let lower = f64::from(wanted.threads) <= LOWERED_TO * f64::from(seen.limit);
        self.raise_votes = if raise { self.raise_votes + 1 } else { 0 };
        self.lower_votes = if lower { self.lower_votes + 1 } else { 0 };
        let limit = if self.raise_votes >= UPDATES_TO_RAISE {
            wanted.threads.min(seen.limit.saturating_mul(2))
        } else if self.lower_votes >= UPDATES_TO_LOWER {
            wanted.threads
        } else {
            seen.limit
        };
        if limit != seen.limit {
            (self.raise_votes, self.lower_votes) = (0, 0);
        }
        self.why = self.describe(limit, wanted, resources);
        limit
    }

    fn describe(&self, limit: u32, wanted: &Wanted, resources: Resources) -> String {
        let (on_core, asleep) = self.row.unwrap_or_default();
        let milliseconds = |seconds: f64| format!("{:.2} ms", seconds * 1e3);
        let plural = if limit == 1 { "thread" } else { "threads" };
        let mut why = format!(
            "{limit} {plural}: a row takes {} of CPU time and {} of sleep, so {:.1} cores keep {:.1} threads running",
            milliseconds(on_core),
            milliseconds(asleep),
            resources.cores,
            wanted.on_core,
        );
        if wanted.asleep > 0.0 {
            why.push_str(&format!(" and {:.1} asleep on average", wanted.asleep));
        }
        if wanted.is_bounded {
            why.push_str(&format!(
                "; ring.memory and the number of cores limit the total to {}",
                resources.max_threads
            ));
        } else if wanted.threads > limit {
            why.push_str("; raised only while rows wait for it and the ring has free slots");
        }
        why
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a small positive number"
)]
fn whole(threads: f64) -> u32 {
    threads.clamp(1.0, 65_536.0) as u32
}

#[cfg(test)]
mod tests;

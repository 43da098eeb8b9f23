//! Finds the number of a stream's concurrent reads at run time, if it is configured as `"auto"`.
//!
//! How much a storage gains by more concurrent reads is known only after a trial. States and transitions:
//! ```text
//!   Steady ──the reads are busy, work waits for their rows, the rings have room: twice──► Trial: twice the reads
//!     ▲ ▲                                                                                  │           │
//!     │ └──────── the rows a second have grown by GAIN, or work waits no more: keep ───────┘           │
//!     └──────── else: as many as before, and no trial for a while, which doubles each time ────────────┘
//! ```
//! At the start of a stream whose reads take long, as from a bucket, one update suffices for a trial and two for its
//! end, until a trial gains nothing: 16 reads become 64 in 1.5 s instead of 5 s. From `Steady` the reads are halved if
//! a quarter of them would have sufficed for a while. Lower bound: the number at the stream's start; upper bound: the
//! number that its threads are planned for. The byte budget bounds the bytes that they hold. The contents of batches do
//! not depend on it.

use std::time::Duration;

/// Minimal ratio of the rates after and before doubling the reads.
const GAIN: f64 = 1.15;
/// Below this share of busy time the reads are idle.
const BUSY: f64 = 0.7;
/// Slightly less than a quarter of the reads' capacity.
const MOSTLY_UNUSED: f64 = 0.2;
/// If rows waited for the first stage for less than this share of the time, work waits for rows.
const ROWS_ARE_LACKING: f64 = 0.5;
/// Consecutive updates before a trial, and before the reads are halved.
const UPDATES_TO_RAISE: u32 = 2;
const UPDATES_TO_LOWER: u32 = 32;
/// Updates of a trial; the first is not counted.
const TRIAL_UPDATES: u32 = 4;
/// The same until a trial gains nothing, for streams whose average read takes at least `LONG_READ`: a read takes
/// microseconds from a page cache, and tens of milliseconds from a bucket.
const FIRST_UPDATES_TO_RAISE: u32 = 1;
const FIRST_TRIAL_UPDATES: u32 = 2;
const LONG_READ: Duration = Duration::from_millis(4);
/// Updates without a trial after one that gained nothing: the first pause and the longest.
const FIRST_PAUSE: u32 = 8;
const LONGEST_PAUSE: u32 = 512;

/// The measurements since the last update.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FetchSeen {
    /// Maximal number of concurrent reads now.
    pub(crate) lanes: u32,
    /// Its minimum and maximum.
    pub(crate) bounds: (u32, u32),
    /// Rows read, and the sum of their read times.
    pub(crate) rows: u64,
    pub(crate) busy: Duration,
    pub(crate) elapsed: Duration,
    /// Share of the time in which rows waited for the first stage.
    pub(crate) occupancy: f64,
    /// Whether a ring has room for another batch.
    pub(crate) rings_have_room: bool,
    /// Whether the storage is unavailable: the update is then ignored.
    pub(crate) is_away: bool,
}

/// See the module's head.
#[derive(Debug, Default)]
pub(crate) struct FetchTuner {
    trial: Option<Trial>,
    raise_votes: u32,
    lower_votes: u32,
    /// Whether a trial gained nothing or the reads were halved: the right number is roughly known.
    has_settled: bool,
    /// Remaining updates without a trial, and the length of the last such pause.
    pause: u32,
    last_pause: u32,
    /// Rows per second at the last update.
    rate: f64,
    why: String,
}

#[derive(Debug)]
struct Trial {
    lanes_before: u32,
    rate_before: f64,
    updates: u32,
    /// Number of updates of the trial.
    length: u32,
    rows: u64,
    time: Duration,
    /// Updates in which work waited for rows.
    lacking: u32,
}

impl FetchTuner {
    /// Returns the new maximal number of concurrent reads.
    #[expect(clippy::cast_precision_loss, reason = "a count of rows")]
    pub(crate) fn update(&mut self, seen: FetchSeen) -> u32 {
        let (least, most) = seen.bounds;
        let seconds = seen.elapsed.as_secs_f64().max(1e-9);
        let used = seen.busy.as_secs_f64() / (seconds * f64::from(seen.lanes.max(1)));
        self.rate = seen.rows as f64 / seconds;
        let is_lacking = seen.occupancy < ROWS_ARE_LACKING && seen.rings_have_room;
        if seen.is_away {
            (self.raise_votes, self.lower_votes) = (0, 0);
            return match self.trial.take() {
                Some(trial) => self.settle(trial.lanes_before, "the storage is away"),
                None => seen.lanes,
            };
        }
        if let Some(trial) = &mut self.trial {
            trial.updates += 1;
            if trial.updates > 1 {
                trial.rows += seen.rows;
                trial.time += seen.elapsed;
                trial.lacking += u32::from(is_lacking);
            }
            if trial.updates < trial.length {
                return seen.lanes;
            }
            let lanes = self.judge(seen.lanes);
            if lanes != seen.lanes {
                return lanes;
            }
        }
        self.pause = self.pause.saturating_sub(1);
        let wants_more = is_lacking && used >= BUSY && seen.lanes < most;
        self.raise_votes = if wants_more { self.raise_votes + 1 } else { 0 };
        let unused = used < MOSTLY_UNUSED && seen.lanes > least;
        self.lower_votes = if unused { self.lower_votes + 1 } else { 0 };
        let is_first = !self.has_settled
            && seen.rows > 0
            && seen.busy.as_secs_f64() >= LONG_READ.as_secs_f64() * seen.rows as f64;
        let (updates_to_raise, length) = match is_first {
            true => (FIRST_UPDATES_TO_RAISE, FIRST_TRIAL_UPDATES),
            false => (UPDATES_TO_RAISE, TRIAL_UPDATES),
        };
        if self.raise_votes >= updates_to_raise && self.pause == 0 {
            self.raise_votes = 0;
            self.trial = Some(Trial {
                lanes_before: seen.lanes,
                rate_before: self.rate,
                updates: 0,
                length,
                rows: 0,
                time: Duration::ZERO,
                lacking: 0,
            });
            return self.settle((2 * seen.lanes).min(most), "tried since work waits for rows");
        }
        if self.lower_votes >= UPDATES_TO_LOWER {
            self.lower_votes = 0;
            self.has_settled = true;
            return self.settle((seen.lanes / 2).max(least), "fewer are enough");
        }
        if self.why.is_empty() {
            self.settle(seen.lanes, "as many as at the start");
        }
        seen.lanes
    }

    /// Ends a trial.
    #[expect(clippy::cast_precision_loss, reason = "a count of rows")]
    fn judge(&mut self, lanes: u32) -> u32 {
        let Some(trial) = self.trial.take() else { return lanes };
        let rate = trial.rows as f64 / trial.time.as_secs_f64().max(1e-9);
        let (before, now) = (trial.rate_before, rate);
        let figures = |lanes: u32| format!("{before:.0} rows/s by {lanes} and {now:.0} by");
        if rate >= GAIN * before || trial.lacking * 2 < trial.length - 1 {
            (self.pause, self.last_pause) = (0, 0);
            let why = format!("{} these", figures(trial.lanes_before));
            return self.settle(lanes, &why);
        }
        self.has_settled = true;
        self.last_pause = (2 * self.last_pause).clamp(FIRST_PAUSE, LONGEST_PAUSE);
        self.pause = self.last_pause;
        let why = format!("more gain too little, {} {lanes}", figures(trial.lanes_before));
        self.settle(trial.lanes_before, &why)
    }

    fn settle(&mut self, lanes: u32, why: &str) -> u32 {
        self.why = format!("{lanes} reads at once: {why}");
        lanes
    }

    /// The reason for the current number.
    pub(crate) fn why(&self) -> &str {
        &self.why
    }
}

#[cfg(test)]
mod tests {
    use crate::actors::fetch_tuning::*;

    const UPDATE: Duration = Duration::from_millis(450);

    /// A storage with a read latency and a maximal rate, and a consumer with a maximal rate.
    struct World {
        tuner: FetchTuner,
        lanes: u32,
        latency: f64,
        most_rows: f64,
        wanted_rows: f64,
        bounds: (u32, u32),
    }

    impl World {
        fn new(latency: f64, most_rows: f64, wanted_rows: f64) -> Self {
            let bounds = (16, 64);
            Self {
                tuner: FetchTuner::default(),
                lanes: 16,
                latency,
                most_rows,
                wanted_rows,
                bounds,
            }
        }

        fn run(&mut self, updates: u32) -> Vec<u32> {
            (0..updates).map(|_| self.update(false)).collect()
        }

        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a model")]
        fn update(&mut self, is_away: bool) -> u32 {
            let lanes = f64::from(self.lanes);
            let possible = (lanes / self.latency).min(self.most_rows);
            let rate = possible.min(self.wanted_rows);
            let is_limit = possible < self.wanted_rows;
            // If the storage is the limit, reads take longer and all of them are busy.
            let busy = if is_limit { lanes } else { rate * self.latency };
            self.lanes = self.tuner.update(FetchSeen {
                lanes: self.lanes,
                bounds: self.bounds,
                rows: (rate * UPDATE.as_secs_f64()) as u64,
                busy: UPDATE.mul_f64(busy),
                elapsed: UPDATE,
                occupancy: if is_limit { 0.0 } else { 1.0 },
                rings_have_room: is_limit,
                is_away,
            });
            self.lanes
        }
    }

    #[test]
    fn slow_storage_gets_more_reads_until_work_no_longer_waits() {
        let mut world = World::new(0.005, 1e9, 5000.0);
        world.run(20);
        assert_eq!(world.lanes, 32, "{}", world.tuner.why());
        assert!(world.tuner.why().contains("3200 rows/s by 16"), "{}", world.tuner.why());
        // Twice the latency, as on a loaded server: the maximum.
        world.latency = 0.010;
        world.run(20);
        assert_eq!(world.lanes, 64);
        // Back in the page cache: few reads suffice.
        world.latency = 0.0001;
        world.run(200);
        assert_eq!(world.lanes, 16);
    }

    #[test]
    fn bucket_reaches_its_reads_within_a_few_updates() {
        let bucket =
            |most_rows| World { bounds: (16, 256), ..World::new(0.030, most_rows, 2000.0) };
        assert_eq!(bucket(1e9).run(8), [32, 32, 64, 64, 64, 64, 64, 64]);
        // A storage that gains nothing gets trials at the usual pace after the first one.
        assert_eq!(
            bucket(550.0).run(40).into_iter().filter(|lanes| *lanes > 16).count(),
            2 + 4 + 4
        );
        // Reads from a page cache, or a fast disk.
        let mut cache = World { bounds: (16, 256), ..World::new(0.003, 1e9, 10_000.0) };
        assert_eq!(cache.run(8), [16, 32, 32, 32, 32, 32, 32, 32]);
    }

    #[test]
    fn storage_that_gains_nothing_gets_few_trials() {
        let mut world = World::new(0.005, 3300.0, 5000.0);
        let lanes = world.run(400);
        assert_eq!(world.lanes, 16);
        assert!(world.tuner.why().contains("more gain too little"), "{}", world.tuner.why());
        let tried = lanes.iter().filter(|lanes| **lanes > 16).count();
        assert!((8..=28).contains(&tried), "{tried} of 400 updates with more");
    }

    #[test]
    fn reads_are_kept_if_work_has_rows_and_during_an_outage() {
        let mut world = World::new(0.005, 1e9, 1000.0);
        assert!(world.run(100).iter().all(|lanes| *lanes == 16));
        world.wanted_rows = 5000.0;
        while world.update(false) == 16 {}
        assert_eq!(world.update(true), 16, "a trial ends with the outage");
        for _ in 0..50 {
            assert_eq!(world.update(true), 16);
        }
    }
}

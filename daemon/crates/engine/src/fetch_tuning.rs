//! How many reads of a stream are under way at once, where the configuration says `"auto"`: found while it runs.
//!
//! How much a storage gains by more reads at once cannot be known before they are tried. The states, and what moves them:
//! ```text
//!   Steady ──the reads are busy, work waits for their rows, the rings have room: twice──► Trial: twice the reads
//!     ▲ ▲                                                                                  │           │
//!     │ └──────── the rows a second have grown by GAIN, or work waits no more: keep ───────┘           │
//!     └──────── else: as many as before, and no trial for a while, which doubles each time ────────────┘
//! ```
//! At the start of a stream whose reads take long, as from a bucket, one update is enough for a trial and two for its end, up
//! to the first trial that gains nothing: from 16 reads to 64 in a second and a half instead of five.
//! From `Steady` the reads are halved once a quarter of them would have been enough for a while. They are bounded by the
//! number that the stream starts with and by the one that its threads are planned for; the byte budget bounds what they
//! hold. No batch depends on any of it.

use std::time::Duration;

/// What a trial has to gain, for twice the reads.
const GAIN: f64 = 1.15;
/// Reads that are under way for less than this share of the time have nothing to do.
const BUSY: f64 = 0.7;
/// What a quarter of the reads could have done, nearly.
const MOSTLY_UNUSED: f64 = 0.2;
/// Rows waited for the first stage for less than this share of the time: work waits for them.
const ROWS_ARE_LACKING: f64 = 0.5;
/// Updates that must agree before a trial, and before the reads are halved.
const UPDATES_TO_RAISE: u32 = 2;
const UPDATES_TO_LOWER: u32 = 32;
/// Updates of a trial; the first is not counted.
const TRIAL_UPDATES: u32 = 4;
/// The same before the first trial that gained nothing, where a read takes so long on average: in a page cache it takes
/// some microseconds, from a bucket some tens of milliseconds.
const FIRST_UPDATES_TO_RAISE: u32 = 1;
const FIRST_TRIAL_UPDATES: u32 = 2;
const LONG_READ: Duration = Duration::from_millis(4);
/// Updates without a trial after one that gained nothing: at first, and at most.
const FIRST_PAUSE: u32 = 8;
const LONGEST_PAUSE: u32 = 512;

/// The measurements since the last update.
#[derive(Debug, Clone, Copy)]
pub(super) struct FetchSeen {
    /// The reads that may be under way now.
    pub(super) lanes: u32,
    /// The fewest and the most.
    pub(super) bounds: (u32, u32),
    /// Rows read, and the time that took, over all of them.
    pub(super) rows: u64,
    pub(super) busy: Duration,
    pub(super) elapsed: Duration,
    /// The share of the time in which rows waited for the first stage.
    pub(super) occupancy: f64,
    /// A ring has room for another batch.
    pub(super) rings_have_room: bool,
    /// The storage is away: nothing is learnt from that.
    pub(super) is_away: bool,
}

/// See the module's head.
#[derive(Debug, Default)]
pub(super) struct FetchTuner {
    trial: Option<Trial>,
    raise_votes: u32,
    lower_votes: u32,
    /// A trial gained nothing, or fewer were enough: what is right is known by and large.
    has_settled: bool,
    /// Updates left without a trial, and the length of the last such pause.
    pause: u32,
    last_pause: u32,
    /// Rows a second at the last update.
    rate: f64,
    why: String,
}

#[derive(Debug)]
struct Trial {
    lanes_before: u32,
    rate_before: f64,
    updates: u32,
    /// Updates to its end.
    length: u32,
    rows: u64,
    time: Duration,
    /// Of the updates, those in which work waited for rows.
    lacking: u32,
}

impl FetchTuner {
    /// Gives the reads that may be under way from now on.
    #[expect(clippy::cast_precision_loss, reason = "a count of rows")]
    pub(super) fn update(&mut self, seen: FetchSeen) -> u32 {
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

    /// The end of a trial.
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

    /// Why there are as many as there are.
    pub(super) fn why(&self) -> &str {
        &self.why
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UPDATE: Duration = Duration::from_millis(450);

    /// A storage whose reads take a time, of which it gives so many a second at most; and what work and trainer take.
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
            // A read takes longer where the storage is the limit; all are under way then.
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
    fn a_slow_storage_gets_more_reads_until_work_waits_no_more() {
        let mut world = World::new(0.005, 1e9, 5000.0);
        world.run(20);
        assert_eq!(world.lanes, 32, "{}", world.tuner.why());
        assert!(world.tuner.why().contains("3200 rows/s by 16"), "{}", world.tuner.why());
        // Twice the latency, as on a loaded server: as many as there may be.
        world.latency = 0.010;
        world.run(20);
        assert_eq!(world.lanes, 64);
        // Back in the page cache: few are needed.
        world.latency = 0.0001;
        world.run(200);
        assert_eq!(world.lanes, 16);
    }

    #[test]
    fn a_bucket_has_what_it_needs_soon() {
        let bucket =
            |most_rows| World { bounds: (16, 256), ..World::new(0.030, most_rows, 2000.0) };
        assert_eq!(bucket(1e9).run(8), [32, 32, 64, 64, 64, 64, 64, 64]);
        // One that gives no more is asked at the usual pace after the first time.
        assert_eq!(
            bucket(550.0).run(40).into_iter().filter(|lanes| *lanes > 16).count(),
            2 + 4 + 4
        );
        // Reads from a page cache, or a fast disk.
        let mut cache = World { bounds: (16, 256), ..World::new(0.003, 1e9, 10_000.0) };
        assert_eq!(cache.run(8), [16, 32, 32, 32, 32, 32, 32, 32]);
    }

    #[test]
    fn a_storage_that_gives_no_more_is_asked_for_more_seldom() {
        let mut world = World::new(0.005, 3300.0, 5000.0);
        let lanes = world.run(400);
        assert_eq!(world.lanes, 16);
        assert!(world.tuner.why().contains("more gain too little"), "{}", world.tuner.why());
        let tried = lanes.iter().filter(|lanes| **lanes > 16).count();
        assert!((8..=28).contains(&tried), "{tried} of 400 updates with more");
    }

    #[test]
    fn what_is_not_lacking_is_left_alone_and_an_outage_teaches_nothing() {
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

//! The engine's periodic work, four times a second while work is in progress: detects starving threads, tunes the
//! threads of `auto` stages, charges the CPU budget, leaves a shared quota to the trainer.
//!
//! Owned by the engine thread. There are no ticks while every ring is full and no work is in progress.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::actors::fetch_threads::FetchThreads;
use crate::actors::fetch_tuning::{FetchSeen, FetchTuner};
use crate::actors::pool::Pool;
use crate::actors::tuning::{Resources, StageSeen, Tuner};
use crate::ground::stream::Stream;
use forebay_affinity::{CpuIsolation, QuotaWatch, StarvationWatch};
use forebay_observe::cpu_time;

/// Time between ticks.
pub(crate) const PERIOD: Duration = Duration::from_millis(250);
/// Time between changes to the threads of `auto` stages.
const TUNING_PERIOD: Duration = Duration::from_millis(450);

/// The state of the sessions at a tick.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SessionsSeen {
    /// Whether a client sleeps on an empty ring.
    pub(crate) client_waits: bool,
    /// Whether a ring has fewer batches ready than half its slots.
    pub(crate) rings_have_room: bool,
}

/// See the module's head.
#[derive(Debug)]
pub(crate) struct Tick {
    starvation: StarvationWatch,
    pub(crate) quota: Option<QuotaWatch>,
    pub(crate) quiet: CpuIsolation,
    /// Number of cores by `cpu.limit`, if set.
    limit_cores: Option<f64>,
    /// Number of cores that the daemon may use without a limit.
    granted_cores: f64,
    /// The fetch budget.
    fetch_bytes: u64,
    /// CPU time of all threads other than work threads at the last tick.
    others_used: Duration,
    /// By stream.
    tuners: Vec<Tuner>,
    fetch_tuners: Vec<FetchTuner>,
    /// By stream: the rows read until the last update, and their total read time.
    read_before: Vec<(u64, Duration)>,
    tuned_at: Instant,
    /// By stream: the time that each stage's queue was empty until the last update.
    empty_before: Vec<Vec<Duration>>,
}

impl Tick {
    pub(crate) fn new(
        streams: usize,
        (granted_cores, limit_cores): (f64, Option<f64>),
        fetch_bytes: u64,
        now: Instant,
    ) -> Self {
        Self {
            starvation: StarvationWatch::new(now),
            quota: None,
            quiet: CpuIsolation::default(),
            limit_cores,
            granted_cores,
            fetch_bytes,
            // CPU time from before the budget is not charged: a scan of a large dataset would delay the start.
            others_used: cpu_time(),
            tuners: (0..streams).map(|_| Tuner::default()).collect(),
            fetch_tuners: (0..streams).map(|_| FetchTuner::default()).collect(),
            read_before: vec![(0, Duration::ZERO); streams],
            tuned_at: now,
            empty_before: vec![Vec::new(); streams],
        }
    }

    /// Called when ticks start again: the pause is not measured.
    pub(crate) fn resume(&mut self, streams: &[Arc<Stream>], now: Instant) {
        if let Some(quota) = &mut self.quota {
            quota.resume();
        }
        self.note_tuning(streams, now);
    }

    pub(crate) fn on_attach(&mut self, trainer: u32, pool: &mut Pool) {
        let quota = self.quiet.on_attach(trainer, pool);
        self.quota = quota.or(self.quota.take());
    }

    /// No client left: drop the quota.
    pub(crate) fn on_last_detach(&mut self) {
        self.quota = None;
    }

    /// Runs one tick. True: a stream may have more concurrent reads.
    pub(crate) fn run(
        &mut self,
        pool: &mut Pool,
        fetch_threads: &mut [FetchThreads],
        streams: &[Arc<Stream>],
        seen: SessionsSeen,
        now: Instant,
    ) -> bool {
        let workers = || streams.iter().map(|stream| stream.plan.workers_cpu_time()).sum();
        self.starvation.update(pool, seen.client_waits, workers, now);
        self.quiet.follow_fallback(pool.shared.is_fallback_active());
        self.charge_budget(pool, now);
        if now.saturating_duration_since(self.tuned_at) < TUNING_PERIOD {
            return false;
        }
        self.tune(pool, fetch_threads, streams, seen.rings_have_room, now)
    }

    /// The reason for a stream's number of concurrent reads; empty if it is configured.
    pub(crate) fn why_fetch(&self, stream: usize) -> &str {
        self.fetch_tuners.get(stream).map_or("", FetchTuner::why)
    }

    /// The reason for a stage's number of threads.
    pub(crate) fn why(&self, stream: usize, stage: usize) -> &str {
        self.tuners.get(stream).map_or("", |tuner| tuner.why(stage))
    }

    /// Charges the CPU time of threads other than work threads, and updates the quota.
    fn charge_budget(&mut self, pool: &Pool, now: Instant) {
        let budget = &pool.shared.budget;
        let process = cpu_time();
        let others_used = process.saturating_sub(budget.used());
        budget.charge(others_used.saturating_sub(self.others_used));
        self.others_used = others_used;
        let left = self.quota.as_mut().map(|quota| quota.update(process, now));
        let cores = match (self.limit_cores, left) {
            (Some(limit), Some(left)) => Some(limit.min(left)),
            (limit, left) => limit.or(left),
        };
        if cores != budget.cores() {
            budget.set_cores(cores);
        }
    }

    fn tune(
        &mut self,
        pool: &mut Pool,
        fetch_threads: &mut [FetchThreads],
        streams: &[Arc<Stream>],
        rings_have_room: bool,
        now: Instant,
    ) -> bool {
        let elapsed = now.saturating_duration_since(self.tuned_at);
        let (empty_before, read_before) = self.note_tuning(streams, now);
        let mut has_more_reads = false;
        let granted = self.granted_cores;
        let resources = Resources {
            cores: pool.shared.budget.cores().map_or(granted, |limit| limit.min(granted)),
            max_threads: pool.options.max_threads,
            rings_have_room,
        };
        for (number, stream) in streams.iter().enumerate() {
            let seen: Vec<StageSeen> = stream
                .stages
                .iter()
                .enumerate()
                .map(|(stage_number, stage)| {
                    let before = empty_before[number].get(stage_number).copied();
                    let empty = stage.input.empty_time().saturating_sub(before.unwrap_or_default());
                    StageSeen {
                        limit: stage.gate.limit(),
                        is_auto: stage.is_auto,
                        total: stage.cost.total(),
                        occupancy: 1.0 - empty.as_secs_f64() / elapsed.as_secs_f64().max(1e-9),
                    }
                })
                .collect();
            let threads = &mut fetch_threads[number];
            if stream.config.fetch.is_auto() {
                let (rows, busy) = self.read_before[number];
                let lanes = u32::try_from(threads.lanes()).unwrap_or(u32::MAX);
                let wanted = self.fetch_tuners[number].update(FetchSeen {
                    lanes,
                    bounds: stream.bounds_of_reads(self.fetch_bytes),
                    rows: rows.saturating_sub(read_before[number].0),
                    busy: busy.saturating_sub(read_before[number].1),
                    elapsed,
                    occupancy: seen.first().map_or(0.0, |stage| stage.occupancy),
                    rings_have_room,
                    is_away: stream.outages.current().is_some(),
                });
                has_more_reads |= wanted > lanes;
                if let Err(error) = threads.set_lanes(wanted as usize) {
                    tracing::warn!(%error, wanted, "cannot start more threads for the stage fetch");
                }
            }
            if !stream.stages.iter().any(|stage| stage.is_auto) {
                continue;
            }
            let limits = self.tuners[number].update(&seen, resources);
            let mut raised = 0;
            for (stage, limit) in stream.stages.iter().zip(&limits) {
                raised += limit.saturating_sub(stage.gate.limit());
                stage.gate.set_limit(*limit);
            }
            if raised > 0 {
                if let Err(error) = pool.grow(limits.iter().sum()) {
                    tracing::warn!(%error, "cannot start another work thread");
                }
                (0..raised).for_each(|_| pool.shared.wake_one());
            }
        }
        has_more_reads
    }

    /// Stores the queues' empty times and the rows read; returns the previous ones.
    fn note_tuning(
        &mut self,
        streams: &[Arc<Stream>],
        now: Instant,
    ) -> (Vec<Vec<Duration>>, Vec<(u64, Duration)>) {
        self.tuned_at = now;
        let read = streams.iter().map(|stream| stream.fetch.done()).collect();
        let empty = streams
            .iter()
            .map(|stream| stream.stages.iter().map(|stage| stage.input.empty_time()).collect())
            .collect();
        let empty_before = std::mem::replace(&mut self.empty_before, empty);
        (empty_before, std::mem::replace(&mut self.read_before, read))
    }
}

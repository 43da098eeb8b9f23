//! What the engine does by the clock, four times a second while there is work: looks for starving threads, finds the
//! threads of `auto` stages, keeps the CPU budget's account, leaves a shared quota to the trainer.
//!
//! Owned by the engine thread. While every ring is full and nothing is under way, the clock stands still.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::pool::Pool;
use super::quiet::Quiet;
use super::quota::QuotaWatch;
use super::starvation::StarvationWatch;
use super::stream::Stream;
use super::tuning::{Means, StageSeen, Tuner};
use crate::observe::cpu_time;

/// How often the engine looks.
pub(super) const PERIOD: Duration = Duration::from_millis(250);
/// How often the threads of `auto` stages are thought over.
const TUNING_PERIOD: Duration = Duration::from_millis(450);

/// What the sessions are like at a look.
#[derive(Debug, Clone, Copy)]
pub(super) struct SessionsSeen {
    /// Some client sleeps over an empty ring.
    pub(super) client_waits: bool,
    /// Some ring has fewer batches ready than half its slots.
    pub(super) rings_have_room: bool,
}

/// See the module's head.
#[derive(Debug)]
pub(super) struct Upkeep {
    starvation: StarvationWatch,
    pub(super) quota: Option<QuotaWatch>,
    pub(super) quiet: Quiet,
    /// Cores by `cpu.limit`, if it is set.
    limit_cores: Option<f64>,
    /// Cores that the daemon may use without a limit.
    granted_cores: f64,
    /// The CPU time of all but the work threads at the last look.
    others_used: Duration,
    /// By stream.
    tuners: Vec<Tuner>,
    tuned_at: Instant,
    /// Time that each stage's queue was empty at the last look, by stream.
    empty_before: Vec<Vec<Duration>>,
}

impl Upkeep {
    pub(super) fn new(streams: usize, granted_cores: f64, limit_cores: Option<f64>) -> Self {
        Self {
            starvation: StarvationWatch::default(),
            quota: None,
            quiet: Quiet::new(),
            limit_cores,
            granted_cores,
            // What was used before there was a budget is not charged: a scan of a large dataset would hold up the start.
            others_used: cpu_time(),
            tuners: (0..streams).map(|_| Tuner::default()).collect(),
            tuned_at: Instant::now(),
            empty_before: vec![Vec::new(); streams],
        }
    }

    /// The clock goes on after it stood still: the time between is nobody's.
    pub(super) fn resume(&mut self, streams: &[Arc<Stream>]) {
        if let Some(quota) = &mut self.quota {
            quota.resume();
        }
        self.note_tuning(streams);
    }

    /// A client has attached.
    pub(super) fn meet(&mut self, trainer: u32, pool: &mut Pool) {
        let quota = self.quiet.meet(trainer, pool);
        self.quota = quota.or(self.quota.take());
    }

    /// The last client is gone: nobody has to be left anything.
    pub(super) fn be_alone(&mut self) {
        self.quota = None;
    }

    /// Looks once.
    pub(super) fn look(&mut self, pool: &mut Pool, streams: &[Arc<Stream>], seen: SessionsSeen) {
        self.starvation.look(&pool.shared, seen.client_waits);
        self.quiet.follow_rescue(pool.shared.rescue_is_on());
        self.keep_account(pool);
        if self.tuned_at.elapsed() >= TUNING_PERIOD
            && streams.iter().any(|stream| stream.stages.iter().any(|stage| stage.is_auto))
        {
            self.tune(pool, streams, seen.rings_have_room);
        }
    }

    /// Why a stage of a stream has the threads that it has.
    pub(super) fn why(&self, stream: usize, stage: usize) -> &str {
        self.tuners.get(stream).map_or("", |tuner| tuner.why(stage))
    }

    /// Charges what is not the work threads', and follows the quota.
    fn keep_account(&mut self, pool: &Pool) {
        let budget = &pool.shared.budget;
        let process = cpu_time();
        let others_used = process.saturating_sub(budget.used());
        budget.charge(others_used.saturating_sub(self.others_used));
        self.others_used = others_used;
        let left = self.quota.as_mut().map(|quota| quota.look(process));
        let cores = match (self.limit_cores, left) {
            (Some(limit), Some(left)) => Some(limit.min(left)),
            (limit, left) => limit.or(left),
        };
        if cores != budget.cores() {
            budget.set_cores(cores);
        }
    }

    fn tune(&mut self, pool: &mut Pool, streams: &[Arc<Stream>], rings_have_room: bool) {
        let elapsed = self.tuned_at.elapsed();
        let empty_before = self.note_tuning(streams);
        let granted = self.granted_cores;
        let means = Means {
            cores: pool.shared.budget.cores().map_or(granted, |limit| limit.min(granted)),
            most_threads: pool.options.most_threads,
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
            let limits = self.tuners[number].look(&seen, means);
            let mut raised = 0;
            for (stage, limit) in stream.stages.iter().zip(&limits) {
                raised += limit.saturating_sub(stage.gate.limit());
                stage.gate.set_limit(*limit);
            }
            if raised > 0 {
                if let Err(error) = pool.grow(limits.iter().sum()) {
                    tracing::warn!(%error, "no further work thread could be started");
                }
                (0..raised).for_each(|_| pool.shared.wake_one());
            }
        }
    }

    /// Remembers where the figures stand; gives the queues' former empty times.
    fn note_tuning(&mut self, streams: &[Arc<Stream>]) -> Vec<Vec<Duration>> {
        self.tuned_at = Instant::now();
        let empty = streams
            .iter()
            .map(|stream| stream.stages.iter().map(|stage| stage.input.empty_time()).collect())
            .collect();
        std::mem::replace(&mut self.empty_before, empty)
    }
}

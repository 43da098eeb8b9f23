//! The numbers behind a verdict, computed from a window of metrics. The rules and the sentences are elsewhere.

use super::thresholds::{EXPLAINS_WAIT, FEW, KEPT_OFF, MOSTLY_ASLEEP, SLOW, SLOWER_THAN_MEAN};
use crate::cpu_isolation::IsolationItem;
use crate::histogram::percentile_of;
use crate::report::{DaemonReport, SessionReport};
use crate::requests::RequestReport;
use crate::stage::StageReport;

/// The numbers of one session's window.
#[derive(Debug)]
pub(super) struct Facts<'w> {
    pub(super) session: &'w SessionReport,
    /// Of the same window.
    pub(super) report: &'w DaemonReport,
    pub(super) wait_share: f64,
    /// The share of their time that work threads were throttled by the budget.
    pub(super) held_back: f64,
    /// Of all streams, in their order; `fetch` comes first in each, the user's functions on complete batches last.
    pub(super) stages: Vec<StageFacts<'w>>,
}

/// The numbers of one stage.
#[derive(Debug)]
pub(super) struct StageFacts<'w> {
    pub(super) stream: &'w str,
    pub(super) report: &'w StageReport,
    pub(super) is_fetch: bool,
    /// Threads in it at a time, on average; of a Python stage, workers.
    pub(super) busy: f64,
    /// `busy` by concurrency.
    pub(super) utilisation: f64,
    /// Cores that its tasks used; of a Python stage, without its workers.
    pub(super) cores: f64,
    /// The shares of a task's time asleep and ready without a core; in the rest it runs.
    pub(super) asleep_share: f64,
    pub(super) ready_share: f64,
    /// The share of the time in which rows waited for it.
    pub(super) input_occupancy: f64,
}

/// A few tasks that take far longer than the others.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tail {
    /// One of so many is slow.
    pub(super) one_in: f64,
    pub(super) median_seconds: f64,
    /// The mean of the slow ones.
    pub(super) mean_seconds: f64,
    pub(super) total_seconds: f64,
}

impl<'w> Facts<'w> {
    pub(super) fn of(
        session: &'w SessionReport,
        report: &'w DaemonReport,
        wait_share: f64,
    ) -> Self {
        let seconds = session.seconds;
        let mut stages = Vec::new();
        for stream in &report.streams {
            let mut input_occupancy = 0.0;
            for (number, stage) in stream.stages_and_functions().enumerate() {
                stages.push(StageFacts::of(&stream.name, number, stage, seconds, input_occupancy));
                input_occupancy = stage.queue.as_ref().map_or(0.0, |queue| queue.occupancy_rate);
            }
        }
        let threads = f64::from(report.threads.max(1));
        let held_back = report.cpu_budget.held_back_seconds / (seconds * threads);
        Self { session, report, wait_share, held_back, stages }
    }

    /// What the storage of a stream was asked for, where it brought anything by requests.
    pub(super) fn requests_of(&self, stream: &str) -> Option<&'w RequestReport> {
        let stream = self.report.streams.iter().find(|one| one.name == stream)?;
        stream.requests.as_ref().filter(|requests| requests.num_whole > 0)
    }

    pub(super) fn seconds(&self) -> f64 {
        self.session.seconds
    }

    /// The session's own stages, `fetch` first; then its functions on complete batches.
    pub(super) fn own_stages(&self) -> impl DoubleEndedIterator<Item = &StageFacts<'w>> {
        let own = self.session.stream.as_str();
        self.stages.iter().filter(move |stage| stage.stream == own)
    }

    /// Cores that the whole daemon used.
    pub(super) fn used_cores(&self) -> f64 {
        self.report.cpu_seconds / self.seconds()
    }

    pub(super) fn granted_cores(&self) -> f64 {
        self.report.cpu_budget.granted_cores
    }

    /// The work threads without those of Python stages, which wait for workers.
    pub(super) fn native_threads(&self) -> u32 {
        let python = self.stages.iter().filter_map(|stage| stage.report.python.as_ref());
        let of_python = python.map(|python| python.threads).sum();
        self.report.threads.saturating_sub(of_python).max(1)
    }

    /// Cores that the tasks of all stages used, and workers of Python stages at most.
    pub(super) fn own_cores(&self) -> f64 {
        let of_workers = |stage: &StageFacts<'_>| {
            if stage.is_python() { stage.busy } else { 0.0 }
        };
        self.stages.iter().map(|stage| stage.cores + of_workers(stage)).sum()
    }

    /// Whether work threads run only where nothing else is ready to.
    pub(super) fn runs_idle(&self) -> bool {
        IsolationItem::is_idle(&self.report.cpu_isolation)
    }

    pub(super) fn slots(&self) -> u64 {
        let session = self.session;
        session.slots_free + session.slots_filling + session.slots_ready + session.slots_leased
    }

    /// The rows of a batch, on average.
    #[expect(clippy::cast_precision_loss, reason = "metrics")]
    pub(super) fn rows_of_a_batch(&self) -> f64 {
        let last = self.own_stages().rfind(|stage| !stage.report.is_of_batches);
        let last = last.map_or(0, |stage| stage.report.num_tasks);
        last as f64 / self.session.batches_published.max(1) as f64
    }

    /// The stage whose tasks were ready without a core, where that explains the wait.
    pub(super) fn kept_off_cores(&self) -> Option<&StageFacts<'w>> {
        let ready_seconds = |stage: &&StageFacts<'w>| stage.ready_share * stage.report.busy_seconds;
        let waited = self.session.wait_seconds;
        self.own_stages()
            .filter(|stage| stage.is_kept_off() && stage.asleep_share < MOSTLY_ASLEEP)
            .filter(|stage| ready_seconds(stage) >= EXPLAINS_WAIT * waited)
            .max_by(|one, other| ready_seconds(one).total_cmp(&ready_seconds(other)))
    }

    /// The stage whose few slow samples outlast half a ring and so hold up their batches, where they explain the wait.
    #[expect(clippy::cast_precision_loss, reason = "metrics")]
    pub(super) fn slow_samples(&self) -> Option<(&StageFacts<'w>, Tail)> {
        let session = self.session;
        let batch_seconds = self.seconds() / session.batches_published.max(1) as f64;
        let outlasted = 0.5 * self.slots() as f64 * batch_seconds;
        self.own_stages()
            // Tasks that are kept off the cores are slow for that reason.
            .filter(|stage| !stage.is_kept_off())
            .filter_map(|stage| Some((stage, stage.tail()?)))
            .filter(|(_, tail)| {
                tail.mean_seconds >= outlasted
                    && tail.total_seconds >= EXPLAINS_WAIT * session.wait_seconds
            })
            .max_by(|(_, one), (_, other)| one.total_seconds.total_cmp(&other.total_seconds))
    }
}

impl<'w> StageFacts<'w> {
    #[expect(clippy::cast_precision_loss, reason = "metrics")]
    fn of(
        stream: &'w str,
        number: usize,
        report: &'w StageReport,
        seconds: f64,
        input_occupancy: f64,
    ) -> Self {
        let busy = report.worked_seconds() / seconds;
        // Batches have no queue: a thread that waits for a worker holds one.
        let calls = report.python.as_ref().filter(|_| report.is_of_batches);
        let input_occupancy =
            calls.map_or(input_occupancy, |python| (python.wait_seconds / seconds).clamp(0.0, 1.0));
        let whole = Self {
            stream,
            report,
            is_fetch: number == 0,
            busy,
            utilisation: busy / f64::from(report.concurrency.max(1)),
            cores: report.cpu_seconds / seconds,
            asleep_share: 0.0,
            ready_share: 0.0,
            input_occupancy,
        };
        if report.python.is_some() {
            // Its threads sleep while a worker is called, which says nothing of the function.
            return whole;
        }
        // Part of the tasks is measured; the others are assumed to be alike.
        let measured = report.ave_time * report.measured_tasks as f64;
        let share = |seconds: f64| {
            if measured > 0.0 { (seconds / measured).clamp(0.0, 1.0) } else { 0.0 }
        };
        let (cpu_share, asleep_share) = (share(report.cpu_seconds), share(report.asleep_seconds));
        let ready_share =
            if measured > 0.0 { (1.0 - cpu_share - asleep_share).max(0.0) } else { 0.0 };
        Self { cores: busy * cpu_share, asleep_share, ready_share, ..whole }
    }

    pub(super) fn is_python(&self) -> bool {
        self.report.python.is_some()
    }

    /// What it is and its name.
    pub(super) fn title(&self) -> String {
        let kind = if self.report.is_of_batches { "function on batches" } else { "stage" };
        format!("the {kind} `{}`", self.report.name)
    }

    /// What is busy in it.
    pub(super) fn workforce(&self) -> &'static str {
        if self.is_python() { "workers" } else { "threads" }
    }

    pub(super) fn is_kept_off(&self) -> bool {
        self.ready_share >= KEPT_OFF
    }

    /// Its few slow tasks, if it has any.
    #[expect(clippy::cast_precision_loss, reason = "metrics")]
    pub(super) fn tail(&self) -> Option<Tail> {
        let times = &self.report.times;
        let all: u64 = times.iter().map(|(_, count)| count).sum();
        let median_seconds = percentile_of(times, 0.5);
        let from = (SLOW * median_seconds).max(SLOWER_THAN_MEAN * self.report.ave_time);
        let slow = || times.iter().filter(|(seconds, _)| *seconds > from);
        let tasks: u64 = slow().map(|(_, count)| count).sum();
        if tasks == 0 || tasks as f64 > FEW * all as f64 {
            return None;
        }
        // The upper bound of each bucket: at most 6 % too much.
        let total_seconds: f64 = slow().map(|(seconds, count)| seconds * *count as f64).sum();
        Some(Tail {
            one_in: all as f64 / tasks as f64,
            median_seconds,
            mean_seconds: total_seconds / tasks as f64,
            total_seconds,
        })
    }
}

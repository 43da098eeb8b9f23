//! The numbers for a verdict, computed from a window of metrics. The rules and the sentences are elsewhere.

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
    /// The daemon's metrics of the same window.
    pub(super) report: &'w DaemonReport,
    pub(super) wait_share: f64,
    /// The share of the work threads' time for which the budget throttled them.
    pub(super) held_back: f64,
    /// The stages of all streams, in order; in each stream `fetch` is first, and the user's functions on complete
    /// batches are last.
    pub(super) stages: Vec<StageFacts<'w>>,
}

/// The numbers of one stage.
#[derive(Debug)]
pub(super) struct StageFacts<'w> {
    pub(super) stream: &'w str,
    pub(super) report: &'w StageReport,
    pub(super) is_fetch: bool,
    /// The mean number of threads in it; for a Python stage, of workers, also in calls that exceeded the timeout.
    pub(super) busy: f64,
    /// `busy` divided by the concurrency.
    pub(super) utilisation: f64,
    /// The number of cores that its tasks used; for a Python stage, without its workers.
    pub(super) cores: f64,
    /// The shares of a task's time asleep, and ready without a core; in the rest of the time it runs.
    pub(super) asleep_share: f64,
    pub(super) ready_share: f64,
    /// The share of the time in which rows waited for the stage.
    pub(super) input_occupancy: f64,
}

/// The few tasks that take far longer than the others.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tail {
    /// One in this many tasks is slow.
    pub(super) one_in: f64,
    pub(super) median_seconds: f64,
    /// The mean of the slow tasks.
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

    /// The requests to a stream's storage, if any request succeeded.
    pub(super) fn requests_of(&self, stream: &str) -> Option<&'w RequestReport> {
        let stream = self.report.streams.iter().find(|one| one.name == stream)?;
        stream.requests.as_ref().filter(|requests| requests.num_whole > 0)
    }

    pub(super) fn seconds(&self) -> f64 {
        self.session.seconds
    }

    /// The session's stages, `fetch` first, then its functions on complete batches.
    pub(super) fn own_stages(&self) -> impl DoubleEndedIterator<Item = &StageFacts<'w>> {
        let own = self.session.stream.as_str();
        self.stages.iter().filter(move |stage| stage.stream == own)
    }

    /// The number of cores that the whole daemon used.
    pub(super) fn used_cores(&self) -> f64 {
        self.report.cpu_seconds / self.seconds()
    }

    pub(super) fn granted_cores(&self) -> f64 {
        self.report.cpu_budget.granted_cores
    }

    /// Whether the daemon could use more of the machine's cores, by `cpu.cores`, a cpuset or a quota.
    pub(super) fn can_have_more_cores(&self) -> bool {
        let budget = &self.report.cpu_budget;
        budget.is_quota || budget.spare_cores != Some(0)
    }

    /// The judged period as text.
    pub(super) fn window(&self) -> String {
        let seconds = self.seconds();
        match seconds {
            50.0..70.0 => "the last minute".to_owned(),
            ..100.0 => format!("the last {seconds:.0} s"),
            _ => format!("the last {:.0} min", seconds / 60.0),
        }
    }

    /// The number of work threads, without the threads of Python stages, which wait for workers.
    pub(super) fn native_threads(&self) -> u32 {
        let python = self.stages.iter().filter_map(|stage| stage.report.python.as_ref());
        let of_python = python.map(|python| python.threads).sum();
        self.report.threads.saturating_sub(of_python).max(1)
    }

    /// The number of cores that the tasks of all stages used; for workers of Python stages, an upper bound.
    pub(super) fn own_cores(&self) -> f64 {
        let of_workers = |stage: &StageFacts<'_>| {
            if stage.is_python() { stage.busy } else { 0.0 }
        };
        self.stages.iter().map(|stage| stage.cores + of_workers(stage)).sum()
    }

    /// Whether work threads run only on otherwise idle cores.
    pub(super) fn runs_idle(&self) -> bool {
        IsolationItem::is_idle(&self.report.cpu_isolation)
    }

    pub(super) fn slots(&self) -> u64 {
        let session = self.session;
        session.slots_free + session.slots_filling + session.slots_ready + session.slots_leased
    }

    /// The mean number of rows in a batch.
    #[expect(clippy::cast_precision_loss, reason = "metrics")]
    pub(super) fn rows_of_a_batch(&self) -> f64 {
        let last = self.own_stages().rfind(|stage| !stage.report.is_of_batches);
        let last = last.map_or(0, |stage| stage.report.num_tasks);
        last as f64 / self.session.batches_published.max(1) as f64
    }

    /// The stage whose tasks were ready without a core, if that explains the wait.
    pub(super) fn kept_off_cores(&self) -> Option<&StageFacts<'w>> {
        let ready_seconds = |stage: &&StageFacts<'w>| stage.ready_share * stage.report.busy_seconds;
        let waited = self.session.wait_seconds;
        self.own_stages()
            .filter(|stage| stage.is_kept_off() && stage.asleep_share < MOSTLY_ASLEEP)
            .filter(|stage| ready_seconds(stage) >= EXPLAINS_WAIT * waited)
            .max_by(|one, other| ready_seconds(one).total_cmp(&ready_seconds(other)))
    }

    /// The stage with the most time in calls that exceeded the timeout, if they explain the wait. A batch waits for its
    /// hung sample, whatever the other workers do.
    pub(super) fn timeouts(&self) -> Option<&StageFacts<'w>> {
        let waited = self.session.wait_seconds;
        self.own_stages()
            .filter(|stage| {
                let lost = stage.timeout_seconds();
                lost > 0.0 && lost >= EXPLAINS_WAIT * waited
            })
            .max_by(|one, other| one.timeout_seconds().total_cmp(&other.timeout_seconds()))
    }

    /// The stage whose few slow samples outlast half a ring and so delay their batches, if they explain the wait.
    #[expect(clippy::cast_precision_loss, reason = "metrics")]
    pub(super) fn slow_samples(&self) -> Option<(&StageFacts<'w>, Tail)> {
        let session = self.session;
        let batch_seconds = self.seconds() / session.batches_published.max(1) as f64;
        let outlasted = 0.5 * self.slots() as f64 * batch_seconds;
        self.own_stages()
            // Tasks that are kept off the cores are slow because of that.
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
        // Batches have no queue: a batch that waits for a worker occupies a thread.
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
            // Its threads sleep during calls of workers, so their times do not describe the function.
            return whole;
        }
        // Only some tasks are measured; the others are assumed to be similar.
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

    /// The time of calls that exceeded the timeout.
    pub(super) fn timeout_seconds(&self) -> f64 {
        self.report.python.as_ref().map_or(0.0, |python| python.timeout_seconds)
    }

    /// The kind and the name of the stage.
    pub(super) fn title(&self) -> String {
        let kind = if self.report.is_of_batches { "function on batches" } else { "stage" };
        format!("the {kind} `{}`", self.report.name)
    }

    /// The unit of its concurrency.
    pub(super) fn workforce(&self) -> &'static str {
        if self.is_python() { "workers" } else { "threads" }
    }

    pub(super) fn is_kept_off(&self) -> bool {
        self.ready_share >= KEPT_OFF
    }

    /// The few slow tasks, if there are any.
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
        // Uses the upper bound of each bucket: at most 6 % too high.
        let total_seconds: f64 = slow().map(|(seconds, count)| seconds * *count as f64).sum();
        Some(Tail {
            one_in: all as f64 / tasks as f64,
            median_seconds,
            mean_seconds: total_seconds / tasks as f64,
            total_seconds,
        })
    }
}

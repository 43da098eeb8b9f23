//! What the limit is, as one word and one sentence with numbers.
//!
//! Read from the sink upward: if the client hardly waits, loading is not the limit; if work threads are kept back for it,
//! the CPU budget is; otherwise the limit is the last
//! stage whose input queue is full while its output queue is empty; without such a flip, storage, when the first queue is
//! empty too.

use serde::{Deserialize, Serialize};

use super::report::{CpuBudgetReport, SessionReport};
use super::stage::StageReport;

/// Below this share of the time spent waiting, loading is not the trainer's limit.
const WAIT_SHARE_THAT_MATTERS: f64 = 0.02;
/// Work threads that are kept back for so large a share of their time would do more without the budget.
const HELD_BACK_THAT_MATTERS: f64 = 0.1;
/// An occupancy from here on counts as high.
const HIGH_OCCUPANCY: f64 = 0.5;

/// The limit and the sentence that says so.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// A stage's name, `storage`, `ring`, `cpu-budget`, `trainer` or `none`.
    pub limit: String,
    /// For a person.
    pub sentence: String,
}

impl Verdict {
    fn new(limit: &str, sentence: String) -> Self {
        Self { limit: limit.to_owned(), sentence }
    }
}

/// Judges a stream by its stages (fetch first) and its first session.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "figures")]
pub(crate) fn judge(
    stages: &[StageReport],
    session: Option<&SessionReport>,
    threads: u32,
    cpu_seconds: f64,
    budget: CpuBudgetReport,
) -> Verdict {
    let Some(session) = session else {
        return Verdict::new("none", "no client is attached".to_owned());
    };
    if session.batches_published < 2 || session.seconds <= 0.0 {
        return Verdict::new("none", "too few batches so far to tell what the limit is".to_owned());
    }
    let wait_share = (session.wait_seconds / session.seconds).min(1.0);
    let percent = |share: f64| format!("{:.0} %", share * 100.0);
    if wait_share < WAIT_SHARE_THAT_MATTERS {
        return Verdict::new(
            "trainer",
            format!(
                "loading is not the limit: the trainer waited for data {} of the time",
                percent(wait_share)
            ),
        );
    }
    let held_back = budget.held_back_seconds / (session.seconds * f64::from(threads.max(1)));
    if let Some(cores) = budget.cores.filter(|_| held_back >= HELD_BACK_THAT_MATTERS) {
        return Verdict::new(
            "cpu-budget",
            format!(
                "the CPU budget of {cores:.2} cores is the limit: work threads waited for it {} of the time while the \
                 trainer waits {} of the time; raise cpu.limit, or the quota that daemon and trainer share (the daemon \
                 used {:.2} cores)",
                percent(held_back),
                percent(wait_share),
                cpu_seconds / session.seconds,
            ),
        );
    }
    let occupancy =
        |stage: &StageReport| stage.queue.as_ref().map_or(0.0, |queue| queue.occupancy_rate);
    // The last stage that has something to do nearly always: what comes after it is starved.
    let limit = stages
        .windows(2)
        .rev()
        .find(|pair| occupancy(&pair[0]) >= HIGH_OCCUPANCY)
        .map(|pair| &pair[1]);
    match limit {
        Some(stage) => {
            let busy = stage.busy_seconds / session.seconds;
            let remedy =
                if busy >= 0.9 * f64::from(stage.concurrency) && stage.concurrency < threads {
                    format!("give it more than its {} threads", stage.concurrency)
                } else {
                    "give the daemon more cores, or make the samples cheaper".to_owned()
                };
            Verdict::new(
                &stage.name,
                format!(
                    "the stage `{}` is the limit: {} ms a sample keep {:.1} of {} threads busy while the trainer waits \
                     {} of the time; {remedy} (the daemon used {:.1} cores)",
                    stage.name,
                    milliseconds(stage.ave_time),
                    busy,
                    stage.concurrency,
                    percent(wait_share),
                    cpu_seconds / session.seconds,
                ),
            )
        }
        None => {
            let fetch = stages.first();
            let (time, concurrency, rate) = fetch.map_or((0.0, 0, 0.0), |stage| {
                (stage.ave_time, stage.concurrency, stage.num_tasks as f64 / session.seconds)
            });
            Verdict::new(
                "storage",
                format!(
                    "storage is the limit: a read takes {} ms and {concurrency} at once give {rate:.0} samples/s while \
                     the trainer waits {} of the time; raise the fetch stage's concurrency or use faster storage",
                    milliseconds(time),
                    percent(wait_share),
                ),
            )
        }
    }
}

fn milliseconds(seconds: f64) -> String {
    format!("{:.2}", seconds * 1e3)
}

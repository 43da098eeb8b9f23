//! The cost of a function's calls, and its hot spot.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::cpu_times::CpuTimes;
use crate::process::Process;
use crate::reply::{Reply, RowTime};

/// Maximum number of distinct stacks: their names come from a worker.
const MAX_STACKS: usize = 256;
/// Maximum size of a report that is read; a worker's reports are shorter.
const MAX_REPORT_BYTES: usize = 256 << 10;
/// If the sum of counts exceeds this, all are halved: a function's behaviour changes with the data or the epoch.
const MAX_COUNT: u64 = 1200;
/// Minimum number of samples for a hot spot.
const MIN_COUNT: u64 = 20;

/// Totals over all workers of a stage.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CallFigures {
    /// Number of calls, each of a bundle of rows or a batch.
    pub calls: u64,
    /// Number of rows, or batches.
    pub rows: u64,
    /// Time in the function.
    pub in_function: Duration,
    /// Total time of calls in workers: the function, copying, seeding and writing results.
    pub in_workers: Duration,
    /// Time for which threads of the daemon waited for a free worker.
    pub waiting: Duration,
    /// Time in which threads of the daemon wrote inputs and read results.
    pub copying: Duration,
    /// Number of calls that exceeded the timeout.
    pub timeouts: u64,
    /// Time of these calls, which is in no other total.
    pub in_timeouts: Duration,
    /// Number of workers started.
    pub starts: u64,
    /// Time from workers' starts until they were ready: the interpreter, and the module's imports.
    pub starting: Duration,
    /// CPU time of the worker processes.
    pub cpu: Duration,
}

/// The call in which most of the function's time is spent.
#[derive(Debug, Clone, PartialEq)]
pub struct HotSpot {
    /// The innermost call with most of the time: `package.Class` or `package.function`.
    pub name: String,
    /// Its share of the function's time.
    pub share: f64,
}

/// The times of a call made for timing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FunctionTime {
    /// Time in the function.
    pub function: Duration,
    /// Part of it in transforms of known packages, by class, such as `torchvision.Resize`; nested transforms are
    /// counted separately.
    pub transforms: Vec<(String, Duration)>,
}

impl FunctionTime {
    /// Parses a worker's report; `None` if it is malformed.
    pub(crate) fn of(value: &serde_json::Value) -> Option<Self> {
        let time = |value: &serde_json::Value| value.as_u64().map(Duration::from_nanos);
        let transform = |value: &serde_json::Value| {
            Some((value.get(0)?.as_str()?.to_owned(), time(value.get(1)?)?))
        };
        let transforms = value.get("transforms")?.as_array()?;
        let transforms = transforms.iter().map(transform).collect::<Option<_>>()?;
        Some(Self { function: time(value.get("function_ns")?)?, transforms })
    }
}

#[derive(Debug, Default)]
pub(crate) struct Recorded {
    totals: Mutex<CallFigures>,
    cpu_times: CpuTimes,
    stacks: Mutex<HashMap<Vec<String>, u64>>,
}

impl Recorded {
    pub(crate) fn totals(&self) -> MutexGuard<'_, CallFigures> {
        self.totals.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The current totals.
    pub(crate) fn figures(&self) -> CallFigures {
        let cpu = self.look_at_workers();
        CallFigures { cpu, ..*self.totals() }
    }

    /// Updates the workers' CPU time.
    pub(crate) fn look_at_workers(&self) -> Duration {
        self.cpu_times.total()
    }

    /// Adds a started process; its CPU time counts from now on.
    pub(crate) fn add_process(&self, process: &Arc<Process>) {
        self.cpu_times.add(process);
    }

    /// Adds a worker's start that took `took`; returns the number of starts so far.
    pub(crate) fn add_start(&self, took: Duration) -> u64 {
        let mut totals = self.totals();
        totals.starts += 1;
        totals.starting += took;
        totals.starts
    }

    /// Adds the time of writing a call and of waiting for a worker.
    pub(crate) fn add_wait(&self, writing: Duration, waiting: Duration) {
        let mut totals = self.totals();
        totals.copying += writing;
        totals.waiting += waiting;
    }

    /// Adds a call that exceeded the timeout after `took`.
    pub(crate) fn add_timeout(&self, took: Duration) {
        let mut totals = self.totals();
        totals.timeouts += 1;
        totals.in_timeouts += took;
    }

    /// Adds an answered call, whose results were read.
    pub(crate) fn add_call(&self, reply: &Reply, reading: Duration) {
        // The worker's own report: the parts are limited to the whole.
        let all = reply.time.length();
        let called: Duration = reply.times.iter().map(RowTime::length).sum();
        let mut totals = self.totals();
        totals.calls += 1;
        totals.rows += reply.rows.len() as u64;
        totals.in_workers = totals.in_workers.saturating_add(all);
        totals.in_function = totals.in_function.saturating_add(called.min(all));
        totals.copying += reading;
        drop(totals);
        if !reply.stacks.is_empty() {
            self.add_stacks(&reply.stacks);
        }
    }

    /// Adds a worker's report: stacks, starting with the function, each with its number of samples. A malformed report
    /// is ignored.
    fn add_stacks(&self, report: &[u8]) {
        if report.len() > MAX_REPORT_BYTES {
            return;
        }
        let Ok(seen) = serde_json::from_slice::<Vec<(Vec<String>, u64)>>(report) else { return };
        let mut stacks = self.stacks.lock().unwrap_or_else(PoisonError::into_inner);
        for (stack, count) in seen {
            if stacks.len() < MAX_STACKS || stacks.contains_key(&stack) {
                *stacks.entry(stack).or_default() += count.min(MAX_COUNT);
            }
        }
        while stacks.values().sum::<u64>() > MAX_COUNT {
            stacks.retain(|_, count| {
                *count /= 2;
                *count > 0
            });
        }
    }

    /// The innermost call found in at least half of the samples.
    #[expect(clippy::cast_precision_loss, reason = "a figure")]
    pub(crate) fn hot_spot(&self) -> Option<HotSpot> {
        let stacks = self.stacks.lock().unwrap_or_else(PoisonError::into_inner);
        let all: u64 = stacks.values().sum();
        if all < MIN_COUNT {
            return None;
        }
        let mut found = None;
        let mut path: Vec<&str> = Vec::new();
        loop {
            let mut below: HashMap<&str, u64> = HashMap::new();
            for (stack, count) in stacks.iter() {
                let begins = stack.iter().zip(&path).all(|(name, begun)| name == begun);
                if let (true, Some(next)) = (begins, stack.get(path.len())) {
                    *below.entry(next).or_default() += count;
                }
            }
            let most =
                below.into_iter().max_by(|one, other| (one.1, other.0).cmp(&(other.1, one.0)));
            let Some((name, count)) = most.filter(|(_, count)| count * 2 >= all) else {
                return found;
            };
            path.push(name);
            found = Some(HotSpot { name: name.to_owned(), share: count as f64 / all as f64 });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recorded(stacks: &[(&[&str], u64)]) -> Recorded {
        let recorded = Recorded::default();
        recorded.add_stacks(serde_json::to_string(stacks).unwrap().as_bytes());
        recorded
    }

    #[test]
    fn hot_spot_is_the_innermost_call_with_most_of_the_time() {
        let recorded = recorded(&[
            (&["own.augment"], 10),
            (&["own.augment", "albumentations.Compose"], 5),
            (&["own.augment", "albumentations.Compose", "albumentations.Blur"], 60),
            (&["own.augment", "albumentations.Compose", "albumentations.Flip"], 25),
        ]);
        let found = recorded.hot_spot().unwrap();
        assert_eq!(found, HotSpot { name: "albumentations.Blur".to_owned(), share: 0.6 });
    }

    #[test]
    fn hot_spot_is_the_function_if_its_parts_are_alike_and_none_for_few_samples() {
        let spread = recorded(&[(&["own.f", "a.A"], 10), (&["own.f", "b.B"], 10), (&["own.f"], 5)]);
        assert_eq!(spread.hot_spot().unwrap().name, "own.f");
        assert_eq!(recorded(&[(&["own.f"], 5)]).hot_spot(), None);
    }

    #[test]
    fn times_of_a_call_are_parsed_and_malformed_ones_refused() {
        let told = r#"{"function_ns": 3000, "transforms": [["torchvision.Resize", 2000]]}"#;
        let resize = ("torchvision.Resize".to_owned(), Duration::from_micros(2));
        let time = FunctionTime { function: Duration::from_micros(3), transforms: vec![resize] };
        assert_eq!(FunctionTime::of(&serde_json::from_str(told).unwrap()), Some(time));
        for rubbish in [
            "[]",
            r#"{"function_ns": 3000}"#,
            r#"{"function_ns": -1, "transforms": []}"#,
            r#"{"function_ns": 1, "transforms": [["torchvision.Resize"]]}"#,
            r#"{"function_ns": 1, "transforms": [[7, 7]]}"#,
        ] {
            assert_eq!(
                FunctionTime::of(&serde_json::from_str(rubbish).unwrap()),
                None,
                "{rubbish}"
            );
        }
    }

    #[test]
    fn workers_reports_take_bounded_memory() {
        let recorded = Recorded::default();
        for number in 0..10_000 {
            let name = format!("a.b{number}");
            recorded.add_stacks(&serde_json::to_vec(&[(vec![name], u64::MAX)]).unwrap());
        }
        recorded.add_stacks(b"no report");
        let of_long_names = Recorded::default();
        let report = [(["a".repeat(MAX_REPORT_BYTES)], 1)];
        of_long_names.add_stacks(&serde_json::to_vec(&report).unwrap());
        assert!(of_long_names.stacks.lock().unwrap().is_empty());
        let stacks = recorded.stacks.lock().unwrap();
        assert!(stacks.len() <= MAX_STACKS && stacks.values().sum::<u64>() <= MAX_COUNT);
    }
}

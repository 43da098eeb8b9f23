//! What the calls of a function cost, and where in it the time goes.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::cpu_times::CpuTimes;
use crate::reply::{Reply, RowTime};

/// Stacks that are told apart at most: their names come from a worker.
const MAX_STACKS: usize = 256;
/// The longest report that is read; a worker's own are shorter.
const MAX_REPORT_BYTES: usize = 256 << 10;
/// Counts beyond which all are halved: what a function does changes, with the data or the epoch.
const MAX_COUNT: u64 = 1200;
/// Looks below which nothing is said of where the time goes.
const MIN_COUNT: u64 = 20;

/// Totals over all workers of a stage.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CallFigures {
    /// Calls, of a bundle of rows or a batch each.
    pub calls: u64,
    /// Rows, or batches.
    pub rows: u64,
    /// Spent in the function.
    pub in_function: Duration,
    /// Spent by workers in all: with the function, copying, seeding and writing results.
    pub in_workers: Duration,
    /// That threads of the daemon waited until a worker was free.
    pub waiting: Duration,
    /// That threads of the daemon wrote inputs and read results.
    pub copying: Duration,
    /// Workers that were started.
    pub starts: u64,
    /// From a worker's start until it was ready: the interpreter, and the imports of the module.
    pub starting: Duration,
    /// CPU time of the worker processes.
    pub cpu: Duration,
}

/// Where the time goes.
#[derive(Debug, Clone, PartialEq)]
pub struct HotSpot {
    /// The innermost call that takes most of it: `package.Class` or `package.function`.
    pub name: String,
    /// Its share of the function's time.
    pub share: f64,
}

/// What a call took that was made to be timed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FunctionTime {
    /// In the function.
    pub function: Duration,
    /// Of it, in transforms of known packages, by class: `torchvision.Resize`. Each without those within it.
    pub transforms: Vec<(String, Duration)>,
}

impl FunctionTime {
    /// As a worker tells it; none: it tells something else.
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

    /// All of them now.
    pub(crate) fn figures(&self) -> CallFigures {
        let cpu = self.look_at_workers();
        CallFigures { cpu, ..*self.totals() }
    }

    /// Looks at the CPU time that workers have used.
    pub(crate) fn look_at_workers(&self) -> Duration {
        self.cpu_times.total()
    }

    /// A worker was ready after so long.
    pub(crate) fn add_start(&self, process: u32, took: Duration) {
        self.cpu_times.add(process);
        let mut totals = self.totals();
        totals.starts += 1;
        totals.starting += took;
    }

    /// A thread has written a call, and waited for a worker.
    pub(crate) fn add_wait(&self, writing: Duration, waiting: Duration) {
        let mut totals = self.totals();
        totals.copying += writing;
        totals.waiting += waiting;
    }

    /// A call was answered, and its results were read.
    pub(crate) fn add_call(&self, reply: &Reply, reading: Duration) {
        // What a worker says of itself: no more than the whole for the parts.
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

    /// A worker's report: stacks, the function first, and how often each was seen. What is none is left out.
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

    /// The innermost call that at least half of the looks found.
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
    fn the_innermost_call_with_most_of_the_time_is_told() {
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
    fn a_function_whose_parts_are_alike_is_told_itself_and_few_looks_tell_nothing() {
        let spread = recorded(&[(&["own.f", "a.A"], 10), (&["own.f", "b.B"], 10), (&["own.f"], 5)]);
        assert_eq!(spread.hot_spot().unwrap().name, "own.f");
        assert_eq!(recorded(&[(&["own.f"], 5)]).hot_spot(), None);
    }

    #[test]
    fn what_a_timed_call_took_is_read_and_rubbish_is_not() {
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
    fn what_a_worker_reports_takes_bounded_memory() {
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

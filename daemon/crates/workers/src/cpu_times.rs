//! The CPU time of worker processes: of each live one, and the total of ended ones.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::process::Process;

/// CPU time of all workers of a function. The time between the last update and a worker's end is not included.
#[derive(Debug, Default)]
pub(crate) struct CpuTimes(Mutex<Seen>);

#[derive(Debug, Default)]
struct Seen {
    live: Vec<(Arc<Process>, Duration)>,
    ended: Duration,
}

impl CpuTimes {
    /// Adds a started worker.
    pub(crate) fn add(&self, process: &Arc<Process>) {
        if let Some(used) = process.cpu_time() {
            self.seen().live.push((Arc::clone(process), used));
        }
    }

    /// User and system time of all workers so far, and of the children that they waited for.
    pub(crate) fn total(&self) -> Duration {
        let mut seen = self.seen();
        let Seen { live, ended } = &mut *seen;
        live.retain_mut(|(process, used)| {
            let now = process.cpu_time();
            match now {
                Some(now) => *used = now.max(*used),
                None => *ended += *used,
            }
            now.is_some()
        });
        *ended + live.iter().map(|(_, used)| *used).sum::<Duration>()
    }

    fn seen(&self) -> std::sync::MutexGuard<'_, Seen> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};
    use std::time::Instant;

    use super::*;
    use crate::process::open_files;

    /// A shell that uses CPU time until it is killed.
    fn busy() -> (Child, Arc<Process>) {
        let child = Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
        let process = Process::new(child.id(), open_files(child.id()));
        (child, Arc::new(process))
    }

    #[test]
    fn cpu_time_counts_during_and_after_a_workers_life() {
        let times = CpuTimes::default();
        assert_eq!(times.total(), Duration::ZERO);
        let mut children = [busy(), busy()];
        children.iter().for_each(|(_, process)| times.add(process));
        let begun = Instant::now();
        let both = |least: Duration| {
            while times.total() < least {
                assert!(begun.elapsed() < Duration::from_secs(60), "{times:?}");
                std::thread::sleep(Duration::from_millis(10));
            }
        };
        both(Duration::from_millis(200));
        children.iter_mut().for_each(|(child, _)| child.kill().unwrap());
        let before = times.total();
        for (child, _) in &mut children {
            child.wait().unwrap();
        }
        let after = times.total();
        assert!(after >= before && before >= Duration::from_millis(200), "{before:?} {after:?}");
        assert!(times.seen().live.is_empty());
        assert_eq!(times.total(), after);
        // Another worker adds to it.
        let (mut third, process) = busy();
        times.add(&process);
        both(after + Duration::from_millis(100));
        third.kill().unwrap();
        third.wait().unwrap();
    }

    #[test]
    fn hidden_worker_counts_no_time() {
        let times = CpuTimes::default();
        times.add(&Arc::new(Process::new(std::process::id(), Vec::new())));
        assert_eq!(times.total(), Duration::ZERO);
        assert!(times.seen().live.is_empty());
    }
}

//! The CPU time of worker processes, from /proc: of each while it lives, and of all that have ended.

use std::fs;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Seconds of CPU time over all workers of a function. What a worker used between the last look and its end is not in it.
#[derive(Debug, Default)]
pub(crate) struct CpuTimes(Mutex<Seen>);

#[derive(Debug, Default)]
struct Seen {
    live: Vec<(Process, Duration)>,
    ended: Duration,
}

/// A process by its number and the time of its start: a number is given again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Process {
    number: u32,
    start: u64,
}

impl CpuTimes {
    /// A worker was started.
    pub(crate) fn add(&self, number: u32) {
        if let Some((start, used)) = look(number) {
            let mut seen = self.seen();
            seen.live.push((Process { number, start }, used));
        }
    }

    /// User and system time of all workers so far, and of what they started and waited for.
    pub(crate) fn total(&self) -> Duration {
        let mut seen = self.seen();
        let Seen { live, ended } = &mut *seen;
        live.retain_mut(|(process, used)| {
            let now = look(process.number).filter(|(start, _)| *start == process.start);
            match now {
                Some((_, now)) => *used = now.max(*used),
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

/// When a process was started, in ticks since the machine was, and the CPU time that it has used.
fn look(number: u32) -> Option<(u64, Duration)> {
    let stat = fs::read_to_string(format!("/proc/{number}/stat")).ok()?;
    // Behind the name in parentheses, which may hold anything.
    let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split_whitespace().collect();
    let field = |place: usize| fields.get(place)?.parse::<u64>().ok();
    // utime, stime, cutime and cstime: fields 14 to 17 of proc(5), of which the first two are the number and the name.
    let ticks = (11..15).map(field).sum::<Option<u64>>()?;
    let a_second = rustix::param::clock_ticks_per_second().max(1);
    let nanoseconds = u128::from(ticks) * 1_000_000_000 / u128::from(a_second);
    let used = Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX));
    Some((field(19)?, used))
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};
    use std::time::Instant;

    use super::*;

    /// A shell that uses CPU time until it is killed.
    fn busy() -> Child {
        Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap()
    }

    #[test]
    fn what_workers_used_counts_while_they_live_and_after_their_end() {
        let times = CpuTimes::default();
        assert_eq!(times.total(), Duration::ZERO);
        let mut children = [busy(), busy()];
        children.iter().for_each(|child| times.add(child.id()));
        let begun = Instant::now();
        let both = |least: Duration| {
            while times.total() < least {
                assert!(begun.elapsed() < Duration::from_secs(60), "{times:?}");
                std::thread::sleep(Duration::from_millis(10));
            }
        };
        both(Duration::from_millis(200));
        children.iter_mut().for_each(|child| child.kill().unwrap());
        let before = times.total();
        for child in &mut children {
            child.wait().unwrap();
        }
        let after = times.total();
        assert!(after >= before && before >= Duration::from_millis(200), "{before:?} {after:?}");
        assert!(times.seen().live.is_empty());
        assert_eq!(times.total(), after);
        // Another worker adds to that.
        let mut third = busy();
        times.add(third.id());
        both(after + Duration::from_millis(100));
        third.kill().unwrap();
        third.wait().unwrap();
    }

    #[test]
    fn another_process_of_the_same_number_is_not_counted() {
        let times = CpuTimes::default();
        let own = std::process::id();
        let start = look(own).unwrap().0 + 1;
        let used = Duration::from_secs(7);
        times.seen().live.push((Process { number: own, start }, used));
        assert_eq!(times.total(), used);
        assert!(times.seen().live.is_empty());
        times.add(u32::MAX);
        assert_eq!(times.total(), used);
    }
}

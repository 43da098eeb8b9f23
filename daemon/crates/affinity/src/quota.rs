//! Leaves a CPU quota that daemon and trainer share to the trainer.
//!
//! When a quota is used up, the kernel stops the whole group, the trainer included: the idle class does not help. So
//! the daemon limits its own use to the quota minus the others' use in the group, minus a margin that grows when the
//! group is throttled nevertheless and shrinks otherwise.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::cgroups::{CpuGroup, throttled_periods, usage};

/// Minimal and maximal share of the quota that is left unused.
const MIN_MARGIN: f64 = 0.05;
const MAX_MARGIN: f64 = 0.5;
/// Minimal share of the quota for the daemon: a trainer that uses all of it still needs data.
const MIN_SHARE: f64 = 0.05;

/// Watches one shared quota. Owned by the engine thread, updated a few times a second.
#[derive(Debug)]
pub struct QuotaWatch {
    folder: PathBuf,
    cpus: f64,
    trainer: u32,
    margin: f64,
    /// The others' use, in cores; smoothed downward only.
    others: f64,
    /// Time, the group's use (or the trainer's, if the group's is not counted), own use, number of throttled periods.
    before: Option<(Instant, Duration, Duration, u64)>,
    left: f64,
}

impl QuotaWatch {
    /// A quota that applies to both, if there is one.
    pub fn find(own: &CpuGroup, trainer: &CpuGroup, trainer_pid: u32) -> Option<Self> {
        let (folder, cpus) = own.quota_shared_with(trainer)?;
        Some(Self::new(folder, cpus, trainer_pid))
    }

    fn new(folder: PathBuf, cpus: f64, trainer: u32) -> Self {
        Self {
            folder,
            cpus,
            trainer,
            margin: MIN_MARGIN,
            others: 0.0,
            before: None,
            left: cpus * (1.0 - MIN_MARGIN),
        }
    }

    /// Discards the last values, so that a pause is not measured.
    pub fn resume(&mut self) {
        self.before = None;
    }

    /// The cores that the trainer leaves. `own`: this process's CPU time.
    pub fn update(&mut self, own: Duration, now: Instant) -> f64 {
        let (group, counts_own) = match usage(&self.folder) {
            Some(usage) => (usage, true),
            None => (process_usage(self.trainer), false),
        };
        let held_up = throttled_periods(&self.folder).unwrap_or(0);
        if let Some((then, group_before, own_before, held_up_before)) = self.before {
            let seconds = (now - then).as_secs_f64().max(1e-3);
            let mut others = group.saturating_sub(group_before).as_secs_f64();
            if counts_own {
                others -= own.saturating_sub(own_before).as_secs_f64();
            }
            self.take((others / seconds).max(0.0), held_up > held_up_before);
        }
        self.before = Some((now, group, own, held_up));
        self.left
    }

    /// Takes the others' use, and whether the group was throttled.
    fn take(&mut self, others: f64, was_held_up: bool) {
        // Upward at once, downward slowly: the trainer's use comes in bursts.
        self.others = others.max(0.7 * self.others + 0.3 * others);
        self.margin = if was_held_up {
            (self.margin * 1.5 + 0.05).min(MAX_MARGIN)
        } else {
            (self.margin * 0.95).max(MIN_MARGIN)
        };
        let left = self.cpus * (1.0 - self.margin) - self.others;
        self.left = left.max(self.cpus * MIN_SHARE);
    }

    /// The limit in effect, as text for the report.
    pub fn describe(&self) -> String {
        format!(
            "the trainer shares the quota of {:.2} CPUs at {} and uses {:.2}; the daemon limits itself to {:.2}",
            self.cpus,
            self.folder.display(),
            self.others,
            self.left
        )
    }
}

/// User and system time of a process with all its threads.
fn process_usage(pid: u32) -> Duration {
    process_usage_in(Path::new("/proc"), pid).unwrap_or_default()
}

fn process_usage_in(proc: &Path, pid: u32) -> Option<Duration> {
    let text = fs::read_to_string(proc.join(pid.to_string()).join("stat")).ok()?;
    // utime and stime are fields 14 and 15; the state, field 3, is the first after the name in parentheses.
    let ticks: u64 = text
        .rsplit_once(") ")?
        .1
        .split(' ')
        .skip(11)
        .take(2)
        .filter_map(|ticks| ticks.parse::<u64>().ok())
        .sum();
    Some(Duration::from_millis(ticks * 1000 / rustix::param::clock_ticks_per_second().max(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watch() -> QuotaWatch {
        QuotaWatch::new(PathBuf::from("/nowhere"), 2.0, 0)
    }

    #[test]
    fn daemon_is_limited_to_the_trainers_rest() {
        let mut watch = watch();
        watch.take(1.2, false);
        assert!((watch.left - 0.7).abs() < 1e-9, "{}", watch.left);
        // The trainer waits for data: its unused share is added step by step.
        let mut before = watch.left;
        for _ in 0..20 {
            watch.take(0.0, false);
            assert!(watch.left > before);
            before = watch.left;
        }
        assert!(watch.left > 1.8);
        watch.take(2.0, false);
        assert!((watch.left - 2.0 * MIN_SHARE).abs() < 1e-9, "never nothing");
    }

    #[test]
    fn throttled_group_gets_more_margin() {
        let mut watch = watch();
        watch.take(1.0, false);
        let quiet = watch.left;
        watch.take(1.0, true);
        watch.take(1.0, true);
        assert!(watch.left < quiet - 0.2, "{} after {quiet}", watch.left);
        assert!(watch.describe().contains("2.00 CPUs"));
    }

    #[test]
    fn process_usage_is_used_if_the_groups_is_not_counted() {
        assert!(process_usage_in(Path::new("/proc"), std::process::id()).is_some());
        assert_eq!(process_usage(u32::MAX), Duration::ZERO);
    }

    #[test]
    fn use_of_others_is_the_groups_minus_the_daemons() {
        let folder = tempfile::tempdir().unwrap();
        let mut watch = QuotaWatch::new(folder.path().to_owned(), 4.0, 0);
        let mut now = Instant::now();
        // CPU seconds of the group and of the daemon since the last update, and throttled periods so far.
        let (mut group, mut own) = (0, 0);
        let mut look = |group_used: u64, own_used: u64, held_up: u64, resume: bool| {
            (group, own, now) = (group + group_used, own + own_used, now + Duration::from_secs(2));
            let stat = format!("usage_usec {}\nnr_throttled {held_up}\n", group * 1_000_000);
            fs::write(folder.path().join("cpu.stat"), stat).unwrap();
            if resume {
                watch.resume();
            }
            let left = watch.update(Duration::from_secs(own), now);
            (left, watch.others)
        };
        assert_eq!(look(9, 1, 0, false), (3.8, 0.0), "nothing to compare with");
        // In two seconds: the group 6, the daemon 2.
        let (left, others) = look(6, 2, 0, false);
        assert!((others - 2.0).abs() < 1e-9 && (left - 1.8).abs() < 1e-9, "{left} beside {others}");
        let (less, others) = look(6, 2, 1, false);
        assert!((others - 2.0).abs() < 1e-9 && less < left - 0.2, "{less} after {left}");
        // A pause is not measured.
        assert_eq!(look(100, 0, 1, true), (less, others));
    }
}

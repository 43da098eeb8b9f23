//! Splits a work thread's time, for its stage's metrics, its session's share and the CPU budget: on a core, asleep within
//! a row (in a `delay`, on a disk), or runnable without a core.
//!
//! A row that took only slightly longer than its CPU time did not sleep. For other rows the kernel reports how long the
//! thread was runnable without a core; the rest beyond the CPU time is sleep.

use std::fs::File;
use std::io::Read;
use std::time::{Duration, Instant};

use nix::time::{ClockId, clock_gettime};

use crate::ground::stream::Stage;
use forebay_affinity::CpuBudget;

/// Minimal time between readings of the CPU clock, a system call, by a thread that stays in one stage.
const READING_PERIOD: Duration = Duration::from_millis(1);
/// A row did not sleep if its time exceeds its CPU time by less than this fraction (1/n) of it.
const PARTS_OF_A_ROW: u32 = 16;
/// This thread's times. Opened for each reading: with hundreds of threads, open descriptors would exhaust the limit of
/// open files.
const TIMES: &str = "/proc/thread-self/schedstat";

/// See the module's head. One per thread.
#[derive(Debug)]
pub(crate) struct Meter {
    read: Duration,
    read_at: Instant,
    /// The thread's last stage, by address.
    stage: usize,
    /// Whether no row of this stage was reported since the thread entered it or paused.
    is_fresh: bool,
    /// Rows since the last reading, and their total time.
    rows: u32,
    wall: Duration,
    waits: Waits,
    without_core: Duration,
}

impl Meter {
    pub(crate) fn start(now: Instant) -> Self {
        Self {
            read: thread_cpu_time(),
            read_at: now,
            stage: 0,
            is_fresh: true,
            rows: 0,
            wall: Duration::ZERO,
            waits: Waits::start(),
            without_core: Duration::ZERO,
        }
    }

    /// Called when a row begins.
    pub(crate) fn enter(&mut self, stage: &Stage, now: Instant, budget: &CpuBudget) {
        let address = std::ptr::from_ref(stage).addr();
        if self.stage != address {
            let used = self.reading(now);
            budget.use_up(used);
            (self.stage, self.is_fresh) = (address, true);
        }
    }

    /// Called when the row has ended.
    pub(crate) fn leave(
        &mut self,
        stage: &Stage,
        (begun, now): (Instant, Instant),
        budget: &CpuBudget,
    ) {
        self.wall += now - begun;
        self.rows += 1;
        if self.is_fresh || now - self.read_at >= READING_PERIOD {
            let (rows, wall) = (self.rows, self.wall);
            let used = self.reading(now);
            budget.use_up(used);
            let asleep = self.split(wall, used);
            stage.cost.add(rows, used, asleep);
            self.is_fresh = false;
        }
    }

    /// Splits the time of rows beyond their CPU time; returns the time asleep.
    fn split(&mut self, wall: Duration, used: Duration) -> Duration {
        let gap = wall.saturating_sub(used);
        let asleep = self.waits.asleep(wall, gap);
        self.without_core += gap.saturating_sub(asleep);
        asleep
    }

    /// The time without a core in the rows since the last call, as far as it was read. A row that lost its core for long
    /// is read at its end.
    pub(crate) fn take_without_core(&mut self) -> Duration {
        std::mem::take(&mut self.without_core)
    }

    /// Called after the thread had no row for a while: the next row is measured separately.
    pub(crate) fn skip(&mut self) {
        self.stage = 0;
        self.waits.skip();
    }

    fn reading(&mut self, now: Instant) -> Duration {
        let read = thread_cpu_time();
        let used = read.saturating_sub(self.read);
        (self.read, self.read_at) = (read, now);
        (self.rows, self.wall) = (0, Duration::ZERO);
        used
    }
}

/// This thread's time runnable without a core, as counted by the kernel. If the kernel does not report it, a row's
/// whole time beyond its CPU time counts as sleep.
#[derive(Debug)]
struct Waits {
    /// The kernel's counter at the last reading.
    known: Duration,
    /// Waits for a core since then, derived from the rows' clocks.
    since: Duration,
}

impl Waits {
    fn start() -> Self {
        Self { known: ready_without_core().unwrap_or_default(), since: Duration::ZERO }
    }

    /// The part of `gap`, the rows' time beyond their CPU time, in which the thread slept.
    fn asleep(&mut self, wall: Duration, gap: Duration) -> Duration {
        if gap * PARTS_OF_A_ROW < wall {
            self.since += gap;
            return Duration::ZERO;
        }
        let Some(now) = ready_without_core() else {
            return gap;
        };
        let ready = now.saturating_sub(self.known).saturating_sub(self.since);
        (self.known, self.since) = (now, Duration::ZERO);
        gap.saturating_sub(ready)
    }

    /// The thread's waits until now are not counted for any row.
    fn skip(&mut self) {
        if let Some(now) = ready_without_core() {
            (self.known, self.since) = (now, Duration::ZERO);
        }
    }
}

/// This thread's time runnable without a core: the second value of "on-core-ns waiting-ns turns".
pub(crate) fn ready_without_core() -> Option<Duration> {
    let mut text = [0; 64];
    let length = File::open(TIMES).ok()?.read(&mut text).ok()?;
    let text = std::str::from_utf8(text.get(..length)?).ok()?;
    Some(Duration::from_nanos(text.split_whitespace().nth(1)?.parse().ok()?))
}

/// This thread's time on a core.
fn thread_cpu_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}

#[cfg(test)]
mod tests {
    use crate::ground::meter::*;

    /// Runs `work` on one core together with `others` threads of the same class that are always runnable there; returns
    /// the time asleep and the time runnable.
    fn beside_others(
        others: usize,
        work: impl Fn(&mut dyn FnMut()) + Sync,
    ) -> (Duration, Duration) {
        use std::sync::atomic::{AtomicBool, Ordering};
        let core = first_core();
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..others {
                scope.spawn(|| {
                    rustix::thread::sched_setaffinity(None, &core).unwrap();
                    while !is_over.load(Ordering::Relaxed) {
                        std::hint::spin_loop();
                    }
                });
            }
            let measured = scope.spawn(|| {
                rustix::thread::sched_setaffinity(None, &core).unwrap();
                let mut meter = Meter::start(Instant::now());
                let (mut asleep, mut ready) = (Duration::ZERO, Duration::ZERO);
                let (mut cpu, mut begun) = (thread_cpu_time(), Instant::now());
                work(&mut || {
                    let (cpu_now, now) = (thread_cpu_time(), Instant::now());
                    let (wall, used) = (now - begun, cpu_now - cpu);
                    asleep += meter.split(wall, used);
                    ready += meter.take_without_core();
                    (cpu, begun) = (thread_cpu_time(), Instant::now());
                });
                (asleep, ready)
            });
            let found = measured.join().unwrap();
            is_over.store(true, Ordering::Relaxed);
            found
        })
    }

    fn first_core() -> rustix::thread::CpuSet {
        let allowed = rustix::thread::sched_getaffinity(None).unwrap();
        let first =
            (0..rustix::thread::CpuSet::MAX_CPU).find(|core| allowed.is_set(*core)).unwrap();
        let mut set = rustix::thread::CpuSet::new();
        set.set(first);
        set
    }

    fn spin(time: Duration) {
        let end = thread_cpu_time() + time;
        while thread_cpu_time() < end {
            std::hint::spin_loop();
        }
    }

    /// Measures again while a measurement is wrong, a few times: other processes may take the core during it.
    fn assert_measured(
        measure: impl Fn() -> (Duration, Duration),
        is_right: impl Fn(Duration, Duration) -> bool,
    ) {
        let mut wrong = Vec::new();
        for _ in 0..5 {
            let (asleep, ready) = measure();
            if is_right(asleep, ready) {
                return;
            }
            wrong.push((asleep, ready));
        }
        panic!("asleep and ready: {wrong:?}");
    }

    #[test]
    fn time_without_a_core_is_not_sleep() {
        let measure = || {
            beside_others(3, |row_ended| {
                for _ in 0..40 {
                    spin(Duration::from_millis(2));
                    row_ended();
                }
            })
        };
        // Three others take the core.
        assert_measured(measure, |asleep, ready| {
            ready > Duration::from_millis(80) && asleep * 20 < ready
        });
    }

    #[test]
    fn sleep_is_detected_next_to_threads_that_take_the_core() {
        let measure = || {
            beside_others(2, |row_ended| {
                for row in 0..40 {
                    spin(Duration::from_millis(1));
                    if row % 4 == 0 {
                        std::thread::sleep(Duration::from_millis(20));
                    }
                    row_ended();
                }
            })
        };
        let slept = Duration::from_millis(200);
        assert_measured(measure, |asleep, _| asleep > slept * 9 / 10 && asleep < slept * 3 / 2);
    }
}

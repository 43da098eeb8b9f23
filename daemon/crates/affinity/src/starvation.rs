//! Detects that lowered threads are runnable but do not run while a client waits, and activates the fallback pool.
//!
//! Threads of the idle class run only while no others want the core. Next to busy processes of another scheduling group
//! this is almost never, and a thread cannot leave the class without privilege; so a second, parked group of threads
//! has the next higher class. It takes over for a while, longer each consecutive time, before the lowered threads are
//! tried again.

use std::fs;
use std::time::{Duration, Instant};

use crate::threads::WorkThreads;

/// The fallback pool's first turn; turns double up to the longest.
const FIRST_TURN: Duration = Duration::from_secs(5);
const LONGEST_TURN: Duration = Duration::from_secs(80);
/// Number of consecutive updates that must find the threads starving.
const LOOKS: u32 = 2;
/// Threads starve if the runnable ones get less than a quarter of a core each.
const MIN_SHARE: u32 = 4;

/// Watches one pool. Updated a few times a second by the engine thread.
#[derive(Debug)]
pub struct StarvationWatch {
    last_look: Instant,
    /// Time on a core of all lowered threads, and of workers, at the last update.
    ran: Duration,
    starving_looks: u32,
    until: Option<Instant>,
    turn: Duration,
}

impl StarvationWatch {
    /// Starts watching.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self {
            last_look: now,
            ran: Duration::ZERO,
            starving_looks: 0,
            until: None,
            turn: FIRST_TURN,
        }
    }

    /// Updates the state. `client_waits`: whether a client sleeps on an empty ring. `workers`: the CPU time of Python
    /// workers, which have the threads' class: if they run, the threads do not starve.
    pub fn update(
        &mut self,
        threads: &dyn WorkThreads,
        client_waits: bool,
        workers: impl FnOnce() -> Duration,
        now: Instant,
    ) {
        if !threads.has_fallback() {
            return;
        }
        let turn = self.turn;
        match self
            .step(client_waits, now, || with_workers(run_time_and_runnable(threads), workers()))
        {
            Some(true) => {
                let seconds = turn.as_secs();
                // Programs that start next to the daemon keep the cores busy for a moment: no warning yet.
                if turn > FIRST_TURN {
                    tracing::warn!(
                        seconds,
                        "other processes use the cores and the work threads do not run; the fallback pool takes over \
                         for a while (cpu.policy = \"batch\" always uses its class)"
                    );
                } else {
                    tracing::info!(
                        seconds,
                        "other processes use the cores; the fallback pool takes over for a while"
                    );
                }
                threads.set_fallback(true);
            }
            Some(false) => threads.set_fallback(false),
            None => {}
        }
    }

    /// Whether to switch the fallback pool on or off. `measure`: the run time of all lowered threads, and the number of
    /// runnable ones.
    fn step(
        &mut self,
        client_waits: bool,
        now: Instant,
        measure: impl FnOnce() -> (Duration, u32),
    ) -> Option<bool> {
        if let Some(until) = self.until {
            if now < until {
                return None;
            }
            (self.until, self.starving_looks) = (None, 0);
            return Some(false);
        }
        if !client_waits && self.starving_looks == 0 {
            // No client waits: nothing is measured, and the next update has nothing to compare with.
            self.ran = Duration::MAX;
            return None;
        }
        let (ran, runnable) = measure();
        let ran_since = ran.saturating_sub(self.ran);
        let starving = client_waits
            && self.ran != Duration::MAX
            && is_starved(ran_since, now - self.last_look, runnable);
        (self.last_look, self.ran) = (now, ran);
        if !starving {
            if self.starving_looks == 0 && runnable > 0 {
                self.turn = FIRST_TURN;
            }
            self.starving_looks = 0;
            return None;
        }
        self.starving_looks += 1;
        if self.starving_looks < LOOKS {
            return None;
        }
        self.until = Some(now + self.turn);
        self.turn = (self.turn * 2).min(LONGEST_TURN);
        Some(true)
    }
}

/// Whether `runnable` threads got too little of the time.
fn is_starved(ran: Duration, elapsed: Duration, runnable: u32) -> bool {
    runnable > 0 && ran * MIN_SHARE < elapsed * runnable
}

/// Work threads that wait for Python workers count as running: the workers' time is added to theirs.
fn with_workers((ran, runnable): (Duration, u32), workers: Duration) -> (Duration, u32) {
    (ran + workers, runnable)
}

/// Time that all lowered threads have been on a core, and the number of running or runnable ones.
fn run_time_and_runnable(threads: &dyn WorkThreads) -> (Duration, u32) {
    let mut total = (Duration::ZERO, 0);
    for id in threads.lowered_ids() {
        let read = |file: &str| fs::read_to_string(format!("/proc/self/task/{id}/{file}"));
        // "on-core-ns waiting-ns turns"; the waiting time is added only once the thread runs again.
        let ran = read("schedstat").ok();
        let ran = ran.as_deref().and_then(|text| text.split_whitespace().next()?.parse().ok());
        total.0 += Duration::from_nanos(ran.unwrap_or(0));
        // "id (name) state …"
        let stat = read("stat").unwrap_or_default();
        total.1 += u32::from(stat.rsplit(')').next().is_some_and(|rest| rest.starts_with(" R")));
    }
    total
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn running_or_idle_thread_does_not_starve() {
        let ms = Duration::from_millis;
        assert!(is_starved(ms(2), ms(250), 1));
        assert!(is_starved(ms(100), ms(250), 2), "two share what one could use");
        assert!(!is_starved(ms(0), ms(250), 0), "asleep");
        assert!(!is_starved(ms(120), ms(250), 1), "half a core");
    }

    #[test]
    fn threads_whose_workers_run_do_not_starve() {
        let mut now = Instant::now();
        let mut watch = StarvationWatch::new(now);
        let ms = Duration::from_millis;
        for look in 1..=6 {
            now += ms(250);
            // Three threads that are runnable and hardly run, next to two workers.
            let measured = with_workers((ms(look), 3), ms(450 * look));
            assert_eq!(watch.step(true, now, || measured), None);
        }
    }

    #[test]
    fn fallback_pool_takes_longer_turns_while_the_threads_starve() {
        let look = Duration::from_millis(250);
        let mut now = Instant::now();
        let mut watch = StarvationWatch::new(now);
        let starved = || (Duration::ZERO, 2);
        let mut turns = Vec::new();
        while turns.len() < 6 {
            now += look;
            if watch.step(true, now, starved) != Some(true) {
                continue;
            }
            let begun = now;
            while watch.step(true, now, || unreachable!("measured within a turn")).is_none() {
                now += look;
            }
            turns.push((now - begun).as_secs());
        }
        assert_eq!(turns, [5, 10, 20, 40, 80, 80]);
        // One update at which they run: the next turn is a first one again.
        now += look;
        assert_eq!(watch.step(true, now, || (Duration::from_secs(1000), 2)), None);
        for expected in [None, Some(true)] {
            now += look;
            assert_eq!(watch.step(true, now, || (Duration::from_secs(1000), 2)), expected);
        }
        assert_eq!(watch.until, Some(now + FIRST_TURN));
    }

    #[test]
    fn threads_do_not_starve_while_no_client_waits() {
        let mut now = Instant::now();
        let mut watch = StarvationWatch::new(now);
        for _ in 0..10 {
            now += Duration::from_millis(250);
            assert_eq!(watch.step(false, now, || unreachable!("measured for nobody")), None);
        }
        now += Duration::from_millis(250);
        assert_eq!(watch.step(true, now, || (Duration::ZERO, 2)), None, "nothing to compare with");
    }
}

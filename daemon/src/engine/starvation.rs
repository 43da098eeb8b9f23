//! Notices that lowered threads are runnable but do not run while a client waits, and lets the second group take over.
//!
//! The idle class gets what others leave. Beside busy processes of another scheduling group that can be next to nothing,
//! and a thread cannot leave the class without privilege; so a parked group of the next class stands by. It works for a
//! while, longer each time in a row, and then the lowered threads get another chance.

use std::fs;
use std::time::{Duration, Instant};

use super::pool::Shared;

/// The first turn of the second group; it doubles up to the last.
const FIRST_TURN: Duration = Duration::from_secs(5);
const LONGEST_TURN: Duration = Duration::from_secs(80);
/// So many looks in a row must find the threads starving.
const LOOKS: u32 = 2;
/// Threads starve when those that are ready to run get less than a quarter of a core each.
const LEAST_SHARE: u32 = 4;

/// Watches one pool. Asked a few times a second by the engine thread.
#[derive(Debug)]
pub(super) struct StarvationWatch {
    last_look: Instant,
    /// Time on a core of all lowered threads at the last look.
    ran: Duration,
    starving_looks: u32,
    until: Option<Instant>,
    turn: Duration,
}

impl Default for StarvationWatch {
    fn default() -> Self {
        Self {
            last_look: Instant::now(),
            ran: Duration::ZERO,
            starving_looks: 0,
            until: None,
            turn: FIRST_TURN,
        }
    }
}

impl StarvationWatch {
    /// Looks once. `client_waits`: some client sleeps over an empty ring.
    pub(super) fn look(&mut self, pool: &Shared, client_waits: bool) {
        if !pool.has_rescue() {
            return;
        }
        let now = Instant::now();
        if let Some(until) = self.until {
            if now >= until {
                (self.until, self.starving_looks) = (None, 0);
                pool.set_rescue(false);
            }
            return;
        }
        if !client_waits && self.starving_looks == 0 {
            // Nobody waits: nothing is read, and the next look has nothing to compare with.
            self.ran = Duration::MAX;
            return;
        }
        let (ran, runnable) = run_time_and_runnable(pool);
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
            return;
        }
        self.starving_looks += 1;
        if self.starving_looks >= LOOKS {
            tracing::warn!(
                seconds = self.turn.as_secs(),
                "other processes keep the cores busy and the work threads do not run: threads of the next scheduling \
                 class take over for a while (cpu.policy = \"batch\" uses that class always)"
            );
            pool.set_rescue(true);
            self.until = Some(now + self.turn);
            self.turn = (self.turn * 2).min(LONGEST_TURN);
        }
    }
}

/// Whether so many threads that were ready to run got too little of the time.
fn is_starved(ran: Duration, elapsed: Duration, runnable: u32) -> bool {
    runnable > 0 && ran * LEAST_SHARE < elapsed * runnable
}

/// The time that all lowered threads have been on a core, and how many are running or ready to.
fn run_time_and_runnable(pool: &Shared) -> (Duration, u32) {
    let mut total = (Duration::ZERO, 0);
    for id in pool.lowered_thread_ids() {
        let read = |file: &str| fs::read_to_string(format!("/proc/self/task/{id}/{file}"));
        // "on-core-ns waiting-ns turns"; the waiting time is added up only once the thread runs again.
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
    fn a_thread_that_runs_or_has_nothing_to_do_does_not_starve() {
        let ms = Duration::from_millis;
        assert!(is_starved(ms(2), ms(250), 1));
        assert!(is_starved(ms(100), ms(250), 2), "two share what one could use");
        assert!(!is_starved(ms(0), ms(250), 0), "asleep");
        assert!(!is_starved(ms(120), ms(250), 1), "half a core");
    }
}

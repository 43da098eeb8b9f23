//! Measures how long a wait has lasted, in time for which this process ran.
//!
//! A wait reads the clock after each slice of about 50 ms. A gap between two readings that is much longer is time for
//! which this process was stopped (SIGSTOP, a frozen control group, a paused container) and could not see progress, so
//! only a part of it counts: after a suspension the daemon has time to respond.

use std::time::{Duration, Instant};

/// The most that a gap between two readings counts for; far above a slice, so that delays on a busy machine count in
/// full.
const MAX_GAP: Duration = Duration::from_secs(1);

/// The length of a wait so far.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Patience {
    last_look: Instant,
    waited: Duration,
}

impl Patience {
    /// A wait that begins now.
    pub(crate) fn begin(now: Instant) -> Self {
        Self { last_look: now, waited: Duration::ZERO }
    }

    /// Reads the clock; returns the length of the wait.
    pub(crate) fn look(&mut self, now: Instant) -> Duration {
        self.waited += now.saturating_duration_since(self.last_look).min(MAX_GAP);
        self.last_look = now;
        self.waited
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suspension_counts_as_one_gap_and_slices_count_in_full() {
        let begin = Instant::now();
        let mut patience = Patience::begin(begin);
        for slice in 1..=20 {
            patience.look(begin + Duration::from_millis(50) * slice);
        }
        assert_eq!(patience.look(begin + Duration::from_secs(1)), Duration::from_secs(1));
        assert_eq!(patience.look(begin + Duration::from_secs(3600)), Duration::from_secs(2));
        let later = begin + Duration::from_secs(3600) + Duration::from_millis(700);
        assert_eq!(patience.look(later), Duration::from_millis(2700));
        assert_eq!(patience.look(begin), Duration::from_millis(2700), "a clock does not go back");
    }
}

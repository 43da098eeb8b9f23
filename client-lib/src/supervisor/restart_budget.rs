//! How long daemons are restarted that publish no batch.

use std::time::{Duration, Instant};

/// The delay after the first start without a batch; it doubles with each further one.
const INITIAL_BACKOFF: Duration = Duration::from_millis(100);
const MAX_BACKOFF: Duration = Duration::from_secs(15);
/// The most that one failed start counts for: a longer time is a suspension of this process.
const MAX_START: Duration = Duration::from_secs(60);

/// How long and how often daemons were started without a batch.
#[derive(Debug)]
pub(super) struct RestartBudget {
    limit: Duration,
    /// Deaths and failed starts in a row without a batch.
    failures: u32,
    /// From the first of them to the last.
    spent: Duration,
    last: Option<Instant>,
}

impl RestartBudget {
    pub(super) fn new(limit: Duration) -> Self {
        Self { limit, failures: 0, spent: Duration::ZERO, last: None }
    }

    /// A daemon has died, with or without having published a batch, or could not be started.
    pub(super) fn record(&mut self, now: Instant, has_progressed: bool) {
        if has_progressed {
            *self = Self::new(self.limit);
            return;
        }
        if let Some(last) = self.last {
            self.spent += now.saturating_duration_since(last).min(MAX_START);
        }
        self.failures += 1;
        self.last = Some(now);
    }

    /// The delay before the next start; `None`: the budget is spent.
    pub(super) fn delay(&self) -> Option<Duration> {
        let Some(doublings) = self.failures.checked_sub(1) else {
            return Some(Duration::ZERO);
        };
        let left = self.limit.checked_sub(self.spent).filter(|left| !left.is_zero())?;
        Some(INITIAL_BACKOFF.saturating_mul(1 << doublings.min(16)).min(MAX_BACKOFF).min(left))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The delays until the budget is spent, each start failing after `start`.
    fn delays(limit: Duration, start: Duration) -> Vec<Duration> {
        let (mut budget, mut now) = (RestartBudget::new(limit), Instant::now());
        let mut delays = Vec::new();
        loop {
            budget.record(now, false);
            let Some(delay) = budget.delay() else { return delays };
            delays.push(delay);
            now += delay + start;
        }
    }

    #[test]
    fn restarts_without_a_batch_are_bounded_by_the_budget() {
        let limit = Duration::from_secs(300);
        let delays = delays(limit, Duration::from_millis(10));
        assert_eq!(delays[0], INITIAL_BACKOFF);
        assert_eq!(delays[3], INITIAL_BACKOFF * 8);
        assert!(delays.iter().all(|delay| *delay <= MAX_BACKOFF));
        let total: Duration = delays.iter().sum();
        assert!(total > limit * 9 / 10 && delays.len() < 40, "{total:?}, {}", delays.len());
    }

    #[test]
    fn batch_renews_the_budget_and_first_death_is_always_retried() {
        let mut budget = RestartBudget::new(Duration::from_millis(1));
        let now = Instant::now();
        budget.record(now, false);
        assert!(budget.delay().is_some());
        budget.record(now + Duration::from_secs(1), false);
        assert_eq!(budget.delay(), None);
        budget.record(now + Duration::from_secs(2), true);
        assert_eq!(budget.delay(), Some(Duration::ZERO));
        budget.record(now + Duration::from_secs(900), false);
        assert!(budget.delay().is_some());
    }

    #[test]
    fn suspension_is_not_a_failed_start() {
        let mut budget = RestartBudget::new(Duration::from_secs(300));
        let now = Instant::now();
        budget.record(now, false);
        budget.record(now + Duration::from_secs(86_400), false);
        assert!(budget.delay().is_some());
    }
}

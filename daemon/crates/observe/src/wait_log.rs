//! Selects the verdicts that are logged: once per minute the limit of each session that waits for data; the same limit
//! only after another ten minutes. The engine calls it from its tick, which stops if there is no work.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::history::WINDOW;
use super::verdict::{Judgement, WAIT_SHARE_THAT_MATTERS};

/// The time after which the same limit is logged again.
const AGAIN_AFTER: Duration = Duration::from_secs(600);
/// The share of time spent waiting that causes a warning.
const WARNING_SHARE: f64 = 0.1;

/// See the module's documentation.
#[derive(Debug)]
pub struct WaitLog {
    checked: Instant,
    /// By session: the last logged limit, and when it was logged.
    last_logged: BTreeMap<u64, (String, Instant)>,
}

impl WaitLog {
    /// Starts at `now` with nothing logged.
    pub fn new(now: Instant) -> Self {
        Self { checked: now, last_logged: BTreeMap::new() }
    }

    /// Whether a minute has passed since the last check.
    pub fn is_due(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.checked) >= WINDOW
    }

    /// Logs limits that are new or due again.
    pub fn log(&mut self, judgements: &[Judgement], now: Instant) {
        for judgement in self.due_in(judgements, now) {
            let sentence = &judgement.verdict.sentence;
            if judgement.wait_share >= WARNING_SHARE {
                tracing::warn!(session = judgement.session, "waiting for data: {sentence}");
            } else {
                tracing::info!(session = judgement.session, "waiting for data: {sentence}");
            }
        }
    }

    fn due_in<'j>(&mut self, judgements: &'j [Judgement], now: Instant) -> Vec<&'j Judgement> {
        self.checked = now;
        self.last_logged.retain(|session, _| judgements.iter().any(|one| one.session == *session));
        let waits = |one: &&Judgement| {
            one.wait_share >= WAIT_SHARE_THAT_MATTERS
                && !["trainer", "none"].contains(&one.verdict.limit.as_str())
        };
        let mut due = Vec::new();
        for one in judgements.iter().filter(waits) {
            let last = self.last_logged.get(&one.session);
            let is_known = last.is_some_and(|(limit, at)| {
                *limit == one.verdict.limit && now.saturating_duration_since(*at) < AGAIN_AFTER
            });
            if !is_known {
                self.last_logged.insert(one.session, (one.verdict.limit.clone(), now));
                due.push(one);
            }
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Verdict, WindowReport};

    fn judgement(session: u64, limit: &str, wait_share: f64) -> Judgement {
        let verdict = Verdict {
            limit: limit.to_owned(),
            sentence: "because".to_owned(),
            seconds: 60.0,
            ..Verdict::default()
        };
        Judgement { session, wait_share, verdict, window: WindowReport::default() }
    }

    #[test]
    fn limit_is_logged_every_ten_minutes_and_when_it_changes() {
        let start = Instant::now();
        let minute = |minutes: u32| start + WINDOW * minutes;
        let mut log = WaitLog::new(start);
        assert!(!log.is_due(start + WINDOW / 2) && log.is_due(minute(1)));
        let mut logged = |minutes: u32, limit: &str, wait_share: f64| {
            log.due_in(&[judgement(1, limit, wait_share)], minute(minutes)).len()
        };
        assert_eq!(logged(1, "decode", 0.04), 0, "hardly a wait");
        assert_eq!(logged(2, "trainer", 0.01), 0);
        assert_eq!(logged(3, "decode", 0.3), 1);
        assert_eq!(logged(4, "decode", 0.3), 0, "the same");
        assert_eq!(logged(5, "storage", 0.3), 1);
        assert_eq!(logged(6, "decode", 0.3), 1);
        assert_eq!(logged(15, "decode", 0.3), 0);
        assert_eq!(logged(16, "decode", 0.3), 1, "ten minutes later");
        assert!(!log.is_due(minute(16)), "checked a moment ago");
    }

    #[test]
    fn each_session_is_logged_separately_and_forgotten_when_it_ends() {
        let start = Instant::now();
        let mut log = WaitLog::new(start);
        let both = [judgement(1, "decode", 0.3), judgement(2, "decode", 0.3)];
        assert_eq!(log.due_in(&both, start).len(), 2);
        assert_eq!(log.due_in(&both[1..], start).len(), 0);
        assert_eq!(log.due_in(&both, start).len(), 1, "another session of the same number");
    }
}

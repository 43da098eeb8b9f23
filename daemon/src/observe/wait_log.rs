//! Which verdicts go into the log: once a minute what a trainer waits for, and the same one again only after ten minutes.
//!
//! Asked by the engine while its clock ticks; without work it does not, and then nobody waits for data either.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::history::WINDOW;
use super::verdict::{Judgement, WAIT_SHARE_THAT_MATTERS};

/// The same limit is told of again after this time.
const AGAIN_AFTER: Duration = Duration::from_secs(600);
/// A share of the time spent waiting that is worth a warning.
const WARNING_SHARE: f64 = 0.1;

/// See the module's head.
#[derive(Debug)]
pub(crate) struct WaitLog {
    looked: Instant,
    /// By session: the limit that was told of last, and when.
    told: BTreeMap<u64, (String, Instant)>,
}

impl WaitLog {
    /// Nothing was told before `now`.
    pub(crate) fn new(now: Instant) -> Self {
        Self { looked: now, told: BTreeMap::new() }
    }

    /// Whether a minute has passed since the last look.
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.looked) >= WINDOW
    }

    /// Looks once and writes what is to be told.
    pub(crate) fn look(&mut self, judgements: &[Judgement], now: Instant) {
        for judgement in self.news_in(judgements, now) {
            let sentence = &judgement.verdict.sentence;
            if judgement.wait_share >= WARNING_SHARE {
                tracing::warn!(session = judgement.session, "waiting for data: {sentence}");
            } else {
                tracing::info!(session = judgement.session, "waiting for data: {sentence}");
            }
        }
    }

    fn news_in<'j>(&mut self, judgements: &'j [Judgement], now: Instant) -> Vec<&'j Judgement> {
        self.looked = now;
        self.told.retain(|session, _| judgements.iter().any(|one| one.session == *session));
        let waits = |one: &&Judgement| {
            one.wait_share >= WAIT_SHARE_THAT_MATTERS
                && !["trainer", "none"].contains(&one.verdict.limit.as_str())
        };
        let mut news = Vec::new();
        for one in judgements.iter().filter(waits) {
            let told = self.told.get(&one.session);
            let is_known = told.is_some_and(|(limit, at)| {
                *limit == one.verdict.limit && now.saturating_duration_since(*at) < AGAIN_AFTER
            });
            if !is_known {
                self.told.insert(one.session, (one.verdict.limit.clone(), now));
                news.push(one);
            }
        }
        news
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::Verdict;

    fn judgement(session: u64, limit: &str, wait_share: f64) -> Judgement {
        let verdict =
            Verdict { limit: limit.to_owned(), sentence: "because".to_owned(), seconds: 60.0 };
        Judgement { session, wait_share, verdict }
    }

    #[test]
    fn a_limit_is_told_once_in_ten_minutes_and_at_once_when_it_changes() {
        let start = Instant::now();
        let minute = |minutes: u32| start + WINDOW * minutes;
        let mut log = WaitLog::new(start);
        assert!(!log.is_due(start + WINDOW / 2) && log.is_due(minute(1)));
        let mut told = |minutes: u32, limit: &str, wait_share: f64| {
            log.news_in(&[judgement(1, limit, wait_share)], minute(minutes)).len()
        };
        assert_eq!(told(1, "decode", 0.01), 0, "hardly a wait");
        assert_eq!(told(2, "trainer", 0.01), 0);
        assert_eq!(told(3, "decode", 0.3), 1);
        assert_eq!(told(4, "decode", 0.3), 0, "the same");
        assert_eq!(told(5, "storage", 0.3), 1);
        assert_eq!(told(6, "decode", 0.3), 1);
        assert_eq!(told(15, "decode", 0.3), 0);
        assert_eq!(told(16, "decode", 0.3), 1, "ten minutes later");
        assert!(!log.is_due(minute(16)), "a look at each minute");
    }

    #[test]
    fn sessions_are_told_of_by_themselves_and_forgotten_when_they_end() {
        let start = Instant::now();
        let mut log = WaitLog::new(start);
        let both = [judgement(1, "decode", 0.3), judgement(2, "decode", 0.3)];
        assert_eq!(log.news_in(&both, start).len(), 2);
        assert_eq!(log.news_in(&both[1..], start).len(), 0);
        assert_eq!(log.news_in(&both, start).len(), 1, "another session of the same number");
    }
}

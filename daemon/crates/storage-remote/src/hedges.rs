//! When a request that is late is hedged, that is, sent a second time.
//!
//! The states of a request. The thread that waits for it moves them and runs both requests:
//! ```text
//! Sent ──response begins, or fails─────────────────────────────────► Done
//! │ slower than 95 % of the recent responses, and the budget has room
//! ▼
//! Hedged ──either response begins: the other is dropped, its connection closed──► Done
//! │ one fails: the other is awaited
//! ▼
//! SentOnce ──as `Sent`, without another hedge──────────────────────► Done
//! ```
//! So one response is used, whichever it is. The budget is one second request for 20 first ones. A server that is
//! merely overloaded does not get more requests: a response is late only after twice the median.

use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::{Either, select};

use forebay_observe::{RequestReport, percentile_of};

/// First requests per second request.
const REQUESTS_PER_HEDGE: u64 = 20;
/// Requests after which the delay of late responses is computed again, and responses that suffice for it.
const WINDOW: u64 = 128;
const ENOUGH: u64 = 64;
/// The minimal delay: setting up a connection takes about this long.
const MIN_DELAY: Duration = Duration::from_millis(5);

/// See the module's head. Shared by the threads that read.
#[derive(Debug, Default)]
pub(super) struct Hedges {
    asked: AtomicU64,
    hedged: AtomicU64,
    /// Microseconds after which a response is late; 0: not known.
    late_micros: AtomicU64,
    /// The metrics when the delay was last computed.
    before: Mutex<RequestReport>,
}

impl Hedges {
    /// Counts a first request and returns after how long it is late, if known. `report`: the metrics so far.
    pub(super) fn ask(&self, report: impl FnOnce() -> RequestReport) -> Option<Duration> {
        // Relaxed, here and below: counts and a hint.
        let asked = self.asked.fetch_add(1, Ordering::Relaxed) + 1;
        if asked.is_multiple_of(WINDOW) {
            self.find_late(report());
        }
        let micros = self.late_micros.load(Ordering::Relaxed);
        (micros > 0).then(|| Duration::from_micros(micros))
    }

    fn find_late(&self, now: RequestReport) {
        let mut before = self.before.lock().unwrap_or_else(PoisonError::into_inner);
        let recent = now.since(&before);
        if recent.first_bytes.iter().map(|(_, count)| count).sum::<u64>() < ENOUGH {
            return;
        }
        let late = percentile_of(&recent.first_bytes, 0.95).max(2.0 * recent.p50_first_byte);
        let late = Duration::try_from_secs_f64(late).unwrap_or(Duration::MAX).max(MIN_DELAY);
        let micros = u64::try_from(late.as_micros()).unwrap_or(u64::MAX);
        self.late_micros.store(micros, Ordering::Relaxed);
        *before = now;
    }

    /// Takes room for a second request from the budget, if there is any.
    fn take(&self) -> bool {
        let asked = self.asked.load(Ordering::Relaxed);
        let hedge = |hedged: u64| {
            (hedged.saturating_add(1) <= asked / REQUESTS_PER_HEDGE).then(|| hedged + 1)
        };
        self.hedged.fetch_update(Ordering::Relaxed, Ordering::Relaxed, hedge).is_ok()
    }

    /// Makes a request, and a second one if its response is late; `note` is called then.
    pub(super) async fn run<T, E, F: Future<Output = Result<T, E>>>(
        &self,
        late: Option<Duration>,
        request: impl Fn() -> F,
        note: impl FnOnce(),
    ) -> Result<T, E> {
        let mut first = pin!(request());
        let Some(late) = late else {
            return first.await;
        };
        if let Ok(answer) = tokio::time::timeout(late, &mut first).await {
            return answer;
        }
        if !self.take() {
            return first.await;
        }
        note();
        match select(first, pin!(request())).await {
            Either::Left((Err(_), other)) => other.await,
            Either::Right((Err(_), other)) => other.await,
            Either::Left((answer, _)) | Either::Right((answer, _)) => answer,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::sync::Arc;

    use forebay_observe::RequestMetrics;

    use super::*;

    #[test]
    fn at_most_one_request_in_twenty_is_hedged() {
        let hedges = Hedges::default();
        let mut hedged = 0;
        for asked in 1..=1000 {
            hedges.ask(RequestReport::default);
            hedged += u64::from(hedges.take());
            assert!(hedged <= asked / 20, "{hedged} of {asked}");
        }
        assert_eq!(hedged, 50);
    }

    #[test]
    fn delay_follows_recent_response_times() {
        let hedges = Hedges::default();
        let mut report = RequestReport::default();
        let mut window = |median: f64, slow: f64| {
            report = RequestReport {
                elapsed: report.elapsed + 1.0,
                first_bytes: add(&report.first_bytes, &[(median, 95), (slow, 33)]),
                ..RequestReport::default()
            };
            let mut late = None;
            for _ in 0..WINDOW {
                late = hedges.ask(|| report.clone());
            }
            late
        };
        assert_eq!(window(0.1, 0.7), Some(Duration::from_millis(700)));
        // At least twice the median, and at least the time of a new connection.
        assert_eq!(window(0.1, 0.15), Some(Duration::from_millis(200)));
        assert_eq!(window(0.001, 0.001), Some(MIN_DELAY));
    }

    fn add(counts: &[(f64, u64)], more: &[(f64, u64)]) -> Vec<(f64, u64)> {
        let mut sum = counts.to_vec();
        for (bound, count) in more {
            match sum.iter_mut().find(|(there, _)| there == bound) {
                Some((_, there)) => *there += count,
                None => sum.push((*bound, *count)),
            }
        }
        sum.sort_by(|a, b| a.0.total_cmp(&b.0));
        sum
    }

    /// How a request is answered.
    #[derive(Clone, Copy)]
    enum Answer {
        Now(Result<u32, u32>),
        /// Once there is a second request.
        OnceHedged(Result<u32, u32>),
        /// Some time after that.
        Later(Result<u32, u32>),
        Never,
    }

    /// The result of both requests, and whether there was a second one.
    fn run(hedges: &Hedges, late: Duration, answers: [Answer; 2]) -> (Result<u32, u32>, bool) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let (turn, is_hedged) = (Cell::new(0), Cell::new(false));
        let wait_for = async |turns: u32| {
            let mut left = turns;
            while left > 0 {
                tokio::task::yield_now().await;
                left -= u32::from(is_hedged.get());
            }
        };
        let request = || {
            let answer = answers[turn.replace(1)];
            let wait_for = &wait_for;
            async move {
                match answer {
                    Answer::Now(answer) => answer,
                    Answer::OnceHedged(answer) => {
                        wait_for(2).await;
                        answer
                    }
                    Answer::Later(answer) => {
                        wait_for(20).await;
                        answer
                    }
                    Answer::Never => std::future::pending().await,
                }
            }
        };
        let run = hedges.run(Some(late), request, || is_hedged.set(true));
        (runtime.block_on(run), is_hedged.get())
    }

    #[test]
    fn first_response_is_used_and_a_failure_only_if_both_fail() {
        use Answer::{Later, Never, Now, OnceHedged};
        let hedges = Hedges { asked: AtomicU64::new(1000), ..Hedges::default() };
        let run = |answers| run(&hedges, Duration::from_millis(2), answers);
        assert_eq!(run([Now(Ok(1)), Never]), (Ok(1), false));
        assert_eq!(run([Never, Now(Ok(2))]), (Ok(2), true));
        assert_eq!(run([OnceHedged(Ok(1)), Never]), (Ok(1), true));
        assert_eq!(run([OnceHedged(Err(1)), Later(Ok(2))]), (Ok(2), true));
        assert_eq!(run([Later(Ok(1)), OnceHedged(Err(2))]), (Ok(1), true));
        assert_eq!(run([Later(Err(1)), OnceHedged(Err(2))]), (Err(1), true));
    }

    #[test]
    fn exhausted_budget_prevents_a_second_request() {
        let hedges = Hedges { asked: AtomicU64::new(19), ..Hedges::default() };
        assert!(!hedges.take());
        let answers = [Answer::Now(Ok(1)), Answer::Never];
        assert_eq!(run(&hedges, Duration::ZERO, answers), (Ok(1), false));
    }

    #[test]
    fn reports_of_a_storage_are_usable_as_input() {
        let metrics = Arc::new(RequestMetrics::default());
        let hedges = Hedges::default();
        for _ in 0..2 * WINDOW {
            let request = metrics.begin();
            hedges.ask(|| metrics.report());
            request.answered();
        }
        assert_eq!(hedges.ask(|| metrics.report()), Some(MIN_DELAY));
    }
}

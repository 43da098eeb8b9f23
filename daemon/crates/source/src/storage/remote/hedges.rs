//! When a second request is made for what a first one has not begun to bring.
//!
//! A request's states; the thread that waits for it moves them, and both requests run on that thread alone:
//! ```text
//!   Asked ──the answer has begun, or fails────────────────────────────► Done
//!     │ slower than 95 % of the answers of late, and the budget has room
//!     ▼
//!   Hedged ──either answer has begun: the other is dropped, its connection closed──► Done
//!     │ one fails: the other is waited for
//!     ▼
//!   AskedOnce ──as `Asked`, without another hedge─────────────────────► Done
//! ```
//! So one answer is used, whichever it is. The budget is one second request for 20 first ones. A server that is merely busy
//! is not asked more: an answer is late only once it has taken twice the median.

use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::{Either, select};

use forebay_observe::{RequestReport, percentile_of};

/// First requests for a second one.
const REQUESTS_PER_HEDGE: u64 = 20;
/// Requests after which it is found anew what is late, and answers that are enough to say so.
const WINDOW: u64 = 128;
const ENOUGH: u64 = 64;
/// Sooner than this nothing is late: a connection is set up meanwhile.
const MIN_DELAY: Duration = Duration::from_millis(5);

/// See the module's head. Shared by the threads that read.
#[derive(Debug, Default)]
pub(super) struct Hedges {
    asked: AtomicU64,
    hedged: AtomicU64,
    /// Microseconds after which an answer is late; 0: not known.
    late_micros: AtomicU64,
    /// The metrics when that was last found.
    before: Mutex<RequestReport>,
}

impl Hedges {
    /// A first request is made: after how long it is late, if that is known. `report`: the metrics so far.
    pub(super) fn ask(&self, report: impl FnOnce() -> RequestReport) -> Option<Duration> {
        // Relaxed, here and below: counts and a figure.
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

    /// Whether the budget has room for a second request; it is taken then.
    fn take(&self) -> bool {
        let asked = self.asked.load(Ordering::Relaxed);
        let hedge = |hedged: u64| {
            (hedged.saturating_add(1) <= asked / REQUESTS_PER_HEDGE).then(|| hedged + 1)
        };
        self.hedged.fetch_update(Ordering::Relaxed, Ordering::Relaxed, hedge).is_ok()
    }

    /// Makes a request, and a second one where its answer is late; `note` is called then.
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
    fn at_most_one_request_in_twenty_is_made_twice() {
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
    fn what_is_late_is_found_from_the_answers_of_late() {
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
        // Twice the median at least, and not within the time of a new connection.
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
        /// A while after that.
        Later(Result<u32, u32>),
        Never,
    }

    /// What the two are answered together, and whether there was a second request.
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
    fn the_answer_that_begins_first_is_used_and_a_failure_only_where_both_fail() {
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
    fn without_room_in_the_budget_there_is_no_second_request() {
        let hedges = Hedges { asked: AtomicU64::new(19), ..Hedges::default() };
        assert!(!hedges.take());
        let answers = [Answer::Now(Ok(1)), Answer::Never];
        assert_eq!(run(&hedges, Duration::ZERO, answers), (Ok(1), false));
    }

    #[test]
    fn reports_of_a_storage_serve_as_they_are() {
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

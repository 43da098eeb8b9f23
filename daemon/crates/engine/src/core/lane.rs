//! A fetch lane: the engine thread's side of one read at a time.
//!
//! A lane takes a few rows from the most urgent session, in (batch, row) order, and has a fetch thread read them
//! ([`crate::fetch`]): more rows at a time while reads are quick. It starts when the byte budget has room. A call that
//! outlasts `dataset.read_timeout` is abandoned together with its thread ([`crate::reading`]); its row is read again like
//! one whose read failed ([`crate::retry_queue`]). Rows that are due for that come before others. How many threads may
//! hang before reads become fewer is in [`crate::fetch_threads`].

use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use super::{Engine, SharedEngine};
use crate::gate::Promise;
use crate::reading::Reading;
use crate::retry_queue::PutOff;
use crate::work::FetchJob;
use forebay_source::storage::StorageError;

/// Rows for one task of a fetch thread: amortises starting the task, about 10 µs.
const CHUNK_ROWS: usize = 4;
/// The least while reads are quick, as from the page cache: each task disturbs the engine and the work threads.
const QUICK_CHUNK_ROWS: usize = 16;
/// The most, and for how long such a task may read; there are fewer rows where other lanes have none left.
const MAX_CHUNK_ROWS: usize = 64;
const CHUNK_TIME: Duration = Duration::from_millis(1);
/// The mean time of a quick read.
const QUICK: Duration = Duration::from_micros(250);

/// Rows for the next task, where `count` took so long.
fn chunk_rows(took: Duration, count: usize) -> usize {
    let each = took / u32::try_from(count).unwrap_or(u32::MAX).max(1);
    if each >= QUICK {
        return CHUNK_ROWS;
    }
    let rows = CHUNK_TIME.as_nanos() / each.as_nanos().max(1);
    usize::try_from(rows).unwrap_or(usize::MAX).clamp(QUICK_CHUNK_ROWS, MAX_CHUNK_ROWS)
}

/// How often a lane looks whether it may read although many hang.
const HUNG_LOOK_PERIOD: Duration = Duration::from_millis(100);

/// Checks for a hanging read, for each time-out.
const CHECKS_PER_TIMEOUT: u32 = 4;
const MAX_CHECK_PERIOD: Duration = Duration::from_secs(1);

/// Runs one lane of a stream until the engine ends.
pub(super) async fn run_lane(engine: SharedEngine, stream: usize, lane: usize) {
    let work_to_do = Rc::clone(&engine.borrow().fetch_notify[stream]);
    let more_lanes = Rc::clone(&engine.borrow().more_lanes);
    let shares_units = engine.borrow().streams[stream].shares_units;
    let limit = engine.borrow().streams[stream].config.dataset.read_timeout;
    let mut rows = CHUNK_ROWS;
    loop {
        if lane >= engine.borrow().fetch_threads[stream].lanes() {
            more_lanes.notified().await;
            continue;
        }
        if !engine.borrow().has_fetch_jobs(stream) {
            work_to_do.notified().await;
            continue;
        }
        // A lane of shared units does not pause: its rows release bytes that are kept for them.
        let started = (!shares_units).then(|| engine.borrow().gates.fetch.start()).transpose();
        let promise = match started {
            Ok(promise) => promise,
            Err(_pause) => {
                work_to_do.notified().await;
                continue;
            }
        };
        let jobs: VecDeque<FetchJob> = engine.borrow_mut().take_fetch_jobs(stream, rows).into();
        let mut left = Some((jobs, promise));
        while let Some((mut jobs, promise)) = left.filter(|(jobs, _)| !jobs.is_empty()) {
            while !jobs.is_empty() && !engine.borrow_mut().may_read(stream, limit) {
                tokio::time::sleep(HUNG_LOOK_PERIOD).await;
                engine.borrow().fail_overdue(&mut jobs);
            }
            let count = jobs.len();
            left = match read_watched(&engine, (stream, lane), jobs, promise, limit).await {
                Read::All { took } => {
                    engine.borrow_mut().fetch_threads[stream].note_answer();
                    rows = chunk_rows(took, count);
                    None
                }
                Read::Ended => None,
                Read::Hung(rest) => {
                    rows = CHUNK_ROWS;
                    Some((after_hanging(&engine, stream, rest, limit), None))
                }
            };
        }
        engine.borrow_mut().readings[stream][lane] = None;
    }
}

/// How reading some rows ended.
enum Read {
    /// All rows were handed on or failed; the time taken, waits for bytes left out.
    All { took: Duration },
    /// The thread panicked, and all sessions were ended.
    Ended,
    /// A call hangs; the rows left, the hanging one first.
    Hung(VecDeque<FetchJob>),
}

/// Reads rows on a fetch thread.
async fn read_watched(
    engine: &SharedEngine,
    (stream, lane): (usize, usize),
    jobs: VecDeque<FetchJob>,
    promise: Option<Promise>,
    limit: Duration,
) -> Read {
    let (mut read, watched) = {
        let mut engine = engine.borrow_mut();
        let hung = engine.fetch_threads[stream].hung().clone();
        let reading = Arc::new(Reading::new(jobs, promise, hung, engine.clock.clone()));
        engine.readings[stream][lane] = Some(Arc::clone(&reading));
        (engine.fetch_threads[stream].submit(Arc::clone(&reading), lane), reading)
    };
    let check_period = (limit / CHECKS_PER_TIMEOUT).min(MAX_CHECK_PERIOD);
    let outcome = loop {
        match tokio::time::timeout(check_period, &mut read).await {
            Ok(Ok(true)) => break Read::All { took: watched.took() },
            // A panic in a read fails its row only; this one was in code that hands rows on.
            Ok(_) => {
                tracing::error!("a fetch thread panicked; all sessions end");
                engine
                    .borrow_mut()
                    .end_all("a fetch thread panicked: this is a bug in forebay; please report it");
                break Read::Ended;
            }
            Err(_) => {
                if let Some(hung) = watched.abandon_overdue(limit) {
                    break Read::Hung(hung);
                }
            }
        }
    };
    engine.borrow_mut().fetch_threads[stream].end();
    outcome
}

/// Puts off the first row, which hung; gives the others.
fn after_hanging(
    engine: &SharedEngine,
    stream: usize,
    mut jobs: VecDeque<FetchJob>,
    limit: Duration,
) -> VecDeque<FetchJob> {
    if let Some(job) = jobs.pop_front() {
        let abandoned = engine.borrow().fetch_threads[stream].hung().get();
        let path = job.session.stream.sample_path(job.id);
        let error = StorageError::TimedOut { path, limit, abandoned };
        engine.borrow_mut().put_off(PutOff { stream, job, error });
    }
    jobs
}

impl Engine {
    /// Whether a lane of a stream may begin a read.
    fn may_read(&mut self, stream: usize, limit: Duration) -> bool {
        let now = self.clock.now();
        self.fetch_threads[stream].may_read(now, limit)
    }

    /// Whether there are rows for a lane of a stream.
    fn has_fetch_jobs(&self, stream: usize) -> bool {
        if self.has_due_retries(stream) {
            return true;
        }
        let mut sessions = self.sessions.values();
        sessions
            .any(|session| session.stream_number == stream && session.admission_urgency().is_some())
    }

    /// The next rows that a lane of a stream fetches: those due for another try, else from the session whose next row is
    /// most urgent.
    fn take_fetch_jobs(&mut self, stream: usize, count: usize) -> Vec<FetchJob> {
        let due = self.take_due_retries(stream, count.min(CHUNK_ROWS));
        if !due.is_empty() {
            return due;
        }
        let lanes = self.fetch_threads[stream].lanes();
        let sessions = self.sessions.values_mut();
        let next = sessions
            .filter(|session| session.stream_number == stream)
            .filter_map(|session| session.admission_urgency().map(|urgency| (urgency, session)))
            .min_by_key(|(urgency, _)| *urgency);
        next.map(|(_, session)| {
            let share = session.admissions_left().div_ceil(lanes);
            // Reads that are slow are spread over all lanes.
            let least = if count > CHUNK_ROWS { QUICK_CHUNK_ROWS } else { 1 };
            session.take_admissions(count.min(share.max(least)))
        })
        .unwrap_or_default()
    }
}

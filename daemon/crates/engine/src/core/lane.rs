//! A fetch lane: the engine thread's side of one read at a time.
//!
//! A lane takes a few rows from the most urgent session, in (batch, row) order, and has a blocking thread of the runtime
//! read them ([`fetch_rows`]): more rows at a time while reads are quick. It starts when the byte budget has room. A call
//! that outlasts `dataset.read_timeout` is abandoned together with its thread ([`crate::reading`]); its row is read again
//! like one whose read failed ([`crate::retry_queue`]). Rows that are due for that come before others.
//!
//! Threads that hang cannot be ended. Once [`HUNG_PER_LANE`] of them for each lane hang, a read is begun only when one has
//! returned or `dataset.read_timeout` has passed: that slows the reads down, and finds out when the storage is back.

use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use super::{Engine, SharedEngine};
use crate::fetch::fetch_rows;
use crate::gate::Promise;
use crate::reading::Reading;
use crate::retry_queue::PutOff;
use crate::work::FetchJob;
use forebay_source::storage::StorageError;

/// Rows for one task of a blocking thread: amortises starting the task, about 10 µs.
const CHUNK_ROWS: usize = 4;
/// The same while reads are quick, as from the page cache: each task disturbs the work threads.
const QUICK_CHUNK_ROWS: usize = 16;
/// The mean time of a quick read.
const QUICK: Duration = Duration::from_micros(250);

/// Threads that may hang in reads at once without slowing down others, for each lane.
const HUNG_PER_LANE: usize = 4;
/// Threads that may hang at all without slowing reads down. The pool that they are of has 512 (`max_blocking_threads`).
const MAX_HUNG: usize = 256;
/// How often a lane looks whether it may read although many hang.
const HUNG_LOOK_PERIOD: Duration = Duration::from_millis(100);

/// Checks for a hanging read, for each time-out.
const CHECKS_PER_TIMEOUT: u32 = 4;
const MAX_CHECK_PERIOD: Duration = Duration::from_secs(1);

/// Runs one lane of a stream until the engine ends.
pub(super) async fn run_lane(engine: SharedEngine, stream: usize, lane: usize) {
    let work_to_do = Rc::clone(&engine.borrow().fetch_notify[stream]);
    let shares_units = engine.borrow().streams[stream].shares_units;
    let limit = engine.borrow().streams[stream].config.dataset.read_timeout;
    let mut rows = CHUNK_ROWS;
    loop {
        if !engine.borrow().has_fetch_jobs(stream) {
            work_to_do.notified().await;
            continue;
        }
        // A lane of shared units does not rest: its rows free bytes that are kept for them.
        let started = (!shares_units).then(|| engine.borrow().gate.start()).transpose();
        let promise = match started {
            Ok(promise) => promise,
            Err(_rest) => {
                work_to_do.notified().await;
                continue;
            }
        };
        let jobs: VecDeque<FetchJob> = engine.borrow_mut().take_fetch_jobs(stream, rows).into();
        let mut left = Some((jobs, promise));
        while let Some((mut jobs, promise)) = left.filter(|(jobs, _)| !jobs.is_empty()) {
            while !jobs.is_empty() && !engine.borrow_mut().may_read(limit) {
                tokio::time::sleep(HUNG_LOOK_PERIOD).await;
                engine.borrow().fail_overdue(&mut jobs);
            }
            let count = u32::try_from(jobs.len()).unwrap_or(u32::MAX);
            left = match read_watched(&engine, (stream, lane), jobs, promise, limit).await {
                Read::All { took } => {
                    engine.borrow_mut().note_answer();
                    rows = if took < QUICK * count { QUICK_CHUNK_ROWS } else { CHUNK_ROWS };
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

/// Reads rows on a blocking thread.
async fn read_watched(
    engine: &SharedEngine,
    (stream, lane): (usize, usize),
    jobs: VecDeque<FetchJob>,
    promise: Option<Promise>,
    limit: Duration,
) -> Read {
    let (gate, shared, reading) = {
        let mut engine = engine.borrow_mut();
        let reading = Arc::new(Reading::new(
            jobs,
            promise,
            engine.abandoned_reads.clone(),
            engine.clock.clone(),
        ));
        engine.readings[stream][lane] = Some(Arc::clone(&reading));
        (Arc::clone(&engine.gate), Arc::clone(&engine.pool.shared), reading)
    };
    let watched = Arc::clone(&reading);
    let mut read = tokio::task::spawn_blocking(move || {
        fetch_rows(&reading, &gate, &shared, (stream, lane));
    });
    let check_period = (limit / CHECKS_PER_TIMEOUT).min(MAX_CHECK_PERIOD);
    loop {
        match tokio::time::timeout(check_period, &mut read).await {
            Ok(Ok(())) => return Read::All { took: watched.took() },
            // A panic in a read fails its row only; this one was in code that hands rows on.
            Ok(Err(_)) => {
                tracing::error!("a fetch thread panicked; all sessions end");
                engine
                    .borrow_mut()
                    .end_all("a fetch thread panicked: this is a bug in forebay; please report it");
                return Read::Ended;
            }
            Err(_) => {
                if let Some(hung) = watched.abandon_overdue(limit) {
                    return Read::Hung(hung);
                }
            }
        }
    }
}

/// Puts off the first row, which hung; gives the others.
fn after_hanging(
    engine: &SharedEngine,
    stream: usize,
    mut jobs: VecDeque<FetchJob>,
    limit: Duration,
) -> VecDeque<FetchJob> {
    if let Some(job) = jobs.pop_front() {
        let abandoned = engine.borrow().abandoned_reads.get();
        let path = job.session.stream.sample_path(job.id);
        let error = StorageError::TimedOut { path, limit, abandoned };
        engine.borrow_mut().put_off(PutOff { stream, job, error });
    }
    jobs
}

impl Engine {
    /// The storage has answered: what still hangs slows nothing down any more.
    fn note_answer(&mut self) {
        self.hung_at_answer = self.abandoned_reads.get();
    }

    /// Whether a read may begin: not many hang, or none was begun beside them for as long as a read may take.
    fn may_read(&mut self, limit: Duration) -> bool {
        let lanes: usize = self.readings.iter().map(Vec::len).sum();
        let hung = self.abandoned_reads.get();
        self.hung_at_answer = self.hung_at_answer.min(hung);
        let limit_of_hung = (HUNG_PER_LANE * lanes).min(MAX_HUNG);
        if hung - self.hung_at_answer < limit_of_hung && hung < MAX_HUNG {
            return true;
        }
        let now = self.clock.now();
        let begun = self.tried_beside_hung_at;
        if begun.is_some_and(|begun| now.saturating_duration_since(begun) < limit) {
            return false;
        }
        self.tried_beside_hung_at = Some(now);
        true
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
        self.sessions
            .values_mut()
            .filter(|session| session.stream_number == stream)
            .filter_map(|session| session.admission_urgency().map(|urgency| (urgency, session)))
            .min_by_key(|(urgency, _)| *urgency)
            .map(|(_, session)| session.take_admissions(count))
            .unwrap_or_default()
    }
}

//! A fetch lane: the engine thread's part of one read at a time.
//!
//! A lane takes a few rows of the session that comes first ([`crate::ground::turns`]), in (batch, row) order, and
//! passes them to a fetch thread ([`crate::actors::fetch`]): more rows at a time while reads are fast
//! ([`crate::actors::fetch_chunk`]). It starts when the byte budget has room. A call that exceeds
//! `dataset.read_timeout` is abandoned together with its thread ([`crate::actors::reading`]); its row is read again
//! like a row whose read failed ([`crate::actors::retry_queue`]). Rows due for a retry come first. How many threads may
//! hang before reads become fewer: see [`crate::actors::fetch_threads`].

use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use forebay_protocol::clock::monotonic_ns;

use super::{Engine, SharedEngine};
use crate::actors::fetch_chunk::Chunk;
use crate::actors::reading::Reading;
use crate::actors::retry_queue::PutOff;
use crate::core::session::Session;
use crate::ground::gate::{LaneTurn, Promise};
use crate::ground::work::FetchJob;
use forebay_storage::StorageError;

/// Period in which a lane checks whether it may read although many threads hang.
const HUNG_LOOK_PERIOD: Duration = Duration::from_millis(100);

/// Number of checks for a hung read per timeout.
const CHECKS_PER_TIMEOUT: u32 = 4;
const MAX_CHECK_PERIOD: Duration = Duration::from_secs(1);

/// Runs one lane of a stream until the engine ends.
pub(super) async fn run_lane(engine: SharedEngine, stream: usize, lane: usize) {
    let work_to_do = Rc::clone(&engine.borrow().fetch_notify[stream]);
    let more_lanes = Rc::clone(&engine.borrow().more_lanes);
    let shares_units = engine.borrow().streams[stream].shares_units;
    let limit = engine.borrow().streams[stream].config.dataset.read_timeout;
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
        let start = || {
            let engine = engine.borrow();
            engine.gates.fetch.start(engine.lane_turn(stream))
        };
        let started = (!shares_units).then(start).transpose();
        let promise = match started {
            Ok(promise) => promise,
            Err(_pause) => {
                work_to_do.notified().await;
                continue;
            }
        };
        let jobs: VecDeque<FetchJob> = engine.borrow_mut().take_fetch_jobs(stream).into();
        let mut left = Some((jobs, promise));
        while let Some((mut jobs, promise)) = left.filter(|(jobs, _)| !jobs.is_empty()) {
            while !jobs.is_empty() && !engine.borrow_mut().may_read(stream, limit) {
                tokio::time::sleep(HUNG_LOOK_PERIOD).await;
                engine.borrow().fail_overdue(&mut jobs);
            }
            let count = jobs.len();
            left = match read_watched(&engine, (stream, lane), jobs, promise, limit).await {
                Read::All { took } => {
                    let threads = &mut engine.borrow_mut().fetch_threads[stream];
                    threads.note_answer();
                    threads.chunk = Chunk::after(took, count);
                    None
                }
                Read::Ended => None,
                Read::Hung(rest) => {
                    engine.borrow_mut().fetch_threads[stream].chunk = Chunk::default();
                    Some((after_hanging(&engine, stream, rest, limit), None))
                }
            };
        }
        engine.borrow_mut().readings[stream][lane] = None;
    }
}

/// The outcome of reading some rows.
enum Read {
    /// All rows were passed on or failed; the time taken, without waits for bytes.
    All { took: Duration },
    /// The thread panicked, and all sessions were ended.
    Ended,
    /// A call hangs; the remaining rows, the hung one first.
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
            // A panic in a read fails its row only; this one was in the code that passes rows on.
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

/// Puts off the first row, which hung; returns the others.
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

    /// Whether there are rows for a lane of a stream that do not wait for further ones.
    pub(super) fn has_fetch_jobs(&self, stream: usize) -> bool {
        if self.has_due_retries(stream) {
            return true;
        }
        if self.room_here(stream) == Some(0) {
            return false;
        }
        let beside = (self.chunk_of(stream), self.pool.threads());
        let mut sessions = self.sessions.values();
        sessions.any(|session| session.stream_number == stream && session.has_reads(beside))
    }

    /// How long rows of a stream wait for further ones.
    pub(super) fn chunk_of(&self, stream: usize) -> Chunk {
        // Units are read ahead for other rows. Rows that feeders make keep no work thread busy here.
        let waits_for_none = self.streams[stream].shares_units || self.supplies[stream].is_some();
        if waits_for_none { Chunk::default() } else { self.fetch_threads[stream].chunk }
    }

    /// The place and the session number of the session whose next row is fetched first.
    pub(super) fn next_to_fetch(
        &self,
        of_interest: impl Fn(&Session) -> bool,
    ) -> Option<(u64, u64)> {
        let (turns, now_ns) = (&self.pool.shared.turns, monotonic_ns());
        let sessions = self.sessions.values().filter(|session| of_interest(session));
        let place =
            |session: &Session| Some((session.admission_place(turns, now_ns)?, session.number));
        sessions.filter_map(place).min()
    }

    /// Whether the rows of a stream come before the rows of other streams.
    fn lane_turn(&self, stream: usize) -> LaneTurn {
        let others = self.next_to_fetch(|session| session.stream_number != stream);
        let Some(other) = others else { return LaneTurn::Alone };
        let own = self.next_to_fetch(|session| session.stream_number == stream);
        // Rows due for a retry are few, and others may wait for them.
        if own.is_none_or(|own| own < other) { LaneTurn::First } else { LaneTurn::Later }
    }

    /// The next rows that a lane of a stream fetches: rows due for a retry, otherwise rows of the session that comes
    /// first ([`turns`](crate::ground::turns)).
    fn take_fetch_jobs(&mut self, stream: usize) -> Vec<FetchJob> {
        let due = self.take_due_retries(stream, Chunk::default().most);
        if !due.is_empty() {
            return due;
        }
        let (lanes, chunk) = (self.fetch_threads[stream].lanes(), self.fetch_threads[stream].chunk);
        let room = self.room_here(stream).unwrap_or(usize::MAX);
        let next = self.next_to_fetch(|session| session.stream_number == stream);
        let Some((_, number)) = next else { return Vec::new() };
        let session = self.sessions.get_mut(&number);
        let taken = session.map(|session| {
            let rows = chunk.rows(session.admissions_left(), lanes);
            session.take_admissions(rows.min(room))
        });
        self.share_rows(number, taken.unwrap_or_default())
    }
}

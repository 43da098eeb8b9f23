//! Names what does not move: a sample in a stage, a read that does not return, a trainer that takes nothing.
//!
//! The engine thread looks as often as its clock ticks, and when it is asked for figures. What has not moved for `errors.stall_after` becomes a sentence in `stats` and a
//! line in the log, there again only when its age has doubled. It only tells: reads are given up by `fetch`, and a work
//! thread cannot be stopped. Work threads show what they do in [`WorkerPlace`], which nobody waits for.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_protocol::clock::monotonic_ns;
use forebay_protocol::ids::SampleId;
use forebay_protocol::sync::{AtomicU64, Ordering};

use super::reading::{Doing, Reading};
use super::session::{FrontBatch, FullRing, Session, WaitingRow};
use super::work::{RowClaim, SessionWork};
use crate::observe::StallReport;

/// What a work thread does now. Written by that thread alone; a look in the middle of a change shows a row that was not
/// there, and no row that has been there for long.
#[derive(Debug, Default)]
pub(crate) struct WorkerPlace {
    /// In nanoseconds of the monotonic clock; 0: nothing.
    since_ns: AtomicU64,
    /// The address of its [`SessionWork`], which lives as long as its row is worked on.
    session: AtomicU64,
    stage: AtomicU64,
    sample: AtomicU64,
}

impl WorkerPlace {
    /// The thread begins with a row.
    pub(crate) fn enter(&self, session: &SessionWork, claim: RowClaim, sample: SampleId) {
        // Relaxed, all of them: nothing is ordered by a sign for a person.
        self.session.store(address(session), Ordering::Relaxed);
        self.stage.store(claim.stage as u64, Ordering::Relaxed);
        self.sample.store(sample.0, Ordering::Relaxed);
        self.since_ns.store(monotonic_ns(), Ordering::Relaxed);
    }

    /// The thread is done with it.
    pub(crate) fn leave(&self) {
        self.since_ns.store(0, Ordering::Relaxed);
    }

    /// For how long, in which stage, and whose data: where the thread works for the session.
    fn look(&self, session: &SessionWork) -> Option<(Duration, usize, SampleId)> {
        let since = self.since_ns.load(Ordering::Relaxed);
        if since == 0 || self.session.load(Ordering::Relaxed) != address(session) {
            return None;
        }
        let age = Duration::from_nanos(monotonic_ns().saturating_sub(since));
        let stage = usize::try_from(self.stage.load(Ordering::Relaxed)).unwrap_or(0);
        Some((age, stage, SampleId(self.sample.load(Ordering::Relaxed))))
    }
}

fn address(session: &SessionWork) -> u64 {
    std::ptr::from_ref(session).addr() as u64
}

/// Something of a session that may move, and when it last did.
#[derive(Debug)]
struct Unmoved<T> {
    seen: Option<T>,
    since: Instant,
}

impl<T: PartialEq> Unmoved<T> {
    fn new() -> Self {
        Self { seen: None, since: Instant::now() }
    }

    /// For how long it has been as it is.
    fn look(&mut self, now: Option<T>) -> Duration {
        if self.seen != now {
            (self.seen, self.since) = (now, Instant::now());
        }
        if self.seen.is_some() { self.since.elapsed() } else { Duration::ZERO }
    }
}

#[derive(Debug)]
struct SessionWatch {
    front: Unmoved<FrontBatch>,
    ring: Unmoved<FullRing>,
}

/// The watchdog. Owned by the engine.
#[derive(Debug, Default)]
pub(super) struct StallWatch {
    sessions: BTreeMap<u64, SessionWatch>,
    /// What was logged, and the age at which it is logged again.
    logged: BTreeMap<(u64, String, Option<u64>), f64>,
    /// As of the last look.
    pub(super) stalls: Vec<StallReport>,
}

impl StallWatch {
    /// Looks at everything.
    pub(super) fn look<'a>(
        &mut self,
        sessions: &BTreeMap<u64, Session>,
        readings: impl Iterator<Item = &'a Arc<Reading>>,
        places: impl Iterator<Item = &'a WorkerPlace> + Clone,
    ) {
        self.stalls.clear();
        self.sessions.retain(|number, _| sessions.contains_key(number));
        let looks: Vec<_> = readings.filter_map(|reading| reading.look()).collect();
        for (number, session) in sessions {
            let watch = self
                .sessions
                .entry(*number)
                .or_insert_with(|| SessionWatch { front: Unmoved::new(), ring: Unmoved::new() });
            let after = session.stream.config.errors.stall_after;
            let before = self.stalls.len();
            for look in &looks {
                let Doing::Call(action, since) = look.doing else { continue };
                if Arc::ptr_eq(&look.job.session, &session.work) && since.elapsed() >= after {
                    let attempt = look.job.attempts + 1;
                    let what = format!(
                        "{action} it has not come to an end (attempt {attempt} of 4; each is given up after {} s)",
                        session.stream.config.dataset.read_timeout.as_secs_f64()
                    );
                    self.stalls.push(of_sample(
                        session,
                        "fetch",
                        look.job.id,
                        since.elapsed(),
                        &what,
                    ));
                }
            }
            for (age, stage, sample) in places.clone().filter_map(|place| place.look(&session.work))
            {
                if age >= after {
                    let stage = &session.stream.stages[stage].name;
                    let what = "its operations have not come to an end";
                    self.stalls.push(of_sample(session, stage, sample, age, what));
                }
            }
            let age = watch.front.look(session.front_batch());
            if age >= after && self.stalls.len() == before {
                self.stalls.extend(waiting(session, age));
            }
            let ring = session.full_ring();
            let age = watch.ring.look(ring);
            if let Some(ring) = ring.filter(|_| age >= after) {
                self.stalls.push(of_trainer(session, ring, age));
            }
        }
        self.log();
    }

    /// When a trainer that has every batch of its ring is to be looked at, were it to take and return nothing: nothing
    /// else happens in its session then, and no clock runs.
    pub(super) fn next_look_at_trainers(
        &self,
        sessions: &BTreeMap<u64, Session>,
    ) -> Option<Instant> {
        let looks = sessions.iter().filter_map(|(number, session)| {
            let ring = &self.sessions.get(number)?.ring;
            ring.seen.as_ref()?;
            let after = session.stream.config.errors.stall_after;
            let age = ring.since.elapsed();
            // As often as it is told of: at twice the age each time.
            let next = if age < after { after } else { age * 2 };
            Some(ring.since + next)
        });
        looks.min()
    }

    /// Tells of stalls that are new or twice as old as when they were told of.
    fn log(&mut self) {
        let key = |stall: &StallReport| (stall.session, stall.stage.clone(), stall.sample);
        let present: Vec<_> = self.stalls.iter().map(key).collect();
        self.logged.retain(|key, _| present.contains(key));
        for stall in &self.stalls {
            let next = self.logged.entry(key(stall)).or_insert(0.0);
            if stall.seconds >= *next {
                *next = stall.seconds * 2.0;
                tracing::warn!(
                    session = stall.session,
                    stage = stall.stage,
                    "stalled: {}",
                    stall.sentence
                );
            }
        }
    }
}

fn of_sample(
    session: &Session,
    stage: &str,
    sample: SampleId,
    age: Duration,
    what: &str,
) -> StallReport {
    let path = session.stream.sample_path(sample).display().to_string();
    let stream = session.stream.name();
    StallReport {
        session: session.number,
        stream: stream.to_owned(),
        stage: stage.to_owned(),
        sample: Some(sample.0),
        seconds: age.as_secs_f64(),
        sentence: format!(
            "sample {} ({path}) of stream `{stream}` has been in stage `{stage}` for {} s: {what}",
            sample.0,
            age.as_secs()
        ),
        path: Some(path),
    }
}

/// A batch in which nothing moves although no read and no thread is stuck with it.
fn waiting(session: &Session, age: Duration) -> Option<StallReport> {
    let stages = &session.stream.stages;
    match session.waiting_row() {
        Some(WaitingRow::ForStage(stage, sample)) => {
            let what = "no thread has taken it; the threads are busy with other rows or do not run";
            Some(of_sample(session, &stages[stage].name, sample, age, what))
        }
        Some(WaitingRow::ToBeRead(sample)) => {
            let what = "its read has not begun; all reads under way are other samples'";
            Some(of_sample(session, "fetch", sample, age, what))
        }
        None => {
            let front = session.front_batch()?;
            let stream = session.stream.name();
            Some(StallReport {
                session: session.number,
                stream: stream.to_owned(),
                stage: "fetch".to_owned(),
                sample: None,
                path: None,
                seconds: age.as_secs_f64(),
                sentence: format!(
                    "{} of {} samples of batch {} of stream `{stream}` have not moved for {} s: they are being read or \
                     wait for room in the fetch budget",
                    front.unfinished,
                    front.rows,
                    front.order,
                    age.as_secs()
                ),
            })
        }
    }
}

fn of_trainer(session: &Session, ring: FullRing, age: Duration) -> StallReport {
    let stream = session.stream.name();
    StallReport {
        session: session.number,
        stream: stream.to_owned(),
        stage: "trainer".to_owned(),
        sample: None,
        path: None,
        seconds: age.as_secs_f64(),
        sentence: format!(
            "the trainer (session {}, stream `{stream}`, rank {} of {}) has taken and given back nothing for {} s: {} \
             batches are ready for it and it holds {}",
            session.number,
            session.rank,
            session.world_size,
            age.as_secs(),
            ring.ready,
            ring.leased
        ),
    }
}

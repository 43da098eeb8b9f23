//! Reports stalls: a sample in a stage, a read that does not return, a trainer that takes no batch.
//!
//! The engine thread checks at each tick and for each report. Whatever makes no progress for `errors.stall_after`
//! becomes a sentence in `stats` and a line in the log, which is repeated when its age has doubled. This module only
//! reports: reads are abandoned in `core/lane.rs`, and a work thread cannot be stopped. Work threads publish their row
//! in [`WorkerPlace`].

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_protocol::ids::SampleId;

use crate::actors::reading::{Doing, Reading};
use crate::core::session::{FrontBatch, FullRing, Session, WaitingRow};
use crate::ground::stream::BATCH_OPERATIONS;
use crate::ground::worker_place::WorkerPlace;
use forebay_observe::StallReport;

/// The stage name in reports of an outage.
const STORAGE: &str = "storage";

/// A value that changes with progress, and when it last changed.
#[derive(Debug)]
struct Unmoved<T> {
    seen: Option<T>,
    since: Instant,
}

impl<T: PartialEq> Unmoved<T> {
    fn new(now: Instant) -> Self {
        Self { seen: None, since: now }
    }

    /// Time since the last change.
    fn age(&mut self, found: Option<T>, now: Instant) -> Duration {
        if self.seen != found {
            (self.seen, self.since) = (found, now);
        }
        match self.seen {
            Some(_) => now.saturating_duration_since(self.since),
            None => Duration::ZERO,
        }
    }
}

#[derive(Debug)]
struct SessionWatch {
    front: Unmoved<FrontBatch>,
    ring: Unmoved<FullRing>,
}

/// The watchdog. Owned by the engine.
#[derive(Debug, Default)]
pub(crate) struct StallWatch {
    sessions: BTreeMap<u64, SessionWatch>,
    /// Logged stalls, each with the age at which it is logged again.
    logged: BTreeMap<(u64, String, Option<u64>), f64>,
    /// Stalls found by the last check.
    pub(crate) stalls: Vec<StallReport>,
}

impl StallWatch {
    /// Updates the stalls; `now` and `now_ns` are the same time.
    pub(crate) fn check<'a>(
        &mut self,
        sessions: &BTreeMap<u64, Session>,
        readings: impl Iterator<Item = &'a Arc<Reading>>,
        places: impl Iterator<Item = &'a WorkerPlace> + Clone,
        (now, now_ns): (Instant, u64),
    ) {
        self.stalls.clear();
        self.sessions.retain(|number, _| sessions.contains_key(number));
        let readings: Vec<_> = readings.filter_map(|reading| reading.snapshot()).collect();
        for (number, session) in sessions {
            let watch = self.sessions.entry(*number).or_insert_with(|| SessionWatch {
                front: Unmoved::new(now),
                ring: Unmoved::new(now),
            });
            let after = session.stream.config.errors.stall_after;
            let before = self.stalls.len();
            self.stalls.extend(of_storage(session));
            for look in &readings {
                let Doing::Call(action, since) = look.doing else { continue };
                let age = now.saturating_duration_since(since);
                if Arc::ptr_eq(&look.session, &session.work) && age >= after {
                    let what = format!(
                        "{action} it has not finished (attempt {}; each times out after {} s)",
                        look.failures + 1,
                        session.stream.config.dataset.read_timeout.as_secs_f64()
                    );
                    self.stalls.push(of_sample(session, "fetch", look.id, age, &what));
                }
            }
            for (age, stage, sample) in
                places.clone().filter_map(|place| place.running_row(&session.work, now_ns))
            {
                if age >= after {
                    let what = "its operations have not finished";
                    self.stalls.push(match session.stream.stages.get(stage) {
                        Some(stage) => of_sample(session, &stage.name, sample, age, what),
                        None => of_batch(session, sample.0, age, what),
                    });
                }
            }
            let age = watch.front.age(session.front_batch(), now);
            if age >= after && self.stalls.len() == before {
                self.stalls.extend(waiting(session, age));
            }
            let ring = session.full_ring();
            let age = watch.ring.age(ring, now);
            if let Some(ring) = ring.filter(|_| age >= after) {
                self.stalls.push(of_trainer(session, ring, age));
            }
        }
        self.log();
    }

    /// Whether a session's trainer has had all batches of its ring for `errors.stall_after`, without taking or returning
    /// one.
    pub(crate) fn trainer_holds_all(&self, session: &Session, now: Instant) -> bool {
        let Some(watch) = self.sessions.get(&session.number) else { return false };
        let after = session.stream.config.errors.stall_after;
        watch.ring.seen.is_some() && now.saturating_duration_since(watch.ring.since) >= after
    }

    /// When to check a trainer that has all batches of its ring, if it neither takes nor returns one: there are no
    /// ticks then.
    pub(crate) fn next_trainer_check(
        &self,
        sessions: &BTreeMap<u64, Session>,
        now: Instant,
    ) -> Option<Instant> {
        let looks = sessions.iter().filter_map(|(number, session)| {
            let ring = &self.sessions.get(number)?.ring;
            ring.seen.as_ref()?;
            let after = session.stream.config.errors.stall_after;
            let age = now.saturating_duration_since(ring.since);
            // As often as it is logged: at twice the age each time.
            let next = if age < after { after } else { age * 2 };
            Some(ring.since + next)
        });
        looks.min()
    }

    /// Logs stalls that are new, or twice as old as when they were last logged.
    fn log(&mut self) {
        let key = |stall: &StallReport| (stall.session, stall.stage.clone(), stall.sample);
        let present: Vec<_> = self.stalls.iter().map(key).collect();
        self.logged.retain(|key, _| present.contains(key));
        // Outages are logged separately.
        for stall in self.stalls.iter().filter(|stall| stall.stage != STORAGE) {
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

/// An outage that is announced.
fn of_storage(session: &Session) -> Option<StallReport> {
    let outage = session.stream.outages.current()?;
    Some(StallReport {
        session: session.number,
        stream: session.stream.name().to_owned(),
        stage: STORAGE.to_owned(),
        sample: None,
        path: Some(outage.path.display().to_string()),
        seconds: outage.lasts.as_secs_f64(),
        sentence: outage.sentence,
    })
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

/// The report of a complete batch.
fn of_batch(session: &Session, batch: u64, age: Duration, what: &str) -> StallReport {
    let stream = session.stream.name();
    StallReport {
        session: session.number,
        stream: stream.to_owned(),
        stage: BATCH_OPERATIONS.to_owned(),
        sample: None,
        path: None,
        seconds: age.as_secs_f64(),
        sentence: format!(
            "batch {batch} of stream `{stream}` has been in `{BATCH_OPERATIONS}` for {} s: {what}",
            age.as_secs()
        ),
    }
}

/// A batch without progress although no read and no thread of it hangs.
fn waiting(session: &Session, age: Duration) -> Option<StallReport> {
    let stages = &session.stream.stages;
    match session.waiting_row() {
        Some(WaitingRow::ForStage(stage, sample)) => {
            let what = "no thread has started it; all threads are busy or not scheduled";
            Some(of_sample(session, &stages[stage].name, sample, age, what))
        }
        Some(WaitingRow::ToBeRead(sample)) => {
            let what = "its read has not started; all reads in flight are for other samples";
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
                    "{} of {} samples of batch {} of stream `{stream}` made no progress for {} s: they are being read or \
                     wait for the fetch budget",
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
    let name = match session.trainer.as_str() {
        "" => String::new(),
        name => format!(" `{name}`"),
    };
    StallReport {
        session: session.number,
        stream: stream.to_owned(),
        stage: "trainer".to_owned(),
        sample: None,
        path: None,
        seconds: age.as_secs_f64(),
        sentence: format!(
            "the trainer{name} (session {}, stream `{stream}`, rank {} of {}) has neither taken nor returned a batch for {} s; \
             {} batches are ready and it holds {}",
            session.number,
            session.rank,
            session.world_size,
            age.as_secs(),
            ring.ready,
            ring.leased
        ),
    }
}

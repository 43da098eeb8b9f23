//! The engine thread's part of several trainers of one stream: rows that they share, and how they keep together.
//!
//! [`crate::ground::shared_rows`] has the states of a row. A trainer's place is the lowest position of its ranks: of
//! the first row that no lane has taken.

use std::collections::BTreeMap;
use std::time::Duration;

use forebay_protocol::frames::RowKey;
use forebay_protocol::ids::Position;

use super::Engine;
use crate::core::session::Session;
use crate::ground::shared_rows::Want;
use crate::ground::work::{FetchJob, Sharing};
use forebay_config::Pace;

/// How long the first trainer waits for the others of `share.start_together`.
const WAIT_FOR_START: Duration = Duration::from_secs(60);

impl Engine {
    /// The sessions of a stream whose rows have an order.
    fn ordered(&self, stream: usize) -> impl Iterator<Item = &Session> {
        let sessions = self.sessions.values();
        sessions.filter(move |one| one.stream_number == stream && !one.is_on_request())
    }

    /// Those of them whose trainers have names.
    fn named(&self, stream: usize) -> impl Iterator<Item = &Session> {
        self.ordered(stream).filter(|session| !session.trainer.is_empty())
    }

    /// The places of a stream's trainers besides one, without those for which `is_left_out` holds.
    fn places_besides(
        &self,
        (stream, trainer): (usize, &str),
        is_left_out: impl Fn(&Session) -> bool,
    ) -> BTreeMap<&str, Position> {
        let mut places = BTreeMap::new();
        for session in
            self.ordered(stream).filter(|one| one.trainer != trainer && !is_left_out(one))
        {
            let own = session.place();
            let place = places.entry(session.trainer.as_str()).or_insert(own);
            *place = (*place).min(own);
        }
        places
    }

    /// Lets rows that a lane is about to take lead, follow, or copy other trainers' rows; returns those that the lane
    /// takes.
    pub(super) fn share_rows(&self, number: u64, jobs: Vec<FetchJob>) -> Vec<FetchJob> {
        let Some(session) = self.sessions.get(&number).filter(|one| !one.is_on_request()) else {
            return jobs;
        };
        let of = (session.stream_number, session.trainer.as_str());
        let is_over = |other: &Session| other.has_fault() || other.work.yields();
        let others: Vec<Position> = self.places_besides(of, is_over).into_values().collect();
        // Others would wait for rows that come after all other work.
        if others.is_empty() || session.work.yields() {
            return jobs;
        }
        let takes = |job| {
            let takers = |job: &FetchJob| {
                let range = session.range_of_batch(job.order);
                let needs = |place: &&Position| range.is_none_or(|(_, end)| **place < end);
                others.iter().filter(needs).count()
            };
            share_row(job, takers)
        };
        jobs.into_iter().filter_map(takes).collect()
    }

    /// Admits rows again that followed a row which was not made.
    pub(super) fn admit_former_followers(&mut self) {
        for number in 0..self.shared_rows.len() {
            for mut job in self.shared_rows[number].take_returned() {
                job.units = job.session.want_units(job.id, job.draw());
                self.admit_again_or_end(job);
            }
        }
    }

    /// Called when a session has ended: frees what is kept, if the stream has no other trainer left.
    pub(super) fn end_sharing(&self, stream: usize) {
        if self.named(stream).next().is_none() {
            self.has_begun[stream].set(false);
        }
        let mut trainers = self.ordered(stream).map(|session| &session.trainer);
        let first = trainers.next();
        if trainers.all(|trainer| Some(trainer) == first) {
            self.shared_rows[stream].clear();
        }
    }

    /// The position before which a session opens batches now, if it waits for other trainers.
    pub(super) fn limit_of(&self, session: &Session) -> Option<Position> {
        let stream = &session.stream;
        let share = &stream.config.share;
        if session.is_on_request() {
            return None;
        }
        if self.waits_for_start(session) {
            return Some(Position::default());
        }
        if share.pace == Pace::Free {
            return None;
        }
        let stalls = self.stalls.borrow();
        let is_let_go = |other: &Session| {
            other.has_opened_all()
                || other.is_replaying()
                || stalls.trainer_holds_all(other, self.clock.now())
        };
        let of = (session.stream_number, session.trainer.as_str());
        let last = self.places_besides(of, is_let_go).into_values().min()?;
        let rows = self.shared_rows[session.stream_number].window_rows(stream);
        Some(session.limit_after(last, rows))
    }

    /// Logs that a new session waits for other trainers.
    pub(super) fn note_wait_for_start(&self, number: u64) {
        let Some(session) = self.sessions.get(&number) else { return };
        if self.waits_for_start(session) {
            tracing::info!(
                session = number,
                "the first batch waits until {} trainers have attached (share.start_together), for {} s at most",
                session.stream.config.share.start_together.unwrap_or(1),
                WAIT_FOR_START.as_secs()
            );
        }
    }

    /// Whether a session waits for trainers that have not attached yet.
    fn waits_for_start(&self, session: &Session) -> bool {
        let number = session.stream_number;
        let wanted = session.stream.config.share.start_together.unwrap_or(1);
        // At each advance of a session. A loader without a trainer's name expects no others.
        if wanted <= 1 || session.trainer.is_empty() || self.has_begun[number].get() {
            return false;
        }
        let mut trainers: Vec<&str> =
            self.named(number).map(|session| session.trainer.as_str()).collect();
        trainers.sort_unstable();
        trainers.dedup();
        if trainers.len() as u64 >= wanted {
            self.has_begun[number].set(true);
            return false;
        }
        let first = self.named(number).map(|session| session.ring.elapsed()).max();
        if first.is_some_and(|waited| waited >= WAIT_FOR_START) {
            tracing::warn!(
                stream = session.stream.name(),
                "{} of {wanted} trainers have attached after {} s (share.start_together): the stream begins",
                trainers.len(),
                WAIT_FOR_START.as_secs()
            );
            self.has_begun[number].set(true);
            return false;
        }
        true
    }
}

/// See [`Engine::share_rows`].
fn share_row(mut job: FetchJob, takers: impl FnOnce(&FetchJob) -> usize) -> Option<FetchJob> {
    if !matches!(job.sharing, Sharing::Alone) {
        return Some(job);
    }
    let (is_valid, pass) = {
        let cell = job.session.slots[job.slot].cell(job.row);
        (cell.valid, cell.task.key.epoch)
    };
    // Padding repeats a row of the same batch.
    if !is_valid {
        return Some(job);
    }
    let key = RowKey { sample: job.id.0, pass };
    let takers = takers(&job);
    let rows = std::sync::Arc::clone(&job.session.shared_rows);
    // Only a leading row needs its units.
    let units = std::mem::take(&mut job.units);
    match rows.want(key, job, takers) {
        Want::Follows => None,
        Want::Leads(job, lead) => Some(FetchJob { units, sharing: Sharing::Leads(lead), ..job }),
        Want::Copies(job, row) => Some(FetchJob { sharing: Sharing::Copies(row), ..job }),
    }
}

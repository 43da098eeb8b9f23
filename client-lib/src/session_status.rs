//! What all kinds of loaders know of their session: its terms, and its progress as handed over to the user.

use std::sync::Arc;
use std::time::Instant;

use forebay_protocol::cuts::Cut;
use forebay_protocol::frames::{Attached, Positioned};
use forebay_protocol::ids::Position;
use forebay_protocol::publish::Descriptor;

use crate::error::Error;
use crate::rank::{Placement, RankSource};
use crate::ring::Ring;
use crate::state::State;
use crate::statistics::WaitStatistics;
use crate::stream_cursor::StreamCursor;

/// A session's terms, and its progress as handed over to the user. [`Loader`](crate::Loader) and the loaders that copy to a
/// device dereference to it.
#[derive(Debug)]
pub struct SessionStatus {
    pub(crate) terms: Arc<Attached>,
    pub(crate) placement: Placement,
    pub(crate) cursor: StreamCursor,
    pub(crate) statistics: WaitStatistics,
    pub(crate) given_up: u64,
    pub(crate) replaying: bool,
    pub(crate) is_open: bool,
    pub(crate) waiting_since: Option<Instant>,
    pub(crate) epochs: Epochs,
}

/// What batches by length need to know of epochs, which differ in their number of batches.
#[derive(Debug, Clone)]
pub(crate) struct Epochs {
    /// Where the session began, or was sent by the last seek, and the cuts that led there.
    begun: (Position, Vec<Cut>),
    /// The batches of all of the epoch of the cursor.
    batches: u64,
    /// The batches of the next epoch, as the last batch of this one says.
    batches_of_next: Option<u64>,
}

impl SessionStatus {
    pub(crate) fn new(
        terms: Arc<Attached>,
        placement: Placement,
        cursor: StreamCursor,
        cuts: Vec<Cut>,
    ) -> Self {
        let begun = (terms.start.position, cuts);
        let batches = terms.batches_per_epoch;
        Self {
            epochs: Epochs { begun, batches, batches_of_next: None },
            terms,
            placement,
            cursor,
            statistics: WaitStatistics::default(),
            given_up: 0,
            replaying: false,
            is_open: false,
            waiting_since: None,
        }
    }

    /// The terms of the session: schema, ring, epochs, fingerprints.
    #[must_use]
    pub fn terms(&self) -> &Attached {
        &self.terms
    }

    /// The rank and the world size.
    #[must_use]
    pub fn placement(&self) -> Placement {
        self.placement
    }

    /// The source of rank and world size.
    #[must_use]
    pub fn rank_source(&self) -> RankSource {
        self.placement.source
    }

    /// This rank's batches of a full epoch; with batches by length, of the epoch that [`epoch`](Self::epoch) says.
    #[must_use]
    pub fn batches_per_epoch(&self) -> u64 {
        self.epochs.batches
    }

    /// The epoch that is iterated over, until its end was returned; then the next one. After the last configured epoch it is
    /// the number of epochs.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.cursor.epoch()
    }

    /// Whether an epoch has begun and its end was not returned yet.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.is_open
    }

    /// The position after the last batch handed over. After an epoch's last batch it is the next epoch's start.
    #[must_use]
    pub fn position(&self) -> Position {
        self.cursor.newest().0
    }

    /// The stream's state as handed over to the user, `held_back` batches ago: for wrappers that read ahead.
    ///
    /// # Errors
    /// [`Error::Config`] when `held_back` is above [`MAX_HELD_BACK`](crate::MAX_HELD_BACK), or above the number of
    /// batches handed over since the last seek.
    pub fn state(&self, held_back: usize) -> Result<State, Error> {
        let (position, substitutes) = self.cursor.lookback(held_back)?;
        let cuts = self.cuts_at(position);
        Ok(State { cuts, ..State::of(&self.terms, position, substitutes) })
    }

    /// Whether the last batch handed over was a replay for a measurement (`forebay headspace --replay`), which does not
    /// advance the position.
    #[must_use]
    pub fn replaying(&self) -> bool {
        self.replaying
    }

    /// The number of batches given up by leaving epochs early.
    #[must_use]
    pub fn given_up(&self) -> u64 {
        self.given_up
    }

    /// Statistics of the user's waits.
    #[must_use]
    pub fn wait_statistics(&self) -> &WaitStatistics {
        &self.statistics
    }

    /// Refuses a state of another stream, unless `force`.
    pub(crate) fn check_state(&self, state: &State, force: bool) -> Result<(), Error> {
        if !force && let Some(differences) = state.differences(&self.terms) {
            return Err(Error::StateMismatch(differences));
        }
        Ok(())
    }

    /// Ends the iteration of an epoch whose batches were all handed over.
    pub(crate) fn enter_next_epoch(&mut self) {
        self.is_open = false;
        if let (Some(batches), Some(_)) = (self.epochs.batches_of_next.take(), self.terms.pools) {
            self.epochs.batches = batches;
        }
        self.cursor.enter_next_epoch(self.epochs.batches);
    }

    /// The cuts that led to a position that the session has reached.
    pub(crate) fn cuts_at(&self, position: Position) -> Vec<Cut> {
        let (from, cuts) = &self.epochs.begun;
        self.terms.pools.map_or(Vec::new(), |pools| pools.chain_at(position, (*from, cuts)))
    }

    /// The cursor and what is known of epochs, for a copy.
    #[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "of the GPU half"))]
    pub(crate) fn reached(&self) -> (StreamCursor, Epochs) {
        (self.cursor.clone(), self.epochs.clone())
    }

    /// Notes the target of a seek.
    pub(crate) fn note_seek(&mut self, position: Position, cuts: Vec<Cut>) {
        self.epochs.begun = (position, cuts);
    }

    /// Notes the answer to a seek.
    pub(crate) fn note_positioned(&mut self, answer: &Positioned) {
        self.epochs.batches = answer.batches_of_epoch;
        self.epochs.batches_of_next = None;
    }

    /// Notes a batch that is handed over.
    pub(crate) fn note_batch(&mut self, descriptor: &Descriptor) {
        // After the last epoch there are none, and the number stays as it is.
        if descriptor.last_of_epoch && descriptor.batches_after > 0 {
            self.epochs.batches_of_next = Some(descriptor.batches_after);
        }
    }

    /// Records the wait for a batch that is handed over, here and for the daemon.
    pub(crate) fn record_wait(&mut self, payload_bytes: u64, ring: &Ring) {
        let wait = self.waiting_since.take().map(|since| since.elapsed());
        self.statistics.record(wait, payload_bytes);
        if wait.is_some() {
            ring.show_waited(self.statistics.after_start());
        }
    }
}

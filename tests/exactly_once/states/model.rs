//! What a session has to do next: its place in the stream by the loader's documented rules, and the batch that an
//! undisturbed run delivered there. Knows nothing of daemons, slots or memory, so nothing that befalls them moves it.

use std::collections::{BTreeMap, VecDeque};

use forebay_client::Position;
use forebay_tests::taken::take_epoch;
use forebay_tests::{Daemon, Taken};

/// Of each stream; `order.epochs`.
pub(super) const EPOCHS: u64 = 3;
/// Ten whole batches and one sample: beside two ranks one of them has nothing of the last global batch.
pub(super) const SAMPLES: u64 = 41;
/// `batch.size`.
pub(super) const BATCH: u64 = 4;
/// The largest world.
pub(super) const MOST_RANKS: u32 = 2;

/// World size, rank, epoch and the samples consumed before.
type Key = (u32, u32, u64, u64);

/// What an undisturbed run delivers, by where it begins.
#[derive(Debug)]
pub(super) struct Reference(BTreeMap<Key, Taken>);

impl Reference {
    /// Takes every batch that can come after a multiple of the batch size, as states of other world sizes have it.
    pub(super) fn of(daemon: &Daemon) -> Self {
        let mut batches = BTreeMap::new();
        for (world_size, rank) in
            (1..=MOST_RANKS).flat_map(|size| (0..size).map(move |rank| (size, rank)))
        {
            let mut loader = daemon.loader(rank, world_size).attach().unwrap();
            for (epoch, first) in
                (0..EPOCHS).flat_map(|epoch| (0..world_size).map(move |first| (epoch, first)))
            {
                let mut at = Position { epoch, samples: u64::from(first) * BATCH };
                loader.seek(at).unwrap();
                for taken in take_epoch(&mut loader) {
                    let after = after(&taken);
                    batches.insert((world_size, rank, epoch, at.samples), taken);
                    at = after;
                }
            }
        }
        Self(batches)
    }
}

/// The place behind a batch; behind an epoch's last one that is the epoch's end, not yet the next one's start.
fn after(batch: &Taken) -> Position {
    if batch.position_after.epoch == batch.epoch {
        return batch.position_after;
    }
    Position { epoch: batch.epoch, samples: SAMPLES }
}

/// What [`Model::take`] expects of the loader.
#[derive(Debug)]
pub(super) enum Outcome<'a> {
    Batch(&'a Taken),
    End,
    HoldLimit,
    Finished,
}

/// One loader's place in its stream.
#[derive(Debug)]
pub(super) struct Model<'a> {
    reference: &'a Reference,
    world_size: u32,
    rank: u32,
    at: Position,
    /// An epoch was begun, and its end not returned.
    is_open: bool,
    /// What a state says after each batch since the last jump; the first is where that went to.
    history: VecDeque<Position>,
    given_up: u64,
}

impl<'a> Model<'a> {
    /// A fresh loader.
    pub(super) fn new(reference: &'a Reference, world_size: u32, rank: u32, at: Position) -> Self {
        let history = VecDeque::from([at]);
        Self { reference, world_size, rank, at, is_open: false, history, given_up: 0 }
    }

    fn batch_at(&self, at: Position) -> Option<&'a Taken> {
        self.reference.0.get(&(self.world_size, self.rank, at.epoch, at.samples))
    }

    fn batches_left(&self) -> u64 {
        let mut left = 0;
        let mut at = self.at;
        while let Some(batch) = self.batch_at(at) {
            left += 1;
            at = after(batch);
        }
        left
    }

    fn stand_at(&mut self, at: Position) {
        if self.is_open {
            self.given_up += self.batches_left();
        }
        (self.at, self.is_open, self.history) = (at, false, VecDeque::from([at]));
    }

    fn next_epoch(&self) -> Position {
        Position { epoch: self.at.epoch + 1, samples: 0 }
    }

    fn enter_next_epoch(&mut self) {
        let next = self.next_epoch();
        if self.history.back() != Some(&next) {
            self.history.push_back(next);
        }
        (self.at, self.is_open) = (next, false);
    }

    /// `next_batch`, with so many batches held of the `hold` that may be kept beside the next one.
    pub(super) fn take(&mut self, held: u64, hold: u16) -> Outcome<'a> {
        if !self.is_open && !self.begin_epoch() {
            return Outcome::Finished;
        }
        let Some(batch) = self.batch_at(self.at) else {
            self.enter_next_epoch();
            return Outcome::End;
        };
        if held > u64::from(hold) {
            return Outcome::HoldLimit;
        }
        let is_last = self.batch_at(after(batch)).is_none();
        self.history.push_back(if is_last { self.next_epoch() } else { after(batch) });
        self.at = after(batch);
        Outcome::Batch(batch)
    }

    /// `begin_epoch`. False: the configured epochs are finished.
    pub(super) fn begin_epoch(&mut self) -> bool {
        if self.is_open {
            if self.batches_left() == 0 {
                self.enter_next_epoch();
            } else {
                self.stand_at(self.next_epoch());
            }
        }
        self.is_open = self.at.epoch < EPOCHS;
        self.is_open
    }

    /// `seek`.
    pub(super) fn seek(&mut self, at: Position) {
        self.stand_at(at);
    }

    /// `load_state`: a loader that stands there already gives nothing up.
    pub(super) fn load(&mut self, at: Position) {
        if !self.is_open && self.history.back() == Some(&at) {
            self.history = VecDeque::from([at]);
        } else {
            self.stand_at(at);
        }
    }

    /// `set_epoch`.
    pub(super) fn set_epoch(&mut self, epoch: u64) {
        if self.history.back().is_some_and(|at| at.epoch != epoch) {
            self.stand_at(Position { epoch, samples: 0 });
        }
    }

    /// `state`; `None`: so many batches were not handed over since the last jump.
    pub(super) fn state(&self, held_back: usize) -> Option<Position> {
        self.history.iter().rev().nth(held_back).copied()
    }

    /// Batches of epochs that were left early.
    pub(super) fn given_up(&self) -> u64 {
        self.given_up
    }
}

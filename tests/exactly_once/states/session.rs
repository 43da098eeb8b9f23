//! One loader, what the test knows of it, and the operations that concern it alone: each compares what the loader does
//! with what the model says.

use std::thread::{self, JoinHandle};

use forebay_client::{Batch, Error, Loader, State};
use forebay_tests::Taken;
use proptest::sample::Index;
use serde_json::Value;

use super::model::{EPOCHS, Model, Outcome};

/// Of the batches that are held.
#[derive(Debug, Clone, Copy)]
pub(super) enum Which {
    Oldest,
    Newest,
    Any(Index),
}

/// Compares a batch with what it was.
pub(super) fn check(batch: &Batch, expected: &Taken) {
    assert_eq!(&Taken::of(batch), expected, "a held batch has changed");
}

/// A batch that is held, by one clone or several.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) clones: Vec<Batch>,
    pub(super) expected: Taken,
}

/// A loader and what the test knows of it.
#[derive(Debug)]
pub(super) struct Session<'a> {
    pub(super) loader: Loader,
    pub(super) model: Model<'a>,
    pub(super) held: Vec<Held>,
    /// Threads that drop batches, and that kill the private daemon.
    pub(super) beside: Vec<JoinHandle<()>>,
    pub(super) kills: u32,
    pub(super) last_number: Option<u64>,
}

/// The place of a batch among those held; `None`: none is held.
pub(super) fn pick(held: &[Held], which: Which) -> Option<usize> {
    let last = held.len().checked_sub(1)?;
    Some(match which {
        Which::Oldest => 0,
        Which::Newest => last,
        Which::Any(index) => index.index(held.len()),
    })
}

impl Session<'_> {
    /// Waits for what goes on beside the loader.
    pub(super) fn join(&mut self) {
        self.beside.drain(..).for_each(|thread| thread.join().unwrap());
    }

    pub(super) fn take(&mut self, slots: u16, hold: u16) {
        // How many are held must be certain.
        self.join();
        let held = u64::try_from(self.held.len()).unwrap();
        assert_eq!(self.loader.held(), held);
        match (self.model.take(held, hold), self.loader.next_batch()) {
            (Outcome::Batch(expected), Ok(Some(batch))) => {
                assert_eq!(&Taken::of(&batch), expected, "another batch than the next one");
                assert!(self.last_number < Some(batch.number()), "{:?}", self.last_number);
                self.last_number = Some(batch.number());
                self.held.push(Held { clones: vec![batch], expected: expected.clone() });
            }
            (Outcome::End, Ok(None)) => {}
            (Outcome::Finished, Err(Error::EpochsFinished { epochs: EPOCHS })) => {}
            (Outcome::HoldLimit, Err(error)) => {
                assert_eq!(error, Error::HoldLimit { held, fields: String::new(), hold, slots });
            }
            (expected, found) => panic!("{found:?} came instead of {expected:?}"),
        }
    }

    pub(super) fn drop_one(&mut self, which: Which, elsewhere: bool) {
        let Some(place) = pick(&self.held, which) else { return };
        let held = &mut self.held[place];
        let (batch, expected) = (held.clones.pop().unwrap(), held.expected.clone());
        if held.clones.is_empty() {
            self.held.remove(place);
        }
        let drop_it = move || check(&batch, &expected);
        if elsewhere {
            self.beside.push(thread::spawn(drop_it));
        } else {
            drop_it();
        }
    }

    pub(super) fn save(&self, held_back: usize) -> Option<State> {
        match (self.model.state(held_back), self.loader.state(held_back)) {
            (Some(position), Ok(state)) => {
                assert_eq!(state.position, position, "the state {held_back} batches ago");
                // As a checkpoint keeps it.
                Some(State::from_json(&state.to_json()).unwrap())
            }
            (None, Err(Error::Config(_))) => None,
            (expected, found) => panic!("{found:?} came instead of {expected:?}"),
        }
    }

    pub(super) fn load(&mut self, state: &State) {
        self.loader.load_state(state, false).unwrap();
        self.model.load(state.position);
        assert_eq!(self.loader.state(0).unwrap().position, state.position);
    }

    /// What the daemon says of this session.
    pub(super) fn figures(&mut self) -> Value {
        let stats: Value = serde_json::from_str(&self.loader.stats().unwrap()).unwrap();
        let own = self.loader.terms().session;
        let sessions = stats["sessions"].as_array().unwrap();
        sessions.iter().find(|session| session["session"] == own).unwrap().clone()
    }
}

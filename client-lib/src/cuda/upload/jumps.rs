//! What the thread that holds the loader does for the user between two batches: epochs, jumps, states, figures.

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};

use forebay_protocol::ids::Position;

use super::{SLICE, Upload};
use crate::error::Error;
use crate::loader::Loader;
use crate::place::Place;
use crate::state::State;

impl Upload {
    /// Lets the upload thread do something with the loader, and waits for it.
    fn command<R: Send + 'static>(
        &mut self,
        work: impl FnOnce(&mut Loader) -> Result<R, Error> + Send + 'static,
    ) -> Result<R, Error> {
        self.check_process()?;
        let (answer, answered) = sync_channel(1);
        self.shared.interrupt_thread(|state| {
            state.commands.push_back(Box::new(move |loader| {
                let _ = answer.send(work(loader));
            }));
        });
        loop {
            match answered.recv_timeout(SLICE) {
                Ok(result) => {
                    // Asked for too late: the next wait is not meant.
                    self.shared.lock().cancel = false;
                    return result;
                }
                Err(RecvTimeoutError::Disconnected) => return Err(Error::Closed),
                Err(RecvTimeoutError::Timeout) => {
                    if self.interrupt.asks() {
                        // The loader's wait ends with `Interrupted`, which is the answer.
                        self.shared.interrupt_thread(|state| state.cancel = true);
                    }
                }
            }
        }
    }

    /// Discards what was uploaded for the present place, moves the loader, and takes its place over.
    fn jump(
        &mut self,
        work: impl FnOnce(&mut Loader) -> Result<(), Error> + Send + 'static,
    ) -> Result<(), Error> {
        self.check_process()?;
        let shared = Arc::clone(&self.shared);
        let was_open = self.is_open;
        self.is_open = false;
        let (result, discarded, given_up, place) = self.command(move |loader| {
            // Here, between two batches: nothing is being uploaded.
            let discarded = {
                let mut state = shared.lock();
                state.wants = false;
                state.discard_found()
            };
            let before = loader.given_up();
            let result = work(loader);
            Ok((result, discarded, loader.given_up() - before, loader.place().clone()))
        })?;
        self.given_up += given_up + if was_open { discarded } else { 0 };
        if discarded > 0 {
            // The loader remembers batches as handed over that never were.
            let (position, substitutes) = place.look_back(0)?;
            self.place = Place::new(position, substitutes, place.batches_left());
        } else {
            self.place = place;
        }
        result
    }

    /// Begins the next epoch: as [`Loader::begin_epoch`].
    ///
    /// # Errors
    /// As there.
    pub fn begin_epoch(&mut self) -> Result<(), Error> {
        self.jump(Loader::begin_epoch)?;
        self.is_open = true;
        self.shared.tell_thread(|state| state.wants = true);
        Ok(())
    }

    /// Goes to a position: as [`Loader::seek`].
    ///
    /// # Errors
    /// As there.
    pub fn seek(&mut self, position: Position) -> Result<(), Error> {
        self.jump(move |loader| loader.seek(position))
    }

    /// Does nothing when the epoch is the current or the loaded one, else goes to its start.
    ///
    /// # Errors
    /// As [`seek`](Self::seek).
    pub fn set_epoch(&mut self, epoch: u64) -> Result<(), Error> {
        if self.state(0)?.position.epoch == epoch {
            return Ok(());
        }
        self.seek(Position { epoch, samples: 0 })
    }

    /// The place in the stream as handed over to the user: as [`Loader::state`].
    ///
    /// # Errors
    /// As there.
    pub fn state(&self, held_back: usize) -> Result<State, Error> {
        let (position, substitutes) = self.place.look_back(held_back)?;
        Ok(State::of(&self.terms, position, substitutes))
    }

    /// Goes on where a saved state stands: as [`Loader::load_state`].
    ///
    /// # Errors
    /// As there.
    pub fn load_state(&mut self, state: &State, force: bool) -> Result<(), Error> {
        if !force && let Some(differences) = state.differences(&self.terms) {
            return Err(Error::StateMismatch(differences));
        }
        let state = state.clone();
        self.jump(move |loader| loader.load_state(&state, force))
    }

    /// The daemon's figures: as [`Loader::stats`].
    ///
    /// # Errors
    /// As there.
    pub fn stats(&mut self) -> Result<String, Error> {
        self.command(Loader::stats)
    }

    /// How often a daemon was replaced that had died, and the private daemon's process.
    ///
    /// # Errors
    /// [`Error::Closed`] when the session has ended.
    pub fn daemon(&mut self) -> Result<(Option<u32>, u64), Error> {
        self.command(|loader| Ok((loader.private_process(), loader.restarts())))
    }
}

//! Calls that the upload thread makes on the loader for the user, between two batches: epochs, seeks, states, statistics.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};

use forebay_protocol::ids::Position;

use super::{SLICE, Upload};
use crate::error::Error;
use crate::loader::Loader;
use crate::state::State;
use crate::stream_cursor::StreamCursor;

impl Upload {
    /// Runs `work` on the upload thread with the loader, between two batches, and waits for its result: for requests to the
    /// daemon. `work` must neither take a batch nor move the loader: the user's position is kept here, and
    /// [`begin_epoch`](Self::begin_epoch), [`seek`](Self::seek) and [`load_state`](Self::load_state) change it.
    ///
    /// # Errors
    /// Those of `work`; [`Error::Closed`] when the session has ended, and [`Error::Forked`].
    pub fn with_loader<R: Send + 'static>(
        &mut self,
        work: impl FnOnce(&mut Loader) -> Result<R, Error> + Send + 'static,
    ) -> Result<R, Error> {
        self.ring.check_process()?;
        let (answer, answered) = sync_channel(1);
        self.shared.interrupt_uploader(|state| {
            state.commands.push_back(Box::new(move |loader| {
                let _ = answer.send(work(loader));
            }));
        });
        loop {
            match answered.recv_timeout(SLICE) {
                Ok(result) => {
                    // A late interrupt must not end the next command's wait.
                    self.shared.lock().cancel = false;
                    return result;
                }
                Err(RecvTimeoutError::Disconnected) => return Err(Error::Closed),
                Err(RecvTimeoutError::Timeout) => {
                    if self.interrupt.is_raised() {
                        // The loader's wait then ends with `Interrupted`, which becomes the result.
                        self.shared.interrupt_uploader(|state| state.cancel = true);
                    }
                }
            }
        }
    }

    /// Discards batches uploaded for the present position, moves the loader, and copies its cursor.
    fn move_loader(
        &mut self,
        work: impl FnOnce(&mut Loader) -> Result<(), Error> + Send + 'static,
    ) -> Result<(), Error> {
        self.ring.check_process()?;
        let shared = Arc::clone(&self.shared);
        let was_open = self.status.is_open;
        self.status.is_open = false;
        let (result, discarded, given_up, (cursor, epochs)) = self.with_loader(move |loader| {
            // Between two batches: nothing is being uploaded.
            let discarded = {
                let mut state = shared.lock();
                state.is_epoch_open = false;
                state.discard_outcomes()
            };
            let before = loader.given_up();
            let result = work(loader);
            Ok((result, discarded, loader.given_up() - before, loader.reached()))
        })?;
        self.status.epochs = epochs;
        self.status.given_up += given_up + if was_open { discarded } else { 0 };
        if discarded > 0 {
            // The loader's history has batches that were never handed over to the user.
            let (position, substitutes) = cursor.lookback(0)?;
            self.status.cursor = StreamCursor::new(position, substitutes, cursor.batches_left());
        } else {
            self.status.cursor = cursor;
        }
        result
    }

    /// Begins the next epoch: as [`Loader::begin_epoch`].
    ///
    /// # Errors
    /// As [`Loader::begin_epoch`].
    pub fn begin_epoch(&mut self) -> Result<(), Error> {
        self.move_loader(Loader::begin_epoch)?;
        self.status.is_open = true;
        self.shared.notify_uploader(|state| state.is_epoch_open = true);
        Ok(())
    }

    /// Seeks to a position: as [`Loader::seek`].
    ///
    /// # Errors
    /// As [`Loader::seek`].
    pub fn seek(&mut self, position: Position) -> Result<(), Error> {
        self.move_loader(move |loader| loader.seek(position))
    }

    /// Seeks to the start of an epoch, unless the position is in that epoch already.
    ///
    /// # Errors
    /// As [`seek`](Self::seek).
    pub fn set_epoch(&mut self, epoch: u64) -> Result<(), Error> {
        if self.position().epoch == epoch {
            return Ok(());
        }
        self.seek(Position { epoch, samples: 0 })
    }

    /// Resumes from a saved state: as [`Loader::load_state`].
    ///
    /// # Errors
    /// As [`Loader::load_state`].
    pub fn load_state(&mut self, state: &State, force: bool) -> Result<(), Error> {
        self.check_state(state, force)?;
        let state = state.clone();
        self.move_loader(move |loader| loader.load_state(&state, force))
    }

    /// The daemon's statistics: as [`Loader::stats`].
    ///
    /// # Errors
    /// As [`Loader::stats`].
    pub fn stats(&mut self) -> Result<String, Error> {
        self.with_loader(Loader::stats)
    }

    /// The names of the classes: as [`Loader::classes`].
    ///
    /// # Errors
    /// As [`Loader::classes`].
    pub fn classes(&mut self) -> Result<Vec<String>, Error> {
        self.with_loader(Loader::classes)
    }

    /// The files of samples: as [`Loader::paths`].
    ///
    /// # Errors
    /// As [`Loader::paths`].
    pub fn paths(&mut self, samples: &[u64]) -> Result<Vec<PathBuf>, Error> {
        let samples = samples.to_vec();
        self.with_loader(move |loader| loader.paths(&samples))
    }

    /// The label of every sample: as [`Loader::labels`].
    ///
    /// # Errors
    /// As [`Loader::labels`].
    pub fn labels(&mut self) -> Result<Vec<i64>, Error> {
        self.with_loader(Loader::labels)
    }

    /// The private daemon's process id, and how often a dead daemon was replaced.
    ///
    /// # Errors
    /// [`Error::Closed`] when the session has ended.
    pub fn daemon(&mut self) -> Result<(Option<u32>, u64), Error> {
        self.with_loader(|loader| Ok((loader.private_process(), loader.restarts())))
    }
}

//! Epochs, positions and state over one session.
//!
//! The daemon goes from epoch to epoch by itself and the loader follows: it knows how many batches of the current epoch
//! are left for this rank, ends the iteration there, and seeks only when an epoch was left early, a state was loaded or a
//! position given. Each seek has a serial; batches with an older serial are returned unread.
//!
//! Positions count what was *handed over* to the user. When the connection ends, batches that were published before are
//! handed over first; then the session continues with the next daemon ([`recovery`]), or the reason is returned as an
//! error.
//!
//! - [`delivery`]: from the ring to the user, and waiting.
//! - [`phase`], [`recovery`]: from a dead daemon to the next one.
//! - [`names`]: the classes, and the files of samples.
//! - [`stalls`]: the daemon's explanation of a stall, for the time-out error.

mod delivery;
mod names;
mod phase;
mod recovery;
mod stalls;

use std::collections::VecDeque;
use std::ops::Deref;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_protocol::cuts::Cut;
use forebay_protocol::frames::{Attach, Attached, ClientFrame, DaemonFrame};
use forebay_protocol::ids::Position;
use forebay_protocol::publish::PublishReader;
use forebay_protocol::segment::Mapping;

use self::phase::Phase;
use crate::batch::Batch;
use crate::error::Error;
use crate::link::{Interrupt, Link};
use crate::patience::Patience;
use crate::rank::Placement;
use crate::ring::{Lease, Ring, Segments};
use crate::session_status::SessionStatus;
use crate::state::State;
use crate::stream_cursor::StreamCursor;
use crate::supervisor::Supervisor;

/// The result of [`Loader::try_next`].
#[derive(Debug)]
pub enum Next {
    /// A batch.
    Batch(Batch),
    /// The epoch has ended.
    End,
    /// Nothing is ready.
    Waiting,
}

/// A session with a daemon. [`SessionStatus`] has its terms, position and counts.
#[derive(Debug)]
pub struct Loader {
    // Declared before the link: `drop` detaches the ring, then the link sends `Goodbye` when it is dropped.
    ring: Arc<Ring>,
    link: Link,
    publish: Arc<PublishReader<Mapping>>,
    phase: Phase,
    /// Batches that a dead daemon had published and that are not handed over yet.
    drained: VecDeque<Lease>,
    /// Why no daemon will come back.
    lost: Option<Error>,
    status: SessionStatus,
    /// What was asked for at first, of a daemon that replaces a dead one too.
    request: Box<Attach>,
    /// Position and substitutes after the last batch that was taken from the ring, or the target of a seek.
    taken: (Position, u64),
    serial: u64,
    /// The last seek is pending.
    seeking: bool,
    /// Batches read from the present ring, including those returned unread.
    read: u64,
    /// Batches read from the rings of previous daemons.
    read_before: u64,
    /// The daemon's progress at the last look.
    progress: u64,
    /// The duration of the present wait since that progress.
    patience: Patience,
    /// A thread takes batches ahead of the user: its waits do not count as the user's.
    reads_ahead: bool,
    /// The number of the last request for names.
    names_requested: u64,
}

impl Loader {
    pub(crate) fn new(
        link: Link,
        terms: Attached,
        segments: Segments,
        request: Attach,
        placement: Placement,
        substitutes: u64,
    ) -> Result<Self, Error> {
        let connection = Arc::clone(link.connection());
        let fork_mark = Arc::clone(link.fork_mark());
        let (ring, publish) = Ring::open(&terms, segments, connection, fork_mark)?;
        if let Some(supervisor) = link.supervisor() {
            supervisor.on_attached(Arc::clone(&publish));
        }
        let start = terms.start;
        // At an epoch's start there are no substitutes yet.
        let substitutes = if start.position.samples == 0 { 0 } else { substitutes };
        let cursor = StreamCursor::new(start.position, substitutes, start.batches_left);
        Ok(Self {
            ring: Arc::new(ring),
            link,
            publish,
            phase: Phase::Live,
            drained: VecDeque::new(),
            lost: None,
            taken: (start.position, substitutes),
            status: SessionStatus::new(Arc::new(terms), placement, cursor, request.cuts.clone()),
            request: Box::new(request),
            serial: start.serial,
            seeking: false,
            read: 0,
            read_before: 0,
            progress: 0,
            patience: Patience::begin(Instant::now()),
            reads_ahead: false,
            names_requested: 0,
        })
    }

    /// The next batch; `None` at the epoch's end. The call after that begins the next epoch.
    ///
    /// # Errors
    /// [`Error::EpochsFinished`] after the last configured epoch; [`Error::HoldLimit`] when too many batches are held;
    /// [`Error::Timeout`] without any progress; the daemon's error, once all batches that it published are taken.
    pub fn next_batch(&mut self) -> Result<Option<Batch>, Error> {
        if !self.status.is_open {
            self.begin_epoch()?;
        }
        loop {
            match self.try_next()? {
                Next::Batch(batch) => return Ok(Some(batch)),
                Next::End => return Ok(None),
                Next::Waiting => self.wait()?,
            }
        }
    }

    /// Begins the next epoch: that of the last attach, seek or loaded state, else the one after the last epoch. An epoch
    /// that has begun and not ended is given up, and its remaining batches are counted. Does not wait, except for the daemon's
    /// answer to giving up an epoch of batches by length, which says the number of the new one's batches.
    ///
    /// # Errors
    /// [`Error::EpochsFinished`] after the last configured epoch, and the errors of a connection that has ended; those of
    /// [`wait`](Self::wait), after which the call may be repeated.
    pub fn begin_epoch(&mut self) -> Result<(), Error> {
        self.ring.check_process()?;
        if self.status.is_open {
            self.wait_for_seek()?;
            let next = self.status.cursor.next_epoch();
            if self.status.cursor.batches_left() == 0 {
                // The last batch was handed over: the daemon has continued with the next epoch.
                self.status.enter_next_epoch();
            } else if self.is_past_end(next.epoch) {
                // There is nothing to seek to; the position says that all epochs are finished.
                self.abandon_epoch();
                self.reset_cursor(next, 0, 0);
            } else {
                self.abandon_epoch();
                self.send_seek(next, 0, Vec::new())?;
            }
            self.status.is_open = false;
        }
        if self.seeking && self.status.terms.pools.is_some() {
            self.wait_for_seek()?;
        }
        if self.is_past_end(self.status.cursor.epoch()) {
            return Err(Error::EpochsFinished { epochs: self.status.terms.epochs.unwrap_or(0) });
        }
        self.status.is_open = true;
        Ok(())
    }

    /// Moves the cursor and clears its history.
    fn reset_cursor(&mut self, position: Position, substitutes: u64, batches_left: u64) {
        self.status.cursor = StreamCursor::new(position, substitutes, batches_left);
        self.status.is_open = false;
    }

    fn abandon_epoch(&mut self) {
        self.status.given_up += self.status.cursor.batches_left();
        self.status.is_open = false;
    }

    fn is_past_end(&self, epoch: u64) -> bool {
        self.status.terms.epochs.is_some_and(|epochs| epoch >= epochs)
    }

    /// Sends a seek; [`wait_for_seek`](Self::wait_for_seek) waits for the answer.
    fn send_seek(
        &mut self,
        position: Position,
        substitutes: u64,
        cuts: Vec<Cut>,
    ) -> Result<(), Error> {
        self.serial += 1;
        self.status.note_seek(position, cuts.clone());
        self.reset_cursor(position, substitutes, 0);
        self.taken = (position, substitutes);
        self.seeking = true;
        self.drained.clear();
        if self.phase == Phase::Draining {
            // The reattach requests this position from the next daemon.
            return Ok(());
        }
        let seek = ClientFrame::Seek { serial: self.serial, position, substitutes, cuts };
        match self.link.send(&seek, &[]) {
            Err(Error::DaemonLost(_)) if self.is_restartable() => self.on_daemon_lost(),
            sent => sent,
        }
    }

    /// Waits for the answer to a seek.
    fn wait_for_seek(&mut self) -> Result<(), Error> {
        while !self.poll_seek()? {
            self.wait()?;
        }
        self.status.waiting_since = None;
        Ok(())
    }

    /// Seeks to a position. An epoch that has begun is given up, and its remaining batches are counted.
    ///
    /// # Errors
    /// [`Error::Config`] when the stream has no such position; this ends the session.
    pub fn seek(&mut self, position: Position) -> Result<(), Error> {
        self.seek_to(position, 0, Vec::new())
    }

    fn seek_to(
        &mut self,
        position: Position,
        substitutes: u64,
        cuts: Vec<Cut>,
    ) -> Result<(), Error> {
        self.ring.check_process()?;
        self.wait_for_seek()?;
        if self.status.is_open {
            self.abandon_epoch();
        }
        if self.is_past_end(position.epoch) {
            self.reset_cursor(position, 0, 0);
            return Ok(());
        }
        self.send_seek(position, substitutes, cuts)?;
        self.wait_for_seek()
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

    /// Resumes from a saved state.
    ///
    /// # Errors
    /// [`Error::StateMismatch`] with each difference when it belongs to another stream, unless `force`; the loader is
    /// unchanged then.
    pub fn load_state(&mut self, state: &State, force: bool) -> Result<(), Error> {
        self.check_state(state, force)?;
        state.warn_of_changed_sources(&self.status.terms, "the state was saved");
        if !self.status.is_open && !self.seeking && self.state(0)?.is_same_place(state) {
            // The stream is there already, such as after an attach with this state: no batch has to be discarded.
            self.status.cursor = StreamCursor::new(
                state.position,
                state.substitutes,
                self.status.cursor.batches_left(),
            );
            return Ok(());
        }
        self.seek_to(state.position, state.substitutes, state.cuts.clone())
    }

    /// The daemon's statistics: JSON text, as `forebay stats --json` prints it.
    ///
    /// # Errors
    /// The errors of a connection that has ended, and [`Error::Timeout`].
    pub fn stats(&mut self) -> Result<String, Error> {
        self.request(Self::request_stats)
    }

    /// Sends a request to the daemon, and again to the next daemon if it dies meanwhile.
    fn request<R>(&mut self, ask: impl Fn(&mut Self) -> Result<R, Error>) -> Result<R, Error> {
        self.ring.check_process()?;
        loop {
            while !self.is_attached()? {
                self.wait()?;
            }
            self.status.waiting_since = None;
            match ask(self) {
                Err(Error::DaemonLost(_)) if self.is_restartable() => self.on_daemon_lost()?,
                answer => return answer,
            }
        }
    }

    fn request_stats(&mut self) -> Result<String, Error> {
        self.link.send(&ClientFrame::Stats, &[])?;
        let mut text = String::new();
        loop {
            match self.link.next_frame("the daemon's statistics")? {
                (DaemonFrame::StatsPart { last, text: part }, _) => {
                    text.push_str(&part);
                    if last {
                        return Ok(text);
                    }
                }
                (other, _) => self.handle_frame(&other)?,
            }
        }
    }

    /// How often a dead daemon was replaced.
    #[must_use]
    pub fn restarts(&self) -> u64 {
        self.link.supervisor().map_or(0, Supervisor::restarts)
    }

    /// The number of batches that the user holds.
    #[must_use]
    pub fn held(&self) -> u64 {
        self.ring.held().saturating_sub(self.drained.len() as u64)
    }

    /// The private daemon's process id; it changes with a restart.
    #[must_use]
    pub fn private_process(&self) -> Option<u32> {
        self.link.supervisor().and_then(Supervisor::process_id)
    }

    /// Replaces the interrupt; see [`Builder::interrupt`](crate::Builder::interrupt).
    pub fn set_interrupt(&mut self, interrupt: impl FnMut() -> bool + Send + 'static) {
        self.link.set_interrupt(Some(Box::new(interrupt)));
    }

    /// Switches to reading ahead on a thread: `interrupt` ends that thread's waits, and `wake` is readable when it is to be
    /// called. Returns the user's interrupt.
    #[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "of the GPU half"))]
    pub(crate) fn read_ahead(
        &mut self,
        interrupt: impl FnMut() -> bool + Send + 'static,
        wake: OwnedFd,
    ) -> Option<Interrupt> {
        let users = self.link.take_interrupt();
        self.set_interrupt(interrupt);
        self.link.set_wake(wake);
        self.reads_ahead = true;
        users
    }

    #[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "of the GPU half"))]
    pub(crate) fn ring(&self) -> &Arc<Ring> {
        &self.ring
    }

    /// The time-out: the maximum time without any progress.
    #[must_use]
    pub fn timeout(&self) -> Duration {
        self.link.timeout()
    }
}

impl Deref for Loader {
    type Target = SessionStatus;

    fn deref(&self) -> &SessionStatus {
        &self.status
    }
}

impl Drop for Loader {
    fn drop(&mut self) {
        if self.ring.is_own_process() {
            self.ring.detach();
        }
    }
}

//! Epochs, positions and state over one session.
//!
//! The daemon goes from epoch to epoch by itself; the loader follows: it knows how many batches of the current epoch are
//! left for this rank, ends the iteration there, and asks for another place only when an epoch was left early, a state was
//! loaded or a position given. A seek has a serial; batches that were made for an older one are returned unread.
//!
//! Positions count what was *handed over* to the user. When the connection ends, what was published before is handed
//! over first; then the session goes on with the next daemon ([`recovery`]), or the reason is told.
//!
//! - [`taking`]: from the ring to the user, and waiting.
//! - [`recovery`]: from a dead daemon to the next one.
//! - [`stalls`]: what the daemon says where nothing comes.

mod recovery;
mod stalls;
mod taking;

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_protocol::frames::{Attached, ClientFrame, DaemonFrame};
use forebay_protocol::ids::Position;
use forebay_protocol::publish::PublishReader;
use forebay_protocol::segment::Mapping;

use self::recovery::Phase;
use crate::batch::Batch;
use crate::builder::Builder;
use crate::error::Error;
use crate::keeper::Keeper;
use crate::link::{Interrupt, Link};
use crate::place::Place;
use crate::rank::{Placement, RankSource};
use crate::ring::{Lease, Ring};
use crate::state::State;
use crate::statistics::WaitStatistics;
use crate::target::Target;

/// What [`Loader::try_next`] found.
#[derive(Debug)]
pub enum Next {
    /// A batch.
    Batch(Batch),
    /// The epoch has ended.
    End,
    /// Nothing is ready.
    Waiting,
}

/// A session with a daemon.
#[derive(Debug)]
pub struct Loader {
    // Declared before the link: the ring is told of the end in `drop`, the link says goodbye when it is dropped.
    ring: Arc<Ring>,
    link: Link,
    publish: Arc<PublishReader<Mapping>>,
    phase: Phase,
    /// Batches that a dead daemon had published, not yet handed over.
    drained: VecDeque<Lease>,
    /// Why no daemon comes back.
    lost: Option<Error>,
    terms: Arc<Attached>,
    /// The stream's name as it was asked for.
    stream: Option<String>,
    placement: Placement,
    place: Place,
    /// Position and substitutes after the last batch that was taken from the ring, or where a seek goes to.
    taken: (Position, u64),
    serial: u64,
    /// The last seek was not answered yet.
    seeking: bool,
    /// An epoch was begun and has not ended.
    is_open: bool,
    given_up: u64,
    /// The batch handed over last was shown again for a measurement.
    replaying: bool,
    /// Batches read from the present ring, those returned unread included.
    read: u64,
    /// Batches read from the rings of daemons before.
    read_before: u64,
    waiting_since: Option<Instant>,
    last_progress: (u64, Instant),
    statistics: WaitStatistics,
    /// Batches are taken ahead of the user, by a thread that waits in the user's stead: its waits are not the user's.
    reads_ahead: bool,
}

impl Loader {
    /// Attaches with every default: see [`Loader::builder`].
    ///
    /// # Errors
    /// As [`Builder::attach`].
    pub fn attach(target: impl Into<Target>) -> Result<Self, Error> {
        Self::builder(target).attach()
    }

    /// Says where, as whom and from where on to attach.
    #[must_use]
    pub fn builder(target: impl Into<Target>) -> Builder {
        Builder::new(target.into())
    }

    pub(crate) fn new(
        link: Link,
        terms: Attached,
        descriptors: Vec<OwnedFd>,
        stream: Option<String>,
        placement: Placement,
        substitutes: u64,
    ) -> Result<Self, Error> {
        let connection = Arc::clone(link.connection());
        let fork_mark = Arc::clone(link.fork_mark());
        let (ring, publish) = Ring::open(&terms, descriptors, connection, fork_mark)?;
        if let Some(keeper) = link.keeper() {
            keeper.attached(Arc::clone(&publish));
        }
        let start = terms.start;
        // At an epoch's start nothing has been substituted in it yet.
        let substitutes = if start.position.samples == 0 { 0 } else { substitutes };
        Ok(Self {
            ring: Arc::new(ring),
            link,
            publish,
            phase: Phase::Live,
            drained: VecDeque::new(),
            lost: None,
            stream,
            taken: (start.position, substitutes),
            terms: Arc::new(terms),
            placement,
            place: Place::new(start.position, substitutes, start.batches_left),
            serial: start.serial,
            seeking: false,
            is_open: false,
            given_up: 0,
            replaying: false,
            read: 0,
            read_before: 0,
            waiting_since: None,
            last_progress: (0, Instant::now()),
            statistics: WaitStatistics::default(),
            reads_ahead: false,
        })
    }

    /// The next batch; `None` at the epoch's end. The call after that begins the next epoch.
    ///
    /// # Errors
    /// [`Error::EpochsFinished`] after the last configured epoch; [`Error::HoldLimit`] when too many batches are held;
    /// [`Error::Timeout`] without any progress; what the daemon ended with, once all that it published is taken.
    pub fn next_batch(&mut self) -> Result<Option<Batch>, Error> {
        if !self.is_open {
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

    /// Begins the next epoch: the one that an attach, a seek or a loaded state stands in, else the one after the last.
    /// What is left of an epoch that was begun is given up, and counted. Does not wait.
    ///
    /// # Errors
    /// [`Error::EpochsFinished`] after the last configured epoch, and those of a connection that has ended.
    pub fn begin_epoch(&mut self) -> Result<(), Error> {
        self.check_process()?;
        if self.is_open {
            self.settle()?;
            let next = self.place.next_epoch();
            if self.place.batches_left() == 0 {
                // The last batch was handed over and the end not yet asked for: the daemon is on its way already.
                self.place.enter_next_epoch(self.terms.batches_per_epoch);
            } else if self.is_past_end(next.epoch) {
                // Nothing to ask for; the position says that everything is done.
                self.give_rest_up();
                self.stand_at(next, 0, 0);
            } else {
                self.give_rest_up();
                self.request(next, 0)?;
            }
            self.is_open = false;
        }
        if self.is_past_end(self.place.epoch()) {
            return Err(Error::EpochsFinished { epochs: self.terms.epochs.unwrap_or(0) });
        }
        self.is_open = true;
        Ok(())
    }

    /// Forgets what was before and stands here.
    fn stand_at(&mut self, position: Position, substitutes: u64, batches_left: u64) {
        self.place = Place::new(position, substitutes, batches_left);
        self.is_open = false;
    }

    fn give_rest_up(&mut self) {
        self.given_up += self.place.batches_left();
        self.is_open = false;
    }

    fn is_past_end(&self, epoch: u64) -> bool {
        self.terms.epochs.is_some_and(|epochs| epoch >= epochs)
    }

    /// Asks the daemon to go on elsewhere; the answer is awaited by whoever needs it.
    fn request(&mut self, position: Position, substitutes: u64) -> Result<(), Error> {
        self.serial += 1;
        self.stand_at(position, substitutes, 0);
        self.taken = (position, substitutes);
        self.seeking = true;
        self.drained.clear();
        if self.phase == Phase::Draining {
            // The next daemon is asked for this place at once.
            return Ok(());
        }
        let seek = ClientFrame::Seek { serial: self.serial, position, substitutes };
        match self.link.send(&seek, &[]) {
            Err(Error::DaemonLost(_)) if self.comes_back() => self.lose_daemon(),
            sent => sent,
        }
    }

    /// Waits for the answer to a seek.
    fn settle(&mut self) -> Result<(), Error> {
        while !self.look_for_answer()? {
            self.wait()?;
        }
        self.waiting_since = None;
        Ok(())
    }

    /// Goes to a position. An epoch that was begun is given up, and what is left of it counted.
    ///
    /// # Errors
    /// [`Error::Config`] when the stream has no such position; then the session has ended.
    pub fn seek(&mut self, position: Position) -> Result<(), Error> {
        self.jump(position, 0)
    }

    fn jump(&mut self, position: Position, substitutes: u64) -> Result<(), Error> {
        self.check_process()?;
        self.settle()?;
        if self.is_open {
            self.give_rest_up();
        }
        if self.is_past_end(position.epoch) {
            self.stand_at(position, 0, 0);
            return Ok(());
        }
        self.request(position, substitutes)?;
        self.settle()
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

    /// The place in the stream as handed over to the user, `held_back` batches ago: for wrappers that read ahead.
    ///
    /// # Errors
    /// [`Error::Config`] when fewer batches were handed over since the last seek, or more than [`MAX_HELD_BACK`](crate::MAX_HELD_BACK).
    pub fn state(&self, held_back: usize) -> Result<State, Error> {
        let (position, substitutes) = self.place.look_back(held_back)?;
        Ok(State::of(&self.terms, position, substitutes))
    }

    /// Goes on where a saved state stands.
    ///
    /// # Errors
    /// [`Error::StateMismatch`] with each difference when it belongs to another stream, unless `force`; nothing has
    /// changed then.
    pub fn load_state(&mut self, state: &State, force: bool) -> Result<(), Error> {
        if !force && let Some(differences) = state.differences(&self.terms) {
            return Err(Error::StateMismatch(differences));
        }
        if !self.is_open && !self.seeking && self.state(0)? == *state {
            // Where the stream stands already, such as at a fresh attach: nothing that was made is thrown away.
            self.place = Place::new(state.position, state.substitutes, self.place.batches_left());
            return Ok(());
        }
        self.jump(state.position, state.substitutes)
    }

    /// Asks the daemon for its figures: JSON text, as `forebay stats --json` prints it.
    ///
    /// # Errors
    /// Those of a connection that has ended, and [`Error::Timeout`].
    pub fn stats(&mut self) -> Result<String, Error> {
        self.check_process()?;
        loop {
            while !self.is_attached()? {
                self.wait()?;
            }
            self.waiting_since = None;
            match self.ask_for_figures() {
                Err(Error::DaemonLost(_)) if self.comes_back() => self.lose_daemon()?,
                answer => return answer,
            }
        }
    }

    fn ask_for_figures(&mut self) -> Result<String, Error> {
        self.link.send(&ClientFrame::Stats, &[])?;
        let mut text = String::new();
        loop {
            match self.link.next_frame("the daemon's figures")? {
                (DaemonFrame::StatsPart { last, text: part }, _) => {
                    text.push_str(&part);
                    if last {
                        return Ok(text);
                    }
                }
                (other, _) => self.accept(&other)?,
            }
        }
    }

    /// How often a daemon was replaced that had died.
    #[must_use]
    pub fn restarts(&self) -> u64 {
        self.link.keeper().map_or(0, Keeper::restarts)
    }

    /// What waiting cost this client.
    #[must_use]
    pub fn wait_statistics(&self) -> &WaitStatistics {
        &self.statistics
    }

    /// The terms of the session: schema, ring, epochs, fingerprints.
    #[must_use]
    pub fn terms(&self) -> &Attached {
        &self.terms
    }

    /// Which rank of how many this is.
    #[must_use]
    pub fn placement(&self) -> Placement {
        self.placement
    }

    /// Who said which rank this is.
    #[must_use]
    pub fn rank_source(&self) -> RankSource {
        self.placement.source
    }

    /// This rank's batches of a full epoch.
    #[must_use]
    pub fn batches_per_epoch(&self) -> u64 {
        self.terms.batches_per_epoch
    }

    /// Whether the batch handed over last was shown again for a measurement (`forebay headspace --replay`): the position did
    /// not move by it.
    #[must_use]
    pub fn replaying(&self) -> bool {
        self.replaying
    }

    /// The batches that early ends of epochs gave up.
    #[must_use]
    pub fn given_up(&self) -> u64 {
        self.given_up
    }

    /// The batches that the user holds.
    #[must_use]
    pub fn held(&self) -> u64 {
        self.ring.held().saturating_sub(self.drained.len() as u64)
    }

    /// The private daemon's process; another one after a restart.
    #[must_use]
    pub fn private_process(&self) -> Option<u32> {
        self.link.keeper().and_then(Keeper::process_id)
    }

    /// Sets what is asked about every 50 ms while waiting; see [`Builder::interrupt`].
    pub fn set_interrupt(&mut self, asked: impl FnMut() -> bool + Send + 'static) {
        self.link.set_interrupt(Some(Box::new(asked)));
    }

    /// From now on a thread takes batches ahead of the user. `wanted` ends its waits; `wake` is readable when to ask it.
    /// Gives the user's own interrupt.
    pub(crate) fn read_ahead(
        &mut self,
        wanted: impl FnMut() -> bool + Send + 'static,
        wake: OwnedFd,
    ) -> Option<Interrupt> {
        let interrupt = self.link.take_interrupt();
        self.set_interrupt(wanted);
        self.link.set_wake(wake);
        self.reads_ahead = true;
        interrupt
    }

    pub(crate) fn ring(&self) -> &Arc<Ring> {
        &self.ring
    }

    pub(crate) fn place(&self) -> &Place {
        &self.place
    }

    /// The longest time without any progress.
    #[must_use]
    pub fn timeout(&self) -> Duration {
        self.link.timeout()
    }

    fn check_process(&self) -> Result<(), Error> {
        if self.ring.is_own_process() { Ok(()) } else { Err(Error::Forked) }
    }
}

impl Drop for Loader {
    fn drop(&mut self) {
        if self.ring.is_own_process() {
            self.ring.detach();
        }
    }
}

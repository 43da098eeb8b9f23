//! From a dead daemon to the next one, as the loader sees it; [`crate::keeper`] has the states.
//!
//! Nothing here waits: each call of the loader does what can be done now. What the dead daemon had published is taken out
//! of its ring first, whole; its slots count as held until the user has had the batches. The next daemon is told what is
//! held and begins behind it, so no batch is made twice and none is left out. A seek that was not answered is asked again
//! by the attach itself.

use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_protocol::frames::{Attach, Attached, ClientFrame, DaemonFrame, Reattach};
use forebay_protocol::socket::SocketError;
use nix::poll::PollFlags;

use super::Loader;
use crate::error::Error;
use crate::keeper::{Found, Keeper};
use crate::link::{Ending, check_version, unexpected};
use crate::state::State;

/// How long one wait for the keeper lasts.
const SLICE: Duration = Duration::from_millis(50);

/// Where a loader stands with its daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// Attached.
    Live,
    /// Without a daemon; what the last one had published is handed over meanwhile.
    Draining,
    /// The next one was asked for the session.
    Reattaching,
}

impl Loader {
    /// Whether somebody starts the daemon again.
    pub(super) fn comes_back(&self) -> bool {
        self.link.keeper().is_some() && !matches!(self.link.ending(), Some(Ending::Final(_)))
    }

    /// Moves on between the phases as far as that goes without waiting.
    pub(super) fn tend(&mut self) -> Result<(), Error> {
        match self.phase {
            Phase::Live if self.link.keeper().is_some_and(Keeper::is_down) => {
                self.read_frames()?;
                if self.comes_back() {
                    self.lose_daemon()?;
                    return self.look_for_daemon();
                }
                Ok(())
            }
            Phase::Live => Ok(()),
            Phase::Draining => self.look_for_daemon(),
            Phase::Reattaching => self.look_for_session(),
        }
    }

    /// Whether a daemon has the session now.
    pub(super) fn is_attached(&mut self) -> Result<bool, Error> {
        self.tend()?;
        if let Some(error) = &self.lost {
            return Err(error.clone());
        }
        if self.phase == Phase::Live
            && let Some(ending) = self.link.ending()
        {
            match ending {
                Ending::Gone(_) if self.comes_back() => self.lose_daemon()?,
                _ => return Err(self.link.end_words()),
            }
        }
        Ok(self.phase == Phase::Live)
    }

    /// The daemon is gone: takes out what it had published.
    pub(super) fn lose_daemon(&mut self) -> Result<(), Error> {
        if self.phase == Phase::Live {
            while let Some(descriptor) = self.look_into_ring()? {
                let is_current = descriptor.seek_serial == self.serial && !self.seeking;
                if !is_current {
                    // Unread, and so not held: its slot is free for the next daemon.
                    self.read += 1;
                    continue;
                }
                let lease = self.take(descriptor)?;
                self.drained.push_back(lease);
            }
        }
        self.ring.detach();
        self.phase = Phase::Draining;
        if let Some(keeper) = self.link.keeper() {
            keeper.notice(match self.link.ending() {
                Some(Ending::Gone(how)) => Some(how),
                _ => None,
            });
        }
        Ok(())
    }

    /// Asks the next daemon for the session, if it is there.
    fn look_for_daemon(&mut self) -> Result<(), Error> {
        let Some(keeper) = self.link.keeper() else { return Ok(()) };
        let connection = match keeper.find() {
            Found::Waiting => return Ok(()),
            Found::Lost(error) => {
                self.lost.get_or_insert(error);
                return Ok(());
            }
            Found::Daemon(connection) => connection,
        };
        self.link.replace(Arc::clone(&connection));
        self.phase = Phase::Reattaching;
        let (position, substitutes) = self.taken();
        let request = ClientFrame::Reattach(Reattach {
            attach: Attach {
                stream: self.stream.clone(),
                rank: self.placement.rank,
                world_size: self.placement.world_size,
                position,
                substitutes,
            },
            serial: self.serial,
            leased: self.ring.name_held(),
        });
        match connection.send(&request, &[self.ring.data_descriptor()]) {
            // A daemon that is gone again is found out by the next look.
            Ok(()) | Err(SocketError::Closed) => Ok(()),
            Err(error) => self.give_up(Error::Protocol(error.to_string())),
        }
    }

    /// Reads what the next daemon answers.
    fn look_for_session(&mut self) -> Result<(), Error> {
        while let Some((frame, descriptors)) = self.link.receive() {
            match frame {
                DaemonFrame::Welcome { protocol, release, .. } => {
                    if let Err(error) = check_version(protocol, &release) {
                        return self.give_up(error);
                    }
                }
                DaemonFrame::Kept => self.link.keep(descriptors),
                DaemonFrame::Attached(terms) => {
                    return match self.judge(&terms) {
                        Ok(()) => self.go_on(*terms, descriptors),
                        Err(error) => self.give_up(error),
                    };
                }
                other => return self.give_up(unexpected(&other, "Attached")),
            }
        }
        match self.link.ending().cloned() {
            None => Ok(()),
            Some(Ending::Gone(_)) => self.lose_daemon(),
            // The session before may not be cleared away yet, or memory be given back.
            Some(Ending::Final(Error::Taken(reason) | Error::Memory(reason))) => {
                if let Some(keeper) = self.link.keeper() {
                    keeper.try_again(reason);
                }
                self.lose_daemon()
            }
            Some(Ending::Final(error)) => self.give_up(error),
        }
    }

    /// Whether the next daemon serves what the one before did.
    fn judge(&self, terms: &Attached) -> Result<(), Error> {
        let state = State::of(&self.terms, self.taken().0, 0);
        if let Some(differences) = state.differences(terms) {
            return Err(Error::StateMismatch(format!(
                "the daemon was started again over something else: {differences}"
            )));
        }
        let expected = Attached {
            session: terms.session,
            start: terms.start,
            publish_bytes: terms.publish_bytes,
            return_bytes: terms.return_bytes,
            revival: terms.revival,
            hold: terms.hold,
            ..(*self.terms).clone()
        };
        if expected == *terms {
            return Ok(());
        }
        Err(Error::Config(format!(
            "the daemon was started again with another configuration: batches of {} in {} slots of {} bytes became batches \
             of {} in {} slots of {} bytes, or their tensors changed; make a new loader from the last state",
            self.terms.batch_size,
            self.terms.slots,
            self.terms.slot_bytes,
            terms.batch_size,
            terms.slots,
            terms.slot_bytes
        )))
    }

    fn go_on(
        &mut self,
        terms: Attached,
        descriptors: Vec<std::os::fd::OwnedFd>,
    ) -> Result<(), Error> {
        let connection = Arc::clone(self.link.connection());
        self.publish = self.ring.attach(&terms, descriptors, connection)?;
        if let Some(keeper) = self.link.keeper() {
            keeper.attached(Arc::clone(&self.publish));
        }
        self.read_before += self.read;
        self.read = 0;
        let start = terms.start;
        self.terms = Arc::new(terms);
        self.phase = Phase::Live;
        // The attach answers a seek that the daemon before did not.
        self.accept_position(start);
        Ok(())
    }

    /// Ends the session for a reason that no restart changes; what was drained is handed over before it is told.
    fn give_up(&mut self, error: Error) -> Result<(), Error> {
        self.lost = Some(error);
        self.ring.detach();
        self.phase = Phase::Draining;
        if let Some(keeper) = self.link.keeper() {
            keeper.give_up();
        }
        Ok(())
    }

    /// Waits one slice for the keeper or the next daemon.
    pub(super) fn wait_for_daemon(&mut self, waited_for: &str) -> Result<(), Error> {
        if self.phase == Phase::Reattaching {
            self.link.wait_slice(PollFlags::POLLIN, waited_for)?;
            if self.link.take_rings() {
                // It scans or opens: a sign of life.
                self.last_progress.1 = Instant::now();
            }
            return Ok(());
        }
        if let Some(keeper) = self.link.keeper() {
            keeper.wait(SLICE);
        }
        self.link.ask_interrupt(waited_for)
    }

    /// The error of a wait that took too long.
    pub(super) fn out_of_time(&mut self, waited: Duration, waited_for: String) -> Error {
        if self.phase == Phase::Live {
            return self.timed_out(waited, waited_for);
        }
        let Some(keeper) = self.link.keeper() else {
            let daemon_says = "the daemon is gone".to_owned();
            return Error::Timeout { waited, waited_for, daemon_says };
        };
        Error::DaemonLost(format!(
            "the daemon is gone ({}) and none took its place within {} s; start it again, or raise `timeout`",
            keeper.ended_words(),
            waited.as_secs_f64().round()
        ))
    }
}

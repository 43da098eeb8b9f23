//! The loader's part in the recovery from a daemon's death; [`crate::supervisor`] draws the states.
//!
//! Nothing here waits: each call of the loader does what can be done now. All batches that the dead daemon had published
//! are taken out of its ring first; their slots count as held until the user has dropped the batches. The next daemon gets
//! the list of held slots and begins after the last batch taken, so no batch is repeated or skipped. The reattach also
//! carries a seek that was not answered.

use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_protocol::frames::{Attach, Attached, ClientFrame, DaemonFrame, Reattach};
use forebay_protocol::socket::SocketError;
use nix::poll::PollFlags;

use super::Loader;
use super::phase::Phase;
use crate::error::Error;
use crate::link::{Ending, check_version, unexpected};
use crate::patience::Patience;
use crate::state::State;
use crate::supervisor::{NextDaemon, Supervisor};

/// The duration of one wait for the supervisor.
const SLICE: Duration = Duration::from_millis(50);

impl Loader {
    /// Whether a dead daemon is replaced.
    pub(super) fn is_restartable(&self) -> bool {
        self.link.supervisor().is_some() && !matches!(self.link.ending(), Some(Ending::Final(_)))
    }

    /// Advances through the phases as far as possible without waiting.
    pub(super) fn advance_recovery(&mut self) -> Result<(), Error> {
        match self.phase {
            Phase::Live if self.link.supervisor().is_some_and(Supervisor::is_down) => {
                self.read_frames()?;
                if self.is_restartable() {
                    self.on_daemon_lost()?;
                    return self.try_reattach();
                }
                Ok(())
            }
            Phase::Live => Ok(()),
            Phase::Draining => self.try_reattach(),
            Phase::Reattaching => self.poll_reattach(),
        }
    }

    /// Whether the session is attached to a daemon now.
    pub(super) fn is_attached(&mut self) -> Result<bool, Error> {
        self.advance_recovery()?;
        if let Some(error) = &self.lost {
            return Err(error.clone());
        }
        if self.phase == Phase::Live
            && let Some(ending) = self.link.ending()
        {
            match ending {
                Ending::Gone(_) if self.is_restartable() => self.on_daemon_lost()?,
                _ => return Err(self.link.ending_error()),
            }
        }
        Ok(self.phase == Phase::Live)
    }

    /// The daemon is gone: takes all batches that it had published.
    pub(super) fn on_daemon_lost(&mut self) -> Result<(), Error> {
        if self.phase == Phase::Live {
            while let Some(descriptor) = self.peek_ring()? {
                let is_current = descriptor.seek_serial == self.serial && !self.seeking;
                if !is_current {
                    // Not taken and so not held: its slot is free for the next daemon.
                    self.read += 1;
                    continue;
                }
                let lease = self.take(descriptor)?;
                self.drained.push_back(lease);
            }
        }
        self.ring.detach();
        self.phase = Phase::Draining;
        if let Some(supervisor) = self.link.supervisor() {
            supervisor.report_loss(match self.link.ending() {
                Some(Ending::Gone(how)) => Some(how),
                _ => None,
            });
        }
        Ok(())
    }

    /// Requests the session from the next daemon, if it is ready.
    fn try_reattach(&mut self) -> Result<(), Error> {
        let Some(supervisor) = self.link.supervisor() else { return Ok(()) };
        let connection = match supervisor.next_daemon() {
            NextDaemon::Pending => return Ok(()),
            NextDaemon::Lost(error) => {
                self.lost.get_or_insert(error);
                return Ok(());
            }
            NextDaemon::Ready(connection) => connection,
        };
        self.link.replace(Arc::clone(&connection));
        self.phase = Phase::Reattaching;
        let (position, substitutes) = self.taken();
        let request = ClientFrame::Reattach(Reattach {
            attach: Attach {
                position,
                substitutes,
                cuts: self.status.cuts_at(position),
                ..(*self.request).clone()
            },
            serial: self.serial,
            leased: self.ring.announce_held(),
        });
        let data: Vec<_> = self.ring.data_descriptor().into_iter().collect();
        match connection.send(&request, &data) {
            // The next receive detects a daemon that has died again.
            Ok(()) | Err(SocketError::Closed) => Ok(()),
            Err(error) => self.fail(Error::Protocol(error.to_string())),
        }
    }

    /// Reads the next daemon's answer.
    fn poll_reattach(&mut self) -> Result<(), Error> {
        while let Some((frame, descriptors)) = self.link.receive() {
            match frame {
                DaemonFrame::Welcome { protocol, release, .. } => {
                    if let Err(error) = check_version(protocol, &release) {
                        return self.fail(error);
                    }
                }
                DaemonFrame::Kept => self.link.save_restart_state(descriptors),
                DaemonFrame::Attached(terms) => {
                    return match self.check_terms(&terms) {
                        Ok(()) => self.resume(*terms, descriptors),
                        Err(error) => self.fail(error),
                    };
                }
                other => return self.fail(unexpected(&other, "Attached")),
            }
        }
        match self.link.ending().cloned() {
            None => Ok(()),
            Some(Ending::Gone(_)) => self.on_daemon_lost(),
            // The previous session may not be cleaned up, or its memory not be freed, or this process may have no free
            // descriptor at the moment.
            Some(Ending::Final(Error::Taken(reason) | Error::Memory(reason))) => {
                self.link.hang_up();
                if let Some(supervisor) = self.link.supervisor() {
                    supervisor.retry(reason);
                }
                self.on_daemon_lost()
            }
            Some(Ending::Final(error)) => self.fail(error),
        }
    }

    /// Checks that the next daemon serves the same stream as the previous one.
    fn check_terms(&self, terms: &Attached) -> Result<(), Error> {
        let state = State::of(&self.status.terms, self.taken().0, 0);
        if let Some(differences) = state.differences(terms) {
            return Err(Error::StateMismatch(format!(
                "the daemon was restarted with another stream: {differences}"
            )));
        }
        let expected = Attached {
            session: terms.session,
            start: terms.start,
            publish_bytes: terms.publish_bytes,
            return_bytes: terms.return_bytes,
            restart_policy: terms.restart_policy,
            hold: terms.hold,
            // Of the epoch of the first position.
            batches_per_epoch: terms.batches_per_epoch,
            python_sources: terms.python_sources.clone(),
            ..(*self.status.terms).clone()
        };
        if expected == *terms {
            return Ok(());
        }
        Err(Error::Config(format!(
            "the daemon was restarted with another configuration: batches of {} in {} slots of {} bytes became batches \
             of {} in {} slots of {} bytes, or their tensors changed; make a new loader from the last state",
            self.status.terms.batch_size,
            self.status.terms.slots,
            self.status.terms.slot_bytes,
            terms.batch_size,
            terms.slots,
            terms.slot_bytes
        )))
    }

    fn resume(
        &mut self,
        terms: Attached,
        descriptors: Vec<std::os::fd::OwnedFd>,
    ) -> Result<(), Error> {
        let connection = Arc::clone(self.link.connection());
        self.publish = self.ring.attach(&terms, descriptors, connection)?;
        if let Some(supervisor) = self.link.supervisor() {
            supervisor.on_attached(Arc::clone(&self.publish));
        }
        self.read_before += self.read;
        self.read = 0;
        let start = terms.start;
        let before = State::of(&self.status.terms, self.taken().0, 0);
        before.warn_of_changed_sources(&terms, "the daemon before was started");
        self.status.terms = Arc::new(terms);
        self.phase = Phase::Live;
        // The attach answers a seek that the previous daemon did not answer.
        self.handle_positioned(start);
        Ok(())
    }

    /// Ends the session with an error that a restart does not fix; drained batches are handed over before it is returned.
    fn fail(&mut self, error: Error) -> Result<(), Error> {
        self.lost = Some(error);
        self.ring.detach();
        self.phase = Phase::Draining;
        if let Some(supervisor) = self.link.supervisor() {
            supervisor.stop();
        }
        Ok(())
    }

    /// Waits one slice for the supervisor or the next daemon.
    pub(super) fn wait_for_daemon(&mut self, waited_for: &str) -> Result<(), Error> {
        if self.phase == Phase::Reattaching {
            self.link.wait_slice(PollFlags::POLLIN, waited_for)?;
            if self.link.take_doorbells() {
                // A daemon that scans its dataset rings the doorbell: that is progress.
                self.patience = Patience::begin(Instant::now());
            }
            return Ok(());
        }
        if let Some(supervisor) = self.link.supervisor() {
            supervisor.wait(SLICE);
        }
        self.link.check_interrupt(waited_for)
    }

    /// The error for a wait that exceeded the time-out.
    pub(super) fn timeout_error(&mut self, waited: Duration, waited_for: String) -> Error {
        if self.phase == Phase::Live {
            return self.stall_error(waited, waited_for);
        }
        let Some(supervisor) = self.link.supervisor() else {
            let daemon_says = "the daemon is gone".to_owned();
            return Error::Timeout { waited, waited_for, daemon_says };
        };
        let seconds = waited.as_secs_f64().round();
        if let Some(refusal) = supervisor.refusal() {
            return Error::DaemonLost(format!(
                "the daemon that came back has refused this session for {seconds} s: {refusal}"
            ));
        }
        Error::DaemonLost(format!(
            "the daemon is gone ({}) and none replaced it within {seconds} s; restart it, or raise `timeout`",
            supervisor.exit_reason(),
        ))
    }
}

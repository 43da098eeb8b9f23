//! Takes batches from the ring, hands them over to the user, reads frames and waits.

use std::sync::Arc;
use std::time::Instant;

use forebay_protocol::frames::{DaemonFrame, Positioned};
use forebay_protocol::ids::Position;
use forebay_protocol::publish::Descriptor;
use nix::poll::PollFlags;

use super::phase::Phase;
use super::{Loader, Next};
use crate::batch::Batch;
use crate::error::Error;
use crate::link::{Ending, unexpected};
use crate::patience::Patience;
use crate::ring::Lease;

impl Loader {
    /// The next batch of the current epoch, if it is ready; no system call is needed for it.
    ///
    /// # Errors
    /// As [`next_batch`](Self::next_batch), without the time-out and [`Error::EpochsFinished`]: it begins no epoch.
    pub fn try_next(&mut self) -> Result<Next, Error> {
        self.ring.check_process()?;
        self.advance_recovery()?;
        if !self.poll_seek()? {
            return Ok(Next::Waiting);
        }
        if !self.status.is_open || self.status.cursor.batches_left() == 0 {
            if self.status.is_open {
                self.status.enter_next_epoch();
            }
            return Ok(Next::End);
        }
        let held = self.held();
        if held > u64::from(self.status.terms.hold) {
            let (hold, slots) = (self.status.terms.hold, self.status.terms.slots);
            return Err(Error::HoldLimit { held, fields: String::new(), hold, slots });
        }
        match self.take_lease()? {
            Some(lease) => Ok(Next::Batch(self.hand_over(lease)?)),
            None => self.check_ending().map(|()| Next::Waiting),
        }
    }

    /// Takes the next batch of the current serial: first batches of a dead daemon, then from the ring. Older ones are
    /// returned at once. Until a seek is answered, its batches stay in the ring: the answer has their position.
    fn take_lease(&mut self) -> Result<Option<Lease>, Error> {
        if let Some(lease) = self.drained.pop_front() {
            return Ok(Some(lease));
        }
        if self.phase != Phase::Live {
            return Ok(None);
        }
        while let Some(descriptor) = self.peek_ring()? {
            let is_current = descriptor.seek_serial == self.serial;
            if is_current && self.seeking {
                return Ok(None);
            }
            let lease = self.take(descriptor)?;
            self.ring.show_taken(self.read);
            if is_current {
                return Ok(Some(lease));
            }
        }
        Ok(None)
    }

    /// The next descriptor of the present ring; it stays there.
    pub(super) fn peek_ring(&self) -> Result<Option<Descriptor>, Error> {
        if self.read >= self.publish.published() {
            return Ok(None);
        }
        let descriptor =
            self.publish.read(self.read).map_err(|error| Error::Protocol(error.to_string()))?;
        if descriptor.seek_serial > self.serial {
            return Err(Error::Protocol(format!(
                "batch {} was made for seek {} and this client is at seek {}",
                descriptor.sequence.0, descriptor.seek_serial, self.serial
            )));
        }
        Ok(Some(descriptor))
    }

    /// Takes the peeked descriptor. A batch of the current serial advances the position at which the next daemon begins.
    pub(super) fn take(&mut self, descriptor: Descriptor) -> Result<Lease, Error> {
        self.read += 1;
        if descriptor.seek_serial == self.serial && !descriptor.replayed {
            self.taken = (descriptor.position_after, descriptor.substitutes);
        }
        let mut lease = self.ring.lease(descriptor)?;
        lease.add_to_number(self.read_before);
        Ok(lease)
    }

    /// Whether no seek is pending. Old batches are returned meanwhile, so that the daemon has free slots.
    pub(super) fn poll_seek(&mut self) -> Result<bool, Error> {
        if self.seeking && self.phase == Phase::Live {
            self.read_frames()?;
        }
        if self.seeking {
            self.take_lease()?;
            self.check_ending()?;
        }
        Ok(!self.seeking)
    }

    /// Returns an error if the session has ended. Called when no batch is ready.
    fn check_ending(&mut self) -> Result<(), Error> {
        if let Some(error) = &self.lost {
            return Err(error.clone());
        }
        match self.link.ending() {
            Some(_) if self.phase != Phase::Live => Ok(()),
            Some(Ending::Gone(_)) if self.is_restartable() => self.on_daemon_lost(),
            Some(_) => {
                if let Some(supervisor) = self.link.supervisor() {
                    supervisor.stop();
                }
                Err(self.link.ending_error())
            }
            None => Ok(()),
        }
    }

    fn hand_over(&mut self, lease: Lease) -> Result<Batch, Error> {
        let descriptor = lease.descriptor();
        self.status.replaying = descriptor.replayed;
        if !descriptor.replayed {
            let is_last = self.status.cursor.batches_left() == 1;
            if descriptor.epoch != self.status.cursor.epoch() || descriptor.last_of_epoch != is_last
            {
                return Err(Error::Protocol(format!(
                    "batch {} is of epoch {} (last: {}), and {} batches of epoch {} were still due",
                    descriptor.sequence.0,
                    descriptor.epoch,
                    descriptor.last_of_epoch,
                    self.status.cursor.batches_left(),
                    self.status.cursor.epoch()
                )));
            }
            self.status.cursor.advance(descriptor.position_after, descriptor.substitutes);
            self.status.note_batch(descriptor);
        }
        if self.reads_ahead {
            self.status.waiting_since = None;
        } else {
            self.status.record_wait(descriptor.payload_bytes, &self.ring);
        }
        Ok(Batch { lease: Arc::new(lease), terms: Arc::clone(&self.status.terms) })
    }

    /// Waits for up to 50 ms, less if there is an event. To be called after [`try_next`](Self::try_next) returned
    /// [`Next::Waiting`].
    ///
    /// # Errors
    /// [`Error::Timeout`] without progress, [`Error::Interrupted`], and [`Error::DaemonLost`] when no daemon came back.
    pub fn wait(&mut self) -> Result<(), Error> {
        self.ring.check_process()?;
        let now = Instant::now();
        let is_new = self.status.waiting_since.is_none();
        self.status.waiting_since.get_or_insert(now);
        let published = self.publish.published();
        let progress =
            self.publish.progress().wrapping_add(published).wrapping_add(self.restarts());
        if is_new || progress != self.progress {
            self.progress = progress;
            self.patience = Patience::begin(now);
        }
        if !self.drained.is_empty() {
            return Ok(());
        }
        let waited_for = self.describe_wait();
        if self.phase == Phase::Live {
            self.ring.announce_sleep();
            // Checked after the announcement: a batch that was published before it rang no doorbell.
            let is_ready = !self.seeking && self.read < self.publish.published();
            let slice = if is_ready {
                Ok(())
            } else {
                self.link.wait_slice(PollFlags::POLLIN, &waited_for)
            };
            self.ring.announce_wake();
            slice?;
            self.read_frames()?;
        } else {
            self.wait_for_daemon(&waited_for)?;
            self.advance_recovery()?;
        }
        let waited = self.patience.look(Instant::now());
        let may_go_on = self.phase != Phase::Live || self.link.ending().is_none();
        if waited >= self.link.timeout() && may_go_on {
            self.status.waiting_since = None;
            return Err(self.timeout_error(waited, waited_for));
        }
        Ok(())
    }

    fn describe_wait(&self) -> String {
        let (stream, epoch) = (&self.status.terms.stream, self.status.cursor.epoch());
        if self.seeking {
            return format!("stream `{stream}` to go to epoch {epoch}");
        }
        format!(
            "the next batch of stream `{stream}` (epoch {epoch}, {} batches left)",
            self.status.cursor.batches_left()
        )
    }

    /// Handles all available frames.
    pub(super) fn read_frames(&mut self) -> Result<(), Error> {
        while let Some((frame, _)) = self.link.receive() {
            self.handle_frame(&frame)?;
        }
        Ok(())
    }

    pub(super) fn handle_frame(&mut self, frame: &DaemonFrame) -> Result<(), Error> {
        match frame {
            DaemonFrame::Positioned(answer) => self.handle_positioned(*answer),
            // The answer to an interrupted request.
            DaemonFrame::StatsPart { .. } | DaemonFrame::Names { .. } => {}
            other => return Err(unexpected(other, "no such frame")),
        }
        Ok(())
    }

    /// The answer to a seek. Answers to older seeks are ignored.
    pub(super) fn handle_positioned(&mut self, answer: Positioned) {
        if !self.seeking || answer.serial != self.serial {
            return;
        }
        self.seeking = false;
        if answer.position != self.taken.0 {
            self.taken = (answer.position, 0);
        }
        self.status.cursor.apply_seek(answer.position, answer.batches_left);
        self.status.note_positioned(&answer);
    }

    /// Position and substitutes at which the next daemon begins.
    pub(super) fn taken(&self) -> (Position, u64) {
        self.taken
    }
}

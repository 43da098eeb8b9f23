//! From the ring to the user: taking batches, reading frames, waiting.

use std::sync::Arc;
use std::time::Instant;

use forebay_protocol::frames::{DaemonFrame, Positioned};
use forebay_protocol::ids::Position;
use forebay_protocol::publish::Descriptor;
use nix::poll::PollFlags;

use super::recovery::Phase;
use super::{Loader, Next};
use crate::batch::Batch;
use crate::error::Error;
use crate::link::{Ending, unexpected};
use crate::ring::Lease;

impl Loader {
    /// The next batch of the epoch begun, if it is ready. Costs no system call then.
    ///
    /// # Errors
    /// As [`next_batch`](Self::next_batch), without the time-out.
    pub fn try_next(&mut self) -> Result<Next, Error> {
        self.check_process()?;
        self.tend()?;
        if !self.look_for_answer()? {
            return Ok(Next::Waiting);
        }
        if !self.is_open || self.place.batches_left() == 0 {
            if self.is_open {
                self.is_open = false;
                self.place.enter_next_epoch(self.terms.batches_per_epoch);
            }
            return Ok(Next::End);
        }
        let held = self.held();
        if held > u64::from(self.terms.hold) {
            return Err(Error::HoldLimit { held, hold: self.terms.hold, slots: self.terms.slots });
        }
        match self.take_current()? {
            Some(lease) => Ok(Next::Batch(self.hand_over(lease)?)),
            None => self.look_for_end().map(|()| Next::Waiting),
        }
    }

    /// Takes the next batch of the current serial: what a dead daemon left, then from the ring. Older ones go back at
    /// once. While a seek is not answered its batches stay in the ring: the answer says where they belong.
    fn take_current(&mut self) -> Result<Option<Lease>, Error> {
        if let Some(lease) = self.drained.pop_front() {
            return Ok(Some(lease));
        }
        if self.phase != Phase::Live {
            return Ok(None);
        }
        while let Some(descriptor) = self.look_into_ring()? {
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
    pub(super) fn look_into_ring(&self) -> Result<Option<Descriptor>, Error> {
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

    /// Takes the descriptor that was looked at. A batch of the current serial moves on where the next daemon would begin.
    pub(super) fn take(&mut self, descriptor: Descriptor) -> Result<Lease, Error> {
        self.read += 1;
        if descriptor.seek_serial == self.serial && !descriptor.replayed {
            self.taken = (descriptor.position_after, descriptor.substitutes);
        }
        let mut lease = self.ring.lease(descriptor)?;
        lease.add_to_number(self.read_before);
        Ok(lease)
    }

    /// Whether no seek is open any more. Old batches go back meanwhile, so that the daemon has room to go on.
    pub(super) fn look_for_answer(&mut self) -> Result<bool, Error> {
        if self.seeking && self.phase == Phase::Live {
            self.read_frames()?;
        }
        if self.seeking {
            self.take_current()?;
            self.look_for_end()?;
        }
        Ok(!self.seeking)
    }

    /// Nothing is there to take: has the session ended?
    fn look_for_end(&mut self) -> Result<(), Error> {
        if let Some(error) = &self.lost {
            return Err(error.clone());
        }
        match self.link.ending() {
            Some(_) if self.phase != Phase::Live => Ok(()),
            Some(Ending::Gone(_)) if self.comes_back() => self.lose_daemon(),
            Some(_) => {
                if let Some(keeper) = self.link.keeper() {
                    keeper.give_up();
                }
                Err(self.link.end_words())
            }
            None => Ok(()),
        }
    }

    fn hand_over(&mut self, lease: Lease) -> Result<Batch, Error> {
        let descriptor = lease.descriptor();
        self.replaying = descriptor.replayed;
        if !descriptor.replayed {
            let is_last = self.place.batches_left() == 1;
            if descriptor.epoch != self.place.epoch() || descriptor.last_of_epoch != is_last {
                return Err(Error::Protocol(format!(
                    "batch {} is of epoch {} (last: {}), and {} batches of epoch {} were still due",
                    descriptor.sequence.0,
                    descriptor.epoch,
                    descriptor.last_of_epoch,
                    self.place.batches_left(),
                    self.place.epoch()
                )));
            }
            self.place.advance(descriptor.position_after, descriptor.substitutes);
        }
        let wait = self.waiting_since.take().map(|since| since.elapsed());
        if !self.reads_ahead {
            self.statistics.record(wait, descriptor.payload_bytes);
        }
        if wait.is_some() && !self.reads_ahead {
            self.ring.show_waited(self.statistics.after_start());
        }
        Ok(Batch { lease: Arc::new(lease), terms: Arc::clone(&self.terms) })
    }

    /// Waits for one slice of 50 ms, or less when something comes. To be called when [`try_next`](Self::try_next) said
    /// [`Next::Waiting`].
    ///
    /// # Errors
    /// [`Error::Timeout`] without progress, [`Error::Interrupted`], and [`Error::DaemonLost`] when no daemon came back.
    pub fn wait(&mut self) -> Result<(), Error> {
        self.check_process()?;
        let begin = *self.waiting_since.get_or_insert_with(Instant::now);
        let published = self.publish.published();
        let progress =
            self.publish.progress().wrapping_add(published).wrapping_add(self.restarts());
        if progress != self.last_progress.0 || self.last_progress.1 < begin {
            self.last_progress = (progress, Instant::now());
        }
        if !self.drained.is_empty() {
            return Ok(());
        }
        let waited_for = self.describe_wait();
        if self.phase == Phase::Live {
            self.ring.announce_sleep();
            // The look after the announcement: a batch published before it rang nobody.
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
            self.tend()?;
        }
        let waited = self.last_progress.1.elapsed();
        let may_go_on = self.phase != Phase::Live || self.link.ending().is_none();
        if waited >= self.link.timeout() && may_go_on {
            self.waiting_since = None;
            return Err(self.out_of_time(waited, waited_for));
        }
        Ok(())
    }

    fn describe_wait(&self) -> String {
        let (stream, epoch) = (&self.terms.stream, self.place.epoch());
        if self.seeking {
            return format!("stream `{stream}` to go to epoch {epoch}");
        }
        format!(
            "the next batch of stream `{stream}` (epoch {epoch}, {} batches left)",
            self.place.batches_left()
        )
    }

    /// Reads the frames that are there.
    pub(super) fn read_frames(&mut self) -> Result<(), Error> {
        while let Some((frame, _)) = self.link.receive() {
            self.accept(&frame)?;
        }
        Ok(())
    }

    pub(super) fn accept(&mut self, frame: &DaemonFrame) -> Result<(), Error> {
        match frame {
            DaemonFrame::Positioned(place) => self.accept_position(*place),
            // An answer that an interrupted question left behind.
            DaemonFrame::StatsPart { .. } => {}
            other => return Err(unexpected(other, "no such frame")),
        }
        Ok(())
    }

    /// The answer to a seek. Answers to older seeks are passed over.
    pub(super) fn accept_position(&mut self, place: Positioned) {
        if !self.seeking || place.serial != self.serial {
            return;
        }
        self.seeking = false;
        if place.position != self.taken.0 {
            self.taken = (place.position, 0);
        }
        self.place.settle(place.position, place.batches_left);
    }

    /// Where the next daemon begins.
    pub(super) fn taken(&self) -> (Position, u64) {
        self.taken
    }
}

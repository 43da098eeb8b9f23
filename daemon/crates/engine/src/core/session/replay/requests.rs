//! Requests for a replay: the connections that may make them, and the reasons for refusals.

use std::sync::Arc;

use forebay_protocol::observing::ReplayRequest;

use crate::core::session::replay::digester::Digester;
use crate::core::session::replay::{Phase, Replay, Ring, Running};
use crate::ground::waker::Waker;

/// More than any measurement needs; with several ranks a replay cannot be stopped.
const MAX_STEPS: u64 = 100_000;

/// Batches left in the epoch after the last published one, and batches of a whole epoch.
type EpochBatches = (u64, u64);

impl Replay {
    /// Carries out a request.
    ///
    /// # Errors
    /// The reason for a refusal.
    pub(in super::super) fn request(
        &mut self,
        request: &ReplayRequest,
        owner: u64,
        epoch: EpochBatches,
        ring: &mut Ring,
        waker: &Arc<Waker>,
    ) -> Result<(), String> {
        let phase = &self.phase;
        let under_way = matches!(phase, Phase::Armed { .. } | Phase::Running(_));
        let is_free = matches!(phase, Phase::Idle | Phase::Done { .. } | Phase::Refused(_));
        if !is_free && self.owner != owner {
            return Err("another command is measuring this session; wait until it ends".to_owned());
        }
        match *request {
            ReplayRequest::Check { .. } | ReplayRequest::Arm { .. }
                if under_way || matches!(phase, Phase::Checking { .. }) =>
            {
                Err("a replay is under way in this session; wait until it ends".to_owned())
            }
            ReplayRequest::Check { batches, .. } => {
                self.end(Phase::Idle, ring);
                self.start_digester(ring, waker)?;
                let slots = ring.slots();
                let left = batches.clamp(1, slots);
                let until = ring.published() + u64::from(left) + 2 * u64::from(slots);
                self.owner = owner;
                self.phase = Phase::Checking { to_publish: left, left, until };
                Ok(())
            }
            ReplayRequest::Arm { at, batches, steps, .. } => {
                self.arm((at, batches, steps), epoch, ring, waker)?;
                self.owner = owner;
                Ok(())
            }
            ReplayRequest::Commit { .. } => match &mut self.phase {
                Phase::Armed { committed, .. } | Phase::Running(Running { committed, .. }) => {
                    *committed = true;
                    Ok(())
                }
                _ => Err("no replay is armed in this session".to_owned()),
            },
            ReplayRequest::Cancel { .. } => {
                if matches!(self.phase, Phase::Running(_)) && self.session.world_size > 1 {
                    return Err("the replay has started and the other ranks depend on it; it ends by itself"
                        .to_owned());
                }
                let reason = "it was cancelled".to_owned();
                let phase = if under_way { Phase::Refused(reason) } else { Phase::Idle };
                self.end(phase, ring);
                Ok(())
            }
        }
    }

    fn arm(
        &mut self,
        (at, batches, steps): (u64, u16, u64),
        (left, per_epoch): EpochBatches,
        ring: &mut Ring,
        waker: &Arc<Waker>,
    ) -> Result<(), String> {
        let (slots, hold) = (ring.slots(), self.session.hold);
        if batches == 0 || batches > slots || steps == 0 || steps > MAX_STEPS {
            return Err(format!(
                "{batches} batches and {steps} steps: batches must be 1 to {slots} (ring.slots), steps 1 to {MAX_STEPS}"
            ));
        }
        if self.session.world_size > 1 && !matches!(self.phase, Phase::Checked) {
            return Err("with several ranks a replay is checked before it is armed".to_owned());
        }
        if self.session.world_size > 1 && u32::from(batches) < u32::from(hold) + 2 {
            return Err(format!(
                "with several ranks at least ring.hold + 2 = {} batches are kept, so that no rank can end before the \
                 others; {batches} were asked for",
                u32::from(hold) + 2
            ));
        }
        let published = ring.published();
        if at < published {
            return Err(format!("batch {at} is already published; the next batch is {published}"));
        }
        let per_epoch = per_epoch.max(1);
        let left_there = match (at - published).checked_sub(left) {
            None => left - (at - published),
            Some(past) => per_epoch - past % per_epoch,
        };
        if left_there <= u64::from(batches) {
            return Err(format!(
                "{batches} batches from batch {at} cross the end of the epoch: only {left_there} remain"
            ));
        }
        self.end(Phase::Idle, ring);
        self.start_digester(ring, waker)?;
        self.phase = Phase::Armed { at, batches, steps, committed: false };
        Ok(())
    }

    fn start_digester(&mut self, ring: &Ring, waker: &Arc<Waker>) -> Result<(), String> {
        let session = &self.session;
        let started = Digester::start(&session.data, session.slot_bytes, ring.slots(), waker)
            .map_err(|error| format!("cannot start a thread: {error}"))?;
        self.digester = Some(started);
        Ok(())
    }

    /// Called after a connection that made requests has closed.
    pub(in super::super) fn on_disconnect(&mut self, owner: u64, ring: &mut Ring) {
        if self.owner != owner {
            return;
        }
        match &self.phase {
            Phase::Checking { .. } | Phase::Checked | Phase::Armed { committed: false, .. } => {
                self.end(Phase::Idle, ring);
            }
            Phase::Running(Running { committed: false, .. }) => {
                let reason = "the requesting command has ended".to_owned();
                self.end(Phase::Refused(reason), ring);
            }
            _ => {}
        }
    }
}

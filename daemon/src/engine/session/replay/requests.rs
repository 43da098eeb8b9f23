//! What is asked about a replay, and by whom: what cannot be is refused with the reason.

use std::sync::Arc;

use forebay_protocol::observing::ReplayRequest;

use super::{Phase, Running, Session};
use crate::engine::bell::Bell;
use crate::engine::digest::Digester;

/// More than any measurement takes; with several ranks it cannot be stopped.
const MOST_STEPS: u64 = 100_000;

impl Session {
    /// Does what is asked; the reason where it cannot be done.
    pub(in crate::engine) fn ask_replay(
        &mut self,
        request: &ReplayRequest,
        owner: u64,
        bell: &Arc<Bell>,
    ) -> Result<(), String> {
        if !self.stream.config.session.allow_headspace {
            return Err(format!(
                "stream `{}` does not allow a replay: session.allow_headspace is false",
                self.stream.name()
            ));
        }
        let phase = &self.replay.phase;
        let under_way = matches!(phase, Phase::Armed { .. } | Phase::Running(_));
        let is_free = matches!(phase, Phase::Idle | Phase::Done { .. } | Phase::Refused(_));
        if !is_free && self.replay.owner != owner {
            return Err("another command measures this session; wait for its end".to_owned());
        }
        match *request {
            ReplayRequest::Check { .. } | ReplayRequest::Arm { .. }
                if under_way || matches!(phase, Phase::Checking { .. }) =>
            {
                Err("a replay is under way in this session; wait for its end".to_owned())
            }
            ReplayRequest::Check { batches, .. } => {
                self.let_replay_go(Phase::Idle);
                self.start_digester(bell)?;
                let slots = self.stream.config.ring.slots;
                let left = batches.clamp(1, slots);
                let until = self.publish.published() + u64::from(left) + 2 * u64::from(slots);
                self.replay.owner = owner;
                self.replay.phase = Phase::Checking { to_publish: left, left, until };
                Ok(())
            }
            ReplayRequest::Arm { at, batches, steps, .. } => {
                self.arm(at, batches, steps, bell)?;
                self.replay.owner = owner;
                Ok(())
            }
            ReplayRequest::Commit { .. } => match &mut self.replay.phase {
                Phase::Armed { committed, .. } | Phase::Running(Running { committed, .. }) => {
                    *committed = true;
                    Ok(())
                }
                _ => Err("no replay is armed in this session".to_owned()),
            },
            ReplayRequest::Cancel { .. } => {
                if matches!(self.replay.phase, Phase::Running(_)) && self.world_size > 1 {
                    return Err("the replay has begun, and the other ranks count on its steps; it ends by itself"
                        .to_owned());
                }
                let reason = "it was cancelled".to_owned();
                self.let_replay_go(if under_way { Phase::Refused(reason) } else { Phase::Idle });
                Ok(())
            }
        }
    }

    fn arm(&mut self, at: u64, batches: u16, steps: u64, bell: &Arc<Bell>) -> Result<(), String> {
        let (slots, hold) = (self.stream.config.ring.slots, self.stream.config.ring.hold);
        if batches == 0 || batches > slots || steps == 0 || steps > MOST_STEPS {
            return Err(format!(
                "{batches} batches shown {steps} times: the batches are 1 to {slots} (ring.slots), the steps 1 to \
                 {MOST_STEPS}"
            ));
        }
        if self.world_size > 1 && !matches!(self.replay.phase, Phase::Checked) {
            return Err("with several ranks a replay is checked before it is armed".to_owned());
        }
        if self.world_size > 1 && u32::from(batches) < u32::from(hold) + 2 {
            return Err(format!(
                "with several ranks at least ring.hold + 2 = {} batches are kept, so that no rank can end before the \
                 others; {batches} were asked for",
                u32::from(hold) + 2
            ));
        }
        let published = self.publish.published();
        if at < published {
            return Err(format!("batch {at} is published already; the next one is {published}"));
        }
        let left = self.schedule.batches_left(self.published_until);
        let per_epoch = self.schedule.batches_per_epoch().max(1);
        let left_there = match (at - published).checked_sub(left) {
            None => left - (at - published),
            Some(past) => per_epoch - past % per_epoch,
        };
        if left_there <= u64::from(batches) {
            return Err(format!(
                "{batches} batches from {at} on do not lie within one epoch: {left_there} are left of it there"
            ));
        }
        self.let_replay_go(Phase::Idle);
        self.start_digester(bell)?;
        self.replay.phase = Phase::Armed { at, batches, steps, committed: false };
        Ok(())
    }

    fn start_digester(&mut self, bell: &Arc<Bell>) -> Result<(), String> {
        let (slot_bytes, slots) = (self.stream.layout.slot_bytes(), self.stream.config.ring.slots);
        let started = Digester::start(&self.replay.data, slot_bytes, slots, bell)
            .map_err(|error| format!("cannot start a thread: {error}"))?;
        self.replay.digester = Some(started);
        Ok(())
    }

    /// A connection that had asked is gone.
    pub(in crate::engine) fn disarm_replay(&mut self, owner: u64) {
        if self.replay.owner != owner {
            return;
        }
        match &self.replay.phase {
            Phase::Checking { .. } | Phase::Checked | Phase::Armed { committed: false, .. } => {
                self.let_replay_go(Phase::Idle);
            }
            Phase::Running(Running { committed: false, .. }) => {
                let reason = "the command that had asked for it has ended".to_owned();
                self.let_replay_go(Phase::Refused(reason));
            }
            _ => {}
        }
    }
}

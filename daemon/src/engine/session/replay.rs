//! A replay: the trainer is shown the same few batches again for a while, so that it can be measured what a step takes when
//! data costs nothing. Nothing is fetched or decoded meanwhile, and the stream goes on afterwards where it was.
//!
//! States, all moved by the engine thread:
//! ```text
//!   Idle ──Check──► Checking ──as many compared──► Checked ──Arm──► Armed ──Commit──► Armed (committed)
//!                      │                                              │ batch `at` is next to be published
//!                      │ a batch came back changed                    ▼
//!                      ▼                                           Running: keeps `batches` batches, then shows them
//!                   Refused ◄── changed, starved, jumped ─────────────┤
//!                                                                     └──shown `steps` times──► Done
//! ```
//! Checking, and what is not committed, end with the connection that asked. Checking is asked for first because a
//! trainer that changes its batches in place would be trained on garbage; with several ranks it must be known of all of
//! them before any begins, since each has to be shown the same number of batches (collectives would hang).
//!
//! A batch that is to be compared is digested before it is published and when it has come back; a slot that is being
//! digested is kept from being filled. Batches behind the kept ones are made as slots allow, and published afterwards.

use std::collections::BTreeMap;
use std::fs::File;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_protocol::ids::{BatchNumber, Generation, SlotIndex};
use forebay_protocol::lease::SlotState;
use forebay_protocol::observing::{ReplayRequest, ReplayState};
use forebay_protocol::publish::Descriptor;
use forebay_protocol::returns::ReturnWord;

use super::Session;
use crate::engine::bell::Bell;
use crate::engine::digest::{Digested, Digester};

/// A trainer that waits for so long while it holds every kept batch wants more of them at once than there are.
const STARVED_AFTER: Duration = Duration::from_secs(1);

type Digest = [u8; 32];

/// What a session knows of its replay.
#[derive(Debug)]
pub(in crate::engine) struct Replay {
    phase: Phase,
    data: Arc<File>,
    digester: Option<Digester>,
    /// Of complete batches that are about to be published, by slot.
    fresh: BTreeMap<SlotIndex, Asked>,
    /// Of batches that are out, by slot.
    published: BTreeMap<SlotIndex, (Generation, Digest)>,
}

#[derive(Debug, Clone, Copy)]
enum Asked {
    Pending(Generation),
    Known(Generation, Digest),
}

#[derive(Debug)]
enum Phase {
    Idle,
    /// Batches to digest before they are published, and to compare when they come back.
    Checking {
        to_publish: u16,
        left: u16,
    },
    Checked,
    Armed {
        at: u64,
        batches: u16,
        steps: u64,
        committed: bool,
    },
    Running(Running),
    Done {
        first: u64,
        replayed: u64,
    },
    Refused(String),
}

#[derive(Debug)]
struct Running {
    committed: bool,
    batches: u16,
    steps: u64,
    first: Option<u64>,
    replayed: u64,
    kept: BTreeMap<SlotIndex, Descriptor>,
    /// Compared before the last of the kept ones was published: they come again after it.
    compared: Vec<(SlotIndex, Digest)>,
    starved_since: Option<Instant>,
}

impl Replay {
    /// No replay of a session whose batches lie in `data`.
    pub(super) fn new(data: Arc<File>) -> Self {
        let (fresh, published) = (BTreeMap::new(), BTreeMap::new());
        Self { phase: Phase::Idle, data, digester: None, fresh, published }
    }

    /// Where it stands.
    pub(super) fn state(&self) -> ReplayState {
        match &self.phase {
            Phase::Idle => ReplayState::Idle,
            Phase::Checking { left, .. } => ReplayState::Checking { left: *left },
            Phase::Checked => ReplayState::Checked,
            Phase::Armed { at, committed, .. } => {
                ReplayState::Armed { at: *at, committed: *committed }
            }
            Phase::Running(running) => {
                ReplayState::Running { first: running.first, replayed: running.replayed }
            }
            Phase::Done { first, replayed } => {
                ReplayState::Done { first: *first, replayed: *replayed }
            }
            Phase::Refused(reason) => ReplayState::Refused { reason: reason.clone() },
        }
    }

    /// Whether something is to happen without the trainer's doing.
    pub(super) fn is_working(&self) -> bool {
        matches!(self.phase, Phase::Running(_))
    }

    /// Whether the next batch is digested before it is published.
    fn digests_next(&self) -> bool {
        match &self.phase {
            Phase::Checking { to_publish, .. } => *to_publish > 0,
            Phase::Running(running) => running.kept.len() < usize::from(running.batches),
            _ => false,
        }
    }
}

impl Session {
    /// Does what is asked; the reason where it cannot be done.
    pub(in crate::engine) fn ask_replay(
        &mut self,
        request: &ReplayRequest,
        bell: &Arc<Bell>,
    ) -> Result<(), String> {
        if !self.stream.config.session.allow_headspace {
            return Err(format!(
                "stream `{}` does not allow a replay: session.allow_headspace is false",
                self.stream.name()
            ));
        }
        let under_way = matches!(self.replay.phase, Phase::Armed { .. } | Phase::Running(_));
        match *request {
            ReplayRequest::Check { .. } | ReplayRequest::Arm { .. } if under_way => {
                Err("a replay is under way in this session; wait for its end".to_owned())
            }
            ReplayRequest::Check { batches, .. } => {
                self.let_replay_go(Phase::Idle);
                self.start_digester(bell)?;
                let left = batches.max(1);
                self.replay.phase = Phase::Checking { to_publish: left, left };
                Ok(())
            }
            ReplayRequest::Arm { at, batches, steps, .. } => self.arm(at, batches, steps, bell),
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
        if batches == 0 || batches > slots || steps == 0 {
            return Err(format!(
                "{batches} batches shown {steps} times: the batches are 1 to {slots} (ring.slots), the steps at least \
                 1"
            ));
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

    /// The connection that asked is gone.
    pub(in crate::engine) fn disarm_replay(&mut self) {
        match &self.replay.phase {
            Phase::Checking { .. } | Phase::Armed { committed: false, .. } => {
                self.let_replay_go(Phase::Idle);
            }
            Phase::Running(Running { committed: false, .. }) => {
                let reason = "the command that had asked for it has ended".to_owned();
                self.let_replay_go(Phase::Refused(reason));
            }
            _ => {}
        }
    }

    /// Ends it, however far it is.
    fn let_replay_go(&mut self, phase: Phase) {
        if let Phase::Refused(reason) = &phase {
            tracing::warn!(session = self.number, "the replay was given up: {reason}");
        }
        let replay = &mut self.replay;
        (replay.phase, replay.digester) = (phase, None);
        replay.fresh.clear();
        replay.published.clear();
        for slot in 0..self.stream.config.ring.slots {
            self.slots.release(SlotIndex(slot));
        }
    }

    /// The trainer went elsewhere: what was kept is of another place.
    pub(super) fn abandon_replay(&mut self) {
        let asked = !matches!(
            self.replay.phase,
            Phase::Idle | Phase::Checked | Phase::Done { .. } | Phase::Refused(_)
        );
        if asked {
            let reason =
                "the trainer went to another epoch or position meanwhile; measure within an epoch";
            self.let_replay_go(Phase::Refused(reason.to_owned()));
        }
    }

    /// Whether the complete batch in `slot` may be published now; what is kept for a replay is digested first.
    pub(super) fn replay_lets_publish(&mut self, slot: SlotIndex, generation: Generation) -> bool {
        let published = self.publish.published();
        if let Phase::Armed { at, batches, steps, committed } = self.replay.phase
            && published >= at
        {
            tracing::info!(session = self.number, batches, steps, "a replay begins");
            let (first, replayed, starved_since) = (None, 0, None);
            let (kept, compared) = (BTreeMap::new(), Vec::new());
            self.replay.phase = Phase::Running(Running {
                committed,
                batches,
                steps,
                first,
                replayed,
                kept,
                compared,
                starved_since,
            });
        }
        if !self.replay.digests_next() {
            // All that are kept are out: nothing new comes before the end.
            return !matches!(self.replay.phase, Phase::Running(_));
        }
        match self.replay.fresh.get(&slot) {
            Some(Asked::Known(known, _)) if *known == generation => true,
            Some(Asked::Pending(pending)) if *pending == generation => false,
            _ => {
                self.ask_digest(slot, generation);
                false
            }
        }
    }

    fn ask_digest(&mut self, slot: SlotIndex, generation: Generation) {
        self.replay.fresh.insert(slot, Asked::Pending(generation));
        let asked =
            self.replay.digester.as_ref().is_some_and(|digester| digester.ask(slot, generation));
        if !asked {
            self.let_replay_go(Phase::Refused("its threads have ended".to_owned()));
        }
    }

    /// A batch was published; one that is to be compared is remembered.
    pub(super) fn replay_saw_published(&mut self, descriptor: &Descriptor) {
        let slot = descriptor.slot;
        let Some(Asked::Known(generation, digest)) = self.replay.fresh.remove(&slot) else {
            return;
        };
        self.replay.published.insert(slot, (generation, digest));
        match &mut self.replay.phase {
            Phase::Checking { to_publish, .. } => *to_publish = to_publish.saturating_sub(1),
            Phase::Running(running) => {
                running.kept.insert(slot, descriptor.clone());
                if running.kept.len() == usize::from(running.batches) {
                    running.first = Some(descriptor.sequence.0 + 1);
                    for (slot, digest) in std::mem::take(&mut running.compared) {
                        self.show_again(slot, digest);
                    }
                }
            }
            _ => {}
        }
    }

    /// A slot came back and is free; one that is to be compared is kept from being filled.
    pub(super) fn replay_saw_return(&mut self, word: ReturnWord) {
        let is_compared = self
            .replay
            .published
            .get(&word.slot)
            .is_some_and(|(generation, _)| *generation == word.generation);
        if is_compared && self.slots.keep(word.slot) {
            self.ask_digest(word.slot, word.generation);
        }
    }

    /// Takes digests that are done, and looks for a trainer that cannot go on.
    pub(super) fn go_on_with_replay(&mut self) {
        while let Some(done) = self.replay.digester.as_ref().and_then(Digester::take) {
            self.take_digest(done);
        }
        self.look_for_starvation();
    }

    fn take_digest(&mut self, done: Digested) {
        let Digested { slot, generation, digest } = done;
        let is_asked = matches!(
            self.replay.fresh.get(&slot),
            Some(Asked::Pending(pending)) if *pending == generation
        );
        if !is_asked {
            return;
        }
        let digest = match digest {
            Ok(digest) => digest,
            Err(error) => {
                let reason = format!("the ring's memory cannot be read: {error}");
                return self.let_replay_go(Phase::Refused(reason));
            }
        };
        match self.replay.published.get(&slot) {
            Some((published, before)) if *published == generation => {
                let is_same = *before == digest;
                self.replay.fresh.remove(&slot);
                self.replay.published.remove(&slot);
                self.compare(slot, digest, is_same);
            }
            _ => {
                self.replay.fresh.insert(slot, Asked::Known(generation, digest));
            }
        }
    }

    /// A batch came back and was compared with what was published.
    fn compare(&mut self, slot: SlotIndex, digest: Digest, is_same: bool) {
        let changed = "the trainer changes its batches in place, so a replay would train on changed data; let it \
                       work on copies (in PyTorch: no operation whose name ends in `_` on a batch)";
        match &mut self.replay.phase {
            Phase::Checking { left, .. } => {
                self.slots.release(slot);
                *left = left.saturating_sub(1);
                if !is_same {
                    self.let_replay_go(Phase::Refused(changed.to_owned()));
                } else if *left == 0 {
                    self.let_replay_go(Phase::Checked);
                }
            }
            // With other ranks the number of batches that are shown again is a promise.
            Phase::Running(_) if !is_same && self.world_size == 1 => {
                self.let_replay_go(Phase::Refused(changed.to_owned()));
            }
            Phase::Running(running) if running.first.is_none() => {
                running.compared.push((slot, digest));
            }
            Phase::Running(_) => self.show_again(slot, digest),
            _ => self.slots.release(slot),
        }
    }

    fn show_again(&mut self, slot: SlotIndex, digest: Digest) {
        let Phase::Running(running) = &mut self.replay.phase else {
            return self.slots.release(slot);
        };
        let Some(kept) = running.kept.get(&slot) else { return self.slots.release(slot) };
        let generation = self.slots.show_again(slot);
        let descriptor = Descriptor {
            sequence: BatchNumber(self.publish.published()),
            generation,
            seek_serial: self.seek_serial,
            replayed: true,
            ..kept.clone()
        };
        running.replayed += 1;
        let done = running.replayed == running.steps;
        let (first, replayed) = (running.first.unwrap_or(descriptor.sequence.0), running.replayed);
        self.replay.published.insert(slot, (generation, digest));
        self.publish.publish(&descriptor);
        self.ring_if_asleep();
        if done {
            tracing::info!(session = self.number, replayed, "the replay is over");
            self.let_replay_go(Phase::Done { first, replayed });
        }
    }

    fn look_for_starvation(&mut self) {
        let is_starved = self.client_waits()
            && self.slots.count(SlotState::Kept) == 0
            && matches!(&self.replay.phase, Phase::Running(running) if running.first.is_some());
        let Phase::Running(running) = &mut self.replay.phase else { return };
        if !is_starved {
            running.starved_since = None;
        } else if running.starved_since.get_or_insert_with(Instant::now).elapsed() >= STARVED_AFTER
        {
            let reason = format!(
                "the trainer holds {} batches at once and wants another one; replay more of them (--batches)",
                running.batches
            );
            self.let_replay_go(Phase::Refused(reason));
        }
    }
}

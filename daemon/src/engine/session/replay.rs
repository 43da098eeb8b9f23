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
//! It belongs to the connection that asked for the check: others are refused until it has ended. Checking, and what is not
//! committed, end with that connection; with several ranks what is not committed does not begin.
//!
//!  Checking is asked for first because a
//! trainer that changes its batches in place would be trained on garbage; with several ranks it must be known of all of
//! them before any begins, since each has to be shown the same number of batches (collectives would hang).
//!
//! A batch that is to be compared is digested before it is published and when it has come back; a slot that is being
//! digested is kept from being filled. Batches behind the kept ones are made as slots allow, and published afterwards.

mod requests;

use std::collections::BTreeMap;
use std::fs::File;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_protocol::ids::{BatchNumber, Generation, SlotIndex};
use forebay_protocol::lease::SlotState;
use forebay_protocol::observing::ReplayState;
use forebay_protocol::publish::Descriptor;
use forebay_protocol::returns::ReturnWord;

use super::Session;
use crate::engine::digest::{Digested, Digester};

/// A trainer that waits for so long while it holds every kept batch wants more of them at once than there are.
const STARVED_AFTER: Duration = Duration::from_secs(1);

type Digest = [u8; 32];

/// What a session knows of its replay.
#[derive(Debug)]
pub(in crate::engine) struct Replay {
    phase: Phase,
    /// The connection that it belongs to.
    owner: u64,
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
        /// A trainer that has not given all back when this batch is published keeps some: the others tell enough.
        until: u64,
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
        Self { phase: Phase::Idle, owner: 0, data, digester: None, fresh, published }
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
            if self.world_size > 1 && !committed {
                let reason =
                    "it was not committed in time, and the other ranks might not begin".to_owned();
                self.let_replay_go(Phase::Refused(reason));
                return true;
            }
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
        if let Phase::Checking { to_publish: 0, until, .. } = self.replay.phase
            && self.publish.published() >= until
        {
            self.let_replay_go(Phase::Checked);
        }
        self.look_for_starvation();
    }

    /// Whether each batch that comes back is to be seen at once: few go round, and they are shown again.
    pub(super) fn replay_wants_returns(&self) -> bool {
        matches!(self.replay.phase, Phase::Running(_))
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
        let nothing_kept_back = self.slots.count(SlotState::Kept) == 0;
        // No slot is left for a batch that is still to be kept: the trainer keeps one from before.
        let nothing_to_come = self.open.is_empty()
            && self.cancelled.is_empty()
            && self.slots.count(SlotState::Free) == 0;
        let waits = self.client_waits();
        let published = self.publish.published();
        let Phase::Running(running) = &mut self.replay.phase else { return };
        let lacks_slots = running.first.is_none();
        let is_starved = waits && if lacks_slots { nothing_to_come } else { nothing_kept_back };
        if !is_starved {
            running.starved_since = None;
            return;
        }
        if running.starved_since.get_or_insert_with(Instant::now).elapsed() < STARVED_AFTER {
            return;
        }
        running.starved_since = None;
        if lacks_slots && !running.kept.is_empty() {
            // Only the number of batches shown again is the same over the ranks.
            running.batches = u16::try_from(running.kept.len()).unwrap_or(running.batches);
            running.first = Some(published);
            for (slot, digest) in std::mem::take(&mut running.compared) {
                self.show_again(slot, digest);
            }
            return;
        }
        let reason = format!(
            "the trainer holds {} batches at once and wants another one; replay more of them (--batches)",
            running.kept.len()
        );
        self.let_replay_go(Phase::Refused(reason));
    }
}

//! A replay: the trainer gets the same few batches repeatedly for a while, to measure the time of a step without data
//! loading. Nothing is fetched or decoded meanwhile; afterwards the stream continues at its position.
//!
//! States; the engine thread makes all transitions:
//! ```text
//!   Idle ──Check──► Checking ──as many compared──► Checked ──Arm──► Armed ──Commit──► Armed (committed)
//!                      │                                              │ batch `at` is next to be published
//!                      │ a batch came back changed                    ▼
//!                      ▼                                           Running: keeps `batches` batches, then repeats them
//!                   Refused ◄── changed, starved, seek ───────────────┤
//!                                                                     └──repeated `steps` times──► Done
//! ```
//! The session owns its [`Replay`] and calls it at fixed points: [`request`](Replay::request) and
//! [`on_disconnect`](Replay::on_disconnect) for the requesting connection, [`before_publish`](Replay::before_publish)
//! and [`on_published`](Replay::on_published) around each batch, [`on_return`](Replay::on_return) for each returned
//! slot, [`advance`](Replay::advance) on each turn, [`on_seek`](Replay::on_seek). It uses only the session's [`Ring`].
//!
//! A replay belongs to the connection that requested the check: other connections are refused until it has ended. A
//! check, and a replay that is not committed, end with that connection; with several ranks a replay starts only after
//! it is committed. The check comes first because a trainer that modifies its batches in place would train on wrong
//! data; with several ranks all must pass before any starts, since each must get the same number of batches
//! (collectives would hang).
//!
//! A batch to compare is hashed before it is published and after it was returned; its slot is not filled meanwhile.
//! Batches after the kept ones are filled while slots are free, and published afterwards.

mod digester;
mod requests;

use std::collections::BTreeMap;
use std::fs::File;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_protocol::ids::{Generation, SlotIndex};
use forebay_protocol::lease::SlotState;
use forebay_protocol::observing::ReplayState;
use forebay_protocol::publish::Descriptor;
use forebay_protocol::returns::ReturnWord;

use self::digester::{Digested, Digester};
use crate::core::session::ring::Ring;

/// If a trainer waits for this long while it holds every kept batch, it needs more batches at once than are kept.
const STARVED_AFTER: Duration = Duration::from_secs(1);

type Digest = [u8; 32];

/// A replay's view of its session.
#[derive(Debug)]
pub(super) struct ReplaySession {
    pub(super) number: u64,
    pub(super) world_size: u32,
    /// `ring.hold`.
    pub(super) hold: u16,
    pub(super) slot_bytes: u64,
    /// The data segment.
    pub(super) data: Arc<File>,
}

/// See the module's head.
#[derive(Debug)]
pub(super) struct Replay {
    session: ReplaySession,
    phase: Phase,
    /// The connection that the replay belongs to.
    owner: u64,
    digester: Option<Digester>,
    /// Complete batches that will be published next, by slot.
    fresh: BTreeMap<SlotIndex, Hash>,
    /// Batches that the client has, by slot.
    published: BTreeMap<SlotIndex, (Generation, Digest)>,
}

#[derive(Debug, Clone, Copy)]
enum Hash {
    Pending(Generation),
    Known(Generation, Digest),
}

#[derive(Debug)]
enum Phase {
    Idle,
    /// Numbers of batches still to hash before publication, and still to compare after their return.
    Checking {
        to_publish: u16,
        left: u16,
        /// The check ends when this batch is published, even if the trainer still keeps some batches: the returned ones
        /// decide.
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
    /// Batches returned and compared before the last of the kept batches was published; they are repeated after it.
    compared: Vec<(SlotIndex, Digest)>,
    starved_since: Option<Instant>,
}

impl Replay {
    pub(super) fn new(session: ReplaySession) -> Self {
        let (fresh, published) = (BTreeMap::new(), BTreeMap::new());
        Self { session, phase: Phase::Idle, owner: 0, digester: None, fresh, published }
    }

    /// The state as reported to clients.
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

    /// Whether it runs: each returned batch is then needed at once, and the trainer is checked for starvation.
    pub(super) fn is_working(&self) -> bool {
        matches!(self.phase, Phase::Running(_))
    }

    /// Whether the next batch is hashed before it is published.
    fn digests_next(&self) -> bool {
        match &self.phase {
            Phase::Checking { to_publish, .. } => *to_publish > 0,
            Phase::Running(running) => running.kept.len() < usize::from(running.batches),
            _ => false,
        }
    }

    /// Ends the replay, in any state.
    fn end(&mut self, phase: Phase, ring: &mut Ring) {
        if let Phase::Refused(reason) = &phase {
            tracing::warn!(session = self.session.number, "the replay ended early: {reason}");
        }
        (self.phase, self.digester) = (phase, None);
        self.fresh.clear();
        self.published.clear();
        ring.release_all();
    }

    /// Called on the client's seek: the kept batches belong to another position.
    pub(super) fn on_seek(&mut self, ring: &mut Ring) {
        let under_way = !matches!(
            self.phase,
            Phase::Idle | Phase::Checked | Phase::Done { .. } | Phase::Refused(_)
        );
        if under_way {
            let reason = "the trainer moved to another epoch or position; measure within an epoch";
            self.end(Phase::Refused(reason.to_owned()), ring);
        }
    }

    /// Whether the complete batch in `slot` may be published now: a batch to compare is hashed first, and no batch is
    /// published while kept batches are repeated.
    pub(super) fn before_publish(
        &mut self,
        slot: SlotIndex,
        generation: Generation,
        ring: &mut Ring,
    ) -> bool {
        let published = ring.published();
        if let Phase::Armed { at, batches, steps, committed } = self.phase
            && published >= at
        {
            if self.session.world_size > 1 && !committed {
                let reason =
                    "the replay was not committed in time; other ranks may not have started"
                        .to_owned();
                self.end(Phase::Refused(reason), ring);
                return true;
            }
            tracing::info!(session = self.session.number, batches, steps, "a replay starts");
            let (first, replayed, starved_since) = (None, 0, None);
            let (kept, compared) = (BTreeMap::new(), Vec::new());
            self.phase = Phase::Running(Running {
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
        if !self.digests_next() {
            // All kept batches are published: no new batch follows before the end.
            return !matches!(self.phase, Phase::Running(_));
        }
        match self.fresh.get(&slot) {
            Some(Hash::Known(known, _)) if *known == generation => true,
            Some(Hash::Pending(pending)) if *pending == generation => false,
            _ => {
                self.ask_digest(slot, generation, ring);
                false
            }
        }
    }

    fn ask_digest(&mut self, slot: SlotIndex, generation: Generation, ring: &mut Ring) {
        self.fresh.insert(slot, Hash::Pending(generation));
        let asked = self.digester.as_ref().is_some_and(|digester| digester.ask(slot, generation));
        if !asked {
            self.end(Phase::Refused("its threads have ended".to_owned()), ring);
        }
    }

    /// Called after a publication; remembers a batch to compare.
    pub(super) fn on_published(&mut self, descriptor: &Descriptor, ring: &mut Ring) {
        let slot = descriptor.slot;
        let Some(Hash::Known(generation, digest)) = self.fresh.remove(&slot) else {
            return;
        };
        self.published.insert(slot, (generation, digest));
        match &mut self.phase {
            Phase::Checking { to_publish, .. } => *to_publish = to_publish.saturating_sub(1),
            Phase::Running(running) => {
                running.kept.insert(slot, descriptor.clone());
                if running.kept.len() == usize::from(running.batches) {
                    running.first = Some(descriptor.sequence.0 + 1);
                    for (slot, digest) in std::mem::take(&mut running.compared) {
                        self.repeat(slot, digest, ring);
                    }
                }
            }
            _ => {}
        }
    }

    /// Called after a slot was returned and freed; keeps the slot of a batch to compare from being filled.
    pub(super) fn on_return(&mut self, word: ReturnWord, ring: &mut Ring) {
        let is_compared = self
            .published
            .get(&word.slot)
            .is_some_and(|(generation, _)| *generation == word.generation);
        if is_compared && ring.keep(word.slot) {
            self.ask_digest(word.slot, word.generation, ring);
        }
    }

    /// Takes finished digests, and detects a starving trainer. `is_idle`: no batch of the session is being filled.
    pub(super) fn advance(&mut self, is_idle: bool, ring: &mut Ring) {
        while let Some(done) = self.digester.as_ref().and_then(Digester::take) {
            self.take_digest(done, ring);
        }
        if let Phase::Checking { to_publish: 0, until, .. } = self.phase
            && ring.published() >= until
        {
            self.end(Phase::Checked, ring);
        }
        self.detect_starvation(is_idle, ring);
    }

    fn take_digest(&mut self, done: Digested, ring: &mut Ring) {
        let Digested { slot, generation, digest } = done;
        let is_asked = matches!(
            self.fresh.get(&slot),
            Some(Hash::Pending(pending)) if *pending == generation
        );
        if !is_asked {
            return;
        }
        let digest = match digest {
            Ok(digest) => digest,
            Err(error) => {
                let reason = format!("the ring's memory cannot be read: {error}");
                return self.end(Phase::Refused(reason), ring);
            }
        };
        match self.published.get(&slot) {
            Some((published, before)) if *published == generation => {
                let is_same = *before == digest;
                self.fresh.remove(&slot);
                self.published.remove(&slot);
                self.compare(slot, digest, is_same, ring);
            }
            _ => {
                self.fresh.insert(slot, Hash::Known(generation, digest));
            }
        }
    }

    /// Handles a returned batch that was compared with its published contents.
    fn compare(&mut self, slot: SlotIndex, digest: Digest, is_same: bool, ring: &mut Ring) {
        let changed = "the trainer modifies batches in place, so a replay would show modified data; work on copies \
                       (in PyTorch: no in-place operations such as `add_` on a batch)";
        match &mut self.phase {
            Phase::Checking { left, .. } => {
                ring.release(slot);
                *left = left.saturating_sub(1);
                if !is_same {
                    self.end(Phase::Refused(changed.to_owned()), ring);
                } else if *left == 0 {
                    self.end(Phase::Checked, ring);
                }
            }
            // With other ranks the number of repeated batches is fixed.
            Phase::Running(_) if !is_same && self.session.world_size == 1 => {
                self.end(Phase::Refused(changed.to_owned()), ring);
            }
            Phase::Running(running) if running.first.is_none() => {
                running.compared.push((slot, digest));
            }
            Phase::Running(_) => self.repeat(slot, digest, ring),
            _ => ring.release(slot),
        }
    }

    fn repeat(&mut self, slot: SlotIndex, digest: Digest, ring: &mut Ring) {
        let Phase::Running(running) = &mut self.phase else {
            return ring.release(slot);
        };
        let Some(kept) = running.kept.get(&slot) else { return ring.release(slot) };
        let descriptor = ring.publish_again(kept);
        running.replayed += 1;
        let done = running.replayed == running.steps;
        let (first, replayed) = (running.first.unwrap_or(descriptor.sequence.0), running.replayed);
        self.published.insert(slot, (descriptor.generation, digest));
        if done {
            tracing::info!(session = self.session.number, replayed, "the replay has ended");
            self.end(Phase::Done { first, replayed }, ring);
        }
    }

    fn detect_starvation(&mut self, is_idle: bool, ring: &mut Ring) {
        let nothing_kept_back = ring.count(SlotState::Kept) == 0;
        // No slot is left for a batch still to be kept: the trainer holds an earlier batch.
        let nothing_to_come = is_idle && ring.count(SlotState::Free) == 0;
        let waits = ring.client_waits();
        let published = ring.published();
        let Phase::Running(running) = &mut self.phase else { return };
        let lacks_slots = running.first.is_none();
        let is_starved = waits && if lacks_slots { nothing_to_come } else { nothing_kept_back };
        if !is_starved {
            running.starved_since = None;
            return;
        }
        let since = *running.starved_since.get_or_insert_with(|| ring.clock.now());
        if ring.clock.elapsed(since) < STARVED_AFTER {
            return;
        }
        running.starved_since = None;
        if lacks_slots && !running.kept.is_empty() {
            // Only the number of repeated batches must be the same on all ranks.
            running.batches = u16::try_from(running.kept.len()).unwrap_or(running.batches);
            running.first = Some(published);
            for (slot, digest) in std::mem::take(&mut running.compared) {
                self.repeat(slot, digest, ring);
            }
            return;
        }
        let reason = format!(
            "the trainer holds {} batches and requests another; replay more batches (--batches)",
            running.kept.len()
        );
        self.end(Phase::Refused(reason), ring);
    }
}

//! The slots that this process holds and their return, also across a daemon's death.
//!
//! The ring guards this with one lock. The states and their transitions, all made by the loader (a lease may end on any
//! thread at any moment and causes none):
//! ```text
//!   Attached ──daemon died──► Detached ──held slots are announced──► Announced ──its rings arrived──► Attached
//!                                ▲──────────────daemon died────────────┘
//!
//!   a lease ends:  Attached:  its return word goes into the daemon's return ring
//!                  Detached:  its slot is not announced, so it is free for the next daemon
//!                  Announced: the next daemon counts it as held: its return word waits for the ring
//! ```
//! So a daemon that counts a slot as held gets its return word exactly once, and a slot that was not announced is free.
//! Depends on the protocol crate only, so that it can be model-checked (`tests/model`).

use forebay_protocol::frames::Leased;
use forebay_protocol::ids::{Generation, SlotIndex};
use forebay_protocol::returns::ReturnWord;

/// The return ring of one daemon.
pub(crate) trait Returns {
    /// Writes one return word. True: the daemon needs a doorbell.
    fn give_back(&mut self, word: ReturnWord) -> bool;

    /// Rings the daemon's doorbell.
    fn ring_doorbell(&self);
}

/// The destination of return words: see the module documentation.
#[derive(Debug)]
enum Destination<R> {
    Attached(R),
    Detached,
    Announced(Vec<ReturnWord>),
}

/// The leases of a session.
#[derive(Debug)]
pub(crate) struct Leases<R> {
    destination: Destination<R>,
    /// By slot: the generation of the lease that this process holds.
    held: Vec<Option<Generation>>,
}

impl<R: Returns> Leases<R> {
    /// No leases yet, in a ring of `slots` slots.
    pub(crate) fn new(returns: R, slots: u16) -> Self {
        Self { destination: Destination::Attached(returns), held: vec![None; slots.into()] }
    }

    /// Begins the lease of a batch taken from the ring. False: its slot is held already.
    pub(crate) fn begin(&mut self, slot: SlotIndex, generation: Generation) -> bool {
        self.held[usize::from(slot.0)].replace(generation).is_none()
    }

    /// Ends the lease of a batch whose last reference was dropped.
    pub(crate) fn end(&mut self, slot: SlotIndex, generation: Generation) {
        self.held[usize::from(slot.0)] = None;
        let word = ReturnWord { slot, generation };
        match &mut self.destination {
            Destination::Attached(returns) => {
                if returns.give_back(word) {
                    returns.ring_doorbell();
                }
            }
            Destination::Detached => {}
            Destination::Announced(returned) => returned.push(word),
        }
    }

    /// The daemon is gone.
    pub(crate) fn detach(&mut self) {
        self.destination = Destination::Detached;
    }

    /// The held slots, to be announced to the next daemon.
    pub(crate) fn announce_held(&mut self) -> Vec<Leased> {
        self.destination = Destination::Announced(Vec::new());
        let slots = (0u16..).zip(&self.held);
        slots.filter_map(|(slot, held)| Some(Leased { slot, generation: (*held)?.0 })).collect()
    }

    /// The next daemon has the announced slots, and this is its return ring.
    pub(crate) fn attach(&mut self, mut returns: R) {
        if let Destination::Announced(returned) = &self.destination {
            let mut needs_doorbell = false;
            for word in returned {
                needs_doorbell |= returns.give_back(*word);
            }
            if needs_doorbell {
                returns.ring_doorbell();
            }
        }
        self.destination = Destination::Attached(returns);
    }

    /// The present daemon's return ring.
    pub(crate) fn returns(&mut self) -> Option<&mut R> {
        match &mut self.destination {
            Destination::Attached(returns) => Some(returns),
            Destination::Detached | Destination::Announced(_) => None,
        }
    }
}

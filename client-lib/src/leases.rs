//! Which slots this process holds, and who is told when one of them comes back, through a daemon's death too.
//!
//! The ring keeps it behind one lock. The states, and who moves them (the loader alone; a lease may end on any
//! thread at any moment and does not move them):
//! ```text
//!   Attached ──the daemon died──► Apart ──what is held is named to the next daemon──► Named ──its rings came──► Attached
//!                                   ▲────────────the daemon died─────────────────────────┘
//!
//!   a lease ends:  Attached: its word goes into the daemon's return ring
//!                  Apart:    it will not be named, so the next daemon finds its slot free
//!                  Named:    the next daemon believes it held: its word waits for the ring
//! ```
//! So a slot's word is given exactly once to the daemon that believes it held, and a slot that nobody named is free.
//! Stands on the protocol crate alone, so that it can be model-checked (`tests/model`).

use forebay_protocol::frames::Leased;
use forebay_protocol::ids::{Generation, SlotIndex};
use forebay_protocol::returns::ReturnWord;

/// The return ring of one daemon.
pub(crate) trait Returns {
    /// Writes one word. True: the daemon wants a doorbell.
    fn give_back(&mut self, word: ReturnWord) -> bool;

    /// The doorbell.
    fn ring(&self);
}

/// Who is told of a lease that ends: see the module's head.
#[derive(Debug)]
enum Side<R> {
    Attached(R),
    Apart,
    Named(Vec<ReturnWord>),
}

/// The leases of a session.
#[derive(Debug)]
pub(crate) struct Leases<R> {
    side: Side<R>,
    /// By slot: the generation of the lease that this process holds.
    held: Vec<Option<Generation>>,
}

impl<R: Returns> Leases<R> {
    /// None yet of so many slots.
    pub(crate) fn new(returns: R, slots: u16) -> Self {
        Self { side: Side::Attached(returns), held: vec![None; slots.into()] }
    }

    /// A batch was taken from the ring. False: its slot is held already.
    pub(crate) fn begin(&mut self, slot: SlotIndex, generation: Generation) -> bool {
        self.held[usize::from(slot.0)].replace(generation).is_none()
    }

    /// The last view of a batch is gone.
    pub(crate) fn end(&mut self, slot: SlotIndex, generation: Generation) {
        self.held[usize::from(slot.0)] = None;
        let word = ReturnWord { slot, generation };
        match &mut self.side {
            Side::Attached(returns) => {
                if returns.give_back(word) {
                    returns.ring();
                }
            }
            Side::Apart => {}
            Side::Named(returned) => returned.push(word),
        }
    }

    /// The daemon is gone.
    pub(crate) fn detach(&mut self) {
        self.side = Side::Apart;
    }

    /// What is held, to be named to the next daemon.
    pub(crate) fn name_held(&mut self) -> Vec<Leased> {
        self.side = Side::Named(Vec::new());
        let slots = (0u16..).zip(&self.held);
        slots.filter_map(|(slot, held)| Some(Leased { slot, generation: (*held)?.0 })).collect()
    }

    /// The next daemon has been told what is held, and these are its rings.
    pub(crate) fn attach(&mut self, mut returns: R) {
        if let Side::Named(returned) = &self.side {
            let mut is_due = false;
            for word in returned {
                is_due |= returns.give_back(*word);
            }
            if is_due {
                returns.ring();
            }
        }
        self.side = Side::Attached(returns);
    }

    /// The present daemon's rings.
    pub(crate) fn returns(&mut self) -> Option<&mut R> {
        match &mut self.side {
            Side::Attached(returns) => Some(returns),
            Side::Apart | Side::Named(_) => None,
        }
    }
}

//! The state of each slot: the daemon's own record, on its heap. Shared memory carries requests, never ownership.
//!
//! States of a slot and their transitions:
//! ```text
//!   Free ──begin_fill──► Filling{g} ──publish──► Published{g} ──accept_return(g)──► Free
//!                           └──abandon──► Free
//!
//!   for a replay:  Free ──keep──► Kept{g} ──show_again──► Published{g+1}
//!                                    └──release──► Free
//! ```
//! The daemon's engine thread makes every transition. The generation grows by one at each `begin_fill` and `show_again`, so
//! a return word is valid for exactly one lease.

use crate::frames::Leased;
use crate::ids::{Generation, SlotIndex};
use crate::returns::ReturnWord;

/// The state of one slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SlotState {
    /// May be filled.
    Free,
    /// Being written by the daemon.
    Filling,
    /// Published: held by the client or not yet taken.
    Published,
    /// Returned, and kept unchanged for a replay.
    Kept,
}

/// A return that the daemon rejects. It ends the session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LeaseViolation {
    /// No such slot.
    #[error("the client returned slot {slot} of a ring with {slots}")]
    NoSuchSlot {
        /// The slot in the word.
        slot: u16,
        /// The slots of the ring.
        slots: u16,
    },
    /// The slot is not held by the client.
    #[error("the client returned slot {slot}, which it does not hold")]
    NotHeld {
        /// The slot in the word.
        slot: u16,
    },
    /// The slot is held, but with another generation.
    #[error(
        "the client returned generation {claimed} of slot {slot}, which is at generation {current}"
    )]
    WrongGeneration {
        /// The slot in the word.
        slot: u16,
        /// The generation in the word.
        claimed: u64,
        /// The slot's current generation.
        current: u64,
    },
}

#[derive(Debug, Clone, Copy)]
struct Slot {
    state: SlotState,
    generation: Generation,
}

/// The slots of one ring. Free slots are filled in the order in which they became free.
#[derive(Debug)]
pub struct SlotTable {
    slots: Vec<Slot>,
    free: std::collections::VecDeque<SlotIndex>,
}

/// The bits of a generation that are sent.
const GENERATION_MASK: u64 = (1 << 48) - 1;

impl Generation {
    fn next(self) -> Self {
        Self((self.0 + 1) & GENERATION_MASK)
    }
}

/// A wrong list of the slots that a client holds from a previous daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HeldViolation {
    /// No such slot.
    #[error("the client claims to hold slot {slot} of a ring with {slots}")]
    NoSuchSlot {
        /// The slot claimed.
        slot: u16,
        /// The slots of the ring.
        slots: u16,
    },
    /// The slot is listed twice.
    #[error("the client claims to hold slot {slot} twice")]
    Twice {
        /// The slot claimed.
        slot: u16,
    },
    /// The generation is out of range.
    #[error(
        "the client claims generation {generation} of slot {slot}; generations have 48 bits and start at 1"
    )]
    Generation {
        /// The slot claimed.
        slot: u16,
        /// The generation claimed.
        generation: u64,
    },
}

impl SlotTable {
    /// A table of `slots` free slots.
    #[must_use]
    pub fn new(slots: u16) -> Self {
        Self {
            slots: vec![Slot { state: SlotState::Free, generation: Generation(0) }; slots.into()],
            free: (0..slots).map(SlotIndex).collect(),
        }
    }

    /// A table of `slots` slots, some of which the client holds from a previous daemon. Their generations continue, so
    /// a return is valid only for its lease.
    ///
    /// # Errors
    /// A claimed slot does not exist, is listed twice, or has a generation out of range.
    pub fn with_held(slots: u16, held: &[Leased]) -> Result<Self, HeldViolation> {
        let mut table = Self::new(slots);
        for &Leased { slot, generation } in held {
            let Some(entry) = table.slots.get_mut(usize::from(slot)) else {
                return Err(HeldViolation::NoSuchSlot { slot, slots });
            };
            if entry.state != SlotState::Free {
                return Err(HeldViolation::Twice { slot });
            }
            if generation == 0 || generation > GENERATION_MASK {
                return Err(HeldViolation::Generation { slot, generation });
            }
            *entry = Slot { state: SlotState::Published, generation: Generation(generation) };
        }
        table.free.retain(|slot| table.slots[usize::from(slot.0)].state == SlotState::Free);
        Ok(table)
    }

    /// The number of slots in a state.
    #[must_use]
    pub fn count(&self, state: SlotState) -> usize {
        self.slots.iter().filter(|slot| slot.state == state).count()
    }

    /// Takes a free slot for filling, with its new generation.
    pub fn begin_fill(&mut self) -> Option<(SlotIndex, Generation)> {
        let index = self.free.pop_front()?;
        let slot = &mut self.slots[usize::from(index.0)];
        slot.state = SlotState::Filling;
        slot.generation = slot.generation.next();
        Some((index, slot.generation))
    }

    /// The slot is complete and is passed to the client.
    ///
    /// # Panics
    /// When the slot is not being filled: an internal error of the daemon.
    pub fn publish(&mut self, index: SlotIndex) {
        let slot = &mut self.slots[usize::from(index.0)];
        assert_eq!(slot.state, SlotState::Filling, "published a slot that was not being filled");
        slot.state = SlotState::Published;
    }

    /// Frees a slot whose filling was aborted.
    ///
    /// # Panics
    /// When the slot is not being filled: an internal error of the daemon.
    pub fn abandon(&mut self, index: SlotIndex) {
        let slot = &mut self.slots[usize::from(index.0)];
        assert_eq!(slot.state, SlotState::Filling, "aborted a slot that was not being filled");
        slot.state = SlotState::Free;
        self.free.push_back(index);
    }

    /// Checks a client's return word and frees the slot.
    ///
    /// # Errors
    /// When the word names a slot or a generation that the client does not hold. Nothing changes then.
    pub fn accept_return(&mut self, word: ReturnWord) -> Result<SlotIndex, LeaseViolation> {
        let slots = u16::try_from(self.slots.len()).unwrap_or(u16::MAX);
        let Some(slot) = self.slots.get_mut(usize::from(word.slot.0)) else {
            return Err(LeaseViolation::NoSuchSlot { slot: word.slot.0, slots });
        };
        if slot.state != SlotState::Published {
            return Err(LeaseViolation::NotHeld { slot: word.slot.0 });
        }
        if slot.generation != word.generation {
            return Err(LeaseViolation::WrongGeneration {
                slot: word.slot.0,
                claimed: word.generation.0,
                current: slot.generation.0,
            });
        }
        slot.state = SlotState::Free;
        self.free.push_back(word.slot);
        Ok(word.slot)
    }

    /// Keeps a free slot unchanged for a replay. False: the slot is not free.
    pub fn keep(&mut self, index: SlotIndex) -> bool {
        let slot = &mut self.slots[usize::from(index.0)];
        if slot.state != SlotState::Free {
            return false;
        }
        slot.state = SlotState::Kept;
        self.free.retain(|free| *free != index);
        true
    }

    /// Publishes a kept slot again, under a new generation.
    ///
    /// # Panics
    /// When the slot is not kept: an internal error of the daemon.
    pub fn show_again(&mut self, index: SlotIndex) -> Generation {
        let slot = &mut self.slots[usize::from(index.0)];
        assert_eq!(slot.state, SlotState::Kept, "showed a slot again that was not kept");
        slot.state = SlotState::Published;
        slot.generation = slot.generation.next();
        slot.generation
    }

    /// Frees a kept slot. Any other slot is left unchanged.
    pub fn release(&mut self, index: SlotIndex) {
        let slot = &mut self.slots[usize::from(index.0)];
        if slot.state == SlotState::Kept {
            slot.state = SlotState::Free;
            self.free.push_back(index);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn slots_held_from_a_previous_daemon_are_checked_and_returned_once() {
        let held = [Leased { slot: 2, generation: 9 }, Leased { slot: 0, generation: 1 }];
        let mut table = SlotTable::with_held(3, &held).unwrap();
        assert_eq!(table.count(SlotState::Published), 2);
        let (slot, generation) = table.begin_fill().unwrap();
        assert_eq!((slot, generation), (SlotIndex(1), Generation(1)));
        assert_eq!(table.begin_fill(), None);
        let old = ReturnWord { slot: SlotIndex(2), generation: Generation(8) };
        assert!(matches!(table.accept_return(old), Err(LeaseViolation::WrongGeneration { .. })));
        let word = ReturnWord { slot: SlotIndex(2), generation: Generation(9) };
        assert_eq!(table.accept_return(word), Ok(SlotIndex(2)));
        assert_eq!(table.begin_fill(), Some((SlotIndex(2), Generation(10))));
        for (held, wrong) in [
            (vec![(3, 1)], HeldViolation::NoSuchSlot { slot: 3, slots: 3 }),
            (vec![(1, 1), (1, 2)], HeldViolation::Twice { slot: 1 }),
            (vec![(1, 0)], HeldViolation::Generation { slot: 1, generation: 0 }),
            (vec![(1, 1 << 48)], HeldViolation::Generation { slot: 1, generation: 1 << 48 }),
        ] {
            let held: Vec<Leased> =
                held.into_iter().map(|(slot, generation)| Leased { slot, generation }).collect();
            assert_eq!(SlotTable::with_held(3, &held).unwrap_err(), wrong);
        }
    }

    #[test]
    fn kept_slot_is_not_filled_and_is_republished_with_a_new_generation() {
        let mut table = SlotTable::new(2);
        let (slot, generation) = table.begin_fill().unwrap();
        table.publish(slot);
        assert!(!table.keep(slot), "the client has it");
        table.accept_return(ReturnWord { slot, generation }).unwrap();
        assert!(table.keep(slot));
        assert_eq!(table.begin_fill().map(|(slot, _)| slot), Some(SlotIndex(1)));
        assert_eq!(table.begin_fill(), None);
        let again = table.show_again(slot);
        assert_eq!(again, Generation(generation.0 + 1));
        let old = table.accept_return(ReturnWord { slot, generation });
        assert!(matches!(old, Err(LeaseViolation::WrongGeneration { .. })));
        table.accept_return(ReturnWord { slot, generation: again }).unwrap();
        assert!(table.keep(slot));
        table.release(slot);
        table.release(slot);
        assert_eq!(table.begin_fill(), Some((slot, Generation(again.0 + 1))));
    }

    proptest! {
        /// For any words of a client, each slot is in one state and the free list holds exactly the free slots.
        #[test]
        fn table_is_consistent_after_any_words(words in prop::collection::vec(any::<u64>(), 0..200), slots in 1u16..9) {
            let mut table = SlotTable::new(slots);
            for word in words {
                if word % 13 == 0 {
                    let slot = SlotIndex((word / 13 % u64::from(slots)).try_into().unwrap());
                    match table.slots[usize::from(slot.0)].state {
                        SlotState::Kept if word % 2 == 0 => _ = table.show_again(slot),
                        SlotState::Kept => table.release(slot),
                        state => prop_assert_eq!(table.keep(slot), state == SlotState::Free),
                    }
                } else if word % 3 == 0 {
                    if let Some((slot, _)) = table.begin_fill() {
                        if word % 2 == 0 { table.publish(slot) } else { table.abandon(slot) }
                    }
                } else {
                    let small = ReturnWord { slot: SlotIndex((word % 11).try_into().unwrap()), generation: Generation(word % 7) };
                    let before = table.count(SlotState::Published);
                    let accepted = table.accept_return(small).is_ok();
                    prop_assert_eq!(table.count(SlotState::Published), before - usize::from(accepted));
                }
                let free = table.count(SlotState::Free);
                prop_assert_eq!(table.free.len(), free);
                let held = [SlotState::Published, SlotState::Filling, SlotState::Kept].map(|state| table.count(state));
                prop_assert_eq!(free + held.iter().sum::<usize>(), usize::from(slots));
            }
        }
    }
}

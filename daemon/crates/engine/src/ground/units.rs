//! Blocks shared by several samples: read once, held in one buffer, counted once against the byte budget.
//!
//! An admitted row names the [`Unit`]s it needs; the table gives rows that need the same block the same unit. The
//! states of a unit, and the thread that changes them:
//! ```text
//!            ┌──── fetch thread: a row has bytes for all its units ────┐          ┌─ fetch thread: it is read ─┐
//!   Absent ──┘                                                         ▼          │                            ▼
//!     ▲  ▲                                                          Reading ──────┘                          Ready
//!     │  └─ fetch thread: the read failed; engine: it was abandoned ───┘                                       │
//!     └──── engine: a row waits for bytes and no row holds the unit (it is kept for later rows) ───────────────┘
//! ```
//! - A row *wants* a unit from admission until it holds it ([`Wanted`]), and *holds* it until its work is done
//!   ([`Hold`]). The last of these frees unit, buffer and bytes, on any thread, without a lock: no other thread can
//!   reach them then.
//! - A row that needs a unit in `Reading` waits in it. The thread that has read the unit passes such rows on, already
//!   holding it; if the read fails, they are admitted again, and each reads for itself.
//! - A unit that no row holds, but that later rows want, keeps its bytes as long as no row waits for bytes. In an order
//!   in blocks a session keeps the blocks of its group wanted until it has admitted the group's last row
//!   (`session/open_group.rs`).
//!
//! Why the byte budget cannot deadlock: a row holds no unit while it waits for bytes, and gets the bytes of all its
//! units at once; it releases the bytes of units that are in memory already. So a row in `Reading` needs only its
//! reads, rows that wait for a unit need only that row, and rows that hold all their units need only a work thread.
//! Bytes that are kept for later rows are released when there are waiters: if there are any, the last hold of a unit
//! wakes the engine.
//!
//! Only fetch threads and the engine take locks: work threads only read a held buffer and release it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use forebay_protocol::sync::{AtomicU32, Ordering};
use forebay_storage::location::{Location, Unit as Kind};

use crate::ground::gate::{ByteGate, BytePermit};
use crate::ground::waker::Waker;

/// A smaller table is not swept.
const MIN_SWEEP: usize = 64;

/// The units of a stream, shared by its sessions. `R` is a row to fetch.
#[derive(Debug)]
pub(crate) struct Units<R> {
    /// Locked by the engine thread only.
    table: Mutex<Table<R>>,
    /// Rows whose unit was not read, to be admitted again.
    returned: Mutex<Vec<R>>,
    waker: Arc<Waker>,
}

#[derive(Debug)]
struct Table<R> {
    units: HashMap<Location, Weak<Unit<R>>>,
    /// The number of entries at which it is swept next.
    sweep_at: usize,
    made: u64,
}

/// One block.
#[derive(Debug)]
pub(crate) struct Unit<R> {
    /// A sequence number within the stream.
    number: u64,
    /// Whether it contains several samples.
    is_block: bool,
    /// Number of rows that hold it. Raised under the state's lock, lowered without one.
    holders: AtomicU32,
    state: Mutex<State<R>>,
}

#[derive(Debug)]
enum State<R> {
    Absent,
    Reading { waiting: Vec<R> },
    Ready(Arc<Block>),
}

/// A block in memory.
#[derive(Debug)]
struct Block {
    bytes: Vec<u8>,
    /// `None`: the daemon ends.
    permit: Option<BytePermit>,
}

/// A unit that a row needs.
#[derive(Debug)]
pub(crate) struct Wanted<R> {
    unit: Arc<Unit<R>>,
    hold: Option<Hold<R>>,
}

/// A row's hold on a block in memory.
#[derive(Debug)]
pub(crate) struct Hold<R> {
    /// `None`: released.
    block: Option<Arc<Block>>,
    unit: Arc<Unit<R>>,
}

/// The right and the duty to read a unit. If it is dropped without a read, the waiting rows are admitted again.
#[derive(Debug)]
pub(crate) struct Claim<R> {
    unit: Arc<Unit<R>>,
    units: Arc<Units<R>>,
    permit: Option<BytePermit>,
    is_read: bool,
}

/// A row's relation to its units.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It holds all of them.
    Held,
    /// It has to wait in this unit; all others are held, or are being read too.
    Reading(usize),
    /// At least one is not in memory and no row reads it. None is held.
    Absent,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<R> Units<R> {
    pub(crate) fn new(waker: Arc<Waker>) -> Self {
        let table = Table { units: HashMap::new(), sweep_at: MIN_SWEEP, made: 0 };
        Self { table: Mutex::new(table), returned: Mutex::default(), waker }
    }

    /// The unit of a location, for one row. Engine thread.
    pub(crate) fn want(&self, location: Location) -> Wanted<R> {
        let mut table = lock(&self.table);
        if let Some(unit) = table.units.get(&location).and_then(Weak::upgrade) {
            return Wanted { unit, hold: None };
        }
        if table.units.len() >= table.sweep_at {
            table.units.retain(|_, unit| unit.strong_count() > 0);
            table.sweep_at = (2 * table.units.len()).max(MIN_SWEEP);
        }
        let number = table.made;
        table.made += 1;
        let state = Mutex::new(State::Absent);
        let is_block = matches!(location.unit, Kind::Block(_));
        let unit = Arc::new(Unit { number, is_block, holders: AtomicU32::new(0), state });
        table.units.insert(location, Arc::downgrade(&unit));
        Wanted { unit, hold: None }
    }

    /// Releases the bytes of one unit that no row holds: of the latest, since earlier ones are needed sooner. False:
    /// there is none. Engine thread.
    pub(crate) fn evict(&self) -> bool {
        let table = lock(&self.table);
        let idle = table.units.values().filter_map(Weak::upgrade).filter(|unit| unit.is_idle());
        let latest = idle.max_by_key(|unit| unit.number);
        drop(table);
        latest.is_some_and(|unit| unit.evict())
    }

    /// Bytes that are kept for later rows. Engine thread.
    pub(crate) fn idle_bytes(&self) -> u64 {
        let table = lock(&self.table);
        table.units.values().filter_map(Weak::upgrade).map(|unit| unit.idle_bytes()).sum()
    }

    /// Removes the rows to be admitted again. Engine thread.
    pub(crate) fn take_returned(&self) -> Vec<R> {
        std::mem::take(&mut *lock(&self.returned))
    }

    /// Returns rows, to be admitted again.
    pub(crate) fn give_back(&self, rows: impl IntoIterator<Item = R>) {
        lock(&self.returned).extend(rows);
        self.waker.wake();
    }
}

impl<R> Unit<R> {
    /// Its number, if it contains several samples.
    pub(crate) fn number_of_block(&self) -> Option<u64> {
        self.is_block.then_some(self.number)
    }

    fn is_idle(&self) -> bool {
        // Acquire: pairs with the release in `Hold::drop`.
        matches!(*lock(&self.state), State::Ready(_)) && self.holders.load(Ordering::Acquire) == 0
    }

    fn idle_bytes(&self) -> u64 {
        // Acquire: as above.
        match &*lock(&self.state) {
            State::Ready(block) if self.holders.load(Ordering::Acquire) == 0 => {
                block.permit.as_ref().map_or(0, BytePermit::bytes)
            }
            _ => 0,
        }
    }

    fn evict(&self) -> bool {
        let mut state = lock(&self.state);
        // No row can acquire it while the state is locked.
        if !matches!(*state, State::Ready(_)) || self.holders.load(Ordering::Acquire) > 0 {
            return false;
        }
        let block = std::mem::replace(&mut *state, State::Absent);
        drop(state);
        drop(block);
        true
    }

    fn hold(self: &Arc<Self>, block: &Arc<Block>) -> Hold<R> {
        // Relaxed: raised under the lock that the search for idle units holds too.
        self.holders.fetch_add(1, Ordering::Relaxed);
        Hold { block: Some(Arc::clone(block)), unit: Arc::clone(self) }
    }

    /// Lets a row wait until the unit is read. Returns the row if no row reads the unit.
    pub(crate) fn wait(&self, row: R) -> Result<(), R> {
        match &mut *lock(&self.state) {
            State::Reading { waiting } => {
                waiting.push(row);
                Ok(())
            }
            _ => Err(row),
        }
    }
}

impl<R> Wanted<R> {
    /// Holds the units that are in memory; holds none if one of them is absent and no row reads it.
    pub(crate) fn look(wanted: &mut [Self]) -> Standing {
        let mut standing = Standing::Held;
        for (place, one) in wanted.iter_mut().enumerate() {
            if one.hold.is_some() {
                continue;
            }
            match &*lock(&one.unit.state) {
                State::Ready(block) => one.hold = Some(one.unit.hold(block)),
                State::Reading { .. } => standing = Standing::Reading(place),
                State::Absent => {
                    standing = Standing::Absent;
                    break;
                }
            }
        }
        if standing == Standing::Absent {
            Self::let_go(wanted);
        }
        standing
    }

    /// Releases all holds.
    pub(crate) fn let_go(wanted: &mut [Self]) {
        wanted.iter_mut().for_each(|one| one.hold = None);
    }

    pub(crate) fn unit(&self) -> &Arc<Unit<R>> {
        &self.unit
    }

    /// What it holds.
    pub(crate) fn into_hold(self) -> Option<Hold<R>> {
        self.hold
    }

    /// Takes this row's part of a permit for all its units: a claim to read the unit, if no other row reads it; a hold
    /// on it, if it is in memory.
    pub(crate) fn claim(
        &mut self,
        units: &Arc<Units<R>>,
        permit: Option<&mut BytePermit>,
        bytes: u64,
    ) -> Option<Claim<R>> {
        let mut state = lock(&self.unit.state);
        match &*state {
            State::Ready(block) => self.hold = Some(self.unit.hold(block)),
            State::Reading { .. } => {}
            State::Absent => {
                *state = State::Reading { waiting: Vec::new() };
                let permit = permit.map(|permit| permit.split(bytes));
                let (unit, units) = (Arc::clone(&self.unit), Arc::clone(units));
                return Some(Claim { unit, units, permit, is_read: false });
            }
        }
        None
    }

    /// Gives the row a hold on one of its units.
    pub(crate) fn give(wanted: &mut [Self], hold: Hold<R>) {
        let of_unit = |one: &&mut Self| one.hold.is_none() && Arc::ptr_eq(&one.unit, &hold.unit);
        if let Some(one) = wanted.iter_mut().find(of_unit) {
            one.hold = Some(hold);
        }
    }
}

impl<R> Claim<R> {
    /// Whether the claim is on this unit.
    pub(crate) fn is_on(&self, wanted: &Wanted<R>) -> bool {
        Arc::ptr_eq(&self.unit, &wanted.unit)
    }

    /// Completes the read: a hold for the row that has read the unit, and the rows that have waited, each with its
    /// hold.
    pub(crate) fn complete(mut self, bytes: Vec<u8>) -> (Hold<R>, Vec<(R, Hold<R>)>) {
        let block = Arc::new(Block { bytes, permit: self.permit.take() });
        let mut state = lock(&self.unit.state);
        let before = std::mem::replace(&mut *state, State::Ready(Arc::clone(&block)));
        let hold = || self.unit.hold(&block);
        let own = hold();
        let waiting = match before {
            State::Reading { waiting } => waiting.into_iter().map(|row| (row, hold())).collect(),
            State::Absent | State::Ready(_) => Vec::new(),
        };
        drop(state);
        self.is_read = true;
        (own, waiting)
    }
}

impl<R> Drop for Claim<R> {
    fn drop(&mut self) {
        if self.is_read {
            return;
        }
        let before = std::mem::replace(&mut *lock(&self.unit.state), State::Absent);
        if let State::Reading { waiting } = before
            && !waiting.is_empty()
        {
            self.units.give_back(waiting);
        }
    }
}

impl<R> Hold<R> {
    /// Releases the hold. Returns the gate to wake if this was the last hold: the bytes can be released then, since
    /// only the unit itself has the block.
    fn let_go(&mut self) -> Option<Arc<ByteGate>> {
        let block = self.block.take()?;
        let gate = block.permit.as_ref().map(BytePermit::gate);
        // Before the count: a thread that finds no holder releases the bytes at once.
        drop(block);
        // AcqRel: reads of the block come before its release; exactly one of several concurrent ones is the last.
        if self.unit.holders.fetch_sub(1, Ordering::AcqRel) == 1 { gate } else { None }
    }
}

impl<R> Drop for Hold<R> {
    fn drop(&mut self) {
        if let Some(gate) = self.let_go() {
            gate.wake_if_awaited();
        }
    }
}

impl<R> AsRef<[u8]> for Hold<R> {
    fn as_ref(&self) -> &[u8] {
        self.block.as_ref().map_or(&[], |block| &block.bytes)
    }
}

#[cfg(test)]
mod tests;

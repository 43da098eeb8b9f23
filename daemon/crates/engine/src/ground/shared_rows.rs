//! Rows that several trainers of a stream want: made once, and copied into the ring of each.
//!
//! A row is a function of its sample and pass, so it does not matter which trainer's row is made. The states of a row,
//! and the thread that changes them:
//! ```text
//!            ┌─ engine: a fetch lane takes a trainer's row, which leads ─┐              ┌─ work thread: the row is made ─┐
//!   Absent ──┘                                                           ▼              │                                ▼
//!     ▲  ▲                                              Making { followers } ───────────┘   (others want it later)     Kept
//!     │  └─ the leading row failed, was cancelled, or is wanted by nobody later ──┘                                      │
//!     └───────── engine: the last trainer has taken it; any thread: the window has no room for a later row ──────────────┘
//! ```
//! - A row of another trainer that wants it in `Making` *follows*: it holds no bytes, no units and no lane. The work
//!   thread that has made the leading row copies it into the followers before it finishes it, since the client may write
//!   into a published batch. If the leading row fails, its followers fail for the same reason, and each session
//!   substitutes for itself. If it is not made ([`Lead`] is dropped), the followers are admitted again, and the first of
//!   them leads.
//! - A row that wants it in `Kept` gets a copy on its fetch thread, without a read.
//!
//! A leading row never waits for a follower, and a follower waits for no other follower: there is no cycle. Only rows
//! that a fetch lane has taken lead, so a leading row never waits for its session's turn among the lanes.
//!
//! Kept rows take at most the window's bytes, copies that fetch threads still hold included; the oldest goes first.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forebay_protocol::frames::RowKey;
use forebay_protocol::slots::RowCopy;
use forebay_protocol::sync::{AtomicU64, Ordering};
use forebay_transform::MemoryRow;

use crate::ground::row_cells::RowCell;
use crate::ground::stream::Stream;
use crate::ground::waker::Waker;
use forebay_observe::{SharingMetrics, SharingReport};

/// The memory of a kept row in addition to its bytes: its lengths, its entries in the table, what the allocator adds.
const BESIDE_BYTES: u64 = 512;
/// Fewer places of kept rows are not swept.
const MIN_SWEEP: usize = 64;

/// The shared rows of a stream. `R` is a row to fetch.
#[derive(Debug)]
pub(crate) struct SharedRows<R> {
    table: Mutex<Table<R>>,
    window: Window,
    waker: Arc<Waker>,
    metrics: SharingMetrics,
}

#[derive(Debug)]
struct Table<R> {
    rows: HashMap<RowKey, State<R>>,
    /// The kept rows, oldest first, each with the number under which it was kept.
    kept: VecDeque<(RowKey, u64)>,
    kept_so_far: u64,
    /// Followers to be admitted again.
    returned: Vec<R>,
}

/// `takers`: how many further trainers are expected to want the row.
#[derive(Debug)]
enum State<R> {
    Making { followers: Vec<R>, takers: usize },
    Kept { row: Arc<KeptRow>, takers: usize, number: u64 },
}

/// The bytes of kept rows.
#[derive(Debug)]
struct Window {
    most_bytes: u64,
    bytes: Arc<AtomicU64>,
}

/// A row of the window.
#[derive(Debug)]
pub(crate) struct KeptRow {
    copy: RowCopy,
    beside: MemoryRow,
    _bytes: Reserved,
}

/// Bytes of the window, returned on drop.
#[derive(Debug)]
struct Reserved {
    count: u64,
    of: Arc<AtomicU64>,
}

impl Drop for Reserved {
    fn drop(&mut self) {
        // Relaxed, here and below: a sum; nothing is ordered by it.
        self.of.fetch_sub(self.count, Ordering::Relaxed);
    }
}

/// What a row that is wanted does.
#[derive(Debug)]
pub(crate) enum Want<R> {
    /// It is made, for all that want it.
    Leads(R, Lead<R>),
    /// It waits for the row that leads.
    Follows,
    /// It is a copy of this one.
    Copies(R, Arc<KeptRow>),
}

/// The duty to make a row for all that want it. If it is dropped before, the followers are admitted again.
#[derive(Debug)]
pub(crate) struct Lead<R> {
    rows: Arc<SharedRows<R>>,
    key: RowKey,
    is_over: bool,
}

impl KeptRow {
    /// Writes a copy of the row.
    pub(crate) fn write_to(&self, cell: &mut RowCell) {
        cell.writer.write_copy(&self.copy);
        cell.beside.clone_from(&self.beside);
    }
}

impl<R> SharedRows<R> {
    /// `window_bytes`: the most that kept rows may take.
    pub(crate) fn new(window_bytes: u64, waker: Arc<Waker>) -> Self {
        let (rows, kept, returned) = (HashMap::new(), VecDeque::new(), Vec::new());
        let table = Mutex::new(Table { rows, kept, kept_so_far: 0, returned });
        let window = Window { most_bytes: window_bytes, bytes: Arc::default() };
        Self { table, window, waker, metrics: SharingMetrics::default() }
    }

    fn table(&self) -> MutexGuard<'_, Table<R>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A row that a fetch lane is about to take. `takers`: how many other trainers are expected to want it later, if it
    /// leads. Engine thread.
    pub(crate) fn want(self: &Arc<Self>, key: RowKey, row: R, takers: usize) -> Want<R> {
        let mut table = self.table();
        match table.rows.get_mut(&key) {
            None => {
                table.rows.insert(key, State::Making { followers: Vec::new(), takers });
                drop(table);
                self.metrics.record_made();
                Want::Leads(row, Lead { rows: Arc::clone(self), key, is_over: false })
            }
            Some(State::Making { followers, takers }) => {
                followers.push(row);
                *takers = takers.saturating_sub(1);
                Want::Follows
            }
            Some(State::Kept { row: kept, takers, .. }) => {
                self.metrics.record_later_copy();
                *takers = takers.saturating_sub(1);
                let copy = Arc::clone(kept);
                if *takers == 0 {
                    table.rows.remove(&key);
                }
                Want::Copies(row, copy)
            }
        }
    }

    /// Removes the followers for which `is_taken` holds. Engine thread.
    pub(crate) fn take_followers(&self, is_taken: impl Fn(&R) -> bool) -> Vec<R> {
        let mut table = self.table();
        let Table { rows, returned, .. } = &mut *table;
        let followers = rows.values_mut().filter_map(|state| match state {
            State::Making { followers, .. } => Some(followers),
            State::Kept { .. } => None,
        });
        let taken =
            |rows: &mut Vec<R>| rows.extract_if(.., |row| is_taken(row)).collect::<Vec<R>>();
        followers.chain([returned]).flat_map(taken).collect()
    }

    /// Removes the rows to be admitted again. Engine thread.
    pub(crate) fn take_returned(&self) -> Vec<R> {
        std::mem::take(&mut self.table().returned)
    }

    /// Gives up the kept rows: no trainer is left that could want them. Engine thread.
    pub(crate) fn clear(&self) {
        let mut table = self.table();
        table.rows.retain(|_, state| matches!(state, State::Making { .. }));
        table.kept.clear();
    }

    /// The rows of a stream that the window has room for, at least one.
    pub(crate) fn window_rows(&self, stream: &Stream) -> u64 {
        let rows = u64::from(stream.config.batch.size.get());
        let row_bytes = stream.layout.slot_bytes() / rows + BESIDE_BYTES;
        (self.window.most_bytes / row_bytes).max(1)
    }

    /// The metrics so far, if any row was shared.
    pub(crate) fn report(&self) -> Option<SharingReport> {
        let Window { most_bytes, bytes } = &self.window;
        self.metrics.report(bytes.load(Ordering::Relaxed), *most_bytes)
    }

    /// Takes bytes of the window for a row, which the oldest kept rows give up.
    fn reserve(&self, table: &mut Table<R>, count: u64) -> Option<Reserved> {
        let Window { most_bytes, bytes } = &self.window;
        if count > *most_bytes {
            return None;
        }
        while bytes.load(Ordering::Relaxed) > most_bytes - count {
            let (key, number) = table.kept.pop_front()?;
            if is_kept(table.rows.get(&key), number) {
                table.rows.remove(&key);
            }
        }
        bytes.fetch_add(count, Ordering::Relaxed);
        Some(Reserved { count, of: Arc::clone(bytes) })
    }
}

/// Whether the row is the one that was kept under this number; another one may be kept, or made, by now.
fn is_kept<R>(row: Option<&State<R>>, number: u64) -> bool {
    matches!(row, Some(State::Kept { number: kept, .. }) if *kept == number)
}

impl<R> Lead<R> {
    /// The row is made: returns the followers, into which it is to be copied. It is kept if others want it later.
    pub(crate) fn complete(mut self, made: &mut RowCell) -> Vec<R> {
        self.is_over = true;
        let reserved = self.reserve(made);
        // Outside of the lock.
        let kept = reserved.map(|reserved| {
            let (copy, beside) = (made.writer.to_copy(), made.beside.clone());
            Arc::new(KeptRow { copy, beside, _bytes: reserved })
        });
        let mut table = self.rows.table();
        let (followers, takers) = table.end(&self.key);
        self.rows.metrics.record_copies(followers.len() as u64);
        if let Some(row) = kept.filter(|_| takers > 0) {
            table.sweep();
            let number = table.kept_so_far;
            table.kept_so_far += 1;
            table.kept.push_back((self.key, number));
            table.rows.insert(self.key, State::Kept { row, takers, number });
        }
        followers
    }

    /// The row has failed: returns the followers, which fail for the same reason.
    pub(crate) fn fail(mut self) -> Vec<R> {
        self.is_over = true;
        self.rows.table().end(&self.key).0
    }

    /// Takes bytes of the window, if others want the row later.
    fn reserve(&self, made: &mut RowCell) -> Option<Reserved> {
        let mut table = self.rows.table();
        let is_wanted_later = matches!(
            table.rows.get(&self.key),
            Some(State::Making { takers, .. }) if *takers > 0
        );
        let bytes = made.writer.written_bytes() + made.beside.held_bytes() as u64;
        is_wanted_later.then(|| self.rows.reserve(&mut table, bytes + BESIDE_BYTES)).flatten()
    }
}

impl<R> Table<R> {
    /// Forgets the places of rows that are not kept any more, once most are.
    fn sweep(&mut self) {
        if self.kept.len() < 2 * self.rows.len() + MIN_SWEEP {
            return;
        }
        let rows = &self.rows;
        self.kept.retain(|(key, number)| is_kept(rows.get(key), *number));
    }

    /// Ends the making of a row.
    fn end(&mut self, key: &RowKey) -> (Vec<R>, usize) {
        match self.rows.remove(key) {
            Some(State::Making { followers, takers }) => (followers, takers),
            _ => (Vec::new(), 0),
        }
    }
}

impl<R> Drop for Lead<R> {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let mut table = self.rows.table();
        let (followers, _) = table.end(&self.key);
        if !followers.is_empty() {
            table.returned.extend(followers);
            drop(table);
            self.rows.waker.wake();
        }
    }
}

#[cfg(test)]
mod tests;

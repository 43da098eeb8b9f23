//! The memory that a worker shares with this process: two sides, each with room for a call. Their layout is described
//! in [`super::call`] and [`super::reply`].

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::{Mutex, OnceLock, PoisonError};

use forebay_protocol::window::{Window, create_sealed};
use rustix::fs::FallocateFlags;

/// Number of calls for which an arena has room at once.
pub(crate) const SIDES: usize = 2;
/// Maximum distance between the sides of an arena. Memory is allocated only where something is written.
const SIDE_BYTES: u64 = 1 << 40;
/// A side begins at a page boundary, for any page size.
const SIDE_ALIGNMENT: u64 = 1 << 16;
/// Maximum mapped part of a side; the rest is accessed by system calls, which copy page by page and take three times as
/// long.
const MAX_WINDOW_BYTES: usize = 256 << 20;
/// What calls leave allocated of a side, whatever they need.
const KEPT_BYTES: u64 = 64 << 20;
/// The most that stays allocated after calls that each need no more than [`KEPT_BYTES`].
pub const MAX_KEPT_BYTES: u64 = 2 * KEPT_BYTES;
/// No row is being called.
const NO_ROW: u64 = u64::MAX;

/// A side's offset, the same in this process and in the worker. The first word of the first side is the row being
/// called, the second is not 0 while the worker has output that is not logged yet, because its line has not ended.
pub(crate) fn side_start(side: usize) -> u64 {
    side as u64 * side_bytes()
}

fn side_bytes() -> u64 {
    static APART: OnceLock<u64> = OnceLock::new();
    *APART.get_or_init(|| {
        // Creating a file beyond this limit would kill the process.
        let limit = rustix::process::getrlimit(rustix::process::Resource::Fsize).current;
        let share = limit.map_or(SIDE_BYTES, |limit| limit / SIDES as u64);
        SIDE_BYTES.min(share / SIDE_ALIGNMENT * SIDE_ALIGNMENT)
    })
}

/// See the module's head.
#[derive(Debug)]
pub struct Arena {
    memory: File,
    /// The mapped part of each side, used by the thread that has the side.
    windows: [Mutex<Option<Window>>; SIDES],
    /// What recent calls needed of the first side, in bytes: the most of them, which falls by an eighth a call.
    need: Mutex<u64>,
}

impl Arena {
    /// Allocates no memory yet.
    pub(crate) fn create() -> io::Result<Self> {
        let memory = create_sealed("forebay-python", side_start(SIDES))?;
        memory.write_all_at(&NO_ROW.to_le_bytes(), 0)?;
        Ok(Self { memory, windows: Default::default(), need: Mutex::default() })
    }

    /// The arena of this process's own parent.
    pub(crate) fn of_file(memory: File) -> Self {
        Self { memory, windows: Default::default(), need: Mutex::default() }
    }

    /// A descriptor for the worker.
    pub(crate) fn descriptor(&self) -> io::Result<OwnedFd> {
        Ok(self.memory.try_clone()?.into())
    }

    /// The index in the bundle of the row being called, as reported by the worker.
    pub(crate) fn row_under_call(&self) -> Option<usize> {
        let mut word = [0; 8];
        self.memory.read_exact_at(&mut word, 0).ok()?;
        usize::try_from(u64::from_le_bytes(word)).ok().filter(|row| *row < usize::MAX)
    }

    /// Whether the worker reports an unlogged line.
    pub(crate) fn has_begun_line(&self) -> bool {
        let mut word = [0; 8];
        self.memory.read_exact_at(&mut word, 8).is_ok() && word != [0; 8]
    }

    /// The memory that it occupies, in bytes.
    pub(crate) fn resident_bytes(&self) -> u64 {
        self.memory.metadata().map_or(0, |memory| memory.blocks() * 512)
    }

    /// After a call that has used so many bytes of the first side and whose result is read: gives memory back if at
    /// least twice as much is allocated as recent calls needed. Calls that all need much keep their memory, since new
    /// pages cost time.
    pub(crate) fn give_back(&self, used_bytes: u64) {
        let mut need = self.need.lock().unwrap_or_else(PoisonError::into_inner);
        *need = used_bytes.max(*need - *need / 8);
        let kept = need.max(KEPT_BYTES).next_multiple_of(SIDE_ALIGNMENT);
        if self.resident_bytes() <= 2 * kept {
            return;
        }
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let bytes = side_start(1).saturating_sub(kept);
        if let Err(error) = rustix::fs::fallocate(&self.memory, hole, kept, bytes) {
            tracing::debug!(%error, "memory of a process's arena is not given back");
        }
    }

    /// Whether the arena contains this range.
    #[must_use]
    pub fn has(&self, at: u64, bytes: u64) -> bool {
        at.checked_add(bytes).is_some_and(|end| end <= side_start(SIDES))
    }

    /// Copies bytes out of the arena. They are untrusted: the worker can write there at any time.
    ///
    /// # Errors
    /// The range is outside the arena.
    pub fn read(&self, to: &mut [u8], at: u64) -> io::Result<()> {
        let read = self.in_window(at, to.len(), |window, at| window.copy_out(at, to));
        if read { Ok(()) } else { self.memory.read_exact_at(to, at) }
    }

    /// Copies bytes into the arena.
    pub(crate) fn write(&self, from: &[u8], at: u64) -> io::Result<()> {
        let written = self.in_window(at, from.len(), |window, at| window.copy_in(at, from));
        if written { Ok(()) } else { self.memory.write_all_at(from, at) }
    }

    /// Copies through the mapped window, after mapping more of the side if needed; false: nothing was copied.
    fn in_window(&self, at: u64, bytes: usize, copy: impl FnOnce(&Window, usize) -> bool) -> bool {
        let side = usize::try_from(at / side_bytes().max(1)).unwrap_or(SIDES);
        let Some(window) = self.windows.get(side) else { return false };
        let at = usize::try_from(at - side_start(side)).unwrap_or(usize::MAX);
        let Some(end) = at.checked_add(bytes).filter(|end| *end <= MAX_WINDOW_BYTES) else {
            return false;
        };
        let mut window = window.lock().unwrap_or_else(PoisonError::into_inner);
        if window.as_ref().is_none_or(|window| window.bytes() < end) {
            // With some room, so that rows of many sizes do not each cause a new mapping.
            let room = (end + end / 4).next_multiple_of(1 << 20).min(MAX_WINDOW_BYTES);
            let Ok(grown) = Window::new(&self.memory, side_start(side), room) else { return false };
            *window = Some(grown);
        }
        window.as_ref().is_some_and(|window| copy(window, at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_copied_both_ways_in_each_side_and_beyond_the_window() {
        let arena = Arena::create().unwrap();
        assert_eq!(arena.row_under_call(), None);
        let far = MAX_WINDOW_BYTES as u64;
        for (number, at) in (0_u8..).zip([64, (5 << 20) - 3, far - 3, far + 1000]) {
            for side in 0..SIDES {
                let at = side_start(side) + at;
                let bytes = [number, u8::try_from(side).unwrap(), 7, 7, 7, 7];
                arena.write(&bytes, at).unwrap();
                let (mut found, mut seen) = ([0; 6], [0; 6]);
                arena.read(&mut found, at).unwrap();
                arena.memory.read_exact_at(&mut seen, at).unwrap();
                assert_eq!((found, seen), (bytes, bytes));
            }
        }
        let mapped = arena
            .windows
            .each_ref()
            .map(|window| window.lock().unwrap().as_ref().map_or(0, Window::bytes));
        assert!(mapped.iter().all(|bytes| (5 << 20..8 << 20).contains(bytes)), "{mapped:?}");
        // Memory is allocated where something was written, whatever is mapped.
        assert!(arena.resident_bytes() < 1 << 20);
    }

    #[test]
    fn memory_of_one_large_call_is_given_back_by_small_ones() {
        let arena = Arena::create().unwrap();
        let (large, small) = (5 * KEPT_BYTES, 1 << 20);
        let page = [7; 1 << 16];
        let call = |bytes: u64| {
            for at in (SIDE_ALIGNMENT..bytes).step_by(page.len()) {
                arena.write(&page, at).unwrap();
            }
            arena.give_back(bytes);
        };
        for _ in 0..3 {
            call(large);
            assert!(arena.resident_bytes() > large - (1 << 20), "{}", arena.resident_bytes());
        }
        for _ in 0..20 {
            call(small);
        }
        assert!(arena.resident_bytes() <= 2 * KEPT_BYTES, "{}", arena.resident_bytes());
        let mut found = [0; 6];
        arena.read(&mut found, small - 100).unwrap();
        assert_eq!(found, [7; 6]);
        arena.read(&mut found, large - 100).unwrap();
        assert_eq!(found, [0; 6]);
        // What was given back is written again.
        call(large);
        arena.read(&mut found, large - 100).unwrap();
        assert_eq!(found, [7; 6]);
    }

    #[test]
    fn range_outside_the_arena_is_refused() {
        let arena = Arena::create().unwrap();
        let end = side_start(SIDES);
        for at in [end - 3, end, u64::MAX - 2] {
            assert!(arena.read(&mut [0; 6], at).is_err(), "{at}");
            assert!(!arena.has(at, 6));
        }
        // Bytes of both sides at once.
        arena.read(&mut [0; 6], side_start(1) - 3).unwrap();
    }
}

//! The cache's free space: one number in a file, shared by all processes that write.
//!
//! ```text
//! the file         bytes of all entries, and of grants that are not written yet; changed under its lock
//! granted here     taken from the file in grants of up to GRANT_BYTES, used entry by entry
//! ```
//!
//! The grant of a killed process is lost until the next count: at most one grant. A process that opens the cache while
//! no other uses it counts the bytes of all entries, and so does, from time to time, one that finds the cache full;
//! nothing is granted until that count has ended. Each process records the maximum that it may still write in a slot
//! that it locks; the count adds the slots of living processes, so its result is never too small.

use std::os::fd::OwnedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::folder::{Grant, read_number, write_number};
use forebay_config::CacheConfig;
use rustix::fs::{FlockOperation, flock, fstatvfs};
use rustix::io::Errno;

/// A process's grant: large enough for few lock operations, small enough to lose.
const GRANT_BYTES: u64 = 32 << 20;
/// Allocation unit of a file on disk.
const PAGE_BYTES: u64 = 4096;
/// Free space to leave on a disk, regardless of the configuration; on a small disk a tenth.
const MOST_KEPT_FREE_BYTES: u64 = 10 << 30;
/// Time between requests after one failed for lack of space.
const FULL_PAUSE: Duration = Duration::from_secs(10);
/// The shortest pause after an error of the disk; it doubles.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(600);

/// Why an entry is not written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refusal {
    /// No space. `is_news`: for the first time; `is_asked`: the shared number was read, which does not happen within a
    /// pause.
    Full { is_news: bool, is_asked: bool },
    /// Another process counts, or holds the lock; or the disk failed a short while ago.
    NotNow,
    /// The file cannot be read or written.
    Fault(Errno),
}

/// The free space of a cache.
#[derive(Debug)]
pub(super) struct Space {
    file: OwnedFd,
    /// Held exclusively during a count.
    count_lock: OwnedFd,
    /// What this process may still write; `None`: it does not write.
    grant: Option<Grant>,
    limit_bytes: u64,
    /// `None`: depends on the disk's size.
    kept_free_bytes: Option<u64>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    granted_bytes: u64,
    /// Bytes of entries that are being written.
    in_flight_bytes: u64,
    refused_until: Option<Instant>,
    pause: Duration,
    is_full: bool,
}

impl Space {
    /// The space of a cache whose number is in `file`. Without a size: the used bytes and 75 % of the free ones.
    ///
    /// # Errors
    /// The file cannot be read.
    pub(super) fn open(
        file: OwnedFd,
        count_lock: OwnedFd,
        grant: Option<Grant>,
        config: &CacheConfig,
    ) -> Result<Self, Errno> {
        let limit_bytes = match config.size {
            Some(limit) => limit,
            None => {
                let room = fstatvfs(&file)?;
                let free = room.f_bavail.saturating_mul(room.f_frsize);
                read_number(&file)?.saturating_add(free / 4 * 3)
            }
        };
        let kept_free_bytes = config.keep_free;
        let state = Mutex::default();
        Ok(Self { file, count_lock, grant, limit_bytes, kept_free_bytes, state })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An entry's size on disk.
    pub(super) const fn cost(file_bytes: u64) -> u64 {
        file_bytes.next_multiple_of(PAGE_BYTES)
    }

    /// The maximal size of all entries.
    pub(super) const fn limit_bytes(&self) -> u64 {
        self.limit_bytes
    }

    /// The used bytes by the shared number; 0 if it cannot be read.
    pub(super) fn used_bytes(&self) -> u64 {
        read_number(&self.file).unwrap_or(0)
    }

    /// Takes space for an entry.
    ///
    /// # Errors
    /// Why the entry may not be written.
    pub(super) fn take(&self, bytes: u64) -> Result<(), Refusal> {
        let mut state = self.state();
        if state.granted_bytes < bytes {
            if state.refused_until.is_some_and(|until| Instant::now() < until) {
                return Err(if state.is_full {
                    Refusal::Full { is_news: false, is_asked: false }
                } else {
                    Refusal::NotNow
                });
            }
            let wanted = GRANT_BYTES.max(bytes);
            let missing = bytes - state.granted_bytes;
            let granted =
                self.grant(state.granted_bytes + state.in_flight_bytes, missing, wanted)?;
            if granted == 0 {
                let is_news = !state.is_full;
                state.is_full = true;
                state.refused_until = Some(Instant::now() + FULL_PAUSE);
                return Err(Refusal::Full { is_news, is_asked: true });
            }
            state.granted_bytes += granted;
            state.is_full = false;
        }
        state.granted_bytes -= bytes;
        state.in_flight_bytes += bytes;
        Ok(())
    }

    /// Returns space that was taken and not used.
    pub(super) fn give_back(&self, bytes: u64) {
        let mut state = self.state();
        state.granted_bytes += bytes;
        state.in_flight_bytes = state.in_flight_bytes.saturating_sub(bytes);
    }

    /// The space is used: a count finds the entry on disk.
    pub(super) fn written(&self, bytes: u64) {
        let mut state = self.state();
        state.in_flight_bytes = state.in_flight_bytes.saturating_sub(bytes);
        if let Some(grant) = &self.grant {
            // On failure a count has too much.
            let _ = grant.set(state.granted_bytes + state.in_flight_bytes);
        }
    }

    /// What the kernel does with a killed process.
    #[cfg(test)]
    pub(super) fn forget_grants(&self) {
        self.state().granted_bytes = 0;
    }

    /// The disk has failed: nothing is granted for a while.
    pub(super) fn pause(&self) {
        let mut state = self.state();
        state.pause = (state.pause * 2).clamp(FIRST_PAUSE, LONGEST_PAUSE);
        state.refused_until = Some(Instant::now() + state.pause);
        state.is_full = false;
    }

    /// There may be space again.
    pub(super) fn resume(&self) {
        self.state().refused_until = None;
    }

    /// An entry was written: the pause after the next failure is the shortest again.
    pub(super) fn succeed(&self) {
        self.state().pause = Duration::ZERO;
    }

    /// Takes from the shared number: at least `missing`, or 0. `before`: unused or unwritten parts of earlier grants.
    fn grant(&self, before: u64, missing: u64, wanted: u64) -> Result<u64, Refusal> {
        // A count holds the lock exclusively; all others share it for a moment.
        lock(&self.count_lock, FlockOperation::NonBlockingLockShared)?;
        let granted = self.change(|used| {
            let room = fstatvfs(&self.file)?;
            let [free, total] =
                [room.f_bavail, room.f_blocks].map(|blocks| blocks.saturating_mul(room.f_frsize));
            let kept = self.kept_free_bytes.unwrap_or((total / 10).min(MOST_KEPT_FREE_BYTES));
            let free = free.saturating_sub(kept);
            let left = self.limit_bytes.saturating_sub(used).min(free);
            let granted = if left < missing { 0 } else { wanted.min(left) };
            // Recorded before it is used: a later count adds it.
            if let Some(grant) = self.grant.as_ref().filter(|_| granted > 0) {
                grant.set(before + granted)?;
            }
            Ok((used + granted, granted))
        });
        let _ = flock(&self.count_lock, FlockOperation::Unlock);
        granted
    }

    /// Reports that entries were removed.
    ///
    /// # Errors
    /// As [`take`](Self::take).
    pub(super) fn release(&self, bytes: u64) -> Result<(), Refusal> {
        self.change(|used| Ok((used.saturating_sub(bytes), ())))
    }

    /// Sets the number to the counted bytes; the caller holds the count's lock.
    ///
    /// # Errors
    /// As [`take`](Self::take).
    pub(super) fn set(&self, bytes: u64) -> Result<(), Refusal> {
        self.change(|_| Ok((bytes, ())))
    }

    fn change<T>(&self, change: impl FnOnce(u64) -> Result<(u64, T), Errno>) -> Result<T, Refusal> {
        lock(&self.file, FlockOperation::NonBlockingLockExclusive)?;
        let changed = read_number(&self.file).and_then(|used| {
            let (used, result) = change(used)?;
            write_number(&self.file, used)?;
            Ok(result)
        });
        let _ = flock(&self.file, FlockOperation::Unlock);
        changed.map_err(Refusal::Fault)
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        let granted = self.state().granted_bytes;
        // On failure the next count corrects it.
        let _ = self.release(granted);
    }
}

/// Does not wait: a stopped process may hold the lock.
fn lock(file: &OwnedFd, operation: FlockOperation) -> Result<(), Refusal> {
    match flock(file, operation) {
        Ok(()) => Ok(()),
        Err(Errno::WOULDBLOCK | Errno::INTR) => Err(Refusal::NotNow),
        Err(errno) => Err(Refusal::Fault(errno)),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::path::Path;

    use super::*;

    fn open(folder: &Path, limit: u64) -> Space {
        let file = |name| {
            let path = folder.join(name);
            let options =
                File::options().create(true).truncate(false).read(true).write(true).open(path);
            OwnedFd::from(options.unwrap())
        };
        let config =
            CacheConfig { size: Some(limit), keep_free: Some(0), ..CacheConfig::default() };
        Space::open(file("space"), file("count"), None, &config).unwrap()
    }

    #[test]
    fn processes_share_the_limit() {
        let folder = tempfile::tempdir().unwrap();
        let limit = GRANT_BYTES + 3 * PAGE_BYTES;
        let [one, other] = [0, 1].map(|_| open(folder.path(), limit));
        one.take(PAGE_BYTES).unwrap();
        assert_eq!(one.used_bytes(), GRANT_BYTES);
        for _ in 0..3 {
            other.take(PAGE_BYTES).unwrap();
        }
        assert_eq!(other.take(PAGE_BYTES), Err(Refusal::Full { is_news: true, is_asked: true }));
        assert_eq!(other.take(PAGE_BYTES), Err(Refusal::Full { is_news: false, is_asked: false }));
        other.state().refused_until = None;
        assert_eq!(other.take(PAGE_BYTES), Err(Refusal::Full { is_news: false, is_asked: true }));
        // The first one's unused grant is available again, after the pause.
        drop(one);
        assert_eq!(other.used_bytes(), 4 * PAGE_BYTES - PAGE_BYTES + PAGE_BYTES);
        other.state().refused_until = None;
        other.take(PAGE_BYTES).unwrap();
    }

    #[test]
    fn nothing_is_granted_during_a_count() {
        let folder = tempfile::tempdir().unwrap();
        let [space, counting] = [0, 1].map(|_| open(folder.path(), 1 << 40));
        flock(&counting.count_lock, FlockOperation::NonBlockingLockExclusive).unwrap();
        assert_eq!(space.take(1), Err(Refusal::NotNow));
        counting.set(5 * PAGE_BYTES).unwrap();
        flock(&counting.count_lock, FlockOperation::Unlock).unwrap();
        space.take(1).unwrap();
        assert_eq!(space.used_bytes(), 5 * PAGE_BYTES + GRANT_BYTES);
        space.release(PAGE_BYTES).unwrap();
        assert_eq!(space.used_bytes(), 4 * PAGE_BYTES + GRANT_BYTES);
    }
}

//! How much the cache may still take: one number in a file, shared by all processes that write.
//!
//! ```text
//! the file         bytes of all entries, and of what was granted and is not written yet; changed under its lock
//! granted here     taken from the file in grants of up to GRANT_BYTES, given out by entry
//! ```
//!
//! What was granted to a process that is killed is lost until the next count: at most one grant. A process that opens
//! the cache while no other has it open counts the bytes that lie there; nothing is granted to anyone until that count
//! has ended, so its result is right when it is written.

use std::os::fd::OwnedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use forebay_config::CacheConfig;
use rustix::fs::{FlockOperation, flock, fstatvfs};
use rustix::io::Errno;

/// What a process takes at once: few lock operations, and little is lost with it.
const GRANT_BYTES: u64 = 32 << 20;
/// What a file takes of its disk comes in such pieces.
const PAGE_BYTES: u64 = 4096;
/// What stays free of a disk, whatever the configuration says; of a small one a tenth.
const MOST_KEPT_FREE_BYTES: u64 = 10 << 30;
/// Nobody asks again for so long after there was no room.
const FULL_PAUSE: Duration = Duration::from_secs(10);
/// The shortest pause after an error of the disk; it doubles.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(600);

/// Why an entry is not written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refusal {
    /// There is no room. `is_news`: for the first time; `is_asked`: the shared number was asked, which nobody does within a
    /// pause.
    Full { is_news: bool, is_asked: bool },
    /// Another process counts, or holds the lock; or the disk has failed a short while ago.
    NotNow,
    /// The file cannot be read or written.
    Fault(Errno),
}

/// See the module's head.
#[derive(Debug)]
pub(super) struct Space {
    file: OwnedFd,
    /// Held by whoever counts.
    count_lock: OwnedFd,
    limit_bytes: u64,
    /// Left out: by the disk's size.
    kept_free_bytes: Option<u64>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    granted_bytes: u64,
    refused_until: Option<Instant>,
    pause: Duration,
    is_full: bool,
}

impl Space {
    /// The space of a cache whose number lies in `file`. Without a size: what lies there and 75 % of what is free.
    ///
    /// # Errors
    /// The file cannot be read.
    pub(super) fn open(
        file: OwnedFd,
        count_lock: OwnedFd,
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
        Ok(Self { file, count_lock, limit_bytes, kept_free_bytes, state: Mutex::default() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What an entry's file takes.
    pub(super) const fn cost(file_bytes: u64) -> u64 {
        file_bytes.next_multiple_of(PAGE_BYTES)
    }

    /// The most that may lie there.
    pub(super) const fn limit_bytes(&self) -> u64 {
        self.limit_bytes
    }

    /// What lies there by the shared number; 0 where it cannot be read.
    pub(super) fn used_bytes(&self) -> u64 {
        read_number(&self.file).unwrap_or(0)
    }

    /// Takes so much for an entry.
    ///
    /// # Errors
    /// Why it may not be written.
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
            let granted = self.grant(missing, wanted)?;
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
        Ok(())
    }

    /// What was taken and not written.
    pub(super) fn give_back(&self, bytes: u64) {
        self.state().granted_bytes += bytes;
    }

    /// The disk has failed: nothing is granted for a while.
    pub(super) fn pause(&self) {
        let mut state = self.state();
        state.pause = (state.pause * 2).clamp(FIRST_PAUSE, LONGEST_PAUSE);
        state.refused_until = Some(Instant::now() + state.pause);
        state.is_full = false;
    }

    /// There may be room again.
    pub(super) fn resume(&self) {
        self.state().refused_until = None;
    }

    /// An entry was written: the next fault is a first one.
    pub(super) fn succeed(&self) {
        self.state().pause = Duration::ZERO;
    }

    /// Takes from the shared number: at least `missing`, else 0.
    fn grant(&self, missing: u64, wanted: u64) -> Result<u64, Refusal> {
        // Who counts holds it alone; all others share it for a moment.
        lock(&self.count_lock, FlockOperation::NonBlockingLockShared)?;
        let granted = self.change(|used| {
            let room = fstatvfs(&self.file)?;
            let [free, total] =
                [room.f_bavail, room.f_blocks].map(|blocks| blocks.saturating_mul(room.f_frsize));
            let kept = self.kept_free_bytes.unwrap_or((total / 10).min(MOST_KEPT_FREE_BYTES));
            let free = free.saturating_sub(kept);
            let left = self.limit_bytes.saturating_sub(used).min(free);
            let granted = if left < missing { 0 } else { wanted.min(left) };
            Ok((used + granted, granted))
        });
        let _ = flock(&self.count_lock, FlockOperation::Unlock);
        granted
    }

    /// Entries were removed.
    ///
    /// # Errors
    /// As [`take`](Self::take).
    pub(super) fn release(&self, bytes: u64) -> Result<(), Refusal> {
        self.change(|used| Ok((used.saturating_sub(bytes), ())))
    }

    /// Sets the number to what was counted; the caller holds the count's lock.
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
            rustix::io::pwrite(&self.file, &used.to_le_bytes(), 0)?;
            Ok(result)
        });
        let _ = flock(&self.file, FlockOperation::Unlock);
        changed.map_err(Refusal::Fault)
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        let granted = self.state().granted_bytes;
        // Else it is counted the next time.
        let _ = self.release(granted);
    }
}

/// Not waited for: a process that was stopped may hold it.
fn lock(file: &OwnedFd, operation: FlockOperation) -> Result<(), Refusal> {
    match flock(file, operation) {
        Ok(()) => Ok(()),
        Err(Errno::WOULDBLOCK | Errno::INTR) => Err(Refusal::NotNow),
        Err(errno) => Err(Refusal::Fault(errno)),
    }
}

fn read_number(file: &OwnedFd) -> Result<u64, Errno> {
    let mut number = [0; 8];
    // A new file is empty: nothing lies there.
    rustix::io::pread(file, &mut number, 0)?;
    Ok(u64::from_le_bytes(number))
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
        Space::open(file("space"), file("count"), &config).unwrap()
    }

    #[test]
    fn processes_together_take_no_more_than_the_limit() {
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
        // What the first one did not use is there again, after the pause.
        drop(one);
        assert_eq!(other.used_bytes(), 4 * PAGE_BYTES - PAGE_BYTES + PAGE_BYTES);
        other.state().refused_until = None;
        other.take(PAGE_BYTES).unwrap();
    }

    #[test]
    fn nothing_is_granted_while_somebody_counts() {
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

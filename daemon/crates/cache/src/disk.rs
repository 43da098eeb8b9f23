//! The cache as a reading process uses it: reads and writes entries, and logs the disk's failures once.
//!
//! Nothing here fails: whatever happens on the disk, the caller reads from the storage instead. Besides the reading
//! threads, up to two threads may run: one counts used bytes after a start, one frees space.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use forebay_config::CacheConfig;
use forebay_observe::{CacheMetrics, format_bytes};

use super::entry::{self, Key};
use super::folder::{CacheFolder, DatasetFolder};
use super::space::{Refusal, Space};
use super::sweep::{remove_gone, remove_unused, total};

/// If a call takes longer, the disk is not used until the call has returned.
const SLOW: Duration = Duration::from_secs(1);
/// Minimal share of the limit that one removal frees, if possible.
const ROOM_SHARE: u64 = 20;
/// Minimal pause between counts of a full cache; it doubles if a count finds no space.
const FIRST_COUNT_PAUSE: Duration = Duration::from_secs(60);
const LONGEST_COUNT_PAUSE: Duration = Duration::from_secs(3600);
/// Attempts to take a lock that is held for a moment only.
const LOCK_TRIES: u32 = 100;

/// See the module's head.
#[derive(Debug)]
pub(super) struct Cache {
    folder: CacheFolder,
    dataset: DatasetFolder,
    space: Space,
    metrics: Arc<CacheMetrics>,
    /// Calls to the disk that have not returned.
    calls: Mutex<BTreeSet<(Instant, u64)>>,
    next_call: AtomicU64,
    /// The last logged failure, so that it is logged once.
    trouble: Mutex<Option<String>>,
    makes_room: AtomicBool,
    /// The time of the next count of a full cache, and the pause after it.
    next_count: Mutex<(Instant, Duration)>,
    /// Registers this process as a user of the cache.
    _user: OwnedFd,
}

/// The result of adding an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kept {
    Yes,
    /// The cache is being counted, or the disk is not used for a moment.
    NotNow,
    No,
}

impl Cache {
    /// Opens the cache for one dataset: `digest` identifies it, `title` is its name in messages.
    ///
    /// # Errors
    /// The cache cannot be used; the reason.
    pub(super) fn open(
        config: &CacheConfig,
        digest: &Key,
        title: &str,
    ) -> Result<Arc<Self>, String> {
        let path = config.path.as_deref().ok_or("the configuration has no cache")?;
        let folder = CacheFolder::open(path)?;
        let failed = |errno: Errno| format!("{}: {errno}", folder.path().display());
        let dataset = folder.dataset(digest, title).map_err(failed)?;
        let (user, is_alone) = join(&folder).map_err(failed)?;
        let file = folder.file("space").map_err(failed)?;
        let count_lock = folder.file("count").map_err(failed)?;
        let grant = folder.grant().map_err(failed)?;
        let space = Space::open(file, count_lock, Some(grant), config).map_err(failed)?;
        let metrics = Arc::new(CacheMetrics::new(space.limit_bytes()));
        let cache = Arc::new(Self {
            folder,
            dataset,
            space,
            metrics,
            calls: Mutex::default(),
            next_call: AtomicU64::new(0),
            trouble: Mutex::default(),
            makes_room: AtomicBool::new(false),
            next_count: Mutex::new((Instant::now(), FIRST_COUNT_PAUSE)),
            _user: user,
        });
        if is_alone {
            count(&cache);
        }
        Ok(cache)
    }

    /// Makes a call to the disk; `None`: an earlier call is overdue, so the disk is not asked.
    fn call<T>(&self, call: impl FnOnce() -> T) -> Option<T> {
        let now = Instant::now();
        // Relaxed: a unique number.
        let entry = (now, self.next_call.fetch_add(1, Ordering::Relaxed));
        {
            let mut calls = lock(&self.calls);
            if calls.first().is_some_and(|(begun, _)| now.duration_since(*begun) > SLOW) {
                drop(calls);
                self.say(format!("its disk has not answered for {} s", SLOW.as_secs()));
                return None;
            }
            calls.insert(entry);
        }
        let result = call();
        lock(&self.calls).remove(&entry);
        Some(result)
    }

    /// Appends an entry's bytes; false: there is none.
    pub(super) fn get(&self, key: &Key, length: u64, buffer: &mut Vec<u8>) -> bool {
        let start = buffer.len();
        match self.call(|| self.dataset.read(key, length, buffer)) {
            Some(Ok(Some(true))) => {
                self.metrics.hit(length);
                return true;
            }
            Some(Ok(None)) => {}
            Some(Ok(Some(false))) => {
                self.metrics.damaged();
                self.dataset.remove(key);
                self.say("an entry is damaged; it is removed and fetched again".to_owned());
            }
            Some(Err(errno)) => self.fault("reading", errno),
            None => {}
        }
        buffer.truncate(start);
        self.metrics.miss();
        false
    }

    /// The length of an entry's bytes, if it exists. Its contents are verified when they are read.
    pub(super) fn length_of(&self, key: &Key) -> Option<u64> {
        match self.call(|| self.dataset.length_of(key))? {
            Ok(length) => length,
            Err(errno) => {
                self.fault("reading", errno);
                None
            }
        }
    }

    /// Counts a miss.
    pub(super) fn missed(&self) {
        self.metrics.miss();
    }

    /// Adds an entry, if there is space.
    pub(super) fn put(self: &Arc<Self>, key: &Key, bytes: &[u8]) -> Kept {
        let cost = Space::cost(entry::file_bytes(bytes.len() as u64));
        match self.space.take(cost) {
            Ok(()) => {}
            Err(Refusal::Full { is_news, is_asked }) => {
                self.metrics.full();
                if is_asked {
                    make_room(self, is_news);
                }
                return Kept::No;
            }
            Err(Refusal::NotNow) => return Kept::NotNow,
            Err(Refusal::Fault(errno)) => {
                self.fault("counting", errno);
                return Kept::No;
            }
        }
        match self.call(|| self.dataset.write(key, bytes)) {
            Some(Ok(is_new)) => {
                self.space.succeed();
                if !is_new {
                    self.space.give_back(cost);
                    return Kept::Yes;
                }
                self.space.written(cost);
                self.metrics.kept(bytes.len() as u64);
                if lock(&self.trouble).take().is_some() {
                    tracing::info!(path = %self.folder.path().display(), "the cache is written again");
                }
                return Kept::Yes;
            }
            Some(Err(errno)) => {
                self.space.give_back(cost);
                self.fault("writing", errno);
            }
            None => self.space.give_back(cost),
        }
        Kept::No
    }

    fn fault(&self, action: &str, errno: Errno) {
        self.metrics.fault();
        self.space.pause();
        self.say(format!("{action} fails: {errno}; samples are read from the storage"));
    }

    pub(super) fn metrics(&self) -> &CacheMetrics {
        &self.metrics
    }

    /// Logs a failure once.
    fn say(&self, what: String) {
        let mut trouble = lock(&self.trouble);
        if trouble.as_ref() != Some(&what) {
            tracing::warn!(path = %self.folder.path().display(), "the cache: {what}");
            *trouble = Some(what);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Registers a process as a user of the cache, as long as the descriptor lives; whether it is the only one.
fn join(folder: &CacheFolder) -> Result<(OwnedFd, bool), Errno> {
    let users = folder.file("users")?;
    let is_alone = flock(&users, FlockOperation::NonBlockingLockExclusive).is_ok();
    for _ in 0..LOCK_TRIES {
        if flock(&users, FlockOperation::NonBlockingLockShared).is_ok() {
            break;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok((users, is_alone))
}

/// Counts the used bytes, on a separate thread. No space is granted before it has finished.
fn count(cache: &Arc<Cache>) {
    let Ok(count_lock) = cache.folder.file("count") else { return };
    if flock(&count_lock, FlockOperation::NonBlockingLockExclusive).is_err() {
        return;
    }
    let cache = Arc::clone(cache);
    let counts = move || {
        if let Err(errno) = remove_gone(&cache.folder, &mut |_| {}) {
            cache.fault("counting the entries", errno);
        } else {
            cache.count_under(&count_lock);
        }
    };
    // If no thread can be created, the next start counts; until then the free space may be underestimated.
    let _ = std::thread::Builder::new().name("cache".to_owned()).spawn(counts);
}

impl Cache {
    /// Sets the shared number to the counted bytes plus the bytes that living processes may still write.
    fn count_under(&self, _count_lock: &OwnedFd) {
        let counted =
            total(&self.folder).and_then(|bytes| Ok(bytes + self.folder.granted_bytes()?));
        match counted.map(|bytes| self.space.set(bytes)) {
            Ok(Ok(())) => {}
            Ok(Err(refusal)) => self.say(format!("counting the entries fails: {refusal:?}")),
            Err(errno) => self.fault("counting the entries", errno),
        }
    }

    /// Counts a full cache again, if that is due: killed processes have left their grants. Returns whether there is
    /// space now.
    fn count_full(&self) -> bool {
        if Instant::now() < lock(&self.next_count).0 {
            return false;
        }
        let before = self.space.used_bytes();
        let Ok(count_lock) = self.folder.file("count") else { return false };
        let is_locked = (0..LOCK_TRIES).any(|_| {
            let locked = flock(&count_lock, FlockOperation::NonBlockingLockExclusive);
            if locked.is_err() {
                std::thread::sleep(Duration::from_millis(1));
            }
            locked.is_ok()
        });
        if !is_locked {
            return false;
        }
        self.count_under(&count_lock);
        drop(count_lock);
        let has_room = self.space.used_bytes() < before;
        let mut next = lock(&self.next_count);
        let pause = if has_room { FIRST_COUNT_PAUSE } else { next.1 };
        *next = (Instant::now() + pause, (pause * 2).min(LONGEST_COUNT_PAUSE));
        has_room
    }
}

/// Counts again, or removes unused datasets, on a separate thread, one at a time. Requested after each pause: a dataset
/// may become unused.
fn make_room(cache: &Arc<Cache>, is_news: bool) {
    // Relaxed, here and below: nothing else is ordered by it.
    if cache.makes_room.swap(true, Ordering::Relaxed) {
        return;
    }
    let shared = Arc::clone(cache);
    let makes = move || {
        if shared.count_full() {
            shared.space.resume();
            shared.makes_room.store(false, Ordering::Relaxed);
            return;
        }
        let wanted = (shared.space.limit_bytes() / ROOM_SHARE).max(1);
        let freed = remove_unused(
            &shared.folder,
            &shared.space,
            wanted,
            std::slice::from_ref(&shared.dataset.name),
        );
        match freed {
            Ok(0) if !is_news => {}
            Ok(0) => tracing::warn!(
                path = %shared.folder.path().display(),
                "the cache is full ({} of at most {}, or little of the disk is free): what is not in it comes from the \
                 storage in each epoch; raise cache.size, or name a larger disk in cache.path",
                format_bytes(shared.space.used_bytes()),
                format_bytes(shared.space.limit_bytes()),
            ),
            Ok(bytes) => {
                shared.space.resume();
                tracing::info!(
                    "{} of unused datasets were removed from the cache",
                    format_bytes(bytes)
                );
            }
            Err(errno) => shared.fault("freeing space", errno),
        }
        shared.makes_room.store(false, Ordering::Relaxed);
    };
    if std::thread::Builder::new().name("cache".to_owned()).spawn(makes).is_err() {
        cache.makes_room.store(false, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hanging_disk_is_not_used_until_its_call_has_returned() {
        let folder = tempfile::tempdir().unwrap();
        let config = CacheConfig { path: Some(folder.path().to_owned()), ..CacheConfig::default() };
        let cache = Cache::open(&config, &[1; 32], "title").unwrap();
        let begun = Instant::now().checked_sub(SLOW * 2).unwrap();
        lock(&cache.calls).insert((begun, u64::MAX));
        assert_eq!(cache.call(|| ()), None);
        lock(&cache.calls).clear();
        assert_eq!(cache.call(|| ()), Some(()));
    }

    #[test]
    fn grants_of_killed_processes_are_recovered_while_another_process_uses_the_cache() {
        let folder = tempfile::tempdir().unwrap();
        let config = CacheConfig {
            path: Some(folder.path().to_owned()),
            size: Some(64 << 20),
            keep_free: Some(0),
        };
        let cache = Cache::open(&config, &[1; 32], "title").unwrap();
        // No space is granted during a count.
        let kept = |number: u8| {
            let begun = Instant::now();
            loop {
                cache.space.resume();
                match cache.put(&[number; 32], &[number; 1000]) {
                    Kept::Yes => return,
                    _ => assert!(begun.elapsed() < Duration::from_secs(60), "it is not kept"),
                }
            }
        };
        kept(0);
        assert_eq!(cache.space.used_bytes(), 32 << 20);
        // A process that is granted the remaining space.
        let killed = Cache::open(&config, &[1; 32], "title").unwrap();
        killed.space.take(1).unwrap();
        assert_eq!(cache.space.used_bytes(), 64 << 20);
        // Its grant is counted as long as it lives.
        assert!(!cache.count_full() && cache.space.used_bytes() >= 64 << 20);
        lock(&cache.next_count).0 = Instant::now();
        killed.space.forget_grants();
        drop(killed);
        assert!(cache.space.used_bytes() >= 64 << 20);
        // More than the rest of the process's grant.
        cache.space.take((32 << 20) - Space::cost(entry::file_bytes(1000))).unwrap();
        kept(1);
        assert!(cache.space.used_bytes() <= 64 << 20);
    }
}

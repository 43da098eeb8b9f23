//! The cache as a process that reads uses it: entries are given and kept, and what its disk does is said once.
//!
//! Nothing here fails: whatever the disk does, the caller asks the storage instead. Two threads may run beside the reading
//! ones: one counts, after a start, and one makes room.

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

/// A disk on which a call lasts longer is left alone until it has ended.
const SLOW: Duration = Duration::from_secs(1);
/// What making room frees at least, if there is so much: a share of the limit.
const ROOM_SHARE: u64 = 20;
/// How often a lock that is held for a moment is asked for.
const LOCK_TRIES: u32 = 100;

/// See the module's head.
#[derive(Debug)]
pub(super) struct Cache {
    folder: CacheFolder,
    dataset: DatasetFolder,
    space: Space,
    metrics: Arc<CacheMetrics>,
    /// Calls to the disk under way.
    calls: Mutex<BTreeSet<(Instant, u64)>>,
    next_call: AtomicU64,
    /// What was said of the disk last, so that it is said once.
    trouble: Mutex<Option<String>>,
    makes_room: AtomicBool,
    /// Marks this process as one that has it open.
    _user: OwnedFd,
}

/// What became of an entry that was to be kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kept {
    Yes,
    /// What lies there is counted, or the disk is left alone for a moment.
    NotNow,
    No,
}

impl Cache {
    /// Opens the cache for one dataset: `digest` tells it from others, `title` names it to people.
    ///
    /// # Errors
    /// It cannot be used; in words.
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
        let space = Space::open(file, count_lock, config).map_err(failed)?;
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
            _user: user,
        });
        if is_alone {
            count(&cache);
        }
        Ok(cache)
    }

    /// Makes a call to the disk, unless an earlier one has not come back: then `None`.
    fn call<T>(&self, call: impl FnOnce() -> T) -> Option<T> {
        let now = Instant::now();
        // Relaxed: only told apart.
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

    /// Appends an entry's bytes; whether it was there.
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

    /// The length of an entry's bytes, if there is one. They are checked when they are read.
    pub(super) fn length_of(&self, key: &Key) -> Option<u64> {
        match self.call(|| self.dataset.length_of(key))? {
            Ok(length) => length,
            Err(errno) => {
                self.fault("reading", errno);
                None
            }
        }
    }

    /// Counts what was looked for and not found.
    pub(super) fn missed(&self) {
        self.metrics.miss();
    }

    /// Keeps an entry, where there is room.
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
        self.say(format!("{action} fails: {errno}; samples come from the storage itself"));
    }

    pub(super) fn metrics(&self) -> &CacheMetrics {
        &self.metrics
    }

    /// Says what is wrong, once.
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

/// Marks a process as one that has the cache open, for as long as the descriptor lives; whether it is the only one.
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

/// Counts what lies there, on a thread of its own. The caller is alone, so nothing is granted to anybody; nothing will be
/// before this has ended.
fn count(cache: &Arc<Cache>) {
    let Ok(count_lock) = cache.folder.file("count") else { return };
    if flock(&count_lock, FlockOperation::NonBlockingLockExclusive).is_err() {
        return;
    }
    let cache = Arc::clone(cache);
    let counts = move || {
        let counted = remove_gone(&cache.folder, &mut |_| {}).and_then(|()| total(&cache.folder));
        match counted.map(|bytes| cache.space.set(bytes)) {
            Ok(Ok(())) => {}
            Ok(Err(refusal)) => cache.say(format!("counting what lies there fails: {refusal:?}")),
            Err(errno) => cache.fault("counting what lies there", errno),
        }
        drop(count_lock);
    };
    // Without a thread it is counted the next time; what is wrong until then is at most too little room.
    let _ = std::thread::Builder::new().name("cache".to_owned()).spawn(counts);
}

/// Removes datasets that nobody uses, on a thread of its own, one thread at a time. Asked for after each pause: what is used
/// now may not be used then.
fn make_room(cache: &Arc<Cache>, is_news: bool) {
    // Relaxed, here and below: nothing else is ordered by it.
    if cache.makes_room.swap(true, Ordering::Relaxed) {
        return;
    }
    let shared = Arc::clone(cache);
    let makes = move || {
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
                    "{} of datasets that nobody uses were removed from the cache",
                    format_bytes(bytes)
                );
            }
            Err(errno) => shared.fault("making room", errno),
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
    fn a_disk_that_hangs_is_left_alone_until_its_call_has_ended() {
        let folder = tempfile::tempdir().unwrap();
        let config = CacheConfig { path: Some(folder.path().to_owned()), ..CacheConfig::default() };
        let cache = Cache::open(&config, &[1; 32], "title").unwrap();
        let begun = Instant::now().checked_sub(SLOW * 2).unwrap();
        lock(&cache.calls).insert((begun, u64::MAX));
        assert_eq!(cache.call(|| ()), None);
        lock(&cache.calls).clear();
        assert_eq!(cache.call(|| ()), Some(()));
    }
}

//! What a web server's first response said of each file, to detect a response that belongs to another file.
//!
//! HTTP/1.1 does not number its responses. After a proxy that sends one twice, a kept connection delivers to each
//! request the response to the one before, and only the headers about the file reveal it. The index has sizes and tags
//! of a bucket's objects, but none of a web server's files, so they are remembered here.

use forebay_storage::version::ObjectStamp;
use std::collections::HashMap;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The most files that are remembered: about 32 MiB.
const MAX_FILES: usize = 1 << 20;

/// See the module's head.
#[derive(Debug, Default)]
pub(super) struct KnownFiles {
    /// Digests of sizes and tags, by digests of names.
    said: Mutex<HashMap<u64, u32>>,
    /// Whether the server reports the same size and time for different files.
    says_the_same: AtomicBool,
    is_told: AtomicBool,
}

fn digest<T: std::hash::Hash>(value: T) -> u64 {
    BuildHasherDefault::<DefaultHasher>::default().hash_one(value)
}

#[expect(clippy::cast_possible_truncation, reason = "half of a digest is a digest")]
fn said(stamp: ObjectStamp) -> u32 {
    digest((stamp.bytes, stamp.tag)) as u32
}

impl KnownFiles {
    fn said(&self) -> MutexGuard<'_, HashMap<u64, u32>> {
        self.said.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a response may belong to another file: it differs from the file's first one, or equals the previous
    /// response on its connection, which was for another file.
    pub(super) fn doubts(&self, name: &str, stamp: ObjectStamp, repeats_last: bool) -> bool {
        match self.said().get(&digest(name)) {
            Some(known) => *known != said(stamp),
            // Relaxed, here and below: a hint.
            None => repeats_last && !self.says_the_same.load(Ordering::Relaxed),
        }
    }

    /// Remembers an accepted response. `doubted`: what a doubtful response said of the file.
    pub(super) fn believe(&self, name: &str, stamp: ObjectStamp, doubted: Option<ObjectStamp>) {
        if doubted == Some(stamp) {
            self.says_the_same.store(true, Ordering::Relaxed);
        }
        let mut known = self.said();
        let key = digest(name);
        if known.len() < MAX_FILES || known.contains_key(&key) {
            known.insert(key, said(stamp));
        }
    }

    /// Whether the warning about a response of another file was not logged yet.
    pub(super) fn is_news(&self) -> bool {
        !self.is_told.swap(true, Ordering::Relaxed)
    }
}

//! Where the files of a repository are: links that were resolved, kept until the storage host refuses them.
//!
//! ```text
//! Unknown ──resolve, one thread at a time──► Known ──refused (expired)──► Unknown
//! ```

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use tokio::sync::Mutex as AsyncMutex;

/// The most links that are kept: about 32 MiB, for a signed link has one to two KiB.
const MAX_LINKS: usize = 1 << 14;

/// Where a file is.
#[derive(Debug)]
pub(crate) struct Link {
    /// The URL as the endpoint sent it.
    pub(crate) url: String,
    /// Whether it is at the endpoint, which gets the token.
    pub(crate) is_own: bool,
    /// The file's size and tag, if the endpoint said them.
    pub(crate) bytes: Option<u64>,
    pub(crate) tag: Option<String>,
}

/// What is known of a file.
#[derive(Debug, Default)]
pub(crate) struct Slot {
    /// A thread that resolves the link holds the lock.
    pub(crate) link: AsyncMutex<Option<Arc<Link>>>,
    /// The tag in the storage host's first response, to detect a response that belongs to another file.
    pub(crate) first_tag: OnceLock<Option<String>>,
}

/// See the module's head.
#[derive(Debug, Default)]
pub(crate) struct Links(Mutex<HashMap<String, Arc<Slot>>>);

impl Links {
    fn slots(&self) -> MutexGuard<'_, HashMap<String, Arc<Slot>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The place of a file's link.
    pub(crate) fn slot(&self, key: &str) -> Arc<Slot> {
        let mut slots = self.slots();
        if let Some(slot) = slots.get(key) {
            return Arc::clone(slot);
        }
        // So many files are each read once an epoch, and links do not live that long.
        if slots.len() >= MAX_LINKS {
            slots.clear();
        }
        Arc::clone(slots.entry(key.to_owned()).or_default())
    }

    /// Forgets all links.
    pub(crate) fn clear(&self) {
        self.slots().clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_bounded() {
        let links = Links::default();
        let first = links.slot("0");
        assert!(Arc::ptr_eq(&first, &links.slot("0")));
        for key in 1..=MAX_LINKS {
            links.slot(&key.to_string());
        }
        assert!(links.slots().len() <= MAX_LINKS);
        assert!(!Arc::ptr_eq(&first, &links.slot("0")));
    }
}

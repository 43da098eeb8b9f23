//! Where the files of a repository are: links that were resolved, kept until the storage host refuses them.
//!
//! ```text
//! Unknown ──resolve, one thread at a time──► Known ──refused (expired)──► Unknown
//! ```

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

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
    /// The tag in the storage host's responses to this link, empty if they have none, to detect a response that belongs to
    /// another file. Another link may lead to a host with other tags.
    host_tag: Mutex<Option<String>>,
    /// That of the file's link before, which this one may have, too.
    earlier_host_tag: Option<String>,
}

/// A file's link, if it is known. A thread that resolves it holds the lock.
#[derive(Debug, Default)]
pub(crate) struct Slot {
    pub(crate) link: AsyncMutex<Option<Arc<Link>>>,
    /// The storage host's tag in responses to the last link that was forgotten.
    host_tag: Mutex<Option<String>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Slot {
    /// Notes a link that was resolved.
    pub(crate) fn know(&self, held: &mut Option<Arc<Link>>, link: Link) -> Arc<Link> {
        let link = Arc::new(Link { earlier_host_tag: lock(&self.host_tag).clone(), ..link });
        *held = Some(Arc::clone(&link));
        link
    }

    /// Forgets a link, unless another thread has.
    pub(crate) async fn forget(&self, link: &Arc<Link>) {
        let mut held = self.link.lock().await;
        if held.as_ref().is_some_and(|now| Arc::ptr_eq(now, link)) {
            *held = None;
            if let Some(tag) = lock(&link.host_tag).clone() {
                *lock(&self.host_tag) = Some(tag);
            }
        }
    }
}

impl Link {
    pub(crate) const fn new(
        url: String,
        is_own: bool,
        bytes: Option<u64>,
        tag: Option<String>,
    ) -> Self {
        Self { url, is_own, bytes, tag, host_tag: Mutex::new(None), earlier_host_tag: None }
    }

    /// The file's tag for a response of the storage host with this tag. A response on a kept connection that differs from
    /// the trusted ones, or repeats the one before while there is none, may belong to another file: it has another tag. The
    /// link before may have had the same tag at another path, which looks like a repetition.
    pub(crate) fn tag_of(
        &self,
        host_tag: Option<&str>,
        is_first: bool,
        repeats_last: bool,
    ) -> Option<String> {
        let said = host_tag.unwrap_or_default();
        let mut trusted = lock(&self.host_tag);
        let is_trusted = match trusted.as_deref() {
            // A connection's first response is to its first request.
            _ if is_first => true,
            Some(trusted) => trusted == said,
            None => !repeats_last || self.earlier_host_tag.as_deref() == Some(said),
        };
        if is_trusted {
            if trusted.as_deref() != Some(said) {
                *trusted = Some(said.to_owned());
            }
            return self.tag.clone();
        }
        let is_other = !said.is_empty() && self.tag.as_deref() != Some(said);
        Some(if is_other { said } else { "?" }.to_owned())
    }
}

/// See the module's head.
#[derive(Debug, Default)]
pub(crate) struct Links(Mutex<HashMap<String, Arc<Slot>>>);

impl Links {
    fn slots(&self) -> MutexGuard<'_, HashMap<String, Arc<Slot>>> {
        lock(&self.0)
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
    fn tag_of_a_doubtful_response_is_another() {
        let link = || Link::new("u".to_owned(), false, None, Some("file".to_owned()));
        // On a kept connection: trusted unless it repeats the response before.
        let of_link = link();
        assert_eq!(of_link.tag_of(Some("a"), false, false).as_deref(), Some("file"));
        assert_eq!(of_link.tag_of(Some("a"), false, true).as_deref(), Some("file"));
        assert_eq!(of_link.tag_of(Some("b"), false, false).as_deref(), Some("b"));
        assert_eq!(of_link.tag_of(None, false, false).as_deref(), Some("?"));
        // A new connection's first response is believed, and is what later ones are compared with.
        assert_eq!(of_link.tag_of(Some("b"), true, false).as_deref(), Some("file"));
        assert_eq!(of_link.tag_of(Some("b"), false, false).as_deref(), Some("file"));
        assert_eq!(of_link.tag_of(Some("a"), false, false).as_deref(), Some("a"));
        let of_link = link();
        assert_eq!(of_link.tag_of(Some("a"), false, true).as_deref(), Some("a"));
        assert_eq!(of_link.tag_of(Some("file"), false, true).as_deref(), Some("?"));
        assert_eq!(of_link.tag_of(None, false, true).as_deref(), Some("?"));
        assert_eq!(of_link.tag_of(Some("b"), true, false).as_deref(), Some("file"));
        assert_eq!(of_link.tag_of(Some("a"), false, false).as_deref(), Some("a"));
        let of_link = link();
        assert_eq!(of_link.tag_of(None, true, false).as_deref(), Some("file"));
        assert_eq!(of_link.tag_of(None, false, true).as_deref(), Some("file"));
    }

    #[test]
    fn link_that_is_signed_anew_may_have_the_tag_of_the_one_before() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let slot = Slot::default();
            let link = || Link::new("u".to_owned(), false, None, Some("file".to_owned()));
            let first = slot.know(&mut *slot.link.lock().await, link());
            assert_eq!(first.tag_of(Some("a"), false, true).as_deref(), Some("a"));
            assert_eq!(first.tag_of(Some("a"), true, false).as_deref(), Some("file"));
            slot.forget(&first).await;
            assert!(slot.link.lock().await.is_none());
            let second = slot.know(&mut *slot.link.lock().await, link());
            // The first link was forgotten already.
            slot.forget(&first).await;
            assert!(slot.link.lock().await.is_some());
            assert_eq!(second.tag_of(Some("b"), false, true).as_deref(), Some("b"));
            assert_eq!(second.tag_of(Some("a"), false, true).as_deref(), Some("file"));
        });
    }

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

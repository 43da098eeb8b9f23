//! The hub as a storage: which commit is read, and listings.

use std::sync::Arc;
use std::time::Duration;

use object_store::Error;
use object_store::path::Path as Key;

use super::client::HubClient;
use super::repository::Repository;
use super::tree::{Entries, Folders};
use crate::listing::MAX_OWN_PAUSE;
use crate::pages::LeftOut;
use crate::stores::{Listing, Store};
use crate::{Refused, RemoteObjects};
use forebay_storage::error::{RetryClass, StorageError};
use forebay_storage::listing::EntryKind;

/// The target of lines about an opened dataset, which every daemon logs.
const DATASET: &str = "forebay::dataset";
/// The most bytes of one page of a listing.
const MAX_PAGE_BYTES: u64 = 64 << 20;
/// The most bytes of a response about a revision.
const MAX_REVISION_BYTES: u64 = 1 << 20;
/// How often a request is made before it fails, as for a page of a listing; the pauses double.
const TRIES: u32 = 6;
const FIRST_PAUSE: Duration = Duration::from_millis(100);

impl RemoteObjects {
    /// Finds out which commit a branch or a tag names, once, and reads its files from then on.
    pub(crate) fn settle_revision(&self, repository: &Repository) -> Result<(), Refused> {
        if repository.is_settled() {
            return Ok(());
        }
        let commit = self.ask_commit(TRIES)?;
        if repository.settle(&commit) {
            tracing::info!(
                target: DATASET,
                "{} reads commit {commit}, which {:?} names now",
                self.url().display(),
                repository.name.revision
            );
        }
        Ok(())
    }

    fn ask_commit(&self, tries: u32) -> Result<String, Refused> {
        let request = ("finding the revision of", "", MAX_REVISION_BYTES);
        self.ask_hub(tries, request, async |hub| hub.commit().await)
    }

    /// Reads the files of the commit that the index was made of; says so if the branch has moved since.
    pub(crate) fn read_commit(&self, repository: &Repository, commit: &str) {
        if !repository.has_revisions() || repository.name.is_pinned() {
            return;
        }
        let known = repository.pin(commit);
        if known.as_deref() == Some(commit) {
            return;
        }
        let (url, revision) = (self.url().display(), &repository.name.revision);
        // What is read does not depend on it, so that a network that is away delays no start.
        match known.map_or_else(|| self.ask_commit(1), Ok) {
            Ok(now) if now != commit => tracing::warn!(
                "{revision:?} of {url} has moved from commit {commit} to {now} since the index was made: the files of \
                 {commit} are read; `forebay index` reads those of the new commit"
            ),
            Ok(_) => {
                tracing::info!(target: DATASET, "{url} reads commit {commit}, as its index says")
            }
            Err(refused) => tracing::info!(
                target: DATASET,
                "{url} reads commit {commit}, as its index says; whether {revision:?} has moved is not known: {}",
                refused.error
            ),
        }
    }

    /// Makes a request to the hub's API, again if it fails temporarily.
    fn ask_hub<T>(
        &self,
        tries: u32,
        (action, folder, limit_bytes): (&'static str, &str, u64),
        call: impl AsyncFn(&HubClient) -> Result<T, Error>,
    ) -> Result<T, Refused> {
        let mut pause = FIRST_PAUSE;
        let ask = || {
            let ask = async |store: &Store, _: &Key| match &store.listing {
                Listing::Hub(hub) => call(hub).await,
                Listing::Pages(_) | Listing::Web(..) => unreachable!("only a hub is asked so"),
            };
            let (result, client) = self.call(action, folder, limit_bytes, ask)?;
            self.clients.give_back(client);
            Ok(result)
        };
        for _ in 1..tries {
            match ask() {
                Err(Refused { error, .. })
                    if error.class() == RetryClass::Outage
                        // Otherwise the caller waits; the listing continues at its page.
                        && error.retry_after().is_none_or(|pause| pause <= MAX_OWN_PAUSE) =>
                {
                    std::thread::sleep(error.retry_after().unwrap_or(pause).max(pause));
                    pause *= 2;
                }
                result => return result,
            }
        }
        ask()
    }

    /// Lists a folder; `step` reports progress.
    pub(crate) fn list_hub(
        &self,
        repository: &Arc<Repository>,
        folder: &str,
        visit: &mut dyn FnMut(&[u8], EntryKind),
        step: &dyn Fn(),
    ) -> Result<u64, StorageError> {
        let refused = |refused: Refused| refused.error;
        self.settle_revision(repository).map_err(refused)?;
        let path = self.key_of(folder);
        let entries = self.take_folder(repository, (folder, &path), step)?;
        for (name, stamp) in &entries {
            let kind = stamp.map_or(EntryKind::Directory, EntryKind::Object);
            visit(name.as_bytes(), kind);
        }
        Ok(entries.len() as u64)
    }

    /// The entries of a folder, from a listing before or from a new one of all below it.
    fn take_folder(
        &self,
        repository: &Repository,
        (folder, path): (&str, &str),
        step: &dyn Fn(),
    ) -> Result<Entries, StorageError> {
        let mut tree = repository.tree();
        if let Some(entries) = tree.waiting.remove(path) {
            return Ok(entries);
        }
        let begun = tree.begun.take().filter(|(of, ..)| of == path);
        let first = || (repository.tree_url(path).to_string(), Folders::default());
        let (mut url, mut folders) = begun.map_or_else(first, |(_, url, folders)| (url, folders));
        loop {
            let request = ("listing", folder, MAX_PAGE_BYTES);
            let page = self.ask_hub(TRIES, request, async |hub| hub.page(&url).await);
            let (page, next) = match page {
                Ok(page) => page,
                Err(Refused { error, .. }) => {
                    if error.class() == RetryClass::Outage {
                        tree.begun = Some((path.to_owned(), url, folders));
                    }
                    return Err(error);
                }
            };
            step();
            let added = folders.add(repository.name.kind, path, &page);
            let is_circle = next.as_ref() == Some(&url);
            let added = if is_circle { Err("the listing does not end".to_owned()) } else { added };
            if let Err(what) = added {
                return Err(self.failed("listing", folder).answer(&what, RetryClass::Never));
            }
            match next {
                Some(next) => url = next,
                None => break,
            }
        }
        if folders.unusable > 0 {
            let first = std::mem::take(&mut folders.first_unusable);
            self.tell_left_out(folder, &LeftOut { count: folders.unusable, first });
        }
        let mut found = folders.finish();
        let entries = found.remove(path).unwrap_or_default();
        tree.waiting.append(&mut found);
        Ok(entries)
    }
}

//! Listings of folders, page by page: by the provider's API, or from the page that a web server shows.

use std::collections::HashSet;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

use object_store::Error;
use object_store::list::PaginatedListOptions;
use object_store::path::Path as Key;
use url::Url;

use super::stores::{Listing, Store};
use super::{Refused, RemoteObjects, names, page};
use forebay_storage::error::{RetryClass, StorageError};
use forebay_storage::listing::{Directories, DirectoryStamp, EntryKind};
use forebay_storage::version::ObjectStamp;

/// The most bytes of one page of a listing.
const MAX_PAGE_BYTES: u64 = 64 << 20;
/// The most entries of one folder.
const MAX_ENTRIES: u64 = 1 << 27;
/// Limit of successive pages without an entry.
const MAX_EMPTY_PAGES: u32 = 1000;
/// How often a page is requested before the listing fails; the pauses double.
const PAGE_TRIES: u32 = 6;
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// A longer pause that a server asks for is waited for by the caller, who says so.
pub(super) const MAX_OWN_PAUSE: Duration = Duration::from_secs(2);

impl RemoteObjects {
    /// Lists a folder by the provider's API.
    fn list_pages(
        &self,
        directory: &str,
        visit: &mut dyn FnMut(&[u8], EntryKind),
    ) -> Result<u64, StorageError> {
        let prefix = match self.root.key(directory).as_str() {
            "" => String::new(),
            key => format!("{key}/"),
        };
        let (mut token, mut entries, mut empty_pages) = (None::<String>, 0, 0);
        let (mut this_page, mut overlapping) = (HashSet::new(), 0);
        loop {
            let page = self.with_tries(|| {
                let page_token = token.clone();
                let list = async |store: &Store, _: &Key| match &store.listing {
                    Listing::Pages(pages) => {
                        let options = PaginatedListOptions {
                            delimiter: Some("/".into()),
                            page_token,
                            ..PaginatedListOptions::default()
                        };
                        let prefix = (!prefix.is_empty()).then_some(prefix.as_str());
                        pages.list_paginated(prefix, options).await
                    }
                    Listing::Web(..) | Listing::Hub(_) => {
                        unreachable!("neither a web server nor the hub is listed so")
                    }
                };
                let (page, client) = self.call("listing", directory, MAX_PAGE_BYTES, list)?;
                self.clients.give_back(client);
                Ok(page)
            })?;
            let before = entries;
            // Some servers repeat the end of a page at the beginning of the next.
            let last_page = std::mem::take(&mut this_page);
            let mut is_new = |name: &str, is_folder: bool| {
                this_page.insert((name.to_owned(), is_folder));
                let is_new = !last_page.contains(&(name.to_owned(), is_folder));
                overlapping += u64::from(!is_new);
                is_new
            };
            for folder in &page.result.common_prefixes {
                if let Some(name) = folder.as_ref().strip_prefix(&prefix)
                    && is_new(name, true)
                {
                    entries += 1;
                    visit(name.as_bytes(), EntryKind::Directory);
                }
            }
            for object in &page.result.objects {
                // The object with the folder's own name marks that the folder exists.
                if let Some(name) = object.location.as_ref().strip_prefix(&prefix)
                    && is_new(name, false)
                {
                    entries += 1;
                    let stamp = ObjectStamp::new(object.size, object.e_tag.as_deref());
                    visit(name.as_bytes(), EntryKind::Object(stamp));
                }
            }
            empty_pages = if entries == before { empty_pages + 1 } else { 0 };
            let next = page.page_token.filter(|token| !token.is_empty());
            let is_endless = next.is_some() && next == token
                || empty_pages > MAX_EMPTY_PAGES
                || entries > MAX_ENTRIES;
            if is_endless {
                let what = "the listing does not end";
                return Err(self.failed("listing", directory).answer(what, RetryClass::Never));
            }
            match next {
                Some(next) => token = Some(next),
                None => break,
            }
        }
        if overlapping > 0 && !self.has_told_overlap.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "the server lists {overlapping} names of {} twice, on two pages that follow each other; each counts once, \
                 here and in other folders",
                self.path(directory).display()
            );
        }
        Ok(entries)
    }

    /// Lists a folder from the page that a web server shows.
    fn list_web(
        &self,
        directory: &str,
        visit: &mut dyn FnMut(&[u8], EntryKind),
    ) -> Result<u64, StorageError> {
        let (page, folder) = self.with_tries(|| {
            let get = async |store: &Store, _: &Key| {
                let fail = |source: Box<dyn std::error::Error + Send + Sync>| Error::Generic {
                    store: "HTTP",
                    source,
                };
                let Listing::Web(client, base) = &store.listing else {
                    unreachable!("only a web server is listed so");
                };
                let mut folder = base.clone();
                let key = self.root.key(directory);
                let parts = key.split('/').filter(|part| !part.is_empty());
                if let Ok(mut segments) = folder.path_segments_mut() {
                    segments.clear().extend(parts).push("");
                }
                let request = http::Request::get(folder.as_str())
                    .body(object_store::client::HttpRequestBody::empty())
                    .map_err(|error| fail(error.into()))?;
                let response = client.execute(request).await.map_err(|error| fail(error.into()))?;
                if !response.status().is_success() {
                    return Err(fail("refused".into()));
                }
                let page =
                    response.into_body().bytes().await.map_err(|error| fail(error.into()))?;
                let plain = names::plain_url(folder.as_str()).and_then(|url| Url::parse(&url).ok());
                Ok((page, plain.unwrap_or(folder)))
            };
            let (page, client) = self.call("listing", directory, MAX_PAGE_BYTES, get)?;
            self.clients.give_back(client);
            Ok(page)
        })?;
        let mut entries = 0;
        let unusable = page::entries(&page, &folder, |name, is_folder| {
            entries += 1;
            visit(name, if is_folder { EntryKind::Directory } else { EntryKind::File });
        });
        if unusable > 0 && !self.has_told_left_out.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "the page of {folder} links to {unusable} names that no file can have: they are left out, here and in other \
                 folders"
            );
        }
        Ok(entries)
    }

    /// Requests a page several times, so that a listing of thousands does not start over after one failure.
    fn with_tries<T>(
        &self,
        mut page: impl FnMut() -> Result<T, Refused>,
    ) -> Result<T, StorageError> {
        let mut pause = FIRST_PAUSE;
        for _ in 1..PAGE_TRIES {
            match page() {
                Err(Refused { error, .. })
                    if error.class() == RetryClass::Outage
                        && error.retry_after().is_none_or(|pause| pause <= MAX_OWN_PAUSE) =>
                {
                    std::thread::sleep(error.retry_after().unwrap_or(pause).max(pause));
                    pause *= 2;
                }
                page => return page.map_err(|refused| refused.error),
            }
        }
        page().map_err(|refused| refused.error)
    }
}

impl Directories for RemoteObjects {
    fn list(
        &self,
        directory: &[u8],
        visit: &mut dyn FnMut(&[u8], EntryKind),
    ) -> Result<DirectoryStamp, StorageError> {
        self.list_in_steps(directory, visit, &|| {})
    }

    fn list_in_steps(
        &self,
        directory: &[u8],
        visit: &mut dyn FnMut(&[u8], EntryKind),
        step: &dyn Fn(),
    ) -> Result<DirectoryStamp, StorageError> {
        let name = self.name_of(directory);
        let listed = match self.clients.repository() {
            Some(repository) => self.list_hub(repository, &name, visit, step),
            None if self.is_web() => self.list_web(&name, visit),
            None => self.list_pages(&name, visit),
        };
        match listed {
            Ok(0) => Err(StorageError::Vanished { path: self.path(&name) }),
            listed => listed.map(|_| DirectoryStamp::default()),
        }
    }

    /// Always equal: servers do not report when a folder changed.
    fn stamp(&self, _directory: &[u8]) -> Result<DirectoryStamp, StorageError> {
        Ok(DirectoryStamp::default())
    }

    fn root_is_file(&self) -> bool {
        self.root_is_file
    }

    fn remote_root(&self) -> Option<&Path> {
        Some(&self.url)
    }

    fn server(&self) -> Option<String> {
        self.server.clone()
    }

    fn revision(&self) -> Option<String> {
        self.clients.repository()?.commit()
    }

    fn read_revision(&self, revision: &str) {
        if let Some(repository) = self.clients.repository() {
            self.read_commit(repository, revision);
        }
    }
}

//! Folders behind a URL, a page at a time: by the provider's pages, or by the page that a web server shows.

use std::path::Path;
use std::time::Duration;

use object_store::Error;
use object_store::list::PaginatedListOptions;
use object_store::path::Path as Key;

use super::address::Scheme;
use super::stores::{Listing, Store};
use super::{Refused, RemoteObjects, page};
use crate::location::ObjectStamp;
use crate::storage::error::{RetryClass, StorageError};
use crate::storage::listing::{Directories, DirectoryStamp, EntryKind};

/// The most bytes of one page of a listing.
const MAX_PAGE_BYTES: u64 = 64 << 20;
/// The most entries of one folder.
const MAX_ENTRIES: u64 = 1 << 27;
/// Pages without an entry, one after the other.
const MAX_EMPTY_PAGES: u32 = 1000;
/// How often a page is asked for before the listing fails; the pauses between double.
const PAGE_TRIES: u32 = 6;
const FIRST_PAUSE: Duration = Duration::from_millis(100);

impl RemoteObjects {
    /// Lists a folder by the provider's pages.
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
                    Listing::Web(..) => unreachable!("a web server has no pages"),
                };
                let (page, line) = self.call("listing", directory, MAX_PAGE_BYTES, list)?;
                self.lines.give_back(line);
                Ok(page)
            })?;
            let before = entries;
            for folder in &page.result.common_prefixes {
                if let Some(name) = folder.as_ref().strip_prefix(&prefix) {
                    entries += 1;
                    visit(name.as_bytes(), EntryKind::Directory);
                }
            }
            for object in &page.result.objects {
                // The object of the folder's own name marks that there is one.
                if let Some(name) = object.location.as_ref().strip_prefix(&prefix) {
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
                let what = "the listing does not come to an end";
                return Err(self.failed("listing", directory).answer(what, RetryClass::Never));
            }
            match next {
                Some(next) => token = Some(next),
                None => return Ok(entries),
            }
        }
    }

    /// Lists a folder by the page that a web server shows of it.
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
                Ok((page, folder))
            };
            let (page, line) = self.call("listing", directory, MAX_PAGE_BYTES, get)?;
            self.lines.give_back(line);
            Ok(page)
        })?;
        let mut entries = 0;
        page::entries(&String::from_utf8_lossy(&page), &folder, |name, is_folder| {
            entries += 1;
            visit(name.as_bytes(), if is_folder { EntryKind::Directory } else { EntryKind::File });
        });
        Ok(entries)
    }

    /// Asks for a page until it comes, a few times: a listing of thousands does not begin anew for one of them.
    fn with_tries<T>(
        &self,
        mut page: impl FnMut() -> Result<T, Refused>,
    ) -> Result<T, StorageError> {
        let mut pause = FIRST_PAUSE;
        for _ in 1..PAGE_TRIES {
            match page() {
                Err(Refused { error, .. }) if error.class() == RetryClass::Outage => {
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
        let name = String::from_utf8_lossy(directory);
        let is_web = self.root.scheme == Scheme::Web;
        let listed =
            if is_web { self.list_web(&name, visit) } else { self.list_pages(&name, visit) };
        match listed {
            Ok(0) => Err(StorageError::Vanished { path: self.path(&name) }),
            listed => listed.map(|_| DirectoryStamp::default()),
        }
    }

    /// All the same: nobody says when a folder changed.
    fn stamp(&self, _directory: &[u8]) -> Result<DirectoryStamp, StorageError> {
        Ok(DirectoryStamp::default())
    }

    fn root_is_file(&self) -> bool {
        self.root_is_file
    }

    fn remote_root(&self) -> Option<&Path> {
        Some(&self.url)
    }
}

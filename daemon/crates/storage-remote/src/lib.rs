//! Objects at a URL: S3-compatible stores, Google Cloud Storage, Azure Blob Storage, files on a web server, datasets and
//! buckets of Hugging Face's hub.
//!
//! `object_store` signs requests; `hub` makes those to the hub. `client` sends metadata requests; `wire` downloads bodies over its own connections;
//! `client_pool` assigns clients and connections to threads. Only pages of a listing are retried here: `failure`
//! classifies errors for the callers that retry.
//!
//! Reading blocks the calling thread. If the dataset's index has an object's size and tag, opening sends nothing, and
//! reading is one request whose response must match both. Otherwise opening sends the request, whose response contains
//! the length, and reading takes the body. A body is copied from the connection's buffer to the caller's buffer.
//! Folders are listed page by page and have no stamps: a saved index is used without a check.

mod address;
mod answer;
mod body;
mod client;
mod client_pool;
mod failure;
mod hedges;
mod hub;
mod keys;
mod known;
mod listing;
mod names;
mod pace;
mod page;
mod pages;
mod process;
mod profile;
#[cfg(test)]
mod scripted_server;
mod stores;
#[cfg(test)]
mod strays;
#[cfg(any(test, feature = "testing"))]
#[doc(hidden)]
pub mod testing;
mod trace;
mod wire;

use std::borrow::Cow;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use object_store::path::Path as Key;
use object_store::{Error, GetOptions, GetRange, GetResult};

use forebay_keys::Section;
use forebay_observe::RequestMetrics;
use forebay_storage::version::{FileStatus, ObjectIdentity, ObjectStamp};

use self::address::{Address, Scheme};
use self::answer::Answer;
use self::body::Stopped;
use self::client_pool::{ClientPool, PooledClient};
use self::failure::Failed;
use self::hedges::Hedges;
pub use self::keys::RemoteKeys;
use self::known::KnownFiles;
use self::pages::LeftOut;
pub use self::process::serve as serve_credential_process;
pub use self::profile::needed_files;
use self::stores::{Store, Stores};
use self::trace::Trace;
use forebay_storage::error::{RetryClass, StorageError};
use forebay_storage::location::{ByteRange, FileId, FileTable, Location};
use forebay_storage::{
    BodySink, CacheScope, Handle, Opened, Properties, Response, Storage, Target, Untagged,
};

/// Largest offset of a range that is requested: no object is this large.
const MAX_OBJECT_BYTES: u64 = 1 << 60;

/// Memory of one pooled client: its response buffer (400 KiB), TLS records, its runtime.
const BYTES_PER_CLIENT: u64 = 512 << 10;

/// The objects below one URL.
#[derive(Debug)]
pub struct RemoteObjects {
    /// The folder.
    root: Address,
    /// `dataset.path`.
    url: PathBuf,
    root_is_file: bool,
    /// The server, if the URL does not say it.
    server: Option<String>,
    /// Whether objects never change under their names.
    is_immutable: bool,
    /// Whether `storage.requests_per_second` spreads the requests.
    is_paced: bool,
    clients: Arc<ClientPool>,
    /// Whether a request has succeeded: later failures of credentials may be temporary.
    has_worked: AtomicBool,
    /// Metrics of the requests for samples.
    metrics: Arc<RequestMetrics>,
    /// Decides which of these requests are hedged.
    hedges: Hedges,
    /// What the web server's responses said of files that were read.
    known: KnownFiles,
    /// Whether the server refuses `HEAD`.
    refuses_head: AtomicBool,
    /// Whether the warnings about unusable names and about overlapping pages were logged.
    has_told_left_out: AtomicBool,
    has_told_overlap: AtomicBool,
}

/// A response that has begun, on this client.
struct Begun {
    /// The object, in messages.
    path: PathBuf,
    clients: Arc<ClientPool>,
    client: PooledClient,
    answer: Answer,
}

/// A failed call.
struct Refused {
    error: StorageError,
    /// The object's length, if the range was past its end.
    total_bytes: Option<u64>,
    /// The response's status, if there was a response.
    status: Option<u16>,
}

/// Whether a file that a web server compresses for transfer is accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Encoded {
    Refused,
    Any,
}

impl Refused {
    /// Whether the server is temporarily overloaded.
    const fn is_busy(&self) -> bool {
        matches!(self.status, Some(429 | 503))
    }
}

impl RemoteObjects {
    /// Opens a URL. If its last part contains a dot, the server is asked whether it is an object.
    ///
    /// # Errors
    /// Keys or credentials cannot be used, or the server does not respond.
    pub fn open(url: &Path, section: &Section) -> Result<Self, StorageError> {
        Self::open_in(url, section, &|name| std::env::var_os(name))
    }

    /// As [`open`](Self::open), with these variables of the environment for the hub.
    fn open_in(
        url: &Path,
        section: &Section,
        variable: &dyn Fn(&str) -> Option<OsString>,
    ) -> Result<Self, StorageError> {
        let refuse = |what: String| {
            let identity = "";
            Failed { action: "opening", path: url.to_owned(), identity, has_worked: false }
                .local(what)
        };
        let keys = RemoteKeys::of(section).map_err(|error| refuse(error.to_string()))?;
        let root = url.to_str().and_then(Address::parse).ok_or_else(|| {
            refuse(match url.starts_with("hf:/") {
                true => "the hub's URLs are hf://datasets/OWNER/NAME[@REVISION][/path] and hf://buckets/OWNER/NAME[/path], \
                         without a part that is empty, `.` or `..`"
                    .to_owned(),
                false => "the URL has no bucket or has a part that is empty, `.` or `..`".to_owned(),
            })
        })?;
        let stores = Stores::new(&root, &keys, variable).map_err(refuse)?;
        let mut objects = Self {
            root,
            url: url.to_owned(),
            root_is_file: false,
            server: stores.server(),
            is_immutable: keys.immutable,
            is_paced: keys.requests_per_second.is_some(),
            clients: Arc::new(ClientPool::new(stores)),
            has_worked: AtomicBool::new(false),
            metrics: Arc::default(),
            hedges: Hedges::default(),
            known: KnownFiles::default(),
            refuses_head: AtomicBool::new(false),
            has_told_left_out: AtomicBool::new(false),
            has_told_overlap: AtomicBool::new(false),
        };
        if objects.root.name().contains('.') {
            // A compressed object exists, too; reading it fails with an error that names it.
            match objects.ask_status("", Encoded::Any) {
                Ok(_) => {
                    objects.root = objects.root.parent();
                    objects.root_is_file = true;
                }
                // No object, or no permission for it: listing its folder reports what is wrong.
                Err(error) if error.class() != RetryClass::Outage => {}
                Err(error) => return Err(error),
            }
        }
        Ok(objects)
    }

    /// `dataset.path`.
    fn url(&self) -> &Path {
        &self.url
    }

    /// The name of an object in the bucket or the repository.
    fn key_of(&self, relative: &str) -> String {
        self.root.key(relative)
    }

    /// An object's path in messages.
    fn path(&self, relative: &str) -> PathBuf {
        OsString::from_vec(names::bytes_of(&self.root.full(relative))).into()
    }

    /// An object's name in requests.
    fn name_of<'n>(&self, path: &'n [u8]) -> Cow<'n, str> {
        match self.root.scheme {
            Scheme::Web => names::text_of(path),
            // Names in a bucket are UTF-8.
            _ => String::from_utf8_lossy(path),
        }
    }

    fn failed(&self, action: &'static str, relative: &str) -> Failed<'_> {
        Failed {
            action,
            path: self.path(relative),
            identity: self.clients.identity(),
            // Relaxed: a hint for messages.
            has_worked: self.has_worked.load(Ordering::Relaxed),
        }
    }

    /// Makes one call with a pooled client and returns the client too. `limit_bytes` limits the response.
    fn call<T>(
        &self,
        action: &'static str,
        relative: &str,
        limit_bytes: u64,
        call: impl AsyncFnOnce(&Store, &Key) -> Result<T, Error>,
    ) -> Result<(T, PooledClient), Refused> {
        self.call_on(self.clients.take(), (action, relative), limit_bytes, call)
    }

    fn call_on<T>(
        &self,
        client: Result<PooledClient, String>,
        (action, relative): (&'static str, &str),
        limit_bytes: u64,
        call: impl AsyncFnOnce(&Store, &Key) -> Result<T, Error>,
    ) -> Result<(T, PooledClient), Refused> {
        let local = |what: String| Refused {
            error: self.failed(action, relative).local(what),
            total_bytes: None,
            status: None,
        };
        let key = Key::parse(self.root.key(relative)).map_err(|error| local(error.to_string()))?;
        let client = client.map_err(local)?;
        let (result, trace) =
            client.run(limit_bytes, async |store: &Store| call(store, &key).await);
        match result {
            Ok(result) => {
                self.has_worked.store(true, Ordering::Relaxed);
                if let Some(left_out) = &trace.left_out {
                    self.tell_left_out(relative, left_out);
                }
                Ok((result, client))
            }
            Err(error) => {
                self.clients.give_back(client);
                if failure::is_expired(&trace) {
                    self.clients.refused(&trace);
                }
                let total_bytes = trace.total_bytes.filter(|_| trace.status == Some(416));
                Err(Refused {
                    error: self.failed(action, relative).error(&error, &trace),
                    total_bytes,
                    status: trace.status,
                })
            }
        }
    }

    /// Size and tag of an object.
    fn status_of(&self, relative: &str) -> Result<FileStatus, StorageError> {
        self.ask_status(relative, Encoded::Refused)
    }

    fn ask_status(&self, relative: &str, encoded: Encoded) -> Result<FileStatus, StorageError> {
        let refused = |refused: Refused| refused.error;
        if !self.refuses_head.load(Ordering::Relaxed) {
            let options = GetOptions { head: true, ..GetOptions::default() };
            match self.head(relative, 0, options, encoded) {
                Ok(status) => return Ok(status),
                Err(Refused { status: Some(403 | 405 | 501), .. }) if self.is_web() => {}
                Err(error) => return Err(error.error),
            }
        }
        // A request for the first byte returns the same headers, and its connection can be kept.
        let range = Some(GetRange::Bounded(0..1));
        let first = self.head(relative, 1, GetOptions { range, ..GetOptions::default() }, encoded);
        let status = match first {
            Err(Refused { total_bytes: Some(0), .. }) => {
                let identity = ObjectIdentity::Tag(String::new());
                Ok(FileStatus { bytes: 0, identity })
            }
            Err(Refused { error, .. }) if error.class() == RetryClass::Outage => Err(error),
            // The server does not support ranges.
            Err(_) => {
                self.head(relative, u64::MAX, GetOptions::default(), encoded).map_err(refused)
            }
            first => first.map_err(refused),
        }?;
        if !self.refuses_head.swap(true, Ordering::Relaxed) {
            tracing::info!(
                "{} refuses HEAD: sizes and tags of files are requested by GET",
                self.url.display()
            );
        }
        Ok(status)
    }

    /// An object's size and tag from the headers of a response. `limit_bytes` limits the body.
    fn head(
        &self,
        relative: &str,
        limit_bytes: u64,
        options: GetOptions,
        encoded: Encoded,
    ) -> Result<FileStatus, Refused> {
        const ACTION: &str = "asking the size of";
        self.settle()?;
        let head = async |store: &Store, key: &Key| {
            let result = store.objects.get_opts(key, options).await?;
            let (meta, encoding) = (result.meta.clone(), self.encoding_of(&result));
            // A connection can be reused once the body is read to its end.
            if limit_bytes == 1 {
                let _ = result.bytes().await;
            }
            Ok((meta, encoding))
        };
        let ((meta, encoding), client) = self.call(ACTION, relative, limit_bytes, head)?;
        self.clients.give_back(client);
        if let Some(encoding) = encoding.filter(|_| encoded == Encoded::Refused) {
            let error = self.failed(ACTION, relative).encoded(&encoding);
            return Err(Refused { error, total_bytes: None, status: None });
        }
        let identity = ObjectIdentity::Tag(answer::tag_of(&meta).unwrap_or_default());
        Ok(FileStatus { bytes: meta.size, identity })
    }

    /// The `Content-Encoding` of a file on a web server, which is refused. Objects of a bucket are returned as stored.
    fn encoding_of(&self, result: &GetResult) -> Option<String> {
        let is_file = self.is_web() || self.root.scheme == Scheme::Hub;
        answer::encoding(result).filter(|_| is_file).map(str::to_owned)
    }

    fn is_web(&self) -> bool {
        self.root.scheme == Scheme::Web
    }

    /// Before the first request for a file of the hub: which commit is read.
    fn settle(&self) -> Result<(), Refused> {
        self.clients.repository().map_or(Ok(()), |repository| self.settle_revision(repository))
    }

    /// Warns once that a listing has unusable names.
    fn tell_left_out(&self, directory: &str, left_out: &LeftOut) {
        if !self.has_told_left_out.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "{} has {} names that cannot be paths, the first is {:?}: they are left out, here and in other folders. \
                 No part of a name may be empty, `.` or `..` or have control characters; rename or remove these objects",
                self.path(directory).display(),
                left_out.count,
                left_out.first,
            );
        }
    }

    /// Requests a part of an object. A response that may belong to another object is dropped with its connection; the
    /// response over a new connection is accepted. `expected`: size and tag in the index.
    fn ask(
        &self,
        relative: &str,
        range: ByteRange,
        expected: Option<ObjectStamp>,
    ) -> Result<(Answer, PooledClient), StorageError> {
        let (answer, client) = self.ask_on(self.clients.take(), relative, range)?;
        let (said, is_web) = (self.said_of(&answer), self.is_web());
        let is_other = match expected {
            Some(expected) => !expected.agrees(said),
            None => is_web && self.known.doubts(relative, said, answer.repeats_last),
        };
        if !is_other || answer.is_first {
            if is_web {
                self.known.believe(relative, said, None);
            }
            return Ok((answer, client));
        }
        answer.request.fail(false);
        drop((answer.body, client));
        let (answer, client) = self.ask_on(self.clients.make(), relative, range)?;
        let now = self.said_of(&answer);
        if now != said && self.known.is_news() {
            tracing::warn!(
                path = %self.path(relative).display(),
                "a response belonged to another file: a proxy repeats or reorders responses. The request was repeated over a \
                 new connection"
            );
        }
        if is_web {
            self.known.believe(relative, now, Some(said));
        }
        Ok((answer, client))
    }

    /// Size and tag of a response's object as the index has them: the index has the modification times of a web
    /// server's files, for it requests each file's headers.
    fn said_of(&self, answer: &Answer) -> ObjectStamp {
        if self.is_web() { answer.told } else { answer.stamp }
    }

    fn ask_on(
        &self,
        client: Result<PooledClient, String>,
        relative: &str,
        range: ByteRange,
    ) -> Result<(Answer, PooledClient), StorageError> {
        let end = range.length.map(|length| range.offset.saturating_add(length));
        let wanted = match end {
            None if range.offset == 0 => None,
            None => Some(GetRange::Offset(range.offset)),
            Some(end) => Some(GetRange::Bounded(range.offset..end)),
        };
        let options = GetOptions { range: wanted, ..GetOptions::default() };
        self.settle().map_err(|refused| refused.error)?;
        // A request that waits for its turn is not late.
        let late = self.hedges.ask(|| self.metrics.report()).filter(|_| !self.is_paced);
        let get = async |store: &Store, key: &Key| {
            // Each request keeps its own trace, for two may run at once.
            let request = async || {
                let get = store.objects.get_opts(key, options.clone());
                let (result, mut trace) = Trace::of(u64::MAX, get).await;
                let answered = trace.answered.take();
                result.map(|result| (result, answered)).map_err(|error| (error, trace))
            };
            self.hedges.run(late, request, || self.metrics.hedge()).await.map_err(|failed| {
                let (error, met) = failed;
                Trace::update(|trace| *trace = met);
                error
            })
        };
        let request = self.metrics.begin();
        let ((result, answered), client) =
            match self.call_on(client, ("reading", relative), u64::MAX, get) {
                Ok(answered) => answered,
                Err(refused) => {
                    request.fail(refused.is_busy());
                    return Err(match refused.total_bytes {
                        Some(length_bytes) => self.out_of_range(relative, range, length_bytes),
                        None => refused.error,
                    });
                }
            };
        if let Some(encoding) = self.encoding_of(&result) {
            request.fail(false);
            return Err(self.failed("reading", relative).encoded(&encoding));
        }
        request.answered();
        let answer = Answer::new(result, answered, request);
        Ok((answer, client))
    }

    fn out_of_range(&self, relative: &str, range: ByteRange, length_bytes: u64) -> StorageError {
        let end = range.length.map_or(range.offset, |length| range.offset.saturating_add(length));
        StorageError::OutOfRange {
            path: self.path(relative),
            length_bytes,
            offset: range.offset,
            end,
        }
    }

    /// Opens a location of an object that the index has no stamp of: the response contains its length.
    fn open_unknown(&self, relative: &str, location: Location) -> Result<Opened, StorageError> {
        let range = location.range;
        let end = range.length.map(|length| range.offset.saturating_add(length));
        let empty = || {
            let range = ByteRange { length: Some(0), ..range };
            Opened::new(Location { range, ..location }, 0, Handle::Unrequested)
        };
        if end.is_some_and(|end| end == range.offset || end > MAX_OBJECT_BYTES) {
            // An empty range cannot be requested.
            let length_bytes = self.status_of(relative)?.bytes;
            if end.is_some_and(|end| end > length_bytes) {
                return Err(self.out_of_range(relative, range, length_bytes));
            }
            return Ok(empty());
        }
        let (answer, client) = match self.ask(relative, range, None) {
            Err(StorageError::OutOfRange { length_bytes, .. })
                if range.length.is_none() && length_bytes == range.offset =>
            {
                return Ok(empty());
            }
            answered => answered?,
        };
        if end.is_some_and(|end| end > answer.stamp.bytes) {
            return Err(self.out_of_range(relative, range, answer.stamp.bytes));
        }
        let (length_bytes, stamp) = (answer.range.end - answer.range.start, answer.told);
        let (path, clients) = (self.path(relative), Arc::clone(&self.clients));
        let begun = Handle::Response(Box::new(Begun { path, clients, client, answer }));
        Ok(Opened { stamp: Some(stamp), ..Opened::new(location, length_bytes, begun) })
    }

    /// Reads an indexed range and checks that the object is still the indexed one.
    fn read_indexed(
        &self,
        relative: &str,
        location: Location,
        length_bytes: u64,
        stamp: ObjectStamp,
        target: Target<'_>,
    ) -> Result<bool, StorageError> {
        if location.range.length == Some(0) {
            return Ok(true);
        }
        let (answer, client) = match self.ask(relative, location.range, Some(stamp)) {
            Err(StorageError::OutOfRange { length_bytes, .. }) => {
                let now = ObjectStamp::new(length_bytes, None);
                return Err(self.replaced(relative, stamp, now));
            }
            answered => answered?,
        };
        let now = self.said_of(&answer);
        if !stamp.agrees(now) {
            return Err(self.replaced(relative, stamp, now));
        }
        let found = answer.range.end - answer.range.start;
        if found != length_bytes {
            let what = format!("{found} bytes instead of the requested {length_bytes}");
            return Err(self.failed("reading", relative).answer(&what, RetryClass::File));
        }
        take_body(&self.clients, (client, answer), length_bytes, target, || self.path(relative))
    }

    /// The error for an object that differs from the indexed one. With an equal tag, the response is wrong.
    fn replaced(&self, relative: &str, indexed: ObjectStamp, now: ObjectStamp) -> StorageError {
        if indexed.has_tag_of(now) {
            let what = format!(
                "its length is {} bytes, but its tag belongs to an object of {} bytes",
                now.bytes, indexed.bytes
            );
            return self.failed("reading", relative).answer(&what, RetryClass::File);
        }
        let what = match indexed.bytes == now.bytes {
            true => format!("its {} bytes have another tag (ETag) or time now", now.bytes),
            false => format!("it had {} bytes and has {}", indexed.bytes, now.bytes),
        };
        StorageError::Replaced { path: self.path(relative), what }
    }

    fn read_into(
        &self,
        files: &dyn FileTable,
        opened: Opened,
        target: Target<'_>,
    ) -> Result<bool, StorageError> {
        let Opened { location, length_bytes, handle, .. } = opened;
        match handle {
            Handle::Response(response) => return response.read(length_bytes, target),
            Handle::Unrequested => {}
            other => other.refuse(),
        }
        let stamp = files.stamp(location.file).unwrap_or_default();
        let path = files.path(location.file);
        self.read_indexed(&self.name_of(&path), location, length_bytes, stamp, target)
    }
}

impl Response for Begun {
    fn read(self: Box<Self>, length_bytes: u64, target: Target<'_>) -> Result<bool, StorageError> {
        let Self { path, clients, client, answer } = *self;
        take_body(&clients, (client, answer), length_bytes, target, || path)
    }
}

/// Takes a body of this length. False: the target wants no more.
fn take_body(
    clients: &ClientPool,
    (client, answer): (PooledClient, Answer),
    length_bytes: u64,
    target: Target<'_>,
    path: impl FnOnce() -> PathBuf,
) -> Result<bool, StorageError> {
    let Answer { body, request, .. } = answer;
    let failed = || {
        let identity = clients.identity();
        Failed { action: "reading", path: path(), identity, has_worked: true }
    };
    // Except after success, the client is dropped too: a connection whose body was not read to its end cannot be
    // reused.
    let error = match body.take(&client, length_bytes, target) {
        Ok(()) => {
            request.succeed(length_bytes);
            clients.give_back(client);
            return Ok(true);
        }
        Err(Stopped::Unwanted) => return Ok(false),
        Err(Stopped::TooShort(missing)) => {
            let what = format!("the body ends {missing} bytes early");
            failed().answer(&what, RetryClass::Outage)
        }
        Err(Stopped::TooLong) => {
            failed().answer("the body is longer than its Content-Length", RetryClass::Outage)
        }
        Err(Stopped::Broken(trace)) => failed().transport(&trace),
    };
    request.fail(false);
    Err(error)
}

impl Storage for RemoteObjects {
    fn full_path(&self, relative: &[u8]) -> PathBuf {
        self.path(&self.name_of(relative))
    }

    fn status(&self, files: &dyn FileTable, file: FileId) -> Result<FileStatus, StorageError> {
        self.status_of(&self.name_of(&files.path(file)))
    }

    fn cache_scope(&self) -> Option<CacheScope> {
        let server = self.server.as_deref().unwrap_or_default();
        let name = format!("{server} {}", self.root.full("")).trim().to_owned();
        let untagged = if self.is_immutable { Untagged::Name } else { Untagged::Status };
        Some(CacheScope { name, untagged })
    }

    fn properties(&self) -> Properties<'_> {
        let requests = Some(&*self.metrics);
        Properties { requests, bytes_per_read: BYTES_PER_CLIENT, ..Properties::default() }
    }

    fn open(&self, files: &dyn FileTable, location: Location) -> Result<Opened, StorageError> {
        let range = location.range;
        let Some(stamp) = files.stamp(location.file) else {
            let path = files.path(location.file);
            return self.open_unknown(&self.name_of(&path), location);
        };
        let end = match range.length {
            Some(length) => range.offset.saturating_add(length),
            None => stamp.bytes.max(range.offset),
        };
        if end > stamp.bytes {
            let path = files.path(location.file);
            return Err(self.out_of_range(&self.name_of(&path), range, stamp.bytes));
        }
        Ok(Opened::new(location, end - range.offset, Handle::Unrequested))
    }

    fn read_opened(
        &self,
        files: &dyn FileTable,
        opened: Opened,
        buffer: &mut Vec<u8>,
    ) -> Result<(), StorageError> {
        let wanted = usize::try_from(opened.length_bytes).unwrap_or(usize::MAX);
        if buffer.try_reserve_exact(wanted).is_err() {
            let path = self.full_path(&files.path(opened.location.file));
            return Err(StorageError::from_errno(path, "reading", rustix::io::Errno::NOMEM));
        }
        self.read_into(files, opened, Target::Buffer(buffer)).map(|_| ())
    }

    fn reads_in_pieces(&self) -> bool {
        true
    }

    fn read_in_pieces(
        &self,
        files: &dyn FileTable,
        opened: Opened,
        sink: &mut dyn BodySink,
    ) -> Result<bool, StorageError> {
        self.read_into(files, opened, Target::Pieces(sink))
    }
}

#[cfg(test)]
mod tests;

//! Objects behind a URL: S3 and what speaks it, Google Cloud Storage, files behind a web server.
//!
//! The crate `object_store` signs and asks; `client` is the HTTP below it, `wire` the connections that data come over,
//! `lines` whose they are. Nothing is retried here but a page of a listing: `failure` says what may pass.
//!
//! Reading is by call. Where the dataset's index knows an object's size and tag, opening asks nobody, and reading is one
//! request whose answer must fit both; else opening sends the request, whose answer tells the length, and reading takes the
//! body. A body goes from the connection's buffer to where the caller wants it. Folders are listed a page at a time and have
//! no stamps: an index that was saved is taken as it is.

mod address;
mod answer;
mod body;
mod client;
#[cfg(test)]
mod exact;
mod failure;
mod hedges;
mod keys;
mod lines;
mod listing;
mod page;
mod process;
mod profile;
mod stores;
#[cfg(any(test, feature = "testing"))]
#[doc(hidden)]
pub mod testing;
mod trace;
mod wire;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use object_store::path::Path as Key;
use object_store::{Error, GetOptions, GetRange, GetResult};

use forebay_config::Section;
use forebay_observe::RequestMetrics;

use self::address::{Address, Scheme};
use self::answer::Answer;
use self::body::{Stopped, Target};
use self::failure::Failed;
use self::hedges::Hedges;
pub(super) use self::keys::RemoteKeys;
use self::lines::{Line, Lines};
pub(super) use self::process::serve as serve_credential_process;
pub(super) use self::profile::needed_files;
use self::stores::{Store, Stores};
use self::trace::Trace;
use super::error::{RetryClass, StorageError};
use super::{CacheScope, FileStatus, Handle, ObjectIdentity, Opened, Storage, Taker, Untagged};
use crate::location::{ByteRange, FileId, FileTable, Location, ObjectStamp};

/// Beyond this a range is not asked for: no object is so large.
const MAX_OBJECT_BYTES: u64 = 1 << 60;

/// What a line holds at most: the client's buffer for an answer (400 KiB), TLS records, its runtime.
const BYTES_PER_LINE: u64 = 512 << 10;

/// The objects below one URL.
#[derive(Debug)]
pub(super) struct RemoteObjects {
    /// The folder.
    root: Address,
    /// `dataset.path`.
    url: PathBuf,
    root_is_file: bool,
    /// Where it is asked, if not where the provider says.
    endpoint: Option<String>,
    /// Whether its objects never change under their names.
    is_immutable: bool,
    lines: Lines,
    /// Whether a request has succeeded before: then credentials that fail may come back.
    has_worked: AtomicBool,
    /// Of requests for samples.
    metrics: Arc<RequestMetrics>,
    /// Of these, which are made twice.
    hedges: Hedges,
}

/// What [`Handle::Other`] holds here.
#[expect(clippy::large_enum_variant, reason = "it lies in a box")]
enum Found {
    /// The index says all that reading needs.
    Indexed(Location),
    /// The answer has begun, on this line.
    Answered(FileId, Line, Answer),
    /// There is nothing to read.
    Nothing,
}

impl Found {
    fn file(&self) -> Option<FileId> {
        match self {
            Self::Indexed(location) => Some(location.file),
            Self::Answered(file, ..) => Some(*file),
            Self::Nothing => None,
        }
    }
}

/// A call that failed.
struct Refused {
    error: StorageError,
    /// The object's length, where a range beyond it was asked for.
    total_bytes: Option<u64>,
    /// The server has no room now.
    is_busy: bool,
}

impl RemoteObjects {
    /// Opens a URL. One whose last part has a dot may be an object: the server is asked.
    ///
    /// # Errors
    /// Keys or credentials that cannot be used, or a server that does not answer.
    pub(super) fn open(url: &Path, section: &Section) -> Result<Self, StorageError> {
        let refuse = |what: String| {
            let identity = "";
            Failed { action: "opening", path: url.to_owned(), identity, has_worked: false }
                .local(what)
        };
        let keys = RemoteKeys::of(section).map_err(|error| refuse(error.to_string()))?;
        let root = url.to_str().and_then(Address::parse).ok_or_else(|| {
            refuse("the URL names no bucket, or has a part that is empty, `.` or `..`".to_owned())
        })?;
        let stores = Stores::new(&root, &keys).map_err(refuse)?;
        let mut objects = Self {
            root,
            url: url.to_owned(),
            root_is_file: false,
            endpoint: keys.endpoint.clone(),
            is_immutable: keys.immutable,
            lines: Lines::new(stores),
            has_worked: AtomicBool::new(false),
            metrics: Arc::default(),
            hedges: Hedges::default(),
        };
        if objects.root.name().contains('.') {
            match objects.head("") {
                Ok(_) => {
                    objects.root = objects.root.parent();
                    objects.root_is_file = true;
                }
                // No object, or one that may not be asked for: its folder is listed, which says what is wrong.
                Err(error) if error.class() != RetryClass::Outage => {}
                Err(error) => return Err(error),
            }
        }
        Ok(objects)
    }

    fn path(&self, relative: &str) -> PathBuf {
        self.root.full(relative).into()
    }

    fn failed(&self, action: &'static str, relative: &str) -> Failed<'_> {
        Failed {
            action,
            path: self.path(relative),
            identity: self.lines.identity(),
            // Relaxed: a hint for messages.
            has_worked: self.has_worked.load(Ordering::Relaxed),
        }
    }

    /// Makes one call on a line, and gives the line too. `limit_bytes`: of the answer.
    fn call<T>(
        &self,
        action: &'static str,
        relative: &str,
        limit_bytes: u64,
        call: impl AsyncFnOnce(&Store, &Key) -> Result<T, Error>,
    ) -> Result<(T, Line), Refused> {
        let local = |what: String| Refused {
            error: self.failed(action, relative).local(what),
            total_bytes: None,
            is_busy: false,
        };
        let key = Key::parse(self.root.key(relative)).map_err(|error| local(error.to_string()))?;
        let line = self.lines.take().map_err(local)?;
        let (result, trace) = line.run(limit_bytes, async |store: &Store| call(store, &key).await);
        match result {
            Ok(result) => {
                self.has_worked.store(true, Ordering::Relaxed);
                Ok((result, line))
            }
            Err(error) => {
                self.lines.give_back(line);
                if failure::is_expired(&trace) {
                    self.lines.refused(&trace);
                }
                let total_bytes = trace.total_bytes.filter(|_| trace.status == Some(416));
                Err(Refused {
                    error: self.failed(action, relative).error(&error, &trace),
                    total_bytes,
                    is_busy: matches!(trace.status, Some(429 | 503)),
                })
            }
        }
    }

    /// Whether there is an object.
    fn head(&self, relative: &str) -> Result<GetResult, StorageError> {
        let options = GetOptions { head: true, ..GetOptions::default() };
        let head = async |store: &Store, key: &Key| store.objects.get_opts(key, options).await;
        let (result, line) =
            self.call("asking the size of", relative, 0, head).map_err(|refused| refused.error)?;
        self.lines.give_back(line);
        Ok(result)
    }

    /// Size and tag of an object.
    fn status_of(&self, relative: &str) -> Result<FileStatus, StorageError> {
        let result = self.head(relative)?;
        self.check_encoding("asking the size of", relative, &result)?;
        let identity = ObjectIdentity::Tag(answer::tag_of(&result.meta).unwrap_or_default());
        Ok(FileStatus { bytes: result.meta.size, identity })
    }

    /// Refuses a file that a web server has compressed on its way. A bucket gives what was put there.
    fn check_encoding(
        &self,
        action: &'static str,
        relative: &str,
        result: &GetResult,
    ) -> Result<(), StorageError> {
        match answer::encoding(result).filter(|_| self.root.scheme == Scheme::Web) {
            Some(name) => Err(self.failed(action, relative).encoded(name)),
            None => Ok(()),
        }
    }

    /// Asks for a part of an object.
    fn ask(&self, relative: &str, range: ByteRange) -> Result<(Answer, Line), StorageError> {
        let end = range.length.map(|length| range.offset.saturating_add(length));
        let wanted = match end {
            None if range.offset == 0 => None,
            None => Some(GetRange::Offset(range.offset)),
            Some(end) => Some(GetRange::Bounded(range.offset..end)),
        };
        let options = GetOptions { range: wanted, ..GetOptions::default() };
        let late = self.hedges.ask(|| self.metrics.report());
        let get = async |store: &Store, key: &Key| {
            // What each meets is noted beside it, for there may be two.
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
        let ((result, answered), line) = match self.call("reading", relative, u64::MAX, get) {
            Ok(answered) => answered,
            Err(refused) => {
                request.fail(refused.is_busy);
                return Err(match refused.total_bytes {
                    Some(length_bytes) => self.out_of_range(relative, range, length_bytes),
                    None => refused.error,
                });
            }
        };
        if let Err(error) = self.check_encoding("reading", relative, &result) {
            request.fail(false);
            return Err(error);
        }
        request.answered();
        let answer = Answer::new(result, answered, request);
        Ok((answer, line))
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

    /// Opens a location of an object that no index knows: the answer to its request tells its length.
    fn open_unknown(&self, relative: &str, location: Location) -> Result<Opened, StorageError> {
        let range = location.range;
        let end = range.length.map(|length| range.offset.saturating_add(length));
        if end.is_some_and(|end| end == range.offset || end > MAX_OBJECT_BYTES) {
            // No range can be asked for.
            let length_bytes = self.status_of(relative)?.bytes;
            if end.is_some_and(|end| end > length_bytes) {
                return Err(self.out_of_range(relative, range, length_bytes));
            }
            return Ok(Opened::new(0, Handle::Other(Box::new(Found::Nothing))));
        }
        let (answer, line) = match self.ask(relative, range) {
            Err(StorageError::OutOfRange { length_bytes, .. })
                if range.length.is_none() && length_bytes == range.offset =>
            {
                return Ok(Opened::new(0, Handle::Other(Box::new(Found::Nothing))));
            }
            answered => answered?,
        };
        if end.is_some_and(|end| end > answer.stamp.bytes) {
            return Err(self.out_of_range(relative, range, answer.stamp.bytes));
        }
        let (length_bytes, stamp) = (answer.range.end - answer.range.start, answer.told);
        let found = Found::Answered(location.file, line, answer);
        Ok(Opened::new(length_bytes, Handle::Other(Box::new(found))).of(stamp))
    }

    /// Reads what the index knows, from an object that is still as the index has it.
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
        let (answer, line) = match self.ask(relative, location.range) {
            Err(StorageError::OutOfRange { length_bytes, .. }) => {
                let now = ObjectStamp::new(length_bytes, None);
                return Err(self.replaced(relative, stamp, now));
            }
            answered => answered?,
        };
        // A web server's files were asked for one by one, and their times with them.
        let is_web = self.root.scheme == Scheme::Web;
        let now = if is_web { answer.told } else { answer.stamp };
        if !stamp.agrees(now) {
            return Err(self.replaced(relative, stamp, now));
        }
        let found = answer.range.end - answer.range.start;
        if found != length_bytes {
            let what = format!("{found} bytes where {length_bytes} were asked for");
            return Err(self.failed("reading", relative).answer(&what, RetryClass::File));
        }
        self.take_body(relative, line, answer, length_bytes, target)
    }

    /// The error of an object that is not the indexed one. Where the tag is the same, the answer is at fault.
    fn replaced(&self, relative: &str, indexed: ObjectStamp, now: ObjectStamp) -> StorageError {
        if indexed.has_tag_of(now) {
            let what = format!(
                "it says that the object has {} bytes, and its tag is that of {} bytes",
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

    /// Takes a body of so many bytes. False: no more of it is wanted.
    fn take_body(
        &self,
        relative: &str,
        line: Line,
        answer: Answer,
        length_bytes: u64,
        target: Target<'_>,
    ) -> Result<bool, StorageError> {
        let Answer { body, request, .. } = answer;
        let failed = || self.failed("reading", relative);
        // But for the first, its line goes with it: the connection is of no use where the body is not at its end.
        let error = match body.take(&line, length_bytes, target) {
            Ok(()) => {
                request.succeed(length_bytes);
                self.lines.give_back(line);
                return Ok(true);
            }
            Err(Stopped::Unwanted) => return Ok(false),
            Err(Stopped::TooShort(missing)) => {
                let what = format!("its body ends {missing} bytes early");
                failed().answer(&what, RetryClass::Outage)
            }
            Err(Stopped::TooLong) => {
                failed().answer("its body is longer than it says", RetryClass::Outage)
            }
            Err(Stopped::Broken(trace)) => failed().transport(&trace),
        };
        request.fail(false);
        Err(error)
    }

    fn read_found(
        &self,
        files: &dyn FileTable,
        found: Found,
        length_bytes: u64,
        target: Target<'_>,
    ) -> Result<bool, StorageError> {
        let name = |file| String::from_utf8_lossy(&files.path(file)).into_owned();
        match found {
            Found::Nothing => Ok(true),
            Found::Answered(file, line, answer) => {
                self.take_body(&name(file), line, answer, length_bytes, target)
            }
            Found::Indexed(location) => {
                let stamp = files.stamp(location.file).unwrap_or_default();
                self.read_indexed(&name(location.file), location, length_bytes, stamp, target)
            }
        }
    }
}

impl Storage for RemoteObjects {
    fn full_path(&self, relative: &[u8]) -> PathBuf {
        self.path(&String::from_utf8_lossy(relative))
    }

    fn status(&self, files: &dyn FileTable, file: FileId) -> Result<FileStatus, StorageError> {
        self.status_of(&String::from_utf8_lossy(&files.path(file)))
    }

    fn cache_scope(&self) -> Option<CacheScope> {
        let endpoint = self.endpoint.as_deref().unwrap_or_default();
        let name = format!("{endpoint} {}", self.root.full("")).trim().to_owned();
        let untagged = if self.is_immutable { Untagged::Name } else { Untagged::Status };
        Some(CacheScope { name, untagged })
    }

    fn requests(&self) -> Option<&RequestMetrics> {
        Some(&self.metrics)
    }

    fn bytes_per_read(&self) -> u64 {
        BYTES_PER_LINE
    }

    fn open(&self, files: &dyn FileTable, location: Location) -> Result<Opened, StorageError> {
        let range = location.range;
        let Some(stamp) = files.stamp(location.file) else {
            let path = files.path(location.file);
            return self.open_unknown(&String::from_utf8_lossy(&path), location);
        };
        let end = match range.length {
            Some(length) => range.offset.saturating_add(length),
            None => stamp.bytes.max(range.offset),
        };
        if end > stamp.bytes {
            let path = files.path(location.file);
            return Err(self.out_of_range(&String::from_utf8_lossy(&path), range, stamp.bytes));
        }
        let found = Found::Indexed(location);
        Ok(Opened::new(end - range.offset, Handle::Other(Box::new(found))))
    }

    fn read_opened(
        &self,
        files: &dyn FileTable,
        opened: Opened,
        buffer: &mut Vec<u8>,
    ) -> Result<(), StorageError> {
        let length_bytes = opened.length_bytes();
        let found = *opened.into_other::<Found>();
        let wanted = usize::try_from(length_bytes).unwrap_or(usize::MAX);
        if let Some(file) = found.file()
            && buffer.try_reserve_exact(wanted).is_err()
        {
            let path = self.full_path(&files.path(file));
            return Err(StorageError::from_errno(path, "reading", rustix::io::Errno::NOMEM));
        }
        self.read_found(files, found, length_bytes, Target::Buffer(buffer)).map(|_| ())
    }

    fn reads_in_pieces(&self) -> bool {
        true
    }

    fn read_in_pieces(
        &self,
        files: &dyn FileTable,
        opened: Opened,
        taker: &mut dyn Taker,
    ) -> Result<bool, StorageError> {
        let length_bytes = opened.length_bytes();
        let found = *opened.into_other::<Found>();
        self.read_found(files, found, length_bytes, Target::Pieces(taker))
    }
}

#[cfg(test)]
mod tests;

//! The index: look-ups and offers of work threads, and the writer's thread.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use forebay_protocol::sync::{AtomicBool, AtomicU64, Ordering};

use crate::record::{Key, Secret, encode};
use crate::shared_file::{CHUNK_BYTES, Lock, Taken, read_record};
use crate::table::Table;
use crate::waiting::{MOST_HELD_BYTES, Waiting};

/// How often the writer collects records.
const ROUND: Duration = Duration::from_millis(250);
/// How long the first reading waits for another process that appends.
const FIRST_WAIT: Duration = Duration::from_secs(1);
/// Typical size of a record, for files of 170 kB.
const USUAL_RECORD_BYTES: u64 = 1 << 10;

/// Limits and size of an index.
#[derive(Debug, Clone, Copy)]
pub struct Terms {
    /// Nothing is appended once the file has this size.
    pub limit_bytes: u64,
    /// The number of the dataset's images.
    pub images: u64,
    /// Whether the file is open for reading and appending; otherwise for reading only, and nothing is learned.
    pub may_write: bool,
}

impl Terms {
    fn records(&self) -> u64 {
        self.images.min(self.limit_bytes / USUAL_RECORD_BYTES)
    }

    /// The memory of an index with these terms once it is started.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        // Waiting records count twice: the writer copies them, and assembles the bytes to be written.
        Table::bytes_for(self.records()) + 3 * MOST_HELD_BYTES + CHUNK_BYTES as u64
    }
}

/// What the index knows of a file.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Found<'b> {
    /// The file's marks; empty if there is nothing to learn.
    pub marks: Option<&'b [u8]>,
    /// The key to offer more marks under; `None`: nothing more can be learned.
    pub to_learn: Option<Key>,
}

/// Metrics of an index.
#[derive(Debug, Clone, Default)]
pub struct Figures {
    /// The number of records known to this process.
    pub records: u64,
    /// The known size of the file.
    pub bytes: u64,
    /// Decodings with marks of earlier ones, since the start.
    pub found: u64,
    /// Decodings without, of files that could have records.
    pub missed: u64,
    /// Records that were dropped because too many waited.
    pub dropped: u64,
    /// Why learning has stopped, if it has.
    pub stopped: Option<String>,
}

/// Marks of a dataset's JPEG files; shared by all threads. See the crate's head.
#[derive(Debug)]
pub struct JpegIndex {
    file: File,
    path: PathBuf,
    terms: Terms,
    /// None before the start.
    table: OnceLock<Table>,
    /// The key of the file's hashes; none before the writer has read the header. Replaced with the file.
    secret: ArcSwapOption<Secret>,
    waiting: Waiting,
    /// Whether marks are learned.
    learns: AtomicBool,
    end: AtomicU64,
    found: AtomicU64,
    missed: AtomicU64,
    dropped: AtomicU64,
    /// For the writer and for metrics.
    stopped: Mutex<Option<String>>,
    writer: OnceLock<Thread>,
    /// Whether the file was read once.
    has_read: AtomicBool,
    is_ending: AtomicBool,
    has_ended: AtomicBool,
}

impl JpegIndex {
    /// An index in an open file that only daemons write to.
    #[must_use]
    pub fn new(file: File, path: &Path, terms: Terms) -> Self {
        Self {
            file,
            path: path.to_owned(),
            terms,
            table: OnceLock::new(),
            secret: ArcSwapOption::empty(),
            waiting: Waiting::default(),
            learns: AtomicBool::new(terms.may_write),
            end: AtomicU64::new(0),
            found: AtomicU64::new(0),
            missed: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            stopped: Mutex::default(),
            writer: OnceLock::new(),
            has_read: AtomicBool::new(false),
            is_ending: AtomicBool::new(false),
            has_ended: AtomicBool::new(false),
        }
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The index's terms.
    pub const fn terms(&self) -> &Terms {
        &self.terms
    }

    /// The marks of a file with these bytes. For work threads: it makes one system call, and only if a record exists.
    pub fn find<'b>(&self, file: &[u8], buffer: &'b mut Vec<u8>) -> Found<'b> {
        let Some(table) = self.table.get() else { return Found::default() };
        let secret = self.secret.load();
        let Some(key) = secret.as_deref().and_then(|secret| Key::of(file, secret)) else {
            return Found::default();
        };
        let mut records = table.offsets(key).filter_map(|offset| {
            let (found, marks) = read_record(&self.file, offset, buffer)?;
            (found == key).then_some(marks)
        });
        // Relaxed, all three: metrics, and a flag that orders nothing.
        let learns = self.learns.load(Ordering::Relaxed);
        if let Some(marks) = records.next() {
            drop(records);
            self.found.fetch_add(1, Ordering::Relaxed);
            let to_learn = (learns && !marks.is_empty()).then_some(key);
            return Found { marks: Some(&buffer[marks]), to_learn };
        }
        self.missed.fetch_add(1, Ordering::Relaxed);
        Found { marks: None, to_learn: (learns && !table.is_full()).then_some(key) }
    }

    /// Offers a file's marks. False: they are dropped. For work threads: it never waits.
    pub fn offer(&self, key: Key, marks: &[u8]) -> bool {
        let is_put = encode(key, marks).is_some_and(|record| self.waiting.put(&record));
        if !is_put {
            // Relaxed: a metric.
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
        is_put
    }

    /// Starts finding and learning, with a thread that reads the file and appends to it. The thread ends with the
    /// index.
    ///
    /// # Errors
    /// The thread cannot be created.
    pub fn start(self: &Arc<Self>) -> io::Result<()> {
        self.table.get_or_init(|| Table::new(self.terms.records()));
        let mut writer = Writer::default();
        // Taken here so that the first files are learned, too. The thread reports failures.
        let lock = self.terms.may_write.then(|| Lock::take(&self.file, Instant::now()));
        let lock = lock.and_then(|taken| taken.ok().flatten());
        if writer.taken.begin(&self.file, lock.as_ref()).is_ok() {
            self.secret.store(writer.taken.secret());
        }
        drop(lock);
        let index = Arc::downgrade(self);
        let thread = thread::Builder::new().name("forebay-jpeg".to_owned());
        let handle = thread.spawn(move || write(&index, writer))?;
        // An index is started once.
        let _ = self.writer.set(handle.thread().clone());
        Ok(())
    }

    /// Appends the waiting records and ends the writer; waits for that up to a limit.
    pub fn finish(&self, longest: Duration) {
        let Some(writer) = self.writer.get() else { return };
        // Release: pairs with the acquire in `write`; earlier offers are included.
        self.is_ending.store(true, Ordering::Release);
        writer.unpark();
        wait_for(&self.has_ended, longest);
    }

    /// Waits up to a limit until the file's records at the start are known. False: they are not.
    pub fn wait_until_read(&self, longest: Duration) -> bool {
        wait_for(&self.has_read, longest)
    }

    /// Reads the file without starting a thread: for metrics only.
    ///
    /// # Errors
    /// A system error, or the file is of another kind.
    pub fn look(&self) -> io::Result<()> {
        let table = self.table.get_or_init(|| Table::new(self.terms.records()));
        let mut taken = Taken::default();
        let read = taken.take_in(&self.file, table, None);
        self.secret.store(taken.secret());
        // Relaxed: a metric.
        self.end.store(taken.end(), Ordering::Relaxed);
        read
    }

    /// The present metrics.
    pub fn figures(&self) -> Figures {
        // Relaxed, all of them: metrics.
        Figures {
            records: self.table.get().map_or(0, Table::len),
            bytes: self.end.load(Ordering::Relaxed),
            found: self.found.load(Ordering::Relaxed),
            missed: self.missed.load(Ordering::Relaxed),
            dropped: self.dropped.load(Ordering::Relaxed),
            stopped: self.stopped.lock().unwrap_or_else(PoisonError::into_inner).clone(),
        }
    }

    /// Stops learning; the reason is logged and part of the metrics.
    pub fn stop(&self, why: String) {
        // Relaxed: nothing is ordered by it.
        if self.learns.swap(false, Ordering::Relaxed) {
            tracing::warn!(path = %self.path.display(), "dataset.jpeg_index: learning has stopped: {why}");
        }
        *self.stopped.lock().unwrap_or_else(PoisonError::into_inner) = Some(why);
    }
}

/// Waits for a flag, up to a limit.
fn wait_for(flag: &AtomicBool, longest: Duration) -> bool {
    let begun = Instant::now();
    // Acquire: pairs with the release by the thread that sets it.
    while !flag.load(Ordering::Acquire) {
        if begun.elapsed() >= longest {
            return false;
        }
        thread::sleep(Duration::from_millis(2));
    }
    true
}

/// The writer's thread: runs until the index is dropped or ends.
fn write(index: &Weak<JpegIndex>, mut writer: Writer) {
    let mut wait = FIRST_WAIT;
    while let Some(index) = index.upgrade() {
        // Acquire: pairs with the release in `finish`.
        let is_last = index.is_ending.load(Ordering::Acquire);
        let is_first = wait > Duration::ZERO;
        let wait_now = if is_last { FIRST_WAIT } else { wait };
        if let Err(error) = writer.round(&index, is_first, Instant::now() + wait_now) {
            index.stop(error.to_string());
        }
        index.has_read.store(true, Ordering::Release);
        wait = Duration::ZERO;
        if is_last {
            index.has_ended.store(true, Ordering::Release);
            return;
        }
        drop(index);
        thread::park_timeout(ROUND);
    }
}

#[derive(Debug, Default)]
struct Writer {
    taken: Taken,
    /// Records that wait for the lock.
    pending: Vec<u8>,
}

impl Writer {
    /// Collects the waiting records and appends them, if the lock becomes free before `until`.
    fn round(&mut self, index: &JpegIndex, is_first: bool, until: Instant) -> io::Result<()> {
        let Some(table) = index.table.get() else { return Ok(()) };
        let pending = &mut self.pending;
        index.waiting.take_all(|record| {
            if ((pending.len() + record.len()) as u64) <= MOST_HELD_BYTES {
                pending.extend_from_slice(record);
            }
        });
        // Relaxed: only this thread ends learning.
        let may_write = index.learns.load(Ordering::Relaxed);
        if !may_write {
            self.pending.clear();
        }
        if is_first || !self.pending.is_empty() {
            let lock = if may_write { Lock::take(&index.file, until)? } else { None };
            self.taken.take_in(&index.file, table, lock.as_ref())?;
            let secret = self.taken.secret();
            if index.secret.swap(secret.clone()) != secret {
                // The file was restarted: these keys do not match its secret.
                self.pending.clear();
            }
            if let Some(lock) = lock {
                let limit = index.terms.limit_bytes;
                let records = std::mem::take(&mut self.pending);
                let has_room = self.taken.append(&index.file, table, &lock, &records, limit)?;
                if !has_room {
                    index.stop(format!(
                        "{limit} bytes are reached; raise dataset.jpeg_index_bytes, or remove the file if it is \
                         of data that are gone"
                    ));
                }
            }
            // Relaxed: a metric.
            index.end.store(self.taken.end(), Ordering::Relaxed);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;

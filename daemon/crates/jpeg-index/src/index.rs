//! What work threads ask and offer, and the thread that writes.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use forebay_protocol::sync::{AtomicBool, AtomicU64, Ordering};

use crate::record::{Key, encode};
use crate::shared_file::{CHUNK_BYTES, Lock, Taken, read_record};
use crate::table::Table;
use crate::waiting::{MOST_HELD_BYTES, Waiting};

/// How often the writer looks for records.
const ROUND: Duration = Duration::from_millis(250);
/// How long the first reading waits for another process that appends.
const FIRST_WAIT: Duration = Duration::from_secs(1);
/// What a record takes on average, about, of files of 170 kB.
const USUAL_RECORD_BYTES: u64 = 1 << 10;

/// What an index may take, and what it is for.
#[derive(Debug, Clone, Copy)]
pub struct Terms {
    /// Nothing is appended to a file of this size.
    pub limit_bytes: u64,
    /// The images of the dataset.
    pub images: u64,
    /// Whether the file is open for reading and appending; else for reading alone, and nothing is learned.
    pub may_write: bool,
}

impl Terms {
    fn records(&self) -> u64 {
        self.images.min(self.limit_bytes / USUAL_RECORD_BYTES)
    }

    /// The memory that an index with these terms takes once it is started.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        // Waiting records twice: the writer takes them over, and puts together what is to be written.
        Table::bytes_for(self.records()) + 3 * MOST_HELD_BYTES + CHUNK_BYTES as u64
    }
}

/// What is known of a file.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Found<'b> {
    /// What was learned of it; empty where there is nothing to learn.
    pub marks: Option<&'b [u8]>,
    /// Under which key more may be offered; `None`: nothing more is to be learned of it.
    pub to_learn: Option<Key>,
}

/// An index in figures.
#[derive(Debug, Clone, Default)]
pub struct Figures {
    /// Records that this process knows.
    pub records: u64,
    /// The size of the file as far as it is known.
    pub bytes: u64,
    /// Decodings with what was learned before, since the start.
    pub found: u64,
    /// Decodings without, of files that could have records.
    pub missed: u64,
    /// Records that were dropped because too many waited.
    pub dropped: u64,
    /// Why nothing more is learned, if so.
    pub stopped: Option<String>,
}

/// What was learned of the JPEG files of a dataset; shared by all threads. See the crate's head.
#[derive(Debug)]
pub struct JpegIndex {
    file: File,
    path: PathBuf,
    terms: Terms,
    /// None before it is started.
    table: OnceLock<Table>,
    waiting: Waiting,
    /// Whether files are to be learned.
    learns: AtomicBool,
    end: AtomicU64,
    found: AtomicU64,
    missed: AtomicU64,
    dropped: AtomicU64,
    /// Of the writer and of who asks for figures.
    stopped: Mutex<Option<String>>,
    writer: OnceLock<Thread>,
    /// Whether the file was read once.
    has_read: AtomicBool,
    is_ending: AtomicBool,
    has_ended: AtomicBool,
}

impl JpegIndex {
    /// An index in an open file, which nobody but daemons writes to.
    #[must_use]
    pub fn new(file: File, path: &Path, terms: Terms) -> Self {
        Self {
            file,
            path: path.to_owned(),
            terms,
            table: OnceLock::new(),
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

    /// What it may take.
    pub const fn terms(&self) -> &Terms {
        &self.terms
    }

    /// What is known of a file with these bytes. For work threads: it makes one system call, and that only where
    /// something is known.
    pub fn find<'b>(&self, file: &[u8], buffer: &'b mut Vec<u8>) -> Found<'b> {
        let Some(table) = self.table.get() else { return Found::default() };
        let Some(key) = Key::of(file) else { return Found::default() };
        let mut records = table.offsets(key).filter_map(|offset| {
            let (found, marks) = read_record(&self.file, offset, buffer)?;
            (found == key).then_some(marks)
        });
        // Relaxed, all three: figures, and a flag that nothing is ordered by.
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

    /// Offers what was learned of a file. False: it is dropped. For work threads: it waits for nothing.
    pub fn offer(&self, key: Key, marks: &[u8]) -> bool {
        let is_put = encode(key, marks).is_some_and(|record| self.waiting.put(&record));
        if !is_put {
            // Relaxed: a figure.
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
        is_put
    }

    /// Begins to find and to learn, with a thread that reads the file and appends to it. The thread ends with the index.
    ///
    /// # Errors
    /// There can be no thread.
    pub fn start(self: &Arc<Self>) -> io::Result<()> {
        self.table.get_or_init(|| Table::new(self.terms.records()));
        let index = Arc::downgrade(self);
        let thread = thread::Builder::new().name("forebay-jpeg".to_owned());
        let handle = thread.spawn(move || write(&index))?;
        // An index is started once.
        let _ = self.writer.set(handle.thread().clone());
        Ok(())
    }

    /// Appends what waits and ends the writer; waits for that for so long at most.
    pub fn finish(&self, longest: Duration) {
        let Some(writer) = self.writer.get() else { return };
        // Release: pairs with the acquire in `write`; what was offered before is taken.
        self.is_ending.store(true, Ordering::Release);
        writer.unpark();
        wait_for(&self.has_ended, longest);
    }

    /// Waits until what the file held at the start is known, for so long at most. False: it is not.
    pub fn wait_until_read(&self, longest: Duration) -> bool {
        wait_for(&self.has_read, longest)
    }

    /// Reads the file without starting anything: for figures alone.
    ///
    /// # Errors
    /// What the system says, or that it is something else.
    pub fn look(&self) -> io::Result<()> {
        let table = self.table.get_or_init(|| Table::new(self.terms.records()));
        let mut taken = Taken::default();
        let read = taken.take_in(&self.file, table, None);
        // Relaxed: a figure.
        self.end.store(taken.end(), Ordering::Relaxed);
        read
    }

    /// Figures of now.
    pub fn figures(&self) -> Figures {
        // Relaxed, all of them: figures.
        Figures {
            records: self.table.get().map_or(0, Table::len),
            bytes: self.end.load(Ordering::Relaxed),
            found: self.found.load(Ordering::Relaxed),
            missed: self.missed.load(Ordering::Relaxed),
            dropped: self.dropped.load(Ordering::Relaxed),
            stopped: self.stopped.lock().unwrap_or_else(PoisonError::into_inner).clone(),
        }
    }

    /// Nothing more is learned, for a reason that figures and the log tell.
    pub fn stop(&self, why: String) {
        // Relaxed: nothing is ordered by it.
        if self.learns.swap(false, Ordering::Relaxed) {
            tracing::warn!(path = %self.path.display(), "dataset.jpeg_index: nothing more is learned: {why}");
        }
        *self.stopped.lock().unwrap_or_else(PoisonError::into_inner) = Some(why);
    }
}

/// Waits for a flag, for so long at most.
fn wait_for(flag: &AtomicBool, longest: Duration) -> bool {
    let begun = Instant::now();
    // Acquire: pairs with the release of who sets it.
    while !flag.load(Ordering::Acquire) {
        if begun.elapsed() >= longest {
            return false;
        }
        thread::sleep(Duration::from_millis(2));
    }
    true
}

/// The writer's thread: until the index is gone or ends.
fn write(index: &Weak<JpegIndex>) {
    let mut writer = Writer::default();
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
    /// Takes what waits and appends it, if the lock can be had until then.
    fn round(&mut self, index: &JpegIndex, is_first: bool, until: Instant) -> io::Result<()> {
        let Some(table) = index.table.get() else { return Ok(()) };
        let pending = &mut self.pending;
        index.waiting.take_all(|record| {
            if ((pending.len() + record.len()) as u64) <= MOST_HELD_BYTES {
                pending.extend_from_slice(record);
            }
        });
        // Relaxed: this thread alone ends learning.
        let may_write = index.learns.load(Ordering::Relaxed);
        if !may_write {
            self.pending.clear();
        }
        if is_first || !self.pending.is_empty() {
            let lock = if may_write { Lock::take(&index.file, until)? } else { None };
            self.taken.take_in(&index.file, table, lock.as_ref())?;
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
            // Relaxed: a figure.
            index.end.store(self.taken.end(), Ordering::Relaxed);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;

//! The tables of packets of a folder's videos: learned by all threads when the folder is opened, and kept in a file beside
//! the index, which ranks and jobs share.
//!
//! The file is of the index that it is beside: a video that is replaced under its name keeps its table until the index is
//! made anew. A video that is no video has its reason in place of a table; a run says it when it comes to it.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError, mpsc};
use std::time::Duration;

use forebay_config::DatasetConfig;
use forebay_protocol::ids::SampleId;
use forebay_video::{Failure, ReadAt, Refused, Table};

use forebay_dataset::error::DatasetError;
use forebay_dataset::opening::OpenOptions;
use forebay_dataset::{
    Defect, FileKey, ScanProgress, file_key, path_beside, read_checked, save_checked,
};
use forebay_index::folder::index::FolderIndex;
use forebay_storage::location::{ByteRange, FileId, FileTable, Location, Unit};
use forebay_storage::{Retries, Storage, StorageError};

const MAGIC: [u8; 8] = *b"FBVIDEO\x02";
/// The largest file of tables, in bytes.
const MAX_BYTES: usize = 4 << 30;
/// The longest header of a video, in bytes.
const MAX_HEADER_BYTES: u64 = 256 << 20;
/// Threads that read headers: on a disk more than cores, since each waits.
const THREADS: usize = 16;
const REPORT_INTERVAL: Duration = Duration::from_millis(100);

const TABLE: u8 = 0;
const REFUSED: u8 = 1;
/// The file could not be read, which may pass: such tables are not saved.
const UNREAD: u8 = 2;

/// The tables, in their compact form.
#[derive(Debug)]
pub(super) struct Tables {
    /// Of each file a byte that says what follows, and its table or the reason why it has none.
    bytes: Vec<u8>,
    ends: Vec<usize>,
    /// Codecs, frames, seconds and groups, for users. It is kept with the tables: counting reads all of them.
    summary: String,
}

impl Tables {
    /// The table of a file.
    ///
    /// # Errors
    /// The file is not read, or the table was damaged.
    pub(super) fn of(&self, id: SampleId) -> Result<Table, Defect> {
        match self.entry(id) {
            [TABLE, table @ ..] => Table::read(table).map_err(|refused| Defect(refused.0)),
            [_, reason @ ..] => Err(Defect(String::from_utf8_lossy(reason).into_owned())),
            [] => Err(Defect("it has no table of packets".to_owned())),
        }
    }

    fn entry(&self, id: SampleId) -> &[u8] {
        let place = usize::try_from(id.0).unwrap_or(usize::MAX);
        let start = match place.checked_sub(1) {
            Some(before) => self.ends.get(before).copied().unwrap_or(usize::MAX),
            None => 0,
        };
        let end = self.ends.get(place).copied().unwrap_or(0);
        self.bytes.get(start..end).unwrap_or_default()
    }

    pub(super) fn digest(&self) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new();
        for id in 0..self.ends.len() as u64 {
            let entry = self.entry(SampleId(id));
            // A reason names paths of this host.
            let entry =
                if entry.starts_with(&[TABLE]) { entry } else { &entry[..entry.len().min(1)] };
            hasher.update(&(entry.len() as u64).to_le_bytes()).update(entry);
        }
        *hasher.finalize().as_bytes()
    }

    fn refused(&self) -> impl Iterator<Item = (SampleId, &[u8])> {
        (0..self.ends.len() as u64).filter_map(|id| match self.entry(SampleId(id)) {
            [REFUSED | UNREAD, reason @ ..] => Some((SampleId(id), reason)),
            _ => None,
        })
    }

    /// How many files are not read, with the first one.
    pub(super) fn warning(&self, index: &FolderIndex) -> Option<String> {
        let (first, reason) = self.refused().next()?;
        let count = self.refused().count();
        let mut path = Vec::new();
        index.append_path(first, &mut path);
        Some(format!(
            "{count} of {} videos are bad samples; the first is {}: {}",
            self.ends.len(),
            String::from_utf8_lossy(&path),
            String::from_utf8_lossy(reason)
        ))
    }

    pub(super) fn summary(&self) -> &str {
        &self.summary
    }

    fn counted(&self) -> String {
        let (mut frames, mut groups, mut seconds) = (0_u64, 0_u64, 0.0);
        let mut codecs: BTreeMap<&str, u64> = BTreeMap::new();
        for id in 0..self.ends.len() as u64 {
            let Ok(table) = self.of(SampleId(id)) else { continue };
            let Some(stream) = table.video() else { continue };
            *codecs.entry(stream.codec.name()).or_default() += 1;
            frames += stream.packets.iter().filter(|packet| !packet.discard).count() as u64;
            groups += stream.packets.iter().filter(|packet| packet.key).count() as u64;
            if let Some(shown) = stream.shown() {
                let first = shown.times.first().copied().unwrap_or(0);
                seconds += shown.time_base.seconds(shown.end.saturating_sub(first));
            }
        }
        let codecs: Vec<_> = codecs.iter().map(|(name, count)| format!("{count} {name}")).collect();
        format!("{}; {frames} frames, {seconds:.1} s, {groups} groups", codecs.join(", "))
    }

    /// As a file: the lengths of the summary and of each entry as little-endian u32, then the summary and all entries.
    fn to_bytes(&self) -> Vec<u8> {
        let room = self.bytes.len() + self.summary.len() + 4 * self.ends.len() + 4;
        let mut bytes = Vec::with_capacity(room);
        let mut put =
            |length| bytes.extend(u32::try_from(length).unwrap_or(u32::MAX).to_le_bytes());
        put(self.summary.len());
        let mut start = 0;
        for end in &self.ends {
            put(end - start);
            start = *end;
        }
        bytes.extend(self.summary.as_bytes());
        bytes.extend(&self.bytes);
        bytes
    }

    fn of_bytes(count: usize, bytes: &[u8]) -> Option<Self> {
        let (summary, bytes) = bytes.split_first_chunk()?;
        let (lengths, bytes) = bytes.split_at_checked(count.checked_mul(4)?)?;
        let (summary, bytes) = bytes.split_at_checked(u32::from_le_bytes(*summary) as usize)?;
        let summary = String::from_utf8(summary.to_vec()).ok()?;
        let mut end = 0_usize;
        let mut ends = Vec::with_capacity(count);
        for length in lengths.as_chunks().0 {
            end = end.checked_add(u32::from_le_bytes(*length) as usize)?;
            ends.push(end);
        }
        (end == bytes.len()).then(|| Self { bytes: bytes.to_vec(), ends, summary })
    }
}

/// The file of the tables, for as long as the index is used.
#[derive(Debug)]
pub(super) struct Saved {
    path: PathBuf,
    key: FileKey,
    is_configured: bool,
}

impl Saved {
    /// `None`: the index is not saved.
    pub(super) fn new(
        config: &DatasetConfig,
        folder: &FolderIndex,
        index: Option<&Path>,
    ) -> Option<Self> {
        let index = index?;
        let key = file_key(index, &folder.file().fingerprint(), "tables of packets")?;
        Some(Self {
            path: path_beside(index, ".video"),
            key,
            is_configured: config.index.is_some(),
        })
    }

    fn read(&self, count: usize) -> Option<Tables> {
        let sizes = 4 * count + 4..=MAX_BYTES;
        let found = read_checked(&self.path, (MAGIC, &self.key), sizes, self.is_configured);
        Tables::of_bytes(count, &found.ok()??)
    }

    fn write(&self, tables: &Tables) {
        if let Err(error) = save_checked(&self.path, (MAGIC, &self.key), &tables.to_bytes()) {
            tracing::warn!(
                "the tables of videos cannot be saved at {}, so the next start reads all headers again: {error}",
                self.path.display()
            );
        }
    }
}

/// The tables of all files, read from their file or learned.
///
/// # Errors
/// The storage's error, or the caller no longer waits.
pub(super) fn learn(
    index: &FolderIndex,
    storage: &dyn Storage,
    saved: Option<&Saved>,
    options: OpenOptions<'_>,
) -> Result<Tables, DatasetError> {
    let count = usize::try_from(index.sample_count()).unwrap_or(usize::MAX);
    if let Some(tables) = saved.and_then(|saved| saved.read(count)) {
        return Ok(tables);
    }
    let next = AtomicU64::new(0);
    let entries: Mutex<Vec<Vec<u8>>> = Mutex::new(vec![Vec::new(); count]);
    let (ended, ends) = mpsc::channel();
    let failed = std::thread::scope(|scope| {
        for _ in 0..THREADS.min(count) {
            let (next, entries, ended) = (&next, &entries, ended.clone());
            scope.spawn(move || {
                let _ = ended.send(learn_some(index, storage, options.patience, next, entries));
            });
        }
        drop(ended);
        let mut failed = None;
        loop {
            let ended = ends.recv_timeout(REPORT_INTERVAL);
            if let Err(mpsc::RecvTimeoutError::Disconnected) = ended {
                return failed;
            }
            if let Ok(Err(error)) = ended {
                next.store(u64::MAX / 2, Ordering::Relaxed);
                failed.get_or_insert(DatasetError::from(error));
            }
            let samples = next.load(Ordering::Relaxed).min(count as u64);
            let seen = ScanProgress { samples, ..ScanProgress::default() };
            if (options.progress)(seen).is_break() {
                next.store(u64::MAX / 2, Ordering::Relaxed);
                failed.get_or_insert(DatasetError::Cancelled);
            }
        }
    });
    if let Some(error) = failed {
        return Err(error);
    }
    let (ends, summary) = (Vec::with_capacity(count), String::new());
    let mut tables = Tables { bytes: Vec::new(), ends, summary };
    for entry in entries.into_inner().unwrap_or_else(PoisonError::into_inner) {
        tables.bytes.extend(entry);
        tables.ends.push(tables.bytes.len());
    }
    tables.summary = tables.counted();
    let is_unread = |id| tables.entry(SampleId(id)).starts_with(&[UNREAD]);
    if let Some(saved) = saved.filter(|_| !(0..count as u64).any(is_unread)) {
        saved.write(&tables);
    }
    Ok(tables)
}

fn learn_some(
    index: &FolderIndex,
    storage: &dyn Storage,
    patience: Option<&forebay_storage::Patience>,
    next: &AtomicU64,
    entries: &Mutex<Vec<Vec<u8>>>,
) -> Result<(), StorageError> {
    loop {
        // Relaxed, here and elsewhere: a count.
        let id = next.fetch_add(1, Ordering::Relaxed);
        if id >= index.sample_count() {
            return Ok(());
        }
        let mut retries: Option<Retries> = None;
        let entry = loop {
            let look = || look(index, storage, FileId(id));
            let path = || storage.full_path(&index.path(FileId(id)));
            let looked = match patience {
                Some(patience) => patience.call("reading", path, look),
                None => look(),
            };
            match looked {
                Ok(entry) => break entry,
                Err(error)
                    if patience
                        .is_some_and(|patience| patience.wait_after(&mut retries, &error)) => {}
                Err(error) if error.is_transient() => return Err(error),
                // A file that cannot be read is a bad sample, as it is in a run.
                Err(error) => break [&[UNREAD], error.to_string().as_bytes()].concat(),
            }
        };
        let mut entries = entries.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(place) = usize::try_from(id).ok().and_then(|id| entries.get_mut(id)) {
            *place = entry;
        }
    }
}

fn refused(reason: &str) -> Vec<u8> {
    [&[REFUSED], reason.as_bytes()].concat()
}

/// The entry of a file.
fn look(index: &FolderIndex, storage: &dyn Storage, file: FileId) -> Result<Vec<u8>, StorageError> {
    let length_bytes = match index.stamp(file) {
        Some(stamp) => stamp.bytes,
        None => storage.status(index, file)?.bytes,
    };
    match forebay_video::read(Stored { index, storage, file, length_bytes }) {
        Ok(table) => {
            let mut entry = vec![TABLE];
            table.write(&mut entry);
            Ok(entry)
        }
        Err(Failure::Refused(Refused(reason))) => Ok(refused(&reason)),
        Err(Failure::Read(error)) => Err(error),
    }
}

/// A file of the storage.
struct Stored<'a> {
    index: &'a FolderIndex,
    storage: &'a dyn Storage,
    file: FileId,
    length_bytes: u64,
}

impl ReadAt for Stored<'_> {
    type Error = StorageError;

    fn length_bytes(&self) -> u64 {
        self.length_bytes
    }

    fn read_at(&mut self, range: Range<u64>, bytes: &mut Vec<u8>) -> Result<(), StorageError> {
        let length = range.end.saturating_sub(range.start);
        if length == 0 {
            bytes.clear();
            return Ok(());
        }
        let range = ByteRange { offset: range.start, length: Some(length) };
        let location = Location { file: self.file, range, unit: Unit::Sample };
        self.storage.read(self.index, location, MAX_HEADER_BYTES, bytes)
    }
}

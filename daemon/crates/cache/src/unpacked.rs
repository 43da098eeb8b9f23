//! Files that are compressed as a whole, read as if they were not: their unpacked bytes are in the cache, in pieces.
//!
//! A file's states, which exist in the cache only; any thread that needs a file moves it, and several may do so at once
//! without harm:
//! ```text
//! unknown ── read from start to end, unpacked, each piece cached ──► complete: its length is cached, too
//! ▲                                                                  │
//! └───────────────── a piece is missing ─────────────────────────────┘
//! ```
//! A part is assembled from its pieces. If one is missing, the file is unpacked again up to the part's end, and its
//! pieces are cached again: a cache that loses entries costs time, never a byte. While an index is made, a file without
//! space in the cache is an error: each part of it would have to be unpacked from the start.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::io::{self, BufReader, Read};
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use forebay_config::CacheConfig;
use forebay_storage::version::{FileStatus, ObjectIdentity, ObjectStamp};

use super::digest::digest_of;
use super::disk::{Cache, Kept};
use super::entry::Key;
use forebay_storage::codec::{Codec, WindowTooLarge};
use forebay_storage::codec_of;
use forebay_storage::location::{ByteRange, FileId, FileTable, Location, Unit};
use forebay_storage::{Handle, Layer, Opened, Properties, Storage, StorageError, StoragePointer};

/// The size of a piece: a sample of usual size spans one or two.
const PIECE_BYTES: u64 = 256 << 10;
/// The size of a read from a compressed file.
const READ_BYTES: usize = 1 << 20;
/// The maximal number of files that are unpacked at once.
const MOST_TURNS: usize = 4;
/// Share of one of the usual 16 concurrent reads: the pieces that threads keep, and the memory of unpacking MOST_TURNS
/// files, which is the input buffer and the decoder's history.
const BYTES_PER_READ: u64 =
    2 * PIECE_BYTES + MOST_TURNS as u64 * (READ_BYTES as u64 + 2 * Codec::MAX_HISTORY_BYTES) / 16;
/// How long a thread waits for another one to unpack the file that it needs. Then it unpacks the file itself: the other
/// may hang.
const LONGEST_TURN: Duration = Duration::from_secs(20);
/// How long to wait for a cache that temporarily accepts no entries, for example during a count.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// The number of the piece that contains a file's length.
const LENGTH: u64 = u64::MAX;

/// Shared by the storages on one cache: of the opening and of the run.
#[derive(Debug)]
pub struct UnpackedFiles {
    cache: Arc<Cache>,
    digest: Key,
    /// Complete files that were requested, by their paths.
    known: Mutex<HashMap<Vec<u8>, Known>>,
    /// Files that a thread is unpacking.
    turns: Mutex<HashSet<Vec<u8>>>,
    turn_ended: Condvar,
}

/// A complete file.
#[derive(Debug, Clone, Copy)]
struct Known {
    /// The key of its pieces.
    key: Key,
    length: u64,
    /// Its stamp in an index: this length, and the tag.
    stamp: ObjectStamp,
}

/// Reads the unpacked bytes of compressed files; a wrapper for a storage.
#[derive(Debug)]
pub struct UnpackedStorage<S> {
    inner: S,
    files: Arc<UnpackedFiles>,
}

thread_local! {
    /// The piece that this thread has read last.
    static LAST: RefCell<(Key, Vec<u8>)> = RefCell::default();
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl UnpackedFiles {
    /// Opens the configured cache; `None`: there is none, or it cannot be used, which is logged.
    pub fn open(storage: &dyn Storage, config: &CacheConfig) -> Option<Arc<Self>> {
        let scope = config.path.as_ref().and(storage.cache_scope())?;
        let digest = digest_of(&scope.name);
        match Cache::open(config, &digest, &scope.name) {
            Ok(cache) => Some(Arc::new(Self {
                cache,
                digest,
                known: Mutex::default(),
                turns: Mutex::default(),
                turn_ended: Condvar::new(),
            })),
            Err(error) => {
                tracing::warn!("the cache is not used: {error}");
                None
            }
        }
    }

    /// The key of a file's pieces.
    fn key(&self, path: &[u8], status: &FileStatus) -> Key {
        let mut hasher = blake3::Hasher::new_keyed(&self.digest);
        hasher.update(b"unpacked 1\0");
        let tag = status.identity.tag();
        for part in [&status.bytes.to_le_bytes()[..], &(tag.len() as u64).to_le_bytes()] {
            hasher.update(part);
        }
        hasher.update(tag.as_bytes());
        hasher.update(path);
        *hasher.finalize().as_bytes()
    }

    fn piece_key(key: &Key, piece: u64) -> Key {
        *blake3::Hasher::new_keyed(key).update(&piece.to_le_bytes()).finalize().as_bytes()
    }

    /// The length of a complete file.
    fn length(&self, key: &Key) -> Option<u64> {
        let mut bytes = Vec::new();
        let is_there = self.cache.get(&Self::piece_key(key, LENGTH), 8, &mut bytes);
        bytes.first_chunk().filter(|_| is_there).map(|bytes| u64::from_le_bytes(*bytes))
    }

    /// Adds a piece, waiting while the cache temporarily accepts none. Returns whether it was added.
    fn keep(&self, key: &Key, bytes: &[u8]) -> bool {
        let begun = Instant::now();
        loop {
            match self.cache.put(key, bytes) {
                Kept::NotNow if begun.elapsed() < LONGEST_PAUSE => {
                    std::thread::sleep(Duration::from_millis(20));
                }
                kept => return kept == Kept::Yes,
            }
        }
    }

    /// Appends a part of a piece; false: it is missing.
    fn read_piece(&self, file: &Known, piece: u64, part: Range<u64>, buffer: &mut Vec<u8>) -> bool {
        let key = Self::piece_key(&file.key, piece);
        let start = piece * PIECE_BYTES;
        let length = PIECE_BYTES.min(file.length - start);
        LAST.with_borrow_mut(|(last, bytes)| {
            if *last != key {
                *last = Key::default();
                bytes.clear();
                if !self.cache.get(&key, length, bytes) {
                    return false;
                }
                *last = key;
            }
            let place = |at: u64| usize::try_from(at - start).unwrap_or(usize::MAX);
            let part = bytes.get(place(part.start)..place(part.end));
            part.map(|part| buffer.extend_from_slice(part)).is_some()
        })
    }

    /// Appends a part from its pieces; false: one is missing.
    fn read(&self, file: &Known, range: &Range<u64>, buffer: &mut Vec<u8>) -> bool {
        let begun = buffer.len();
        let pieces = range.start / PIECE_BYTES..range.end.div_ceil(PIECE_BYTES);
        for piece in pieces {
            let (first, end) = (piece * PIECE_BYTES, (piece + 1) * PIECE_BYTES);
            let part = range.start.max(first)..range.end.min(end);
            if !self.read_piece(file, piece, part, buffer) {
                buffer.truncate(begun);
                return false;
            }
        }
        true
    }

    /// Waits until no other thread is unpacking a file, and registers this thread for it.
    fn take_turn(&self, path: &[u8]) -> Turn<'_> {
        let turns = lock(&self.turns);
        let (mut turns, _) = self
            .turn_ended
            .wait_timeout_while(turns, LONGEST_TURN, |turns| {
                turns.len() >= MOST_TURNS || turns.contains(path)
            })
            .unwrap_or_else(PoisonError::into_inner);
        turns.insert(path.to_owned());
        Turn { files: self, path: path.to_owned() }
    }
}

/// The registration; ends when it is dropped.
struct Turn<'f> {
    files: &'f UnpackedFiles,
    path: Vec<u8>,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        lock(&self.files.turns).remove(&self.path);
        self.files.turn_ended.notify_all();
    }
}

/// A reader of a compressed file's bytes.
struct Compressed<'f, S: ?Sized> {
    storage: &'f S,
    path: &'f [u8],
    offset: u64,
    bytes: u64,
    /// The storage's error, if reading failed.
    failure: Option<StorageError>,
}

/// A single file's path.
struct OnePath<'a>(&'a [u8]);

impl FileTable for OnePath<'_> {
    fn append_path(&self, _file: FileId, path: &mut Vec<u8>) {
        path.extend_from_slice(self.0);
    }
}

impl<S: Storage + ?Sized> Read for Compressed<'_, S> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let length = (self.bytes - self.offset).min(to.len() as u64);
        if length == 0 {
            return Ok(0);
        }
        let range = ByteRange { offset: self.offset, length: Some(length) };
        let location = Location { file: FileId(0), range, unit: Unit::Sample };
        let mut buffer = Vec::new();
        match self.storage.read(&OnePath(self.path), location, u64::MAX, &mut buffer) {
            Ok(()) => {}
            Err(error) => {
                self.failure = Some(error);
                return Err(io::Error::other("the storage fails"));
            }
        }
        to[..buffer.len()].copy_from_slice(&buffer);
        self.offset += buffer.len() as u64;
        Ok(buffer.len())
    }
}

/// Reads up to one piece.
fn fill(reader: &mut dyn Read, buffer: &mut Vec<u8>) -> io::Result<()> {
    reader.take(PIECE_BYTES).read_to_end(buffer).map(|_| ())
}

impl<S: StoragePointer> UnpackedStorage<S> {
    /// Reads files that `inner` stores compressed, unpacked through `files`.
    pub fn new(inner: S, files: Arc<UnpackedFiles>) -> Self {
        Self { inner, files }
    }

    /// A complete file; if it is not complete and `makes` is set, it is unpacked.
    fn known(&self, path: &[u8], codec: Codec, makes: bool) -> Result<Option<Known>, StorageError> {
        if let Some(known) = lock(&self.files.known).get(path) {
            return Ok(Some(*known));
        }
        let status = self.inner.status(&OnePath(path), FileId(0))?;
        let key = self.files.key(path, &status);
        let length = match (self.files.length(&key), makes) {
            (Some(length), _) => length,
            (None, false) => return Ok(None),
            (None, true) => {
                let _turn = self.files.take_turn(path);
                match self.files.length(&key) {
                    Some(length) => length,
                    None => self.make_whole(path, codec, key, status.bytes)?,
                }
            }
        };
        let tag = match &status.identity {
            ObjectIdentity::Tag(tag) => Some(tag.as_str()),
            ObjectIdentity::Inode { .. } => None,
        };
        let known = Known { key, length, stamp: ObjectStamp::new(length, tag) };
        lock(&self.files.known).insert(path.to_owned(), known);
        Ok(Some(known))
    }

    /// Unpacks a file and returns its length.
    fn make_whole(
        &self,
        path: &[u8],
        codec: Codec,
        key: Key,
        bytes: u64,
    ) -> Result<u64, StorageError> {
        let mut is_kept = true;
        let mut length = 0;
        self.unpack(path, codec, bytes, &mut |piece, unpacked| {
            length += unpacked.len() as u64;
            is_kept = self.files.keep(&UnpackedFiles::piece_key(&key, piece), unpacked);
            is_kept
        })?;
        let length_key = UnpackedFiles::piece_key(&key, LENGTH);
        if !is_kept || !self.files.keep(&length_key, &length.to_le_bytes()) {
            return Err(StorageError::NoRoom {
                path: self.full_path(path),
                unpacked_bytes: length,
            });
        }
        Ok(length)
    }

    /// Passes a file's unpacked pieces to `take`, as long as it returns true.
    fn unpack(
        &self,
        path: &[u8],
        codec: Codec,
        bytes: u64,
        take: &mut dyn FnMut(u64, &[u8]) -> bool,
    ) -> Result<(), StorageError> {
        let file = Compressed { storage: &*self.inner, path, offset: 0, bytes, failure: None };
        let mut reader = BufReader::with_capacity(READ_BYTES, file);
        let mut piece = Vec::new();
        let mut number = 0;
        let unpacked = codec.unpack_stream(&mut reader, &mut |unpacked| {
            loop {
                piece.clear();
                fill(unpacked, &mut piece)?;
                if piece.is_empty() || !take(number, &piece) {
                    return Ok(());
                }
                number += 1;
            }
        });
        match (unpacked, reader.get_mut().failure.take()) {
            (_, Some(failure)) => Err(failure),
            (Ok(()), None) => Ok(()),
            (Err(error), None) => {
                let window = error.get_ref().and_then(|error| error.downcast_ref());
                if let Some(WindowTooLarge { window_bytes }) = window {
                    return Err(StorageError::Window {
                        path: self.full_path(path),
                        window_bytes: *window_bytes,
                        limit_bytes: Codec::MAX_HISTORY_BYTES,
                    });
                }
                let offset = reader.get_ref().offset;
                Err(StorageError::Damaged { path: self.full_path(path), offset })
            }
        }
    }

    /// Appends a part of a file with a missing piece; pieces that are unpacked on the way are cached.
    fn read_anew(
        &self,
        (path, codec): (&[u8], Codec),
        file: &Known,
        range: &Range<u64>,
        buffer: &mut Vec<u8>,
    ) -> Result<(), StorageError> {
        let _turn = self.files.take_turn(path);
        if self.files.read(file, range, buffer) {
            return Ok(());
        }
        let status = self.inner.status(&OnePath(path), FileId(0))?;
        let full_path = || self.full_path(path);
        if self.files.key(path, &status) != file.key {
            let what = "its contents have changed".to_owned();
            return Err(StorageError::Replaced { path: full_path(), what });
        }
        let begun = buffer.len();
        let end = range.end;
        self.unpack(path, codec, status.bytes, &mut |piece, unpacked| {
            let first = piece * PIECE_BYTES;
            let last = first + unpacked.len() as u64;
            let (from, to) = (range.start.clamp(first, last), range.end.clamp(first, last));
            let place = |at: u64| usize::try_from(at - first).unwrap_or(usize::MAX);
            buffer.extend_from_slice(&unpacked[place(from)..place(to)]);
            self.files.cache.put(&UnpackedFiles::piece_key(&file.key, piece), unpacked);
            last < end
        })?;
        if (buffer.len() - begun) as u64 != end - range.start {
            return Err(StorageError::Damaged { path: full_path(), offset: status.bytes });
        }
        Ok(())
    }
}

impl<S: StoragePointer> Layer for UnpackedStorage<S> {
    type Inner = S::Target;

    fn inner(&self) -> &Self::Inner {
        &self.inner
    }

    fn status(&self, files: &dyn FileTable, file: FileId) -> Result<FileStatus, StorageError> {
        let status = self.inner.status(files, file)?;
        let path = files.path(file);
        let Some(codec) = codec_of(&path) else { return Ok(status) };
        let known = self.known(&path, codec, true)?;
        Ok(FileStatus { bytes: known.map_or(status.bytes, |known| known.length), ..status })
    }

    fn status_if_there(
        &self,
        files: &dyn FileTable,
        file: FileId,
    ) -> Result<Option<FileStatus>, StorageError> {
        match codec_of(&files.path(file)) {
            Some(_) => Layer::status(self, files, file).map(Some),
            None => self.inner.status_if_there(files, file),
        }
    }

    fn open(&self, files: &dyn FileTable, location: Location) -> Result<Opened, StorageError> {
        let path = files.path(location.file);
        let Some(codec) = codec_of(&path) else { return self.inner.open(files, location) };
        let known = self.known(&path, codec, true)?;
        let length = known.map_or(0, |known| known.length);
        let indexed = files.stamp(location.file).zip(known);
        if indexed.is_some_and(|(indexed, known)| !indexed.agrees(known.stamp)) {
            let what = "its unpacked contents differ".to_owned();
            return Err(StorageError::Replaced { path: self.full_path(&path), what });
        }
        let ByteRange { offset, length: wanted } = location.range;
        let end = wanted.map_or(length.max(offset), |wanted| offset.saturating_add(wanted));
        if end > length {
            let path = self.full_path(&path);
            return Err(StorageError::OutOfRange { path, length_bytes: length, offset, end });
        }
        Ok(Opened::new(location, end - offset, Handle::Unpacked))
    }

    fn read_opened(
        &self,
        files: &dyn FileTable,
        opened: Opened,
        buffer: &mut Vec<u8>,
    ) -> Result<(), StorageError> {
        let Opened { location, length_bytes, handle: Handle::Unpacked, .. } = opened else {
            return self.inner.read_opened(files, opened, buffer);
        };
        let range = location.range.offset..location.range.offset + length_bytes;
        let path = files.path(location.file);
        let codec = codec_of(&path).unwrap_or(Codec::Gzip);
        let Some(known) = self.known(&path, codec, true)? else { return Ok(()) };
        if self.files.read(&known, &range, buffer) {
            return Ok(());
        }
        self.read_anew((&path, codec), &known, &range, buffer)
    }

    fn unpacks(&self, path: &[u8]) -> bool {
        codec_of(path).is_some()
    }

    fn is_at_hand(&self, path: &[u8]) -> bool {
        match codec_of(path) {
            Some(codec) => matches!(self.known(path, codec, false), Ok(Some(_))),
            None => true,
        }
    }

    fn properties(&self) -> Properties<'_> {
        let inner = self.inner.properties();
        let bytes_per_read = inner.bytes_per_read.saturating_add(BYTES_PER_READ);
        Properties { cache: Some(self.files.cache.metrics()), bytes_per_read, ..inner }
    }
}

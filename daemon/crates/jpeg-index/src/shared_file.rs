//! The file that all daemons of a host append to: reading records, reading new ones, appending under the lock.
//!
//! The holder of the lock has exclusive access: it cuts off damaged records before it appends, so that records are
//! always consecutive. Without the lock, the end may be a half-written record, which is not touched.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::record::{
    HEAD_BYTES, HEADER_BYTES, Header, Key, MOST_MARK_BYTES, Parsed, Secret, header, parse,
    read_header,
};
use crate::table::Table;

/// Size of a read while new records are read; more than the largest record.
pub(crate) const CHUNK_BYTES: usize = 2 * MOST_MARK_BYTES;
/// Size of the first read of a single record; marks are seldom longer.
const GUESSED_BYTES: usize = HEAD_BYTES + 2048;
/// Pause between attempts to take the lock.
const LOCK_PAUSE: Duration = Duration::from_millis(5);

/// The right to append and to truncate, across all processes. The kernel releases the lock of a dead process.
#[derive(Debug)]
pub(crate) struct Lock<'f>(&'f File);

impl<'f> Lock<'f> {
    /// None: another process held it until then.
    ///
    /// # Errors
    /// The file system does not support locks.
    pub(crate) fn take(file: &'f File, until: Instant) -> io::Result<Option<Self>> {
        loop {
            match flock(file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Some(Self(file))),
                Err(Errno::INTR) => {}
                Err(Errno::WOULDBLOCK) if Instant::now() < until => thread::sleep(LOCK_PAUSE),
                Err(Errno::WOULDBLOCK) => return Ok(None),
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

impl Drop for Lock<'_> {
    fn drop(&mut self) {
        let _ = flock(self.0, FlockOperation::Unlock);
    }
}

/// Reads the record at an offset, if there is one. Returns its key and the range of its marks in the buffer.
pub(crate) fn read_record(
    file: &File,
    offset: u64,
    buffer: &mut Vec<u8>,
) -> Option<(Key, std::ops::Range<usize>)> {
    let mut wanted = GUESSED_BYTES;
    for _ in 0..2 {
        buffer.resize(wanted, 0);
        let read = read_fully(file, buffer, offset).ok()?;
        match parse(&buffer[..read]) {
            Parsed::Whole { key, marks, .. } => {
                return Some((key, HEAD_BYTES..HEAD_BYTES + marks.len()));
            }
            Parsed::Cut(all) if all > wanted => wanted = all,
            _ => return None,
        }
    }
    None
}

/// Fewer bytes than the buffer's size: the file ends there.
fn read_fully(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut read = 0;
    while read < buffer.len() {
        match file.read_at(&mut buffer[read..], offset + read as u64) {
            Ok(0) => break,
            Ok(more) => read += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(read)
}

/// This process's progress in reading the file.
#[derive(Debug, Default)]
pub(crate) struct Taken {
    /// The end of the last record that was verified and added to the table; 0: the header was not read.
    end: u64,
    /// The header's secret, once it was read.
    secret: Option<Arc<Secret>>,
}

impl Taken {
    /// The position up to which all records are known.
    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    /// The key of the file's hashes; `None` before its header was read.
    pub(crate) fn secret(&self) -> Option<Arc<Secret>> {
        self.secret.clone()
    }

    /// Adds new records of the file to the table. With the lock it cuts off damaged ones, and writes the header of a
    /// file that is empty or of another version.
    ///
    /// # Errors
    /// A system error, or the file is of another kind and is not changed.
    pub(crate) fn take_in(
        &mut self,
        file: &File,
        table: &Table,
        lock: Option<&Lock<'_>>,
    ) -> io::Result<()> {
        loop {
            if self.end == 0 && !self.begin(file, lock)? {
                return Ok(());
            }
            let began = self.end;
            self.read_records(file, table)?;
            if lock.is_none() || self.end == file.metadata()?.len() {
                return Ok(());
            }
            if began == HEADER_BYTES as u64 {
                return file.set_len(self.end);
            }
            // Known records may have been cut off and rewritten: then this position is inside a record.
            table.clear();
            self.end = 0;
        }
    }

    /// Reads the header, or writes one with the lock. Returns whether it is of this version.
    ///
    /// # Errors
    /// As [`take_in`](Self::take_in).
    pub(crate) fn begin(&mut self, file: &File, lock: Option<&Lock<'_>>) -> io::Result<bool> {
        let mut bytes = [0; HEADER_BYTES];
        let read = read_fully(file, &mut bytes, 0)?;
        let secret = match (read_header(&bytes[..read]), lock) {
            (Header::Own(secret), _) => secret,
            (Header::Foreign, _) => {
                let what = "it is another kind of file; move it away";
                return Err(io::Error::new(io::ErrorKind::InvalidData, what));
            }
            (Header::Missing | Header::OtherVersion, None) => return Ok(false),
            (Header::Missing | Header::OtherVersion, Some(_)) => {
                let mut file = file;
                let secret = Secret::random()?;
                file.set_len(0)?;
                file.write_all(&header(&secret))?;
                secret
            }
        };
        self.secret = Some(Arc::new(secret));
        self.end = HEADER_BYTES as u64;
        Ok(true)
    }

    fn read_records(&mut self, file: &File, table: &Table) -> io::Result<()> {
        let mut buffer = Vec::new();
        loop {
            let left = file.metadata()?.len().saturating_sub(self.end);
            let size = usize::try_from(left).unwrap_or(CHUNK_BYTES).min(CHUNK_BYTES);
            buffer.resize(size, 0);
            let read = read_fully(file, &mut buffer, self.end)?;
            let mut rest = &buffer[..read];
            while let Parsed::Whole { key, bytes, .. } = parse(rest) {
                table.put(key, self.end);
                self.end += bytes as u64;
                rest = &rest[bytes..];
            }
            if read < CHUNK_BYTES || rest.len() == read {
                return Ok(());
            }
        }
    }

    /// Appends those of the concatenated records that have more marks than is known, up to the limit. False: the limit
    /// is reached. All new records must have been read under this lock.
    ///
    /// # Errors
    /// A system error; what was written is cut off again.
    pub(crate) fn append(
        &mut self,
        file: &File,
        table: &Table,
        _lock: &Lock<'_>,
        mut records: &[u8],
        limit_bytes: u64,
    ) -> io::Result<bool> {
        let (mut new, mut places, mut taken) = (Vec::new(), Vec::new(), HashMap::new());
        let (mut scratch, mut has_room) = (Vec::new(), true);
        while let Parsed::Whole { key, marks, bytes } = parse(records) {
            let length = marks.len();
            let (record, rest) = records.split_at(bytes);
            records = rest;
            let offset = self.end + new.len() as u64;
            has_room &= offset + bytes as u64 <= limit_bytes;
            let mut is_known = || {
                table.offsets(key).any(|offset| {
                    read_record(file, offset, &mut scratch)
                        .is_some_and(|(found, marks)| found == key && marks.len() >= length)
                }) || taken.get(&key).is_some_and(|before| *before >= length)
            };
            if has_room && !is_known() {
                taken.insert(key, length);
                new.extend_from_slice(record);
                places.push((key, offset));
            }
        }
        let mut file = file;
        if let Err(error) = file.write_all(&new) {
            let _ = file.set_len(self.end);
            return Err(error);
        }
        self.end += new.len() as u64;
        // A record that does not fit in this table is found by daemons with larger ones.
        for (key, offset) in places {
            table.put(key, offset);
        }
        Ok(has_room)
    }
}

//! The sequential bytes of a manifest, decompressed if necessary. Rows are read once, for the index, so a cache of the
//! decompressed file is not needed.
//!
//! Memory is limited to two windows and the decoder's history. A few bytes may unpack to any number: a file that
//! unpacks to far more than texts do is refused while it is read.

use std::cell::{Cell, RefCell};
use std::io::{self, BufRead, Read};
use std::rc::Rc;

use forebay_dataset::error::DatasetError;
use forebay_index::stored_file::StoredFile;
use forebay_index::window::Bytes;
use forebay_storage::codec::{Codec, WindowTooLarge};

/// The maximum unpacked bytes: this many for any file, or this many per byte of the file if that is more.
const MAX_UNPACKED: (u64, u64) = (64 << 20, 100);

/// The sequential bytes of a manifest.
pub(super) trait Source {
    /// Replaces the buffer by the next bytes, at most a window; empty at the end.
    ///
    /// # Errors
    /// The storage fails, or the file cannot be unpacked.
    fn next(&mut self, window: usize, buffer: &mut Vec<u8>) -> Result<(), DatasetError>;
    /// As [`Bytes::fault_at`].
    fn fault_at(&self, line: usize, message: String) -> DatasetError;
}

/// The unpacked bytes of a compressed file.
///
/// # Errors
/// The codec does not compress whole files.
pub(super) fn unpacked<'f>(
    file: &'f StoredFile<'f>,
    codec: Codec,
    window: usize,
) -> Result<Box<dyn Source + 'f>, DatasetError> {
    let progress = Rc::new(Progress::default());
    let packed = Packed { file, window, offset: 0, buffer: Vec::new(), at: 0 };
    let packed = Watched { packed, progress: Rc::clone(&progress) };
    let reader = codec.reader(packed).map_err(|error| file.fault(error.to_string()))?;
    Ok(Box::new(Unpacked { file, reader, progress, unpacked: 0 }))
}

/// Bytes of an uncompressed file.
pub(super) struct Plain<'a> {
    bytes: &'a dyn Bytes,
    /// The end of the bytes that were read.
    end: u64,
}

impl<'a> Plain<'a> {
    pub(super) fn new(bytes: &'a dyn Bytes) -> Self {
        Self { bytes, end: 0 }
    }
}

impl Source for Plain<'_> {
    fn next(&mut self, window: usize, buffer: &mut Vec<u8>) -> Result<(), DatasetError> {
        buffer.clear();
        let length = (self.bytes.length() - self.end).min(window as u64);
        if length > 0 {
            self.bytes.read(self.end, length, buffer)?;
            self.end += length;
        }
        Ok(())
    }

    fn fault_at(&self, line: usize, message: String) -> DatasetError {
        self.bytes.fault_at(line, message)
    }
}

/// The state of the file below a decoder that the decoder does not report.
#[derive(Default)]
struct Progress {
    /// The bytes that the decoder consumed.
    taken: Cell<u64>,
    /// The error that the storage reported.
    failure: RefCell<Option<DatasetError>>,
}

/// A compressed file, read in windows.
struct Packed<'f> {
    file: &'f StoredFile<'f>,
    window: usize,
    offset: u64,
    buffer: Vec<u8>,
    at: usize,
}

impl Packed<'_> {
    fn fill(&mut self) -> Result<(), DatasetError> {
        if self.at == self.buffer.len() {
            let length = (self.file.stamp.bytes - self.offset).min(self.window as u64);
            self.at = 0;
            self.buffer.clear();
            if length > 0 {
                self.file.read(self.offset, length, &mut self.buffer)?;
                self.offset += length;
            }
        }
        Ok(())
    }
}

/// A compressed file for a decoder, which records progress and errors.
struct Watched<'f> {
    packed: Packed<'f>,
    progress: Rc<Progress>,
}

impl Read for Watched<'_> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let read = self.fill_buf()?.read(to)?;
        self.consume(read);
        Ok(read)
    }
}

impl BufRead for Watched<'_> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if let Err(error) = self.packed.fill() {
            self.progress.failure.replace(Some(error));
            return Err(io::Error::other("the file cannot be read"));
        }
        Ok(&self.packed.buffer[self.packed.at..])
    }

    fn consume(&mut self, bytes: usize) {
        self.packed.at = (self.packed.at + bytes).min(self.packed.buffer.len());
        self.progress.taken.set(self.progress.taken.get() + bytes as u64);
    }
}

/// The unpacked bytes of a compressed file.
struct Unpacked<'f> {
    file: &'f StoredFile<'f>,
    reader: Box<dyn Read + 'f>,
    progress: Rc<Progress>,
    /// The number of bytes so far.
    unpacked: u64,
}

impl Source for Unpacked<'_> {
    fn next(&mut self, window: usize, buffer: &mut Vec<u8>) -> Result<(), DatasetError> {
        buffer.clear();
        let read = (&mut self.reader).take(window as u64).read_to_end(buffer);
        read.map_err(|error| self.failure(&error))?;
        self.unpacked += buffer.len() as u64;
        let taken = self.progress.taken.get();
        match self.unpacked > MAX_UNPACKED.0.max(taken.saturating_mul(MAX_UNPACKED.1)) {
            true => Err(self.file.fault(format!(
                "its first {taken} bytes unpack to {} or more, over {} times as many, which lists hardly do; if that is right, \
                 unpack the file and name the unpacked one in dataset.path",
                self.unpacked, MAX_UNPACKED.1
            ))),
            false => Ok(()),
        }
    }

    fn fault_at(&self, line: usize, message: String) -> DatasetError {
        self.file.fault_at(line, message)
    }
}

impl Unpacked<'_> {
    fn failure(&self, error: &io::Error) -> DatasetError {
        if let Some(failure) = self.progress.failure.take() {
            return failure;
        }
        let window = error.get_ref().and_then(|inner| inner.downcast_ref::<WindowTooLarge>());
        self.file.fault(match window {
            Some(window) => format!("{window}; compress it again without --long and --ultra"),
            None => format!(
                "it cannot be unpacked: it is cut off or damaged, or not compressed as its name says ({error})"
            ),
        })
    }
}

#[cfg(test)]
mod tests;

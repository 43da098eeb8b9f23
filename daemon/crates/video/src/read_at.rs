//! Bytes of a file by their place, and a window over them that reads ahead.

use std::ops::Range;

use crate::error::Refused;

/// A file whose bytes are read by their place: a file on a disk, an object in a bucket, a slice.
pub trait ReadAt {
    /// Why a read failed.
    type Error;

    /// The number of its bytes.
    fn length_bytes(&self) -> u64;

    /// Replaces `bytes` by those of a range, which is inside of the file.
    ///
    /// # Errors
    /// The bytes cannot be read.
    fn read_at(&mut self, range: Range<u64>, bytes: &mut Vec<u8>) -> Result<(), Self::Error>;
}

impl ReadAt for &[u8] {
    type Error = std::convert::Infallible;

    fn length_bytes(&self) -> u64 {
        self.len() as u64
    }

    fn read_at(&mut self, range: Range<u64>, bytes: &mut Vec<u8>) -> Result<(), Self::Error> {
        let place = |at: u64| usize::try_from(at).unwrap_or(usize::MAX).min(self.len());
        bytes.clear();
        bytes.extend_from_slice(&self[place(range.start)..place(range.end)]);
        Ok(())
    }
}

/// Why a file has no table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure<E> {
    /// It could not be read.
    Read(E),
    /// Its bytes are refused.
    Refused(Refused),
}

impl<E> From<Refused> for Failure<E> {
    fn from(refused: Refused) -> Self {
        Self::Refused(refused)
    }
}

/// The part of a file that was read last.
#[derive(Debug)]
pub(crate) struct Window<R> {
    source: R,
    start: u64,
    bytes: Vec<u8>,
    length_bytes: u64,
}

impl<R: ReadAt> Window<R> {
    pub(crate) fn new(source: R) -> Self {
        let length_bytes = source.length_bytes();
        Self { source, start: 0, bytes: Vec::new(), length_bytes }
    }

    pub(crate) const fn length_bytes(&self) -> u64 {
        self.length_bytes
    }

    /// Up to `wanted` bytes from a place on, fewer at the end of the file. If they must be read, up to `ahead` are.
    pub(crate) fn bytes(
        &mut self,
        at: u64,
        wanted: u64,
        ahead: u64,
    ) -> Result<&[u8], Failure<R::Error>> {
        let end = self.length_bytes.min(at.saturating_add(wanted));
        let at = at.min(end);
        if at < self.start || end > self.start + self.bytes.len() as u64 {
            let end = self.length_bytes.min(at.saturating_add(wanted.max(ahead)));
            self.source.read_at(at..end, &mut self.bytes).map_err(Failure::Read)?;
            self.start = at;
        }
        // In memory, so in the range of usize.
        let place = |at: u64| usize::try_from(at - self.start).unwrap_or(usize::MAX);
        let whole = self.bytes.get(place(at)..place(end));
        whole.ok_or_else(|| Refused("it became shorter while it was read".to_owned()).into())
    }
}

//! Parts of a file, read in larger pieces than are asked for: what describes a table lies in small neighbouring parts.

use crate::dataset::error::DatasetError;
use crate::dataset::stored_file::StoredFile;

/// What parts are read from.
pub(in crate::dataset) trait Bytes {
    fn length(&self) -> u64;

    /// Replaces the buffer by a part.
    ///
    /// # Errors
    /// As the storage has it.
    fn read(&self, offset: u64, length: u64, buffer: &mut Vec<u8>) -> Result<(), DatasetError>;

    /// The error for what is wrong with it.
    fn fault(&self, reason: String) -> DatasetError;
}

impl Bytes for StoredFile<'_> {
    fn length(&self) -> u64 {
        self.stamp.bytes
    }

    fn read(&self, offset: u64, length: u64, buffer: &mut Vec<u8>) -> Result<(), DatasetError> {
        StoredFile::read(self, offset, length, buffer)
    }

    fn fault(&self, reason: String) -> DatasetError {
        StoredFile::fault(self, reason)
    }
}

/// The piece of a file that was read last.
pub(in crate::dataset) struct Window<'f> {
    pub(in crate::dataset) file: &'f dyn Bytes,
    piece: u64,
    offset: u64,
    bytes: Vec<u8>,
}

impl<'f> Window<'f> {
    /// `piece`: how many bytes are read at least.
    pub(in crate::dataset) fn new(file: &'f dyn Bytes, piece: u64) -> Self {
        Self { file, piece, offset: 0, bytes: Vec::new() }
    }

    /// A part of the file.
    ///
    /// # Errors
    /// It ends behind the file, it is longer than a part may be, or as the storage has it.
    pub(in crate::dataset) fn get(
        &mut self,
        offset: u64,
        length: u64,
    ) -> Result<&[u8], DatasetError> {
        let all = self.file.length();
        if offset.checked_add(length).is_none_or(|end| end > all) {
            return Err(self.file.fault(format!(
                "{length} bytes are to be at byte {offset}, and the file has {all}: it is cut off or damaged"
            )));
        }
        if length > MAX_PART_BYTES {
            return Err(self.file.fault(format!(
                "its part of {length} bytes at byte {offset} is longer than the {MAX_PART_BYTES} bytes that are read at once"
            )));
        }
        let held = self.offset..=self.offset + self.bytes.len() as u64;
        if !(held.contains(&offset) && held.contains(&(offset + length))) {
            let piece = length.max(self.piece).min(all - offset);
            self.bytes.clear();
            self.offset = offset;
            self.file.read(offset, piece, &mut self.bytes)?;
        }
        let start = usize::try_from(offset - self.offset).unwrap_or(usize::MAX);
        let part =
            self.bytes.get(start..).and_then(|bytes| bytes.get(..usize::try_from(length).ok()?));
        part.ok_or_else(|| {
            self.file.fault(format!("{length} bytes at byte {offset} were not read"))
        })
    }
}

/// What describes a table is smaller, and so are offsets and numbers of the rows that are looked at together.
pub(in crate::dataset) const MAX_PART_BYTES: u64 = 64 << 20;

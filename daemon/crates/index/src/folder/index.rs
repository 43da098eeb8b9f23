//! Maps a sample id to its path and label, in place on an index's bytes, without allocation.
//!
//! [`FolderIndex`] owns the bytes, mapped or in memory, and the classes' names; its other memory does not grow with the
//! samples. `cache` saves the bytes and checks whether they are up to date.

use forebay_protocol::ids::SampleId;
use forebay_storage::version::ObjectStamp;

use super::layout::{self, DirectoryRecord, Header, IndexOrigin, LayoutFault, u32_at, u64_at};
use super::names::{BLOCK_NAMES, Extensions, NameDecoder};
use super::select::SelectedFolder;
pub use forebay_dataset::IndexBytes;
use forebay_storage::location::{FileId, FileTable};

/// The samples of a folder: paths, labels, classes.
#[derive(Debug)]
pub struct FolderIndex {
    bytes: IndexBytes,
    header: Header,
    /// As `usize`, for the search.
    directories: usize,
    extensions: Extensions,
    classes: Vec<String>,
}

impl FolderIndex {
    /// Lays out a selection and computes its fingerprint.
    #[must_use]
    pub fn build(folder: &SelectedFolder, origin: &IndexOrigin, extensions: Extensions) -> Vec<u8> {
        let mut bytes = layout::lay_out(folder, origin);
        layout::seal(&mut bytes, [0; 32]);
        // The fingerprint is computed from the decoded paths, which also verifies that the encoding is readable.
        match Self::open(IndexBytes::Owned(bytes), extensions) {
            Ok(unsealed) => {
                let fingerprint = unsealed.compute_fingerprint(&folder.classes);
                match unsealed.bytes {
                    IndexBytes::Owned(mut bytes) => {
                        layout::seal(&mut bytes, fingerprint);
                        bytes
                    }
                    IndexBytes::Mapped(_) => Vec::new(),
                }
            }
            // The caller opens these bytes again, and gets an error.
            Err(_) => Vec::new(),
        }
    }

    /// Validates the bytes and opens them.
    ///
    /// # Errors
    /// The bytes are not an intact index of this version.
    pub fn open(bytes: IndexBytes, extensions: Extensions) -> Result<Self, LayoutFault> {
        let header = Header::read(&bytes)?;
        let directories = usize::try_from(header.directories).map_err(|_| LayoutFault::Damaged)?;
        let classes = read_classes(&bytes, &header).ok_or(LayoutFault::Damaged)?;
        let index = Self { bytes, header, directories, extensions, classes };
        index.check_directories().ok_or(LayoutFault::Damaged)?;
        Ok(index)
    }

    /// The directories' records must be non-decreasing, and end where their sections end.
    fn check_directories(&self) -> Option<()> {
        let mut before = DirectoryRecord::default();
        for place in 0..=self.directories {
            let record = DirectoryRecord::at(&self.bytes, place)?;
            if place == 0 && (record.first_sample, record.first_block) != (0, 0) {
                return None;
            }
            let files = record.first_sample.checked_sub(before.first_sample)?;
            let blocks = record.first_block.checked_sub(before.first_block)?;
            let rises = blocks == files.div_ceil(BLOCK_NAMES)
                && record.names_offset >= before.names_offset
                && record.path_offset >= before.path_offset
                && (before.label == 0 || u64::from(before.label) < self.header.classes);
            if !rises {
                return None;
            }
            before = record;
        }
        let paths_bytes = (self.header.names_start - self.header.paths_start) as u64;
        let names_bytes = (self.header.objects_start - self.header.names_start) as u64;
        let ends = before.first_sample == self.header.samples
            && before.path_offset == paths_bytes
            && before.names_offset == names_bytes;
        ends.then_some(())
    }

    /// The header of the index.
    #[must_use]
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The size of the index in bytes, an upper bound of its resident memory.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// The bytes, for a daemon that replaces this one.
    #[must_use]
    pub fn bytes(&self) -> &IndexBytes {
        &self.bytes
    }

    /// Whether other processes can share the bytes.
    #[must_use]
    pub fn is_mapped(&self) -> bool {
        matches!(self.bytes, IndexBytes::Mapped(_))
    }

    /// The number of samples.
    #[must_use]
    pub fn sample_count(&self) -> u64 {
        self.header.samples
    }

    /// The classes in label order; names that are not valid UTF-8 have replacement characters.
    #[must_use]
    pub fn classes(&self) -> &[String] {
        &self.classes
    }

    /// The hidden files and folders that the scan excluded, such as `2 .git`; `None` if there were none.
    #[must_use]
    pub fn left_out(&self) -> Option<&str> {
        let bytes = self.bytes.get(self.header.left_out_start..self.header.paths_start)?;
        std::str::from_utf8(bytes).ok().filter(|text| !text.is_empty())
    }

    /// The number of directories, including the root and directories without files.
    #[must_use]
    pub fn directory_count(&self) -> usize {
        self.directories
    }

    /// The path of a directory and its record.
    #[must_use]
    pub fn directory(&self, place: usize) -> Option<(&[u8], DirectoryRecord)> {
        let record = DirectoryRecord::at(&self.bytes, place)?;
        let next = DirectoryRecord::at(&self.bytes, place + 1)?;
        let start = usize::try_from(record.path_offset).ok()?;
        let end = usize::try_from(next.path_offset).ok()?;
        let paths = self.bytes.get(self.header.paths_start..self.header.names_start)?;
        Some((paths.get(start..end)?, record))
    }

    /// The directory of a sample: the last one whose first sample is not after it.
    fn directory_of(&self, id: SampleId) -> usize {
        assert!(
            id.0 < self.header.samples,
            "sample {} does not exist: the dataset has {}",
            id.0,
            self.header.samples
        );
        let table = &self.bytes[layout::HEADER_BYTES..];
        let (mut low, mut high) = (0, self.directories);
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            let first_sample = u64_at(table, middle * layout::DIRECTORY_BYTES).unwrap_or(u64::MAX);
            if first_sample <= id.0 { low = middle } else { high = middle }
        }
        low
    }

    /// The label of a sample; 0 if there are no classes.
    ///
    /// # Panics
    /// The sample does not exist.
    #[must_use]
    pub fn label(&self, id: SampleId) -> i64 {
        let place = self.directory_of(id);
        DirectoryRecord::at(&self.bytes, place).map_or(0, |record| i64::from(record.label))
    }

    /// Appends a sample's path. Decodes one block: at most 16 names.
    ///
    /// # Panics
    /// The sample does not exist.
    pub fn append_path(&self, id: SampleId, path: &mut Vec<u8>) {
        let place = self.directory_of(id);
        // The checksum was correct and this program wrote the index, so every name can be decoded. If one cannot be,
        // the path ends at the directory, and reading it fails with that name.
        let _ = self.try_append_path(place, id, path);
    }

    fn try_append_path(&self, place: usize, id: SampleId, path: &mut Vec<u8>) -> Option<()> {
        let (directory, record) = self.directory(place)?;
        path.extend_from_slice(directory);
        if !directory.is_empty() {
            path.push(b'/');
        }
        let file = id.0 - record.first_sample;
        let block = record.first_block + file / BLOCK_NAMES;
        let mut decoder = self.decoder(&record, block, path.len())?;
        for _ in 0..=file % BLOCK_NAMES {
            decoder.next_stem(path)?;
        }
        decoder.finish_name(path)
    }

    fn decoder(
        &self,
        record: &DirectoryRecord,
        block: u64,
        start: usize,
    ) -> Option<NameDecoder<'_>> {
        let entry = usize::try_from(block).ok()?.checked_mul(4)?;
        let offset = u32_at(self.bytes.get(self.header.blocks_start..)?, entry)?;
        let names = usize::try_from(record.names_offset).ok()?.checked_add(offset as usize)?;
        let all = self.bytes.get(self.header.names_start..self.header.objects_start)?;
        let encoded = all.get(names..)?;
        Some(NameDecoder::new(encoded, self.extensions, start))
    }

    /// Calls `visit` with each sample's path, in the order of ids.
    fn for_each_path(&self, mut visit: impl FnMut(&[u8])) {
        let mut path = Vec::new();
        for place in 0..self.directories {
            let Some((directory, record)) = self.directory(place) else {
                return;
            };
            let Some(next) = DirectoryRecord::at(&self.bytes, place + 1) else {
                return;
            };
            if next.first_sample == record.first_sample {
                continue;
            }
            path.clear();
            path.extend_from_slice(directory);
            if !directory.is_empty() {
                path.push(b'/');
            }
            let Some(mut decoder) = self.decoder(&record, record.first_block, path.len()) else {
                return;
            };
            for _ in record.first_sample..next.first_sample {
                let Some(()) = decoder.next_stem(&mut path) else {
                    return;
                };
                let stem_end = path.len();
                let Some(()) = decoder.finish_name(&mut path) else {
                    return;
                };
                visit(&path);
                path.truncate(stem_end);
            }
        }
    }

    /// BLAKE3 of the paths in the order of ids, then of the classes in label order, each terminated by a zero byte.
    fn compute_fingerprint(&self, classes: &[Vec<u8>]) -> [u8; 32] {
        const GATHERED_BYTES: usize = 64 * 1024;
        let mut hasher = blake3::Hasher::new();
        hasher.update(b"forebay dataset 1\0");
        hasher.update(&self.header.samples.to_le_bytes());
        let mut gathered = Vec::with_capacity(GATHERED_BYTES + 8192);
        self.for_each_path(|path| {
            gathered.extend_from_slice(path);
            gathered.push(0);
            if gathered.len() >= GATHERED_BYTES {
                hasher.update(&gathered);
                gathered.clear();
            }
        });
        for class in classes {
            gathered.extend_from_slice(class);
            gathered.push(0);
        }
        hasher.update(&gathered);
        *hasher.finalize().as_bytes()
    }
}

/// A sample is a file with the same number.
impl FileTable for FolderIndex {
    fn append_path(&self, file: FileId, path: &mut Vec<u8>) {
        Self::append_path(self, SampleId(file.0), path);
    }

    fn stamp(&self, file: FileId) -> Option<ObjectStamp> {
        self.header.object(&self.bytes, file.0)
    }
}

fn read_classes(bytes: &[u8], header: &Header) -> Option<Vec<String>> {
    let mut section = bytes.get(header.classes_start..header.left_out_start)?;
    let mut classes = Vec::new();
    for _ in 0..header.classes {
        let length = u32_at(section, 0)? as usize;
        let (name, rest) = section.get(4..)?.split_at_checked(length)?;
        classes.push(String::from_utf8_lossy(name).into_owned());
        section = rest;
    }
    section.is_empty().then_some(classes)
}

#[cfg(test)]
mod tests;

//! Maps a sample id to its path and label, in place on an index's bytes, without allocation.
//!
//! [`FolderIndex`] owns the bytes, mapped or in memory, and the classes' names; its other memory does not grow with the
//! samples. `cache` saves the bytes and checks whether they are up to date.

use forebay_protocol::ids::SampleId;
use forebay_storage::version::ObjectStamp;

use super::layout::{
    self, BLOCKS, CLASSES, DIRECTORIES, DIRECTORY_BYTES, DirectoryRecord, IndexOrigin, LEFT_OUT,
    NAMES, OBJECT_BYTES, OBJECTS, PATHS, UNKNOWN,
};
use super::names::{BLOCK_NAMES, Extensions, NameDecoder};
use super::select::SelectedFolder;
use crate::index_file::{IndexFile, Kind, LayoutFault, seal, u32_at, u64_at};
pub use forebay_dataset::IndexBytes;
use forebay_storage::location::{FileId, FileTable};

/// The samples of a folder: paths, labels, classes.
#[derive(Debug)]
pub struct FolderIndex {
    file: IndexFile,
    directories: usize,
    extensions: Extensions,
    classes: Vec<String>,
}

impl FolderIndex {
    /// Lays out a selection and computes its fingerprint.
    #[must_use]
    pub fn build(folder: &SelectedFolder, origin: &IndexOrigin, extensions: Extensions) -> Vec<u8> {
        let bytes = IndexBytes::Owned(layout::lay_out(folder, origin));
        // The fingerprint is computed from the decoded paths, which also verifies that the encoding is readable.
        match Self::open(bytes, extensions) {
            Ok(unsealed) => {
                let fingerprint = unsealed.compute_fingerprint(&folder.classes);
                match unsealed.file.into_bytes() {
                    IndexBytes::Owned(mut bytes) => {
                        seal(&mut bytes, fingerprint);
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
        let file = IndexFile::open(bytes, Kind::FOLDER)?;
        let find = || {
            let directories = file.records(DIRECTORIES, DIRECTORY_BYTES)?.checked_sub(1)?;
            let objects = file.records(OBJECTS, OBJECT_BYTES)? as u64;
            (objects == 0 || objects == file.samples()).then_some(())?;
            Some((directories, read_classes(file.section(CLASSES))?))
        };
        let (directories, classes) = find().ok_or(LayoutFault::Damaged)?;
        let index = Self { file, directories, extensions, classes };
        index.check_directories().ok_or(LayoutFault::Damaged)?;
        Ok(index)
    }

    /// A directory's record; after the last directory, the end.
    fn record(&self, place: usize) -> Option<DirectoryRecord> {
        DirectoryRecord::read(self.file.record(DIRECTORIES, place)?)
    }

    /// The directories' records must be non-decreasing, and end where their sections end.
    fn check_directories(&self) -> Option<()> {
        let mut before = DirectoryRecord::default();
        for place in 0..=self.directories {
            let record = self.record(place)?;
            if place == 0 && (record.first_sample, record.first_block) != (0, 0) {
                return None;
            }
            let files = record.first_sample.checked_sub(before.first_sample)?;
            let blocks = record.first_block.checked_sub(before.first_block)?;
            let rises = blocks == files.div_ceil(BLOCK_NAMES)
                && record.names_offset >= before.names_offset
                && record.path_offset >= before.path_offset
                && (before.label == 0 || (before.label as usize) < self.classes.len());
            if !rises {
                return None;
            }
            before = record;
        }
        let ends = before.first_sample == self.file.samples()
            && before.path_offset == self.file.section(PATHS).len() as u64
            && before.names_offset == self.file.section(NAMES).len() as u64;
        ends.then_some(())
    }

    /// The file of the index: its digests, its bytes.
    #[must_use]
    pub fn file(&self) -> &IndexFile {
        &self.file
    }

    /// Whether other processes can share the bytes.
    #[must_use]
    pub fn is_mapped(&self) -> bool {
        matches!(self.file.bytes(), IndexBytes::Mapped(_))
    }

    /// The number of samples.
    #[must_use]
    pub fn sample_count(&self) -> u64 {
        self.file.samples()
    }

    /// The classes in label order; names that are not valid UTF-8 have replacement characters.
    #[must_use]
    pub fn classes(&self) -> &[String] {
        &self.classes
    }

    /// The hidden files and folders that the scan excluded, such as `2 .git`; `None` if there were none.
    #[must_use]
    pub fn left_out(&self) -> Option<&str> {
        Some(self.file.text(LEFT_OUT)).filter(|text| !text.is_empty())
    }

    /// The number of directories, including the root and directories without files.
    #[must_use]
    pub fn directory_count(&self) -> usize {
        self.directories
    }

    /// The path of a directory and its record.
    #[must_use]
    pub fn directory(&self, place: usize) -> Option<(&[u8], DirectoryRecord)> {
        let record = self.record(place)?;
        let next = self.record(place + 1)?;
        let start = usize::try_from(record.path_offset).ok()?;
        let end = usize::try_from(next.path_offset).ok()?;
        Some((self.file.section(PATHS).get(start..end)?, record))
    }

    fn directory_of(&self, id: SampleId) -> usize {
        self.file.group_of::<DIRECTORY_BYTES>(DIRECTORIES, self.directories, id)
    }

    /// The label of a sample; 0 if there are no classes.
    ///
    /// # Panics
    /// The sample does not exist.
    #[must_use]
    pub fn label(&self, id: SampleId) -> i64 {
        let place = self.directory_of(id);
        self.record(place).map_or(0, |record| i64::from(record.label))
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
        let offset = self.file.u32(BLOCKS, usize::try_from(block).ok()?)?;
        let names = usize::try_from(record.names_offset).ok()?.checked_add(offset as usize)?;
        let encoded = self.file.section(NAMES).get(names..)?;
        Some(NameDecoder::new(encoded, self.extensions, start))
    }

    /// Calls `visit` with each sample's path, in the order of ids.
    pub fn for_each_path(&self, mut visit: impl FnMut(&[u8])) {
        let mut path = Vec::new();
        for place in 0..self.directories {
            let Some((directory, record)) = self.directory(place) else {
                return;
            };
            let Some(next) = self.record(place + 1) else {
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
        hasher.update(&self.file.samples().to_le_bytes());
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
        let bytes: &[u8; OBJECT_BYTES] =
            self.file.record(OBJECTS, usize::try_from(file.0).ok()?)?;
        let stamp = ObjectStamp { bytes: u64_at(bytes, 0)?, tag: u64_at(bytes, 8)? };
        (stamp != UNKNOWN).then_some(stamp)
    }
}

fn read_classes(mut section: &[u8]) -> Option<Vec<String>> {
    let mut classes = Vec::new();
    while !section.is_empty() {
        let length = u32_at(section, 0)? as usize;
        let (name, rest) = section.get(4..)?.split_at_checked(length)?;
        classes.push(String::from_utf8_lossy(name).into_owned());
        section = rest;
    }
    Some(classes)
}

#[cfg(test)]
mod tests;

//! The index of rows: the field cells of each row of manifests or tables, so that a sample is found without rereading
//! the file that lists it. "Manifest" below means the file that contains a row.
//!
//! The format defines a cell's bytes: a value, a path, or the location of a value. The sections of the
//! [file](crate::index_file):
//!
//! ```text
//! rows       concatenated: the line in the manifest, then for each column 0 (no value) or 1 + its length, and the
//!            bytes; numbers in groups of 7 bits, lowest first, the highest bit set in all but the last
//! starts     per row: its offset from the start of the rows, u64
//! manifests  one record each: first sample u64, end of its path u64, its stamp (bytes, seconds, nanoseconds, tag,
//!            status change time: u64 each)
//! columns    per column: bytes of the longest cell u64
//! paths      of the manifests, concatenated
//! rules      the definition of the fields, as JSON
//! ```

use forebay_protocol::ids::SampleId;
use forebay_storage::version::{FileStamp, ObjectStamp};
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use crate::index_file::{HEADER_BYTES, IndexDraft, IndexFile, Kind, LayoutFault, u64_at};
use crate::saved_index::SavedIndex;
use forebay_dataset::IndexBytes;
use forebay_storage::location::{FileId, FileTable};

const MANIFEST_BYTES: usize = 56;

const ROWS: usize = 0;
const STARTS: usize = 1;
const MANIFESTS: usize = 2;
const COLUMNS: usize = 3;
const PATHS: usize = 4;
const RULES: usize = 5;

/// Whether a file starts as a row index does.
pub fn is_row_index(file: &File) -> bool {
    let mut start = [0; HEADER_BYTES];
    file.read_exact_at(&mut start, 0).is_ok() && Kind::ROWS.begins(&start)
}

/// A row index under construction.
#[derive(Debug)]
pub struct RowDraft {
    /// The rows so far.
    draft: IndexDraft,
    starts: Vec<u64>,
    manifests: Vec<(u64, usize, FileStamp)>,
    paths: Vec<u8>,
    longest: Vec<u64>,
    /// Returns the size of a cell's value in bytes.
    measure: fn(&[u8]) -> u64,
}

impl RowDraft {
    /// `keys`: the digests of the dataset and of its options.
    pub fn new(columns: usize, keys: [&[u8; 32]; 2], measure: fn(&[u8]) -> u64) -> Self {
        let draft = IndexDraft::new(Kind::ROWS, keys, 0);
        let longest = vec![0; columns];
        let (starts, manifests, paths) = (Vec::new(), Vec::new(), Vec::new());
        Self { draft, starts, manifests, paths, longest, measure }
    }

    /// Starts a manifest; the next rows belong to it.
    pub fn begin(&mut self, path: &[u8], stamp: FileStamp) {
        self.paths.extend_from_slice(path);
        self.manifests.push((self.samples(), self.paths.len(), stamp));
    }

    /// The number of rows so far.
    pub fn samples(&self) -> u64 {
        self.starts.len() as u64
    }

    /// Appends a row.
    pub fn add<'c>(&mut self, line: u64, cells: impl Iterator<Item = Option<&'c [u8]>>) {
        self.starts.push(self.draft.section_bytes() as u64);
        let bytes = self.draft.bytes();
        push_number(bytes, line);
        for (cell, longest) in cells.zip(&mut self.longest) {
            push_cell(bytes, cell);
            *longest = (*longest).max(cell.map_or(0, self.measure));
        }
    }

    /// Lays out and seals the index.
    pub fn build(self, started_seconds: i64, rules: &str) -> Vec<u8> {
        let Self { mut draft, starts, manifests, paths, longest, .. } = self;
        let samples = starts.len() as u64;
        draft.end_section();
        draft.bytes().reserve_exact(
            (starts.len() + longest.len()) * 8
                + manifests.len() * MANIFEST_BYTES
                + paths.len()
                + rules.len(),
        );
        draft.push_all(starts);
        draft.end_section();
        for (first, path_end, stamp) in manifests {
            let (seconds, nanoseconds) =
                (stamp.modified_seconds.cast_unsigned(), u64::from(stamp.modified_nanoseconds));
            draft.push_all([first, path_end as u64, stamp.bytes]);
            draft.push_all([seconds, nanoseconds, stamp.tag, stamp.status_changed]);
        }
        draft.end_section();
        draft.push_all(longest);
        draft.end_section();
        draft.push(&paths);
        draft.end_section();
        draft.push(rules.as_bytes());
        draft.end_section();
        // Modification times are excluded: a copy elsewhere is the same dataset.
        let mut hasher = blake3::Hasher::new();
        hasher.update(b"forebay manifest 1\0");
        for part in [ROWS, PATHS, RULES].map(|section| draft.section(section)) {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part);
        }
        let fingerprint = *hasher.finalize().as_bytes();
        draft.seal(samples, started_seconds, &[], fingerprint)
    }
}

/// The rows of all manifests.
#[derive(Debug)]
pub struct RowIndex {
    file: IndexFile,
    manifests: usize,
    columns: usize,
}

impl SavedIndex for RowIndex {
    const RULES: usize = RULES;

    fn open(bytes: IndexBytes) -> Result<Self, LayoutFault> {
        let file = IndexFile::open(bytes, Kind::ROWS)?;
        let count = || {
            let manifests = file.records(MANIFESTS, MANIFEST_BYTES)?;
            let columns = file.records(COLUMNS, 8)?;
            let is_whole = file.records(STARTS, 8)? as u64 == file.samples();
            let is_text = std::str::from_utf8(file.section(RULES)).is_ok();
            (is_whole && is_text && manifests > 0 && columns > 0).then_some((manifests, columns))
        };
        let (manifests, columns) = count().ok_or(LayoutFault::Damaged)?;
        Ok(Self { file, manifests, columns })
    }

    fn file(&self) -> &IndexFile {
        &self.file
    }

    fn files(&self) -> impl Iterator<Item = (&[u8], FileStamp)> {
        (0..self.manifests())
            .filter_map(|place| Some((self.manifest_path(place), self.manifest_stamp(place)?)))
    }

    fn columns(&self) -> usize {
        self.columns
    }

    /// The manifest's path and the row's line.
    fn append_name(&self, id: SampleId, name: &mut Vec<u8>) {
        append_name(self.manifest_path(self.manifest_of(id)), self.line(id), name);
    }
}

impl RowIndex {
    /// The number of manifests.
    pub fn manifests(&self) -> usize {
        self.manifests
    }

    /// The bytes of a column's longest cell.
    pub fn longest(&self, column: usize) -> u64 {
        self.file.u64(COLUMNS, column).unwrap_or(0)
    }

    fn manifest(&self, place: usize) -> Option<&[u8; MANIFEST_BYTES]> {
        self.file.record(MANIFESTS, place)
    }

    /// A manifest's stamp at the time it was read.
    pub fn manifest_stamp(&self, place: usize) -> Option<FileStamp> {
        let record = self.manifest(place)?;
        Some(FileStamp {
            bytes: u64_at(record, 16)?,
            modified_seconds: u64_at(record, 24)?.cast_signed(),
            modified_nanoseconds: u32::try_from(u64_at(record, 32)?).ok()?,
            tag: u64_at(record, 40)?,
            status_changed: u64_at(record, 48)?,
        })
    }

    /// A manifest's path, relative to the folder of manifests.
    pub fn manifest_path(&self, place: usize) -> &[u8] {
        let end = |place: usize| usize::try_from(u64_at(self.manifest(place)?, 8)?).ok();
        let start = place.checked_sub(1).map_or(Some(0), end);
        let range =
            start.zip(end(place)).and_then(|(start, end)| self.file.section(PATHS).get(start..end));
        range.unwrap_or_default()
    }

    /// The samples whose rows are in a manifest.
    pub fn samples_of(&self, place: usize) -> Range<u64> {
        let samples = self.file.samples();
        let first = |place| self.manifest(place).and_then(|record| u64_at(record, 0));
        let end = first(place + 1).unwrap_or(samples).min(samples);
        first(place).unwrap_or(samples).min(end)..end
    }

    /// The manifest that contains a sample's row.
    ///
    /// # Panics
    /// The sample does not exist.
    pub fn manifest_of(&self, id: SampleId) -> usize {
        self.file.group_of::<MANIFEST_BYTES>(MANIFESTS, self.manifests, id)
    }

    /// The index bytes from the start of a row.
    ///
    /// # Panics
    /// The sample does not exist.
    fn row(&self, id: SampleId) -> &[u8] {
        let samples = self.file.samples();
        assert!(id.0 < samples, "sample {} does not exist: the dataset has {samples}", id.0);
        let find = || {
            let start = self.file.u64(STARTS, usize::try_from(id.0).ok()?)?;
            self.file.section(ROWS).get(usize::try_from(start).ok()?..)
        };
        find().unwrap_or_default()
    }

    /// The cells of a row, in the order of the columns.
    ///
    /// # Panics
    /// The sample does not exist.
    pub fn cells(&self, id: SampleId) -> impl Iterator<Item = Option<&[u8]>> {
        let mut rest = self.row(id);
        take_number(&mut rest);
        (0..self.columns).map(move |_| take_cell(&mut rest))
    }

    /// A row's line, or another number that identifies it in its manifest.
    ///
    /// # Panics
    /// The sample does not exist.
    pub fn line(&self, id: SampleId) -> u64 {
        take_number(&mut self.row(id))
    }
}

/// Appends a row's name.
pub fn append_name(manifest: &[u8], line: u64, name: &mut Vec<u8>) {
    name.extend_from_slice(manifest);
    name.push(b':');
    name.extend_from_slice(line.to_string().as_bytes());
}

/// The manifests as files.
impl FileTable for RowIndex {
    fn append_path(&self, file: FileId, path: &mut Vec<u8>) {
        path.extend_from_slice(self.manifest_path(usize::try_from(file.0).unwrap_or(usize::MAX)));
    }

    fn stamp(&self, _file: FileId) -> Option<ObjectStamp> {
        None
    }
}

/// Appends a cell in the encoding of the rows section.
pub fn push_cell(bytes: &mut Vec<u8>, cell: Option<&[u8]>) {
    push_number(bytes, cell.map_or(0, |cell| 1 + cell.len() as u64));
    bytes.extend_from_slice(cell.unwrap_or_default());
}

/// Removes a cell from the front of `rest`; `None` if it has no value or is cut off.
pub fn take_cell<'r>(rest: &mut &'r [u8]) -> Option<&'r [u8]> {
    let length = usize::try_from(take_number(rest).checked_sub(1)?).ok()?;
    let (cell, behind) = rest.split_at_checked(length)?;
    *rest = behind;
    Some(cell)
}

fn push_number(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number.to_le_bytes()[0] | 0x80);
        number >>= 7;
    }
    bytes.push(number.to_le_bytes()[0]);
}

/// Removes a number from the front of `rest`; 0 if it is cut off.
fn take_number(rest: &mut &[u8]) -> u64 {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let Some((byte, behind)) = rest.split_first() else { return 0 };
        *rest = behind;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return number;
        }
    }
    0
}

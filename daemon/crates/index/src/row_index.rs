//! The index of rows: the field cells of each row of manifests or tables, so that a sample is found without rereading
//! the file that lists it. "Manifest" below means the file that contains a row.
//!
//! The format defines a cell's bytes: a value, a path, or the location of a value.
//!
//! All numbers are little endian. The common header of all indexes ([`layout`]), then:
//!
//! ```text
//! header     144 samples u64   152 manifests u64   160 columns u64   168 start of the reading, seconds since 1970, i64
//!            176 bytes of rows u64   184 bytes of paths u64   192 bytes of rules u64   200 zero to 256
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
use std::os::unix::fs::FileExt;

use crate::folder::layout::{self, HEADER_BYTES, LayoutFault, u64_at};
use crate::saved_index::SavedIndex;
use forebay_dataset::IndexBytes;
use forebay_storage::location::{FileId, FileTable};

const MAGIC: [u8; 8] = *b"FOREBMAN";

/// Whether a file starts with the magic number of a row index.
pub fn is_row_index(file: &File) -> bool {
    let mut start = [0; MAGIC.len()];
    file.read_exact_at(&mut start, 0).is_ok() && start == MAGIC
}
// 2: adds the status change time of each manifest.
const VERSION: u32 = 2;
const MANIFEST_BYTES: usize = 56;

/// A row index under construction.
#[derive(Debug)]
pub struct RowDraft {
    bytes: Vec<u8>,
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
        let mut bytes = Vec::new();
        layout::begin(&mut bytes, MAGIC, VERSION, keys);
        let longest = vec![0; columns];
        let (starts, manifests, paths) = (Vec::new(), Vec::new(), Vec::new());
        Self { bytes, starts, manifests, paths, longest, measure }
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
        self.starts.push((self.bytes.len() - HEADER_BYTES) as u64);
        push_number(&mut self.bytes, line);
        for (cell, longest) in cells.zip(&mut self.longest) {
            push_cell(&mut self.bytes, cell);
            *longest = (*longest).max(cell.map_or(0, self.measure));
        }
    }

    /// Lays out and seals the index.
    pub fn build(self, started_seconds: i64, rules: &str) -> Vec<u8> {
        let Self { mut bytes, starts, manifests, paths, longest, .. } = self;
        let rows_bytes = bytes.len() - HEADER_BYTES;
        let numbers = [starts.len(), manifests.len(), longest.len()].map(|number| number as u64);
        let sizes = [rows_bytes, paths.len(), rules.len()].map(|size| size as u64);
        let numbers = [&numbers[..], &[started_seconds.cast_unsigned()], &sizes].concat();
        layout::set_numbers(&mut bytes, &numbers);
        bytes.reserve_exact(
            starts.len() * 8
                + manifests.len() * MANIFEST_BYTES
                + longest.len() * 8
                + paths.len()
                + rules.len(),
        );
        starts.iter().for_each(|start| bytes.extend_from_slice(&start.to_le_bytes()));
        for (first, path_end, stamp) in manifests {
            let (seconds, nanoseconds) =
                (stamp.modified_seconds.cast_unsigned(), u64::from(stamp.modified_nanoseconds));
            let times = [seconds, nanoseconds, stamp.tag, stamp.status_changed];
            for number in [first, path_end as u64, stamp.bytes].into_iter().chain(times) {
                bytes.extend_from_slice(&number.to_le_bytes());
            }
        }
        longest.iter().for_each(|longest| bytes.extend_from_slice(&longest.to_le_bytes()));
        // Rows, paths and rules. Modification times are excluded: a copy elsewhere is the same dataset.
        let mut hasher = blake3::Hasher::new();
        hasher.update(b"forebay manifest 1\0");
        for part in [&bytes[HEADER_BYTES..HEADER_BYTES + rows_bytes], &paths, rules.as_bytes()] {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part);
        }
        bytes.extend_from_slice(&paths);
        bytes.extend_from_slice(rules.as_bytes());
        layout::seal(&mut bytes, *hasher.finalize().as_bytes());
        bytes
    }
}

/// The rows of all manifests.
#[derive(Debug)]
pub struct RowIndex {
    bytes: IndexBytes,
    samples: u64,
    manifests: usize,
    columns: usize,
    starts_start: usize,
    manifests_start: usize,
    columns_start: usize,
    paths_start: usize,
    rules_start: usize,
}

impl SavedIndex for RowIndex {
    fn open(bytes: IndexBytes) -> Result<Self, LayoutFault> {
        layout::check_header(&bytes, MAGIC, VERSION)?;
        Self::find_sections(bytes).ok_or(LayoutFault::Damaged)
    }

    fn bytes(&self) -> &IndexBytes {
        &self.bytes
    }

    fn samples(&self) -> u64 {
        self.samples
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
    fn find_sections(bytes: IndexBytes) -> Option<Self> {
        let size = |offset: usize| usize::try_from(u64_at(&bytes, offset)?).ok();
        let (samples, manifests, columns) = (size(144)?, size(152)?, size(160)?);
        let starts_start = HEADER_BYTES.checked_add(size(176)?)?;
        let manifests_start = starts_start.checked_add(samples.checked_mul(8)?)?;
        let columns_start = manifests_start.checked_add(manifests.checked_mul(MANIFEST_BYTES)?)?;
        let paths_start = columns_start.checked_add(columns.checked_mul(8)?)?;
        let rules_start = paths_start.checked_add(size(184)?)?;
        if rules_start.checked_add(size(192)?)? != bytes.len() || columns == 0 || manifests == 0 {
            return None;
        }
        std::str::from_utf8(&bytes[rules_start..]).ok()?;
        let samples = samples as u64;
        Some(Self {
            samples,
            manifests,
            columns,
            starts_start,
            manifests_start,
            columns_start,
            paths_start,
            rules_start,
            bytes,
        })
    }

    /// The number of manifests.
    pub fn manifests(&self) -> usize {
        self.manifests
    }

    /// The bytes of a column's longest cell.
    pub fn longest(&self, column: usize) -> u64 {
        u64_at(&self.bytes, self.columns_start + 8 * column).unwrap_or(0)
    }

    fn manifest(&self, place: usize) -> Option<&[u8]> {
        let start = self.manifests_start.checked_add(place.checked_mul(MANIFEST_BYTES)?)?;
        self.bytes.get(start..self.columns_start)?.get(..MANIFEST_BYTES)
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
        let end = |place: usize| {
            let end = u64_at(self.manifest(place)?, 8)?;
            self.paths_start.checked_add(usize::try_from(end).ok()?)
        };
        let start = place.checked_sub(1).map_or(Some(self.paths_start), end);
        let range = start.zip(end(place)).filter(|(_, end)| *end <= self.rules_start);
        range.and_then(|(start, end)| self.bytes.get(start..end)).unwrap_or_default()
    }

    /// The manifest that contains a sample's row.
    pub fn manifest_of(&self, id: SampleId) -> usize {
        let (mut low, mut high) = (0, self.manifests);
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            let first = self.manifest(middle).and_then(|record| u64_at(record, 0));
            if first.is_some_and(|first| first <= id.0) { low = middle } else { high = middle }
        }
        low
    }

    /// The index bytes from the start of a row.
    ///
    /// # Panics
    /// The sample does not exist.
    fn row(&self, id: SampleId) -> &[u8] {
        assert!(
            id.0 < self.samples,
            "sample {} does not exist: the dataset has {}",
            id.0,
            self.samples
        );
        let find = || {
            let start =
                self.starts_start.checked_add(usize::try_from(id.0).ok()?.checked_mul(8)?)?;
            let start = usize::try_from(u64_at(&self.bytes, start)?).ok()?;
            self.bytes.get(HEADER_BYTES..self.starts_start)?.get(start..)
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

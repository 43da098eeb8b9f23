//! The index of rows: the cells of each row of manifests or tables that fields are made of, so that a sample is found
//! without reading the file that lists it again. A "manifest" below is the file that a row is of.
//!
//! A cell's bytes are what the format says: a value, a path, or where a value lies.
//!
//! All numbers are little endian. The header that all indexes share ([`layout`]), then:
//!
//! ```text
//! header     144 samples u64   152 manifests u64   160 columns u64   168 reading's start, seconds since 1970, i64
//!            176 bytes of rows u64   184 bytes of paths u64   192 bytes of rules u64   200 zero to 256
//! rows       one behind the other: the line in the manifest, then of each column 0 (there is no value) or 1 + its bytes,
//!            and the bytes; numbers in groups of 7 bits, the lowest first, the highest bit set in all but the last
//! starts     by row: where it begins, counted from the rows' start, u64
//! manifests  one record each: first sample u64, where its path ends u64, its stamp (bytes, seconds, nanoseconds, tag: u64
//!            each)
//! columns    of each: the bytes of its longest cell u64
//! paths      of the manifests, one behind the other
//! rules      what the fields are made of, as JSON
//! ```

use forebay_protocol::ids::SampleId;

use crate::dataset::IndexBytes;
use crate::dataset::folder::layout::{self, HEADER_BYTES, LayoutFault, u64_at};
use crate::dataset::saved_index::SavedIndex;
use crate::dataset::stored_file::FileStamp;
use crate::location::{FileId, FileTable, ObjectStamp};

const MAGIC: [u8; 8] = *b"FOREBMAN";
const VERSION: u32 = 1;
const MANIFEST_BYTES: usize = 48;

/// The rows while they are read.
#[derive(Debug)]
pub(in crate::dataset) struct RowDraft {
    bytes: Vec<u8>,
    starts: Vec<u64>,
    manifests: Vec<(u64, usize, FileStamp)>,
    paths: Vec<u8>,
    longest: Vec<u64>,
    /// The bytes of a cell's value.
    measure: fn(&[u8]) -> u64,
}

impl RowDraft {
    /// `keys`: of which dataset with which options.
    pub(in crate::dataset) fn new(
        columns: usize,
        keys: [&[u8; 32]; 2],
        measure: fn(&[u8]) -> u64,
    ) -> Self {
        let mut bytes = Vec::new();
        layout::begin(&mut bytes, MAGIC, VERSION, keys);
        let longest = vec![0; columns];
        let (starts, manifests, paths) = (Vec::new(), Vec::new(), Vec::new());
        Self { bytes, starts, manifests, paths, longest, measure }
    }

    /// Begins a manifest.
    pub(in crate::dataset) fn begin(&mut self, path: &[u8], stamp: FileStamp) {
        self.paths.extend_from_slice(path);
        self.manifests.push((self.samples(), self.paths.len(), stamp));
    }

    pub(in crate::dataset) fn samples(&self) -> u64 {
        self.starts.len() as u64
    }

    /// Adds a row.
    pub(in crate::dataset) fn add<'c>(
        &mut self,
        line: u64,
        cells: impl Iterator<Item = Option<&'c [u8]>>,
    ) {
        self.starts.push((self.bytes.len() - HEADER_BYTES) as u64);
        push_number(&mut self.bytes, line);
        for (cell, longest) in cells.zip(&mut self.longest) {
            push_cell(&mut self.bytes, cell);
            *longest = (*longest).max(cell.map_or(0, self.measure));
        }
    }

    /// Lays out and seals.
    pub(in crate::dataset) fn build(self, started_seconds: i64, rules: &str) -> Vec<u8> {
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
            let FileStamp { bytes: length, changed_seconds, changed_nanoseconds, tag } = stamp;
            let (seconds, nanoseconds) =
                (changed_seconds.cast_unsigned(), u64::from(changed_nanoseconds));
            for number in [first, path_end as u64, length, seconds, nanoseconds, tag] {
                bytes.extend_from_slice(&number.to_le_bytes());
            }
        }
        longest.iter().for_each(|longest| bytes.extend_from_slice(&longest.to_le_bytes()));
        // Rows, paths and rules; when files were changed is no part of it: a copy elsewhere is the same dataset.
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

/// The rows of manifests.
#[derive(Debug)]
pub(in crate::dataset) struct RowIndex {
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

    pub(in crate::dataset) fn fingerprint(&self) -> [u8; 32] {
        layout::fingerprint(&self.bytes)
    }

    pub(in crate::dataset) fn started_seconds(&self) -> i64 {
        u64_at(&self.bytes, 168).unwrap_or(0).cast_signed()
    }

    pub(in crate::dataset) fn manifests(&self) -> usize {
        self.manifests
    }

    pub(in crate::dataset) fn columns(&self) -> usize {
        self.columns
    }

    /// What the fields are made of.
    pub(in crate::dataset) fn rules(&self) -> &str {
        let text = self.bytes.get(self.rules_start..);
        text.and_then(|text| std::str::from_utf8(text).ok()).unwrap_or_default()
    }

    /// The bytes of a column's longest cell.
    pub(in crate::dataset) fn longest(&self, column: usize) -> u64 {
        u64_at(&self.bytes, self.columns_start + 8 * column).unwrap_or(0)
    }

    fn manifest(&self, place: usize) -> Option<&[u8]> {
        let start = self.manifests_start.checked_add(place.checked_mul(MANIFEST_BYTES)?)?;
        self.bytes.get(start..self.columns_start)?.get(..MANIFEST_BYTES)
    }

    /// What a manifest was when it was read.
    pub(in crate::dataset) fn manifest_stamp(&self, place: usize) -> Option<FileStamp> {
        let record = self.manifest(place)?;
        Some(FileStamp {
            bytes: u64_at(record, 16)?,
            changed_seconds: u64_at(record, 24)?.cast_signed(),
            changed_nanoseconds: u32::try_from(u64_at(record, 32)?).ok()?,
            tag: u64_at(record, 40)?,
        })
    }

    /// A manifest's path, relative to the folder of manifests.
    pub(in crate::dataset) fn manifest_path(&self, place: usize) -> &[u8] {
        let end = |place: usize| {
            let end = u64_at(self.manifest(place)?, 8)?;
            self.paths_start.checked_add(usize::try_from(end).ok()?)
        };
        let start = place.checked_sub(1).map_or(Some(self.paths_start), end);
        let range = start.zip(end(place)).filter(|(_, end)| *end <= self.rules_start);
        range.and_then(|(start, end)| self.bytes.get(start..end)).unwrap_or_default()
    }

    /// The manifest that a sample is a row of.
    pub(in crate::dataset) fn manifest_of(&self, id: SampleId) -> usize {
        let (mut low, mut high) = (0, self.manifests);
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            let first = self.manifest(middle).and_then(|record| u64_at(record, 0));
            if first.is_some_and(|first| first <= id.0) { low = middle } else { high = middle }
        }
        low
    }

    /// A row's bytes from its start on.
    ///
    /// # Panics
    /// When there is no such sample.
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
    /// When there is no such sample.
    pub(in crate::dataset) fn cells(&self, id: SampleId) -> impl Iterator<Item = Option<&[u8]>> {
        let mut rest = self.row(id);
        take_number(&mut rest);
        (0..self.columns).map(move |_| take_cell(&mut rest))
    }

    /// A row's line, or what else it is numbered by.
    ///
    /// # Panics
    /// When there is no such sample.
    pub(in crate::dataset) fn line(&self, id: SampleId) -> u64 {
        take_number(&mut self.row(id))
    }

    /// Appends a row's name: its manifest and its line.
    ///
    /// # Panics
    /// When there is no such sample.
    pub(in crate::dataset) fn append_name(&self, id: SampleId, name: &mut Vec<u8>) {
        append_name(self.manifest_path(self.manifest_of(id)), self.line(id), name);
    }
}

/// Appends what a row is called.
pub(in crate::dataset) fn append_name(manifest: &[u8], line: u64, name: &mut Vec<u8>) {
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

/// Appends a cell, as rows have it.
pub(in crate::dataset) fn push_cell(bytes: &mut Vec<u8>, cell: Option<&[u8]>) {
    push_number(bytes, cell.map_or(0, |cell| 1 + cell.len() as u64));
    bytes.extend_from_slice(cell.unwrap_or_default());
}

/// Takes a cell; `None` where there is none.
pub(in crate::dataset) fn take_cell<'r>(rest: &mut &'r [u8]) -> Option<&'r [u8]> {
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

/// Takes a number; 0 where there is none.
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

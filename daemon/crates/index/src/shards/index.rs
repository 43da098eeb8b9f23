//! The index of a set of shards: per sample its key and, per column, the location of the member's data.
//!
//! For archives, a column is one list of extensions that fields name; a sample has at most one member of it. For
//! records, which are read as a whole, there is one column. The sections of the [file](crate::index_file):
//!
//! ```text
//! numbers      columns
//! shards       one record each and a final one for the end; see [`Shard`]
//! longest      per column: bytes of the longest member u64; then, if the scan inspected the values within members, per
//!              value: bytes of the longest u64
//! members      by sample, then by column: offset u64 (all ones: absent), bytes u64
//! name ends    per sample: u32, relative to its shard's names
//! paths        of the shards, concatenated
//! names        the samples' keys, concatenated
//! rules        the definition of the fields, as JSON
//! ```

use forebay_protocol::ids::SampleId;
use forebay_storage::version::{FileStamp, ObjectStamp};

use crate::index_file::{IndexDraft, IndexFile, Kind, LayoutFault, u32_at, u64_at};
use crate::saved_index::SavedIndex;
use crate::stored_file::StoredFile;
use forebay_dataset::IndexBytes;
use forebay_dataset::error::DatasetError;
use forebay_storage::location::{FileId, FileTable};

const SHARD_BYTES: usize = 64;
const MEMBER_BYTES: usize = 16;

const SHARDS: usize = 0;
const LONGEST: usize = 1;
const MEMBERS: usize = 2;
const NAME_ENDS: usize = 3;
const PATHS: usize = 4;
const NAMES: usize = 5;
const RULES: usize = 6;

/// The offset of an absent member.
const ABSENT: u64 = u64::MAX;

/// The location of a member's data in its shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// The offset in the shard.
    pub offset: u64,
    /// The length in bytes.
    pub bytes: u64,
}

/// A shard's record, or the end of the last one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Shard {
    pub first_sample: u64,
    path_offset: u64,
    names_offset: u64,
    pub stamp: FileStamp,
    /// See [`ScannedShard::is_listed`].
    pub is_listed: bool,
}

/// The samples of a shard.
#[derive(Debug, Default)]
pub struct ScannedShard {
    /// The path relative to the dataset's root.
    pub path: Vec<u8>,
    /// The stamp when it was scanned.
    pub stamp: FileStamp,
    /// Whether its samples were read from a separate list file instead of the shard.
    pub is_listed: bool,
    /// By sample, then by column.
    pub members: Vec<Option<Extent>>,
    /// Per sample: the end of its name in `names`.
    pub name_ends: Vec<u32>,
    /// The names of the samples, concatenated.
    pub names: Vec<u8>,
    /// Per value within members: the bytes of the longest. All shards of a scan have the same number of values.
    pub longest_values: Vec<u64>,
}

impl ScannedShard {
    /// A shard without samples.
    pub fn new(path: &[u8], file: &StoredFile<'_>) -> Self {
        Self { path: path.to_vec(), stamp: file.stamp, ..Self::default() }
    }

    /// Adds a sample with one member. Its key is its number in the shard.
    ///
    /// # Errors
    /// The keys exceed 4 GiB.
    pub fn push_numbered(
        &mut self,
        member: Extent,
        file: &StoredFile<'_>,
    ) -> Result<(), DatasetError> {
        self.names.extend_from_slice(self.samples().to_string().as_bytes());
        let end = u32::try_from(self.names.len());
        self.name_ends.push(end.map_err(|_| file.fault("it has too many samples".to_owned()))?);
        self.members.push(Some(member));
        Ok(())
    }

    /// The number of samples.
    pub fn samples(&self) -> usize {
        self.name_ends.len()
    }

    /// A sample's key.
    fn name(&self, sample: usize) -> &[u8] {
        let end = |sample: usize| self.name_ends.get(sample).map_or(0, |end| *end as usize);
        let start = sample.checked_sub(1).map_or(0, end);
        self.names.get(start..end(sample)).unwrap_or_default()
    }

    /// Keeps the samples for which `is_kept` returns true, given the shard's path and the sample's key.
    pub fn retain(&mut self, columns: usize, mut is_kept: impl FnMut(&[u8], &[u8]) -> bool) {
        let mut kept = Self {
            path: std::mem::take(&mut self.path),
            stamp: self.stamp,
            is_listed: self.is_listed,
            longest_values: std::mem::take(&mut self.longest_values),
            ..Self::default()
        };
        for sample in 0..self.samples() {
            let name = self.name(sample);
            if is_kept(&kept.path, name) {
                kept.names.extend_from_slice(name);
                // Cannot overflow: all names of the shard fit.
                kept.name_ends.push(u32::try_from(kept.names.len()).unwrap_or(u32::MAX));
                kept.members.extend_from_slice(&self.members[sample * columns..][..columns]);
            }
        }
        *self = kept;
    }

    /// Keeps the first samples.
    pub fn truncate(&mut self, samples: usize, columns: usize) {
        self.name_ends.truncate(samples);
        self.members.truncate(samples.saturating_mul(columns));
        self.names.truncate(self.name_ends.last().map_or(0, |end| *end as usize));
    }
}

/// The contents of an index besides the samples.
#[derive(Debug)]
pub struct Origin<'a> {
    /// A digest of the dataset's path and format.
    pub identity: [u8; 32],
    /// A digest of the keys that determine what is scanned.
    pub options: [u8; 32],
    /// When the scan began, in seconds since 1970.
    pub scan_started_seconds: i64,
    /// The definition of the fields; part of the fingerprint.
    pub rules: &'a str,
}

/// The samples of a set of shards.
#[derive(Debug)]
pub struct ShardIndex {
    file: IndexFile,
    shards: usize,
    columns: usize,
}

impl ShardIndex {
    /// Lays out and seals the index.
    pub fn build(shards: &[ScannedShard], columns: usize, origin: &Origin<'_>) -> Vec<u8> {
        let sum = |part: fn(&ScannedShard) -> usize| shards.iter().map(part).sum::<usize>();
        let values = shards.first().map_or(0, |shard| shard.longest_values.len());
        let samples = sum(ScannedShard::samples);
        let expected_bytes = (shards.len() + 1) * SHARD_BYTES
            + (columns + values) * 8
            + samples * (columns * MEMBER_BYTES + 4)
            + sum(|shard| shard.path.len() + shard.names.len())
            + origin.rules.len();
        let keys = [&origin.identity, &origin.options];
        let mut draft = IndexDraft::new(Kind::SHARDS, keys, expected_bytes);
        let mut record = Shard::default();
        for shard in shards {
            (record.stamp, record.is_listed) = (shard.stamp, shard.is_listed);
            record.write(draft.bytes());
            record.first_sample += shard.samples() as u64;
            record.path_offset += shard.path.len() as u64;
            record.names_offset += shard.names.len() as u64;
        }
        Shard { stamp: FileStamp::default(), is_listed: false, ..record }.write(draft.bytes());
        draft.end_section();
        draft.push_all((0..columns).map(|column| {
            let members =
                shards.iter().flat_map(|shard| shard.members.iter().skip(column).step_by(columns));
            members.flatten().map(|member| member.bytes).max().unwrap_or(0)
        }));
        draft.push_all((0..values).map(|value| {
            let longest = shards.iter().filter_map(|shard| shard.longest_values.get(value)).max();
            longest.copied().unwrap_or(0)
        }));
        draft.end_section();
        for member in shards.iter().flat_map(|shard| &shard.members) {
            let Extent { offset, bytes } = member.unwrap_or(Extent { offset: ABSENT, bytes: 0 });
            draft.push_all([offset, bytes]);
        }
        draft.end_section();
        for end in shards.iter().flat_map(|shard| &shard.name_ends) {
            draft.push(&end.to_le_bytes());
        }
        draft.end_section();
        shards.iter().for_each(|shard| draft.push(&shard.path));
        draft.end_section();
        shards.iter().for_each(|shard| draft.push(&shard.names));
        draft.end_section();
        draft.push(origin.rules.as_bytes());
        draft.end_section();
        let fingerprint = fingerprint(shards, origin.rules);
        let (samples, columns) = (samples as u64, columns as u64);
        draft.seal(samples, origin.scan_started_seconds, &[columns], fingerprint)
    }

    fn of(file: IndexFile) -> Option<Self> {
        let shards = file.records(SHARDS, SHARD_BYTES)?.checked_sub(1)?;
        let columns = usize::try_from(file.number(0)).ok()?;
        let samples = usize::try_from(file.samples()).ok()?;
        let is_whole = file.records(MEMBERS, MEMBER_BYTES)? == samples.checked_mul(columns)?
            && file.records(NAME_ENDS, 4)? == samples
            && file.records(LONGEST, 8)? >= columns
            && columns > 0
            && std::str::from_utf8(file.section(RULES)).is_ok();
        is_whole.then_some(())?;
        let index = Self { file, shards, columns };
        index.check_shards()?;
        Some(index)
    }

    /// The shards' records must be non-decreasing, and end where their sections end.
    fn check_shards(&self) -> Option<()> {
        let mut before = Shard::default();
        for place in 0..=self.shards {
            let record = self.shard(place)?;
            let rises = record.first_sample >= before.first_sample
                && record.path_offset >= before.path_offset
                && record.names_offset >= before.names_offset;
            if !rises || (place == 0 && record.first_sample != 0) {
                return None;
            }
            before = record;
        }
        let ends = before.first_sample == self.file.samples()
            && before.path_offset == self.file.section(PATHS).len() as u64
            && before.names_offset == self.file.section(NAMES).len() as u64;
        ends.then_some(())
    }

    /// The number of shards.
    pub fn shards(&self) -> usize {
        self.shards
    }

    /// The bytes of a column's longest member.
    pub fn longest(&self, column: usize) -> u64 {
        self.file.u64(LONGEST, column).unwrap_or(0)
    }

    /// The bytes of the longest instance of a value within members; `None` if the scan did not inspect them.
    pub fn longest_value(&self, value: usize) -> Option<u64> {
        self.file.u64(LONGEST, self.columns.checked_add(value)?)
    }

    /// A shard's record; after the last shard, the end.
    pub fn shard(&self, place: usize) -> Option<Shard> {
        Shard::read(self.file.record(SHARDS, place)?)
    }

    /// A shard's path, relative to the root.
    pub fn shard_path(&self, place: usize) -> &[u8] {
        let range = self.shard(place).zip(self.shard(place + 1)).and_then(|(shard, next)| {
            let start = usize::try_from(shard.path_offset).ok()?;
            self.file.section(PATHS).get(start..usize::try_from(next.path_offset).ok()?)
        });
        range.unwrap_or_default()
    }

    /// The shard of a sample: the last one whose first sample is not after it.
    ///
    /// # Panics
    /// The sample does not exist.
    pub fn shard_of(&self, id: SampleId) -> usize {
        self.file.group_of::<SHARD_BYTES>(SHARDS, self.shards, id)
    }

    /// A sample's member in a column; `None` if it is absent.
    pub fn member(&self, id: SampleId, column: usize) -> Option<Extent> {
        let place = usize::try_from(id.0).ok()?.checked_mul(self.columns)?.checked_add(column)?;
        let record: &[u8; MEMBER_BYTES] = self.file.record(MEMBERS, place)?;
        let extent = Extent { offset: u64_at(record, 0)?, bytes: u64_at(record, 8)? };
        (extent.offset != ABSENT).then_some(extent)
    }

    /// A sample's key.
    ///
    /// # Panics
    /// The sample does not exist.
    pub fn key(&self, id: SampleId) -> &[u8] {
        let place = self.shard_of(id);
        let find = || {
            let shard = self.shard(place)?;
            let end = |sample: u64| {
                let end = self.file.u32(NAME_ENDS, usize::try_from(sample).ok()?)?;
                usize::try_from(shard.names_offset.checked_add(end.into())?).ok()
            };
            let start = match id.0 == shard.first_sample {
                true => usize::try_from(shard.names_offset).ok()?,
                false => end(id.0 - 1)?,
            };
            self.file.section(NAMES).get(start..end(id.0)?)
        };
        find().unwrap_or_default()
    }
}

impl SavedIndex for ShardIndex {
    const RULES: usize = RULES;

    fn open(bytes: IndexBytes) -> Result<Self, LayoutFault> {
        Self::of(IndexFile::open(bytes, Kind::SHARDS)?).ok_or(LayoutFault::Damaged)
    }

    fn file(&self) -> &IndexFile {
        &self.file
    }

    fn files(&self) -> impl Iterator<Item = (&[u8], FileStamp)> {
        (0..self.shards())
            .filter_map(|place| Some((self.shard_path(place), self.shard(place)?.stamp)))
    }

    fn columns(&self) -> usize {
        self.columns
    }

    /// The shard's path and the key in it.
    fn append_name(&self, id: SampleId, name: &mut Vec<u8>) {
        name.extend_from_slice(self.shard_path(self.shard_of(id)));
        name.push(b'/');
        name.extend_from_slice(self.key(id));
    }
}

impl Shard {
    fn write(self, bytes: &mut Vec<u8>) {
        let FileStamp { modified_seconds, modified_nanoseconds, status_changed, tag, .. } =
            self.stamp;
        for number in [self.first_sample, self.path_offset, self.names_offset, self.stamp.bytes] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        bytes.extend_from_slice(&modified_seconds.to_le_bytes());
        bytes.extend_from_slice(&modified_nanoseconds.to_le_bytes());
        bytes.extend_from_slice(&u32::from(self.is_listed).to_le_bytes());
        bytes.extend_from_slice(&tag.to_le_bytes());
        bytes.extend_from_slice(&status_changed.to_le_bytes());
    }

    fn read(record: &[u8; SHARD_BYTES]) -> Option<Self> {
        let stamp = FileStamp {
            bytes: u64_at(record, 24)?,
            modified_seconds: u64_at(record, 32)?.cast_signed(),
            modified_nanoseconds: u32_at(record, 40)?,
            tag: u64_at(record, 48)?,
            status_changed: u64_at(record, 56)?,
        };
        let [first_sample, path_offset, names_offset] =
            [u64_at(record, 0)?, u64_at(record, 8)?, u64_at(record, 16)?];
        let is_listed = u32_at(record, 44)? != 0;
        Some(Self { first_sample, path_offset, names_offset, stamp, is_listed })
    }
}

impl FileTable for ShardIndex {
    fn append_path(&self, file: FileId, path: &mut Vec<u8>) {
        path.extend_from_slice(self.shard_path(usize::try_from(file.0).unwrap_or(usize::MAX)));
    }

    fn stamp(&self, file: FileId) -> Option<ObjectStamp> {
        let shard = self.shard(usize::try_from(file.0).ok()?)?;
        Some(shard.stamp.object())
    }
}

/// BLAKE3 of the field definition, the shards' paths and the samples: their keys and the locations of their members.
/// Modification times and storage locations are excluded: a copy elsewhere is the same dataset.
fn fingerprint(shards: &[ScannedShard], rules: &str) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(b"forebay tars 1\0");
    hasher.update(&(rules.len() as u64).to_le_bytes());
    hasher.update(rules.as_bytes());
    let mut gathered = Vec::with_capacity(64 << 10);
    for shard in shards {
        for length in [shard.path.len(), shard.samples(), shard.names.len()] {
            hasher.update(&(length as u64).to_le_bytes());
        }
        hasher.update(&shard.path);
        hasher.update(&shard.names);
        for end in &shard.name_ends {
            hasher.update(&end.to_le_bytes());
        }
        for members in shard.members.chunks(4096) {
            gathered.clear();
            for member in members {
                let Extent { offset, bytes } =
                    member.unwrap_or(Extent { offset: ABSENT, bytes: 0 });
                gathered.extend_from_slice(&offset.to_le_bytes());
                gathered.extend_from_slice(&bytes.to_le_bytes());
            }
            hasher.update(&gathered);
        }
    }
    *hasher.finalize().as_bytes()
}

//! The index of a set of shards: for each sample its key and, for each column, where the member's data lies.
//!
//! Of archives a column is one list of extensions that fields name, of which a sample has at most one member; of records,
//! which are read whole, there is one column. The bytes are written once
//! and read in place by all daemons of a host. All numbers are little endian. A header of [`HEADER_BYTES`], then the
//! sections one behind the other:
//!
//! ```text
//! header       0 magic [8]           8 version u32        12 zero u32
//!             16 checksum [32]: BLAKE3 of everything from byte 48 to the end
//!             48 identity [32]      80 options [32]      112 fingerprint [32]
//!            144 samples u64       152 shards u64        160 columns u64
//!            168 scan's start, seconds since 1970, i64   176 bytes of paths u64   184 bytes of names u64
//!            192 bytes of rules u64   200 zero to 256
//! shards       one record each and one that ends the last; see [`Shard`]
//! columns      of each: bytes of the longest member u64
//! members      by sample, then by column: offset u64 (all ones: there is none), bytes u64
//! name ends    by sample: u32, counted from its shard's names
//! paths        of the shards, one behind the other
//! names        the samples' keys, one behind the other
//! rules        what the fields are made of, as JSON
//! ```

use forebay_protocol::ids::SampleId;

use crate::dataset::IndexBytes;
use crate::dataset::folder::layout::{self, HEADER_BYTES, LayoutFault, u32_at, u64_at};
use crate::dataset::saved_index::SavedIndex;
use crate::dataset::stored_file::FileStamp;
use crate::location::{FileId, FileTable, ObjectStamp};

const SHARD_BYTES: usize = 56;
const COLUMN_BYTES: usize = 8;
const MEMBER_BYTES: usize = 16;
const MAGIC: [u8; 8] = *b"FOREBTAR";
const VERSION: u32 = 1;
/// The offset of a member that a sample has not.
const ABSENT: u64 = u64::MAX;

/// Where a member's data lies in its shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::dataset) struct Extent {
    pub(in crate::dataset) offset: u64,
    pub(in crate::dataset) bytes: u64,
}

/// A shard's record, or the end of the last one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(in crate::dataset) struct Shard {
    pub(in crate::dataset) first_sample: u64,
    path_offset: u64,
    names_offset: u64,
    pub(in crate::dataset) stamp: FileStamp,
    /// Whether its samples come from a list beside it, and not from itself.
    pub(in crate::dataset) is_listed: bool,
}

/// What a shard's samples are.
#[derive(Debug, Default)]
pub(in crate::dataset) struct ScannedShard {
    pub(in crate::dataset) path: Vec<u8>,
    pub(in crate::dataset) stamp: FileStamp,
    /// Whether its samples come from a list beside it, and not from itself.
    pub(in crate::dataset) is_listed: bool,
    /// By sample, then by column.
    pub(in crate::dataset) members: Vec<Option<Extent>>,
    /// By sample.
    pub(in crate::dataset) name_ends: Vec<u32>,
    pub(in crate::dataset) names: Vec<u8>,
}

impl ScannedShard {
    pub(in crate::dataset) fn samples(&self) -> usize {
        self.name_ends.len()
    }

    /// A sample's key.
    fn name(&self, sample: usize) -> &[u8] {
        let end = |sample: usize| self.name_ends.get(sample).map_or(0, |end| *end as usize);
        let start = sample.checked_sub(1).map_or(0, end);
        self.names.get(start..end(sample)).unwrap_or_default()
    }

    /// Keeps the samples of whose shard and key that is true.
    pub(in crate::dataset) fn retain(
        &mut self,
        columns: usize,
        mut is_kept: impl FnMut(&[u8], &[u8]) -> bool,
    ) {
        let mut kept = Self {
            path: std::mem::take(&mut self.path),
            stamp: self.stamp,
            is_listed: self.is_listed,
            ..Self::default()
        };
        for sample in 0..self.samples() {
            let name = self.name(sample);
            if is_kept(&kept.path, name) {
                kept.names.extend_from_slice(name);
                // It fits: all of the shard's names did.
                kept.name_ends.push(u32::try_from(kept.names.len()).unwrap_or(u32::MAX));
                kept.members.extend_from_slice(&self.members[sample * columns..][..columns]);
            }
        }
        *self = kept;
    }

    /// Keeps the first samples.
    pub(in crate::dataset) fn truncate(&mut self, samples: usize, columns: usize) {
        self.name_ends.truncate(samples);
        self.members.truncate(samples.saturating_mul(columns));
        self.names.truncate(self.name_ends.last().map_or(0, |end| *end as usize));
    }
}

/// What goes into an index beside the samples.
#[derive(Debug)]
pub(in crate::dataset) struct Origin<'a> {
    pub(in crate::dataset) identity: [u8; 32],
    pub(in crate::dataset) options: [u8; 32],
    pub(in crate::dataset) scan_started_seconds: i64,
    /// What the fields are made of, as the fingerprint has it.
    pub(in crate::dataset) rules: &'a str,
}

/// The samples of a set of archives.
#[derive(Debug)]
pub(in crate::dataset) struct ShardIndex {
    bytes: IndexBytes,
    samples: u64,
    shards: usize,
    columns: usize,
    members_start: usize,
    ends_start: usize,
    paths_start: usize,
    names_start: usize,
    rules_start: usize,
}

impl ShardIndex {
    /// Lays out and seals.
    pub(in crate::dataset) fn build(
        shards: &[ScannedShard],
        columns: usize,
        origin: &Origin<'_>,
    ) -> Vec<u8> {
        let sum = |part: fn(&ScannedShard) -> usize| shards.iter().map(part).sum::<usize>();
        let (samples, names_bytes) = (sum(ScannedShard::samples), sum(|shard| shard.names.len()));
        let mut bytes = Vec::with_capacity(
            HEADER_BYTES
                + (shards.len() + 1) * SHARD_BYTES
                + columns * COLUMN_BYTES
                + samples * (columns * MEMBER_BYTES + 4)
                + sum(|shard| shard.path.len())
                + names_bytes
                + origin.rules.len(),
        );
        layout::begin(&mut bytes, MAGIC, VERSION, [&origin.identity, &origin.options]);
        layout::set_numbers(
            &mut bytes,
            &[
                samples as u64,
                shards.len() as u64,
                columns as u64,
                origin.scan_started_seconds.cast_unsigned(),
                sum(|shard| shard.path.len()) as u64,
                names_bytes as u64,
                origin.rules.len() as u64,
            ],
        );
        let mut record = Shard::default();
        for shard in shards {
            (record.stamp, record.is_listed) = (shard.stamp, shard.is_listed);
            record.write(&mut bytes);
            record.first_sample += shard.samples() as u64;
            record.path_offset += shard.path.len() as u64;
            record.names_offset += shard.names.len() as u64;
        }
        Shard { stamp: FileStamp::default(), is_listed: false, ..record }.write(&mut bytes);
        for column in 0..columns {
            let members =
                shards.iter().flat_map(|shard| shard.members.iter().skip(column).step_by(columns));
            let longest = members.flatten().map(|member| member.bytes).max().unwrap_or(0);
            bytes.extend_from_slice(&longest.to_le_bytes());
        }
        for member in shards.iter().flat_map(|shard| &shard.members) {
            let Extent { offset, bytes: length } =
                member.unwrap_or(Extent { offset: ABSENT, bytes: 0 });
            bytes.extend_from_slice(&offset.to_le_bytes());
            bytes.extend_from_slice(&length.to_le_bytes());
        }
        for end in shards.iter().flat_map(|shard| &shard.name_ends) {
            bytes.extend_from_slice(&end.to_le_bytes());
        }
        shards.iter().for_each(|shard| bytes.extend_from_slice(&shard.path));
        shards.iter().for_each(|shard| bytes.extend_from_slice(&shard.names));
        bytes.extend_from_slice(origin.rules.as_bytes());
        layout::seal(&mut bytes, fingerprint(shards, origin.rules));
        bytes
    }

    fn find_sections(bytes: IndexBytes) -> Option<Self> {
        let size = |offset: usize| usize::try_from(u64_at(&bytes, offset)?).ok();
        let (samples, shards, columns) = (size(144)?, size(152)?, size(160)?);
        let columns_start =
            HEADER_BYTES.checked_add(shards.checked_add(1)?.checked_mul(SHARD_BYTES)?)?;
        let members_start = columns_start.checked_add(columns.checked_mul(COLUMN_BYTES)?)?;
        let members_bytes = samples.checked_mul(columns.checked_mul(MEMBER_BYTES)?)?;
        let ends_start = members_start.checked_add(members_bytes)?;
        let paths_start = ends_start.checked_add(samples.checked_mul(4)?)?;
        let names_start = paths_start.checked_add(size(176)?)?;
        let rules_start = names_start.checked_add(size(184)?)?;
        if rules_start.checked_add(size(192)?)? != bytes.len() || columns == 0 {
            return None;
        }
        std::str::from_utf8(&bytes[rules_start..]).ok()?;
        let index = Self {
            samples: samples as u64,
            shards,
            columns,
            members_start,
            ends_start,
            paths_start,
            names_start,
            rules_start,
            bytes,
        };
        index.check_shards()?;
        Some(index)
    }

    /// The shards' records must rise, and end where their sections do.
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
        let ends = before.first_sample == self.samples
            && before.path_offset == (self.names_start - self.paths_start) as u64
            && before.names_offset == (self.rules_start - self.names_start) as u64;
        ends.then_some(())
    }

    pub(in crate::dataset) fn fingerprint(&self) -> [u8; 32] {
        layout::fingerprint(&self.bytes)
    }

    pub(in crate::dataset) fn scan_started_seconds(&self) -> i64 {
        u64_at(&self.bytes, 168).unwrap_or(0).cast_signed()
    }

    /// What the fields are made of.
    pub(in crate::dataset) fn rules(&self) -> &str {
        // Checked when it was opened.
        self.bytes
            .get(self.rules_start..)
            .and_then(|text| std::str::from_utf8(text).ok())
            .unwrap_or_default()
    }

    pub(in crate::dataset) fn shards(&self) -> usize {
        self.shards
    }

    pub(in crate::dataset) fn columns(&self) -> usize {
        self.columns
    }

    /// The bytes of a column's longest member.
    pub(in crate::dataset) fn longest(&self, column: usize) -> u64 {
        let place = HEADER_BYTES + (self.shards + 1) * SHARD_BYTES + column * COLUMN_BYTES;
        u64_at(&self.bytes, place).unwrap_or(0)
    }

    /// A shard's record; behind the last one the end.
    pub(in crate::dataset) fn shard(&self, place: usize) -> Option<Shard> {
        let start = HEADER_BYTES.checked_add(place.checked_mul(SHARD_BYTES)?)?;
        Shard::read(self.bytes.get(start..start.checked_add(SHARD_BYTES)?)?)
    }

    /// A shard's path, relative to the root.
    pub(in crate::dataset) fn shard_path(&self, place: usize) -> &[u8] {
        let range = self.shard(place).zip(self.shard(place + 1)).and_then(|(shard, next)| {
            let start = self.paths_start.checked_add(usize::try_from(shard.path_offset).ok()?)?;
            let end = self.paths_start.checked_add(usize::try_from(next.path_offset).ok()?)?;
            self.bytes.get(start..end)
        });
        range.unwrap_or_default()
    }

    /// The shard of a sample: the last one whose first sample is not behind it.
    ///
    /// # Panics
    /// When there is no such sample.
    pub(in crate::dataset) fn shard_of(&self, id: SampleId) -> usize {
        assert!(
            id.0 < self.samples,
            "sample {} does not exist: the dataset has {}",
            id.0,
            self.samples
        );
        let (mut low, mut high) = (0, self.shards);
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            let first =
                u64_at(&self.bytes, HEADER_BYTES + middle * SHARD_BYTES).unwrap_or(u64::MAX);
            if first <= id.0 { low = middle } else { high = middle }
        }
        low
    }

    /// A sample's member of a column.
    pub(in crate::dataset) fn member(&self, id: SampleId, column: usize) -> Option<Extent> {
        let place = usize::try_from(id.0).ok()?.checked_mul(self.columns)?.checked_add(column)?;
        let start = self.members_start.checked_add(place.checked_mul(MEMBER_BYTES)?)?;
        let record = self.bytes.get(start..self.ends_start)?;
        let extent = Extent { offset: u64_at(record, 0)?, bytes: u64_at(record, 8)? };
        (extent.offset != ABSENT).then_some(extent)
    }

    /// A sample's key.
    ///
    /// # Panics
    /// When there is no such sample.
    pub(in crate::dataset) fn key(&self, id: SampleId) -> &[u8] {
        let place = self.shard_of(id);
        let find = || {
            let shard = self.shard(place)?;
            let end = |sample: u64| {
                let ends = self.bytes.get(self.ends_start..self.paths_start)?;
                u32_at(ends, usize::try_from(sample).ok()?.checked_mul(4)?).map(u64::from)
            };
            let start = if id.0 == shard.first_sample { 0 } else { end(id.0 - 1)? };
            let names = self.names_start as u64 + shard.names_offset;
            let start = usize::try_from(names.checked_add(start)?).ok()?;
            self.bytes.get(start..usize::try_from(names.checked_add(end(id.0)?)?).ok()?)
        };
        find().unwrap_or_default()
    }
}

impl SavedIndex for ShardIndex {
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
        (0..self.shards())
            .filter_map(|place| Some((self.shard_path(place), self.shard(place)?.stamp)))
    }
}

impl Shard {
    fn write(self, bytes: &mut Vec<u8>) {
        let FileStamp { bytes: length, changed_seconds, changed_nanoseconds, tag } = self.stamp;
        for number in [self.first_sample, self.path_offset, self.names_offset, length] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        bytes.extend_from_slice(&changed_seconds.to_le_bytes());
        bytes.extend_from_slice(&changed_nanoseconds.to_le_bytes());
        bytes.extend_from_slice(&u32::from(self.is_listed).to_le_bytes());
        bytes.extend_from_slice(&tag.to_le_bytes());
    }

    fn read(record: &[u8]) -> Option<Self> {
        let stamp = FileStamp {
            bytes: u64_at(record, 24)?,
            changed_seconds: u64_at(record, 32)?.cast_signed(),
            changed_nanoseconds: u32_at(record, 40)?,
            tag: u64_at(record, 48)?,
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

/// BLAKE3 over the rules of the fields, the shards' paths and the samples: their keys and where their members lie. When
/// files were changed, and where they are kept, is no part of it: a copy elsewhere is the same dataset.
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

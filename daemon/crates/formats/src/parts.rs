//! Records in compressed parts of their files: the frames of LitData's chunks, the chunks of `ArrayRecord`'s files.
//!
//! The index has three extents for each record ([`COLUMNS`]). Where samples are read in an order by blocks, all records of
//! a part share it; otherwise a part is read and unpacked for each of its records. The memory for that is planned from the
//! largest part.

use forebay_dataset::blocks::PageBytes;
use forebay_dataset::{Defect, SampleBlocks};
use forebay_index::saved_index::{EXCEPT_BY_BLOCKS, SavedIndex};
use forebay_index::shards::{Extent, ScannedShard, ShardIndex};
use forebay_protocol::ids::SampleId;
use forebay_storage::codec::Codec;
use forebay_storage::location::{
    ByteRange, FileId, Location, Packed, SampleBytes, Transform, Unit,
};

/// The extents of a record in the index: its range in the unpacked bytes of its part, the part in the file, and the part's
/// unpacked bytes as an extent from 0.
pub(crate) const COLUMNS: usize = 3;

/// What a format's parts are.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PartKind {
    /// A part, in messages.
    pub(crate) name: &'static str,
    /// How to write records alone, in messages.
    pub(crate) remedy: &'static str,
    /// The compression of a part at a place in its file.
    pub(crate) codec: fn(Extent) -> Codec,
    /// How often a part's stored bytes are in memory while it is unpacked.
    pub(crate) stored_copies: u64,
}

/// The parts of a dataset.
#[derive(Debug)]
pub(crate) struct Parts {
    kind: PartKind,
    /// The maximum memory to read a part: its stored bytes, its unpacked bytes, and as much again for a decoder's history.
    pub(crate) memory_bytes: u64,
    /// The limit of a sample, if samples share parts; `None`: each sample is read alone.
    pub(crate) shared_limit: Option<u64>,
}

/// The location of a record in the index.
#[derive(Debug, Clone, Copy)]
struct PackedRecord {
    /// The part's range in the file.
    place: Extent,
    part: Packed,
}

impl PackedRecord {
    /// `None`: the index has no such numbers.
    fn of(kind: PartKind, index: &ShardIndex, id: SampleId) -> Option<Self> {
        let (own, place) = (index.member(id, 0)?, index.member(id, 1)?);
        let narrow = |number: u64| u32::try_from(number).ok();
        let part = Packed {
            codec: (kind.codec)(place),
            unpacked_bytes: narrow(index.member(id, 2)?.bytes)?,
            start: narrow(own.offset)?,
            length: narrow(own.bytes)?,
        };
        let is_inside = own.offset.checked_add(own.bytes)? <= part.unpacked_bytes.into();
        is_inside.then_some(Self { place, part })
    }
}

impl Parts {
    /// `shared_limit`: see the field.
    pub(crate) fn new(kind: PartKind, index: &ShardIndex, shared_limit: Option<u64>) -> Self {
        let stored = index.longest(1).saturating_mul(kind.stored_copies);
        let memory = stored.saturating_add(index.longest(2).saturating_mul(2));
        Self { kind, memory_bytes: memory.max(1), shared_limit }
    }

    /// The location of a sample, or of the part that it shares.
    pub(crate) fn locate(&self, index: &ShardIndex, id: SampleId, locations: &mut Vec<Location>) {
        // In a damaged index this is an empty record at the file's start, which is a bad sample.
        let (place, unit) = match PackedRecord::of(self.kind, index, id) {
            Some(record) => (record.place, self.unit_of(record.part)),
            None => (Extent { offset: 0, bytes: 0 }, Unit::Sample),
        };
        let range = ByteRange { offset: place.offset, length: Some(place.bytes) };
        locations.push(Location { file: FileId(index.shard_of(id) as u64), range, unit });
    }

    fn unit_of(&self, part: Packed) -> Unit {
        let Packed { codec, unpacked_bytes: bytes, .. } = part;
        match self.shared_limit {
            Some(_) => Unit::Block(Transform::Unpacked { codec, bytes }),
            None => Unit::Packed(part),
        }
    }

    /// The bytes of a sample.
    ///
    /// # Errors
    /// Other bytes were read, or it is longer than the limit.
    pub(crate) fn record<'a>(
        &self,
        index: &ShardIndex,
        id: SampleId,
        bytes: SampleBytes<'a>,
    ) -> Result<&'a [u8], Defect> {
        let all = bytes.all();
        let mismatch = |expected: u32| {
            let part = self.kind.name;
            Defect(format!(
                "{expected} bytes of its {part} were to be read, and {} were",
                all.len()
            ))
        };
        let Some(record) = PackedRecord::of(self.kind, index, id) else { return Err(mismatch(0)) };
        let Packed { unpacked_bytes, start, length, .. } = record.part;
        let Some(limit) = self.shared_limit else {
            return if all.len() == length as usize { Ok(all) } else { Err(mismatch(length)) };
        };
        // A storage limits the bytes of a sample that is read alone, but does not know the records of a shared part.
        if u64::from(length) > limit {
            return Err(Defect(format!(
                "it has {length} bytes to read, and limits.sample_bytes is {limit}; raise the limit if that is right"
            )));
        }
        let found = all.get(start as usize..).and_then(|rest| rest.get(..length as usize));
        found
            .filter(|_| all.len() == unpacked_bytes as usize)
            .ok_or_else(|| mismatch(unpacked_bytes))
    }

    /// Blocks of records that share a part.
    pub(crate) fn blocks(&self, index: &ShardIndex) -> SampleBlocks {
        let (mut alone, mut together) = (PageBytes::default(), PageBytes::default());
        let (mut firsts, mut before, mut used_bytes) = (Vec::new(), None, 0_u64);
        let (mut most_bytes, mut scratch_per_thousand) = (0, 0);
        for id in 0..index.samples() {
            let Some(record) = PackedRecord::of(self.kind, index, SampleId(id)) else { continue };
            let PackedRecord { place, part } = record;
            let unpacked = u64::from(part.unpacked_bytes);
            used_bytes = used_bytes.saturating_add(part.length.into());
            alone.add(place.bytes, unpacked);
            let found = Some((index.shard_of(SampleId(id)), place.offset));
            if found != before {
                before = found;
                firsts.push(id);
                together.add(place.bytes, unpacked);
                most_bytes = most_bytes.max(unpacked);
                // The stored part, and a decoder's history.
                let stored = place.bytes.saturating_mul(self.kind.stored_copies);
                let scratch = stored.saturating_add(unpacked).saturating_mul(1000);
                scratch_per_thousand = scratch_per_thousand.max(scratch.div_ceil(unpacked.max(1)));
            }
        }
        if let Some(first) = firsts.first_mut() {
            *first = 0;
        }
        SampleBlocks { firsts, most_bytes, scratch_per_thousand, used_bytes, alone, together }
    }
}

/// The bytes read for the records of a file if each record is read alone.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct PartsRead {
    records: u64,
    record_bytes: u64,
    part_bytes: u64,
}

impl PartsRead {
    /// Of a file whose records share parts.
    pub(crate) fn of(shard: &ScannedShard) -> Self {
        let sum = |place: usize| {
            let extents = shard.members.iter().skip(place).step_by(COLUMNS).flatten();
            extents.fold(0_u64, |sum, extent| sum.saturating_add(extent.bytes))
        };
        Self { records: shard.samples() as u64, record_bytes: sum(0), part_bytes: sum(1) }
    }

    /// A warning, if the parts are much larger than the records read from them.
    #[expect(clippy::cast_precision_loss, reason = "for people")]
    pub(crate) fn warning(all: &[Self], kind: PartKind) -> Option<String> {
        let sum = |part: fn(&Self) -> u64| all.iter().map(part).fold(0, u64::saturating_add);
        let (records, own, read) =
            (sum(|read| read.records), sum(|read| read.record_bytes), sum(|read| read.part_bytes));
        let PartKind { name, remedy, .. } = kind;
        (read / 2 > own).then(|| {
            format!(
                "{EXCEPT_BY_BLOCKS}samples are compressed together, and a {name} is read and unpacked for each: {} KiB for {} KiB, {:.1} bytes \
                 read for each one used; order.shuffle = \"blocks\" reads each {name} once, a cache ([cache]) keeps the samples \
                 alone, or write them with {remedy}",
                (read / records.max(1)).div_ceil(1024),
                (own / records.max(1)).div_ceil(1024),
                read as f64 / own.max(1) as f64
            )
        })
    }
}

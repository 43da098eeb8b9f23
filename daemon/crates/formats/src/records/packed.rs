//! Records that are compressed within their shard, as written by LitData with `compression = "zstd"`.
//!
//! With `compression_level = "sample"`, each record is a zstd frame, after the usual table. With `"batch"`, the
//! default, a frame contains several records, after a table with another layout. All numbers are little endian:
//!
//! ```text
//!   0 magic "LDFZ01\0\0"   8 version u16   10 flags u16   12 records u32   16 records of a frame u32   20 frames u32
//!  24 the start of each record in the unpacked bytes of all frames, and the end of the last one: u32 each
//!     for each frame: its first record u32, its records u32, its offset in the file u64, its compressed bytes u32,
//!     its unpacked bytes u32
//!     the frames, one after the other
//! ```
//!
//! The source is `pack_framed_zstd` and `pack_sample_zstd` of litdata/streaming/framed_zstd.py. Sizes are not trusted:
//! the unpacked bytes of a frame are limited, and memory for the largest frame is planned ([`part_memory`]).

use super::description::Packing;
use super::scan::TableFault;
use forebay_dataset::SampleBlocks;
use forebay_dataset::blocks::PageBytes;
use forebay_dataset::error::DatasetError;
use forebay_index::saved_index::{EXCEPT_BY_BLOCKS, SavedIndex};
use forebay_index::shards::{Extent, ScannedShard, ShardIndex};
use forebay_index::window::MAX_PART_BYTES;
use forebay_protocol::ids::SampleId;
use forebay_storage::codec::Codec;
use forebay_storage::location::Packed;

/// The codec of records and frames.
pub(super) const CODEC: Codec = Codec::Zstd;
/// The extents of a compressed record in the index: its range in the unpacked bytes of its part, the part in the file,
/// and the part's unpacked bytes as an extent from 0.
pub(super) const COLUMNS: usize = 3;

const MAGIC: &[u8; 8] = b"LDFZ01\0\0";
const VERSION: u16 = 1;
const PREFIX_BYTES: u64 = 24;
const FRAME_BYTES: usize = 24;
/// The number of frames per read of the table.
const FRAMES_STEP: u64 = 1 << 12;
/// The number of offsets per read.
const OFFSETS_STEP: u64 = 1 << 18;
/// The maximum growth of incompressible contents in a zstd frame: this share of them, and this many bytes.
const MAX_GROWTH_SHARE: u64 = 128;
const MAX_GROWTH_BYTES: u64 = 1 << 10;

/// A zstd frame of records.
#[derive(Debug)]
pub(super) struct Frame {
    pub(super) place: Extent,
    pub(super) unpacked_bytes: u64,
    /// Its records, in its unpacked bytes.
    pub(super) records: Vec<Extent>,
}

/// The location of a record in the index.
#[derive(Debug, Clone, Copy)]
pub(super) struct PackedRecord {
    /// The part's range in the file.
    pub(super) place: Extent,
    pub(super) part: Packed,
}

impl PackedRecord {
    /// `None`: the index has no such numbers.
    pub(super) fn of(index: &ShardIndex, id: SampleId) -> Option<Self> {
        let own = index.member(id, 0)?;
        let narrow = |number: u64| u32::try_from(number).ok();
        let part = Packed {
            codec: CODEC,
            unpacked_bytes: narrow(index.member(id, 2)?.bytes)?,
            start: narrow(own.offset)?,
            length: narrow(own.bytes)?,
        };
        let is_inside = own.offset.checked_add(own.bytes)? <= part.unpacked_bytes.into();
        is_inside.then_some(Self { place: index.member(id, 1)?, part })
    }
}

/// The maximum memory to read a part: the part, its unpacked bytes, and as much again for a decoder's history.
pub(super) fn part_memory(index: &ShardIndex) -> u64 {
    index.longest(1).saturating_add(index.longest(2).saturating_mul(2))
}

/// The bytes read for the records of a shard if each record is read alone.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct FramesRead {
    records: u64,
    record_bytes: u64,
    frame_bytes: u64,
}

impl FramesRead {
    pub(super) fn of(shard: &ScannedShard, packing: Packing) -> Self {
        if packing != Packing::ByFrame {
            return Self::default();
        }
        let sum = |place: usize| {
            let extents = shard.members.iter().skip(place).step_by(COLUMNS).flatten();
            extents.fold(0_u64, |sum, extent| sum.saturating_add(extent.bytes))
        };
        Self { records: shard.samples() as u64, record_bytes: sum(0), frame_bytes: sum(1) }
    }
}

/// A warning, if the frames are much larger than the records read from them.
#[expect(clippy::cast_precision_loss, reason = "for people")]
pub(super) fn warning(all: &[FramesRead]) -> Option<String> {
    let sum = |part: fn(&FramesRead) -> u64| all.iter().map(part).fold(0, u64::saturating_add);
    let (records, own, read) =
        (sum(|read| read.records), sum(|read| read.record_bytes), sum(|read| read.frame_bytes));
    (read / 2 > own).then(|| {
        format!(
            "{EXCEPT_BY_BLOCKS}samples are compressed together, and a zstd frame is read and unpacked for each: {} KiB for {} KiB, {:.1} bytes \
             read for each one used; order.shuffle = \"blocks\" reads each frame once, a cache ([cache]) keeps the samples \
             alone, or write them with compression_level=\"sample\"",
            (read / records.max(1)).div_ceil(1024),
            (own / records.max(1)).div_ceil(1024),
            read as f64 / own.max(1) as f64
        )
    })
}

/// Blocks of records that share a frame.
pub(super) fn blocks(index: &ShardIndex) -> SampleBlocks {
    let (mut alone, mut together) = (PageBytes::default(), PageBytes::default());
    let (mut firsts, mut before, mut used_bytes) = (Vec::new(), None, 0_u64);
    let (mut most_bytes, mut scratch_per_thousand) = (0, 0);
    for id in 0..index.samples() {
        let Some(PackedRecord { place, part }) = PackedRecord::of(index, SampleId(id)) else {
            continue;
        };
        let unpacked = u64::from(part.unpacked_bytes);
        used_bytes = used_bytes.saturating_add(part.length.into());
        alone.add(place.bytes, unpacked);
        let frame = Some((index.shard_of(SampleId(id)), place.offset));
        if frame != before {
            before = frame;
            firsts.push(id);
            together.add(place.bytes, unpacked);
            most_bytes = most_bytes.max(unpacked);
            // The compressed frame, and a decoder's history.
            let scratch = place.bytes.saturating_add(unpacked).saturating_mul(1000);
            scratch_per_thousand = scratch_per_thousand.max(scratch.div_ceil(unpacked.max(1)));
        }
    }
    if let Some(first) = firsts.first_mut() {
        *first = 0;
    }
    SampleBlocks { firsts, most_bytes, scratch_per_thousand, used_bytes, alone, together }
}

/// Checks the sizes of a frame.
///
/// # Errors
/// It unpacks to more than the limit, or has more bytes than its contents can take.
pub(super) fn check_sizes(place: Extent, unpacked_bytes: u64) -> Result<(), String> {
    let at = place.offset;
    if unpacked_bytes > MAX_PART_BYTES {
        return Err(format!(
            "its zstd frame at byte {at} unpacks to {unpacked_bytes} bytes, and at most {MAX_PART_BYTES} are read; write it with \
             a smaller compression_batch_size"
        ));
    }
    if place.bytes > unpacked_bytes + unpacked_bytes / MAX_GROWTH_SHARE + MAX_GROWTH_BYTES {
        return Err(format!(
            "its zstd frame at byte {at} has {} bytes, and unpacks to {unpacked_bytes}: it is damaged",
            place.bytes
        ));
    }
    Ok(())
}

/// The unpacked bytes of a record's zstd frame, by the frame's first bytes.
///
/// # Errors
/// The frame does not contain its unpacked size, or as [`check_sizes`].
pub(super) fn record_bytes(place: Extent, head: &[u8]) -> Result<u64, String> {
    let bytes = Codec::zstd_content_bytes(head).ok_or_else(|| {
        format!(
            "its sample at byte {} is not a zstd frame that says what it unpacks to, as compression_level \"sample\" has it",
            place.offset
        )
    })?;
    check_sizes(place, bytes)?;
    Ok(bytes)
}

/// Reads the table of a shard of frames, frame by frame.
///
/// # Errors
/// The number of samples differs from the description, the frames do not contain the samples in order and without gaps
/// up to the end of the file, or as [`check_sizes`].
pub(super) fn read_frames(
    length: u64,
    samples: u64,
    read: impl Fn(u64, u64, &mut Vec<u8>) -> Result<(), DatasetError>,
    mut visit: impl FnMut(&Frame) -> Result<(), DatasetError>,
) -> Result<(), TableFault> {
    let broken = |reason: String| TableFault::Broken(reason);
    let cut_off = || {
        broken(format!(
            "it has {length} bytes, which is less than the table of its {samples} samples takes: it is cut off, or index.json \
             is another one's"
        ))
    };
    if length < PREFIX_BYTES {
        return Err(cut_off());
    }
    let mut prefix = Vec::new();
    read(0, PREFIX_BYTES, &mut prefix).map_err(TableFault::Read)?;
    if !prefix.starts_with(MAGIC) {
        return Err(broken(
            "it does not begin as a chunk of compression_level \"batch\" does: it is damaged, or index.json is another one's"
                .to_owned(),
        ));
    }
    let version = prefix[8..].first_chunk().map_or(0, |bytes| u16::from_le_bytes(*bytes));
    if version != VERSION {
        return Err(broken(format!("its frames are of version {version}, and {VERSION} is read")));
    }
    let (found, frames) = (number(&prefix, 12), number(&prefix, 20));
    if found != samples {
        return Err(broken(format!("it has {found} samples, and {samples} by index.json")));
    }
    // 32-bit numbers: no overflow.
    let table = PREFIX_BYTES + 4 * (samples + 1);
    let first_frame = table + FRAME_BYTES as u64 * frames;
    if first_frame > length {
        return Err(cut_off());
    }
    let (mut next_sample, mut next_byte, mut before) = (0, first_frame, 0);
    let (mut records, mut offsets, mut offsets_end) = (Vec::new(), Vec::new(), 0);
    let mut first = 0;
    while first < frames {
        let step = FRAMES_STEP.min(frames - first);
        let start = table + FRAME_BYTES as u64 * first;
        read(start, FRAME_BYTES as u64 * step, &mut records).map_err(TableFault::Read)?;
        for record in records.chunks_exact(FRAME_BYTES) {
            let (first_sample, count) = (number(record, 0), number(record, 4));
            let offset = record[8..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
            let place = Extent { offset, bytes: number(record, 16) };
            let unpacked_bytes = number(record, 20);
            if first_sample != next_sample || count == 0 || count > samples - next_sample {
                return Err(broken(format!(
                    "its frame at byte {offset} is to have {count} samples from {first_sample} on, and {next_sample} of \
                     {samples} lie before it: it is damaged"
                )));
            }
            let end = offset.checked_add(place.bytes).filter(|end| *end <= length);
            let Some(end) = end.filter(|_| offset == next_byte) else {
                return Err(broken(format!(
                    "its frame of {} bytes is to begin at byte {offset} and not at {next_byte}, and the file has {length}: it \
                     is cut off or damaged",
                    place.bytes
                )));
            };
            check_sizes(place, unpacked_bytes).map_err(broken)?;
            let mut frame = Frame { place, unpacked_bytes, records: Vec::new() };
            let base = before;
            for sample in next_sample..next_sample + count {
                if sample == offsets_end {
                    let step = OFFSETS_STEP.min(samples - sample);
                    // A sample's own number is where it ends.
                    let start = PREFIX_BYTES + 4 * (sample + 1);
                    read(start, 4 * step, &mut offsets).map_err(TableFault::Read)?;
                    offsets_end = sample + step;
                }
                let place = offsets.len() as u64 - 4 * (offsets_end - sample);
                let end = number(&offsets, usize::try_from(place).unwrap_or(usize::MAX));
                if end < before || end - base > unpacked_bytes {
                    return Err(broken(format!(
                        "its sample {sample} lies from byte {before} to {end} of what its frames unpack to, and its frame \
                         from {base} to {}: it is damaged",
                        base + unpacked_bytes
                    )));
                }
                frame.records.push(Extent { offset: before - base, bytes: end - before });
                before = end;
            }
            if before - base != unpacked_bytes {
                return Err(broken(format!(
                    "its frame at byte {offset} unpacks to {unpacked_bytes} bytes, and its samples have {}: it is damaged",
                    before - base
                )));
            }
            visit(&frame).map_err(TableFault::Read)?;
            (next_sample, next_byte) = (next_sample + count, end);
        }
        first += step;
    }
    match (next_sample == samples, next_byte == length) {
        (true, true) => Ok(()),
        (false, _) => {
            Err(broken(format!("its frames hold {next_sample} of its {samples} samples")))
        }
        (true, false) => {
            Err(broken(format!("its frames end at byte {next_byte}, and the file has {length}")))
        }
    }
}

fn number(bytes: &[u8], at: usize) -> u64 {
    let found = bytes.get(at..).and_then(<[u8]>::first_chunk);
    found.map_or(0, |bytes| u64::from(u32::from_le_bytes(*bytes)))
}

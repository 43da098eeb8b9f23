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
//! the unpacked bytes of a frame are limited, and memory for the largest frame is planned ([`Parts`](crate::parts::Parts)).

use super::scan::TableFault;
use forebay_dataset::error::DatasetError;
use forebay_index::shards::Extent;
use forebay_index::window::{Bytes, MAX_PART_BYTES};
use forebay_storage::codec::Codec;

/// The codec of records and frames.
pub(super) const CODEC: Codec = Codec::Zstd;

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
    file: &dyn Bytes,
    samples: u64,
    mut visit: impl FnMut(&Frame) -> Result<(), DatasetError>,
) -> Result<(), TableFault> {
    let frames = read_prefix(file, samples)?;
    let table = ends_end(samples);
    let next_byte = table + FRAME_BYTES as u64 * frames;
    let (sample_ends, sample_ends_end) = (Vec::new(), 0);
    let mut walk = Frames {
        file,
        samples,
        next_sample: 0,
        next_byte,
        before: 0,
        sample_ends,
        sample_ends_end,
    };
    let mut records = Vec::new();
    let mut first = 0;
    while first < frames {
        let step = FRAMES_STEP.min(frames - first);
        let start = table + FRAME_BYTES as u64 * first;
        file.read(start, FRAME_BYTES as u64 * step, &mut records)?;
        for record in records.chunks_exact(FRAME_BYTES) {
            visit(&walk.next(record)?)?;
        }
        first += step;
    }
    walk.finish()
}

/// Where the ends of the samples end in a table. No overflow: the number of samples has 32 bits.
fn ends_end(samples: u64) -> u64 {
    PREFIX_BYTES + 4 * (samples + 1)
}

/// Checks the numbers before the table, and gives the number of frames.
fn read_prefix(file: &dyn Bytes, samples: u64) -> Result<u64, TableFault> {
    let length = file.length();
    let cut_off = || {
        TableFault::Broken(format!(
            "it has {length} bytes, which is less than the table of its {samples} samples takes: it is cut off, or index.json \
             is another one's"
        ))
    };
    if length < PREFIX_BYTES {
        return Err(cut_off());
    }
    let mut prefix = Vec::new();
    file.read(0, PREFIX_BYTES, &mut prefix)?;
    if !prefix.starts_with(MAGIC) {
        return Err(TableFault::Broken(
            "it does not begin as a chunk of compression_level \"batch\" does: it is damaged, or index.json is another one's"
                .to_owned(),
        ));
    }
    let version = prefix[8..].first_chunk().map_or(0, |bytes| u16::from_le_bytes(*bytes));
    if version != VERSION {
        let reason = format!("its frames are of version {version}, and {VERSION} is read");
        return Err(TableFault::Broken(reason));
    }
    let (found, frames) = (number(&prefix, 12), number(&prefix, 20));
    if found != samples {
        let reason = format!("it has {found} samples, and {samples} by index.json");
        return Err(TableFault::Broken(reason));
    }
    match ends_end(samples) + FRAME_BYTES as u64 * frames > length {
        true => Err(cut_off()),
        false => Ok(frames),
    }
}

/// The position in the table of a shard of frames.
struct Frames<'f> {
    file: &'f dyn Bytes,
    samples: u64,
    /// The first sample and the offset of the next frame.
    next_sample: u64,
    next_byte: u64,
    /// The end of the sample before, in the unpacked bytes of all frames.
    before: u64,
    /// The ends of some samples, up to the sample `sample_ends_end`.
    sample_ends: Vec<u8>,
    sample_ends_end: u64,
}

impl Frames<'_> {
    /// The next frame, from its record in the table.
    fn next(&mut self, record: &[u8]) -> Result<Frame, TableFault> {
        let (first_sample, count) = (number(record, 0), number(record, 4));
        let offset = record[8..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        let place = Extent { offset, bytes: number(record, 16) };
        let unpacked_bytes = number(record, 20);
        let Self { samples, next_sample, next_byte, .. } = *self;
        if first_sample != next_sample || count == 0 || count > samples - next_sample {
            return Err(TableFault::Broken(format!(
                "its frame at byte {offset} is to have {count} samples from {first_sample} on, and {next_sample} of {samples} \
                 lie before it: it is damaged"
            )));
        }
        let length = self.file.length();
        let end = offset.checked_add(place.bytes).filter(|end| *end <= length);
        let Some(end) = end.filter(|_| offset == next_byte) else {
            return Err(TableFault::Broken(format!(
                "its frame of {} bytes is to begin at byte {offset} and not at {next_byte}, and the file has {length}: it is \
                 cut off or damaged",
                place.bytes
            )));
        };
        check_sizes(place, unpacked_bytes).map_err(TableFault::Broken)?;
        let mut frame = Frame { place, unpacked_bytes, records: Vec::new() };
        self.add_records(&mut frame, count)?;
        (self.next_sample, self.next_byte) = (next_sample + count, end);
        Ok(frame)
    }

    /// Adds the records of a frame, which have to fill its unpacked bytes.
    fn add_records(&mut self, frame: &mut Frame, count: u64) -> Result<(), TableFault> {
        let (base, unpacked_bytes) = (self.before, frame.unpacked_bytes);
        for sample in self.next_sample..self.next_sample + count {
            let (before, end) = (self.before, self.end_of(sample)?);
            if end < before || end - base > unpacked_bytes {
                return Err(TableFault::Broken(format!(
                    "its sample {sample} lies from byte {before} to {end} of what its frames unpack to, and its frame from \
                     {base} to {}: it is damaged",
                    base + unpacked_bytes
                )));
            }
            frame.records.push(Extent { offset: before - base, bytes: end - before });
            self.before = end;
        }
        match self.before - base == unpacked_bytes {
            true => Ok(()),
            false => Err(TableFault::Broken(format!(
                "its frame at byte {} unpacks to {unpacked_bytes} bytes, and its samples have {}: it is damaged",
                frame.place.offset,
                self.before - base
            ))),
        }
    }

    /// The end of a sample in the unpacked bytes of all frames. Samples are asked for in their order.
    fn end_of(&mut self, sample: u64) -> Result<u64, DatasetError> {
        if sample == self.sample_ends_end {
            let step = OFFSETS_STEP.min(self.samples - sample);
            // The table begins with the start of the first sample.
            let start = PREFIX_BYTES + 4 * (sample + 1);
            self.file.read(start, 4 * step, &mut self.sample_ends)?;
            self.sample_ends_end = sample + step;
        }
        let place = self.sample_ends.len() as u64 - 4 * (self.sample_ends_end - sample);
        Ok(number(&self.sample_ends, usize::try_from(place).unwrap_or(usize::MAX)))
    }

    /// Checks that the frames have all samples and end with the file.
    fn finish(&self) -> Result<(), TableFault> {
        let Self { samples, next_sample, next_byte, .. } = self;
        let length = self.file.length();
        if next_sample != samples {
            let reason = format!("its frames hold {next_sample} of its {samples} samples");
            return Err(TableFault::Broken(reason));
        }
        match *next_byte == length {
            true => Ok(()),
            false => Err(TableFault::Broken(format!(
                "its frames end at byte {next_byte}, and the file has {length}"
            ))),
        }
    }
}

fn number(bytes: &[u8], at: usize) -> u64 {
    let found = bytes.get(at..).and_then(<[u8]>::first_chunk);
    found.map_or(0, |bytes| u64::from(u32::from_le_bytes(*bytes)))
}

//! Finds a folder's shards and reads them for an index.

use super::description::{Described, DescribedShard, Description, Packing};
use super::packed::{self, CODEC, Frame};
use super::rules::{first_of, infer, settle};
use super::{Layout, Records, refuse};
use crate::columns::{Source, read_rules};
use crate::indexed::Opening;
use forebay_columnar::Column;
use forebay_dataset::error::DatasetError;
use forebay_index::saved_index::{open_file, refuse_twice};
use forebay_index::shard_paths::is_below;
use forebay_index::shards::{Extent, Pace, ScannedShard};
use forebay_index::stored_file::StoredFile;
use forebay_index::window::{Bytes, Window, WindowSize};
use forebay_storage::codec::Codec;
use forebay_storage::{Storage, StorageError};

/// The file that describes the shards.
const DESCRIPTION: &str = "index.json";
/// Descriptions of millions of shards are smaller.
const MAX_DESCRIPTION_BYTES: u64 = 1 << 30;
/// The number of entries per read of a table.
const TABLE_STEP: u64 = 1 << 18;
/// The number of records between two checks whether the scan was stopped.
const LOOKS_PER_ASK: u64 = 4096;

pub(super) fn describe<D: Description>(
    opening: &Opening<'_, Records<D>>,
) -> Result<Described, DatasetError> {
    let file = open_file(opening.storage, DESCRIPTION.as_bytes())?;
    let text = file.read_whole(MAX_DESCRIPTION_BYTES)?;
    let described = D::describe(&text).map_err(|reason| file.fault(reason))?;
    let packed = described.shards.iter().filter_map(|shard| shard.compression.as_ref());
    let packed = packed.filter_map(|compression| compression.path.as_ref());
    for path in described.shards.iter().map(|shard| &shard.path).chain(packed) {
        if !is_below(path) {
            return Err(file.fault(format!(
                "it names the shard {path:?}, which is no path within its folder"
            )));
        }
    }
    if described.shards.is_empty() || described.columns.is_empty() {
        return Err(opening
            .request
            .no_samples(format!("its {DESCRIPTION} lists no shards or no columns")));
    }
    Ok(described)
}

pub(super) fn files(
    storage: &dyn Storage,
    described: &Described,
) -> Result<Vec<Vec<u8>>, DatasetError> {
    // A file that may well be absent: nothing is retried for it.
    let is_there = |path: &[u8]| StoredFile::if_there(storage, path).map(|found| found.is_some());
    let path = |shard: &DescribedShard| -> Result<Vec<u8>, DatasetError> {
        let packed = shard.compression.as_ref().and_then(|packed| packed.path.as_ref());
        Ok(match packed.filter(|packed| storage.unpacks(packed.as_bytes())) {
            Some(packed) if !is_there(shard.path.as_bytes())? => packed.clone().into_bytes(),
            _ => shard.path.clone().into_bytes(),
        })
    };
    let files: Vec<_> = described.shards.iter().map(path).collect::<Result<_, _>>()?;
    refuse_twice(storage, &files)?;
    Ok(files)
}

/// The columns, and the rules of the configuration or, without any, the inferred ones.
pub(super) fn layout<D: Description>(
    opening: &Opening<'_, Records<D>>,
    (columns, packing): (Vec<Column>, Packing),
    warnings: &mut Vec<String>,
) -> Result<Layout, DatasetError> {
    let rules = match read_rules(opening.keys.fields.as_deref(), Source::Records)? {
        Some(mut rules) => {
            settle(&mut rules, &columns).map_err(|reason| {
                refuse(opening.storage.full_path(DESCRIPTION.as_bytes()), reason)
            })?;
            rules
        }
        None => {
            let (rules, left_out) = infer(&columns);
            let names = first_of(left_out.iter());
            if rules.is_empty() && !left_out.is_empty() {
                let reason = format!("it has no columns that can be read: {names}");
                return Err(opening.request.no_samples(reason));
            }
            if !left_out.is_empty() {
                warnings.push(format!("columns that no field was made of: {names}"));
            }
            rules
        }
    };
    match rules.is_empty() {
        true => Err(opening.request.no_samples("it has no columns that can be read")),
        false => Ok(Layout { columns, rules, packing }),
    }
}

/// The parameters of a scan.
pub(crate) struct RecordScan {
    pub(super) shards: Vec<DescribedShard>,
    /// The number of sizes to read at the start of each record.
    pub(super) sized: usize,
    pub(super) packing: Packing,
}

impl RecordScan {
    pub(super) fn shard(
        &self,
        storage: &dyn Storage,
        place: usize,
        path: &[u8],
        pace: &dyn Pace,
    ) -> Result<ScannedShard, DatasetError> {
        let described = &self.shards[place];
        let found = ShardScan { storage, path, sized: self.sized, pace };
        let found = found.run(described.samples, self.packing);
        found.map_err(|error| match (error, &described.compression) {
            (DatasetError::Storage(StorageError::Vanished { path }), Some(compression)) => refuse(
                path,
                format!(
                    "the shard is compressed ({}), and a sample of it cannot be read alone; name a folder in cache.path, \
                     where shards of zstd and gz are unpacked once, or decompress the shards \
                     beside the compressed ones, and those are read: {}",
                    compression.name, compression.remedy
                ),
            ),
            (error, _) => error,
        })
    }
}

/// Reads a shard's table, and the first `sized` sizes of each record.
struct ShardScan<'s> {
    storage: &'s dyn Storage,
    path: &'s [u8],
    sized: usize,
    pace: &'s dyn Pace,
}

impl ShardScan<'_> {
    fn run(&self, samples: u64, packing: Packing) -> Result<ScannedShard, DatasetError> {
        let file = StoredFile::new(self.storage, self.path)?;
        let mut shard = ScannedShard::new(self.path, &file);
        shard.longest_values = vec![0; self.sized];
        let read = match packing {
            Packing::Plain => self.records(&file, &mut shard, samples),
            Packing::ByRecord => self.packed_records(&file, &mut shard, samples),
            Packing::ByFrame => self.frames(&file, &mut shard, samples),
        };
        read.map_err(|fault| match fault {
            TableFault::Read(error) => error,
            TableFault::Broken(reason) => file.fault(reason),
        })?;
        Ok(shard)
    }

    fn records(
        &self,
        file: &StoredFile<'_>,
        shard: &mut ScannedShard,
        samples: u64,
    ) -> Result<(), TableFault> {
        let length = file.stamp.bytes;
        let mut window = Window::new(file, WindowSize::LOCAL);
        let step = if self.sized > 0 { LOOKS_PER_ASK } else { TABLE_STEP };
        read_table(file, samples, |extent| {
            self.ask(shard, step, extent.offset, length)?;
            shard.push_numbered(extent, file)?;
            let head = 4 * self.sized as u64;
            // A record that is too short for its sizes is a bad sample.
            if self.sized > 0 && extent.bytes >= head {
                look(&mut shard.longest_values, window.get(extent.offset, head)?, extent.bytes);
            }
            Ok(())
        })
    }

    /// Records that are a zstd frame each; the frame's head contains the unpacked size.
    fn packed_records(
        &self,
        file: &StoredFile<'_>,
        shard: &mut ScannedShard,
        samples: u64,
    ) -> Result<(), TableFault> {
        let length = file.stamp.bytes;
        let mut window = Window::new(file, WindowSize::for_storage(self.storage));
        let mut sizes = Vec::new();
        read_table(file, samples, |extent| {
            self.ask(shard, LOOKS_PER_ASK, extent.offset, length)?;
            let head = window.get(extent.offset, extent.bytes.min(Codec::MAX_ZSTD_HEAD_BYTES))?;
            let bytes = packed::record_bytes(extent, head).map_err(|reason| file.fault(reason))?;
            shard.push_numbered(Extent { offset: 0, bytes }, file)?;
            shard.members.extend([Some(extent), Some(Extent { offset: 0, bytes })]);
            let head = 4 * self.sized;
            if let (1.., Ok(whole)) = (self.sized, usize::try_from(bytes))
                && CODEC.unpack(window.get(extent.offset, extent.bytes)?, (whole, head), &mut sizes)
            {
                look(&mut shard.longest_values, &sizes[..head], bytes);
            }
            Ok(())
        })
    }

    fn frames(
        &self,
        file: &StoredFile<'_>,
        shard: &mut ScannedShard,
        samples: u64,
    ) -> Result<(), TableFault> {
        let length = file.stamp.bytes;
        let (mut stored, mut unpacked) = (Vec::new(), Vec::new());
        packed::read_frames(file, samples, |frame| {
            let Frame { place, unpacked_bytes, records } = frame;
            self.ask(shard, 1, place.offset, length)?;
            let whole = Extent { offset: 0, bytes: *unpacked_bytes };
            for record in records {
                shard.push_numbered(*record, file)?;
                shard.members.extend([Some(*place), Some(whole)]);
            }
            let whole = usize::try_from(*unpacked_bytes).unwrap_or(usize::MAX);
            if self.sized == 0 {
                return Ok(());
            }
            file.read(place.offset, place.bytes, &mut stored)?;
            // Samples of a damaged frame are bad samples.
            if CODEC.unpack(&stored, (whole, whole), &mut unpacked) {
                let head = |record: &&Extent| record.bytes >= 4 * self.sized as u64;
                for record in records.iter().filter(head) {
                    let start = usize::try_from(record.offset).unwrap_or(usize::MAX);
                    let head = unpacked.get(start..).and_then(|rest| rest.get(..4 * self.sized));
                    look(&mut shard.longest_values, head.unwrap_or_default(), record.bytes);
                }
            }
            Ok(())
        })
    }

    /// Checks at intervals whether the scan was stopped.
    fn ask(
        &self,
        shard: &ScannedShard,
        step: u64,
        byte: u64,
        bytes: u64,
    ) -> Result<(), DatasetError> {
        let is_due = (shard.samples() as u64).is_multiple_of(step);
        match is_due && self.pace.is_stopped_at(byte, bytes) {
            true => Err(DatasetError::Cancelled),
            false => Ok(()),
        }
    }
}

/// Updates the longest values with the sizes at the start of a record.
fn look(longest_values: &mut [u64], head: &[u8], record_bytes: u64) {
    for (longest, size) in longest_values.iter_mut().zip(head.as_chunks::<4>().0) {
        *longest = u64::from(u32::from_le_bytes(*size)).min(record_bytes).max(*longest);
    }
}

/// The reason why a table cannot be used.
#[derive(Debug)]
pub(super) enum TableFault {
    Read(DatasetError),
    Broken(String),
}

impl From<DatasetError> for TableFault {
    fn from(error: DatasetError) -> Self {
        Self::Read(error)
    }
}

/// Reads the table at the start of a shard: the number of its samples, the offset of each, and the
/// end of the last one.
///
/// # Errors
/// The number of samples differs from the description, offsets decrease, or one is past the end of the file.
pub(super) fn read_table(
    file: &dyn Bytes,
    samples: u64,
    mut visit: impl FnMut(Extent) -> Result<(), DatasetError>,
) -> Result<(), TableFault> {
    let length = file.length();
    let broken = |reason: String| Err(TableFault::Broken(reason));
    let behind = samples.checked_add(2).and_then(|numbers| numbers.checked_mul(4));
    let Some(behind) = behind.filter(|behind| *behind <= length) else {
        return broken(format!(
            "it has {length} bytes, which is less than the table of its {samples} samples takes: it is cut off, or index.json \
             is another one's"
        ));
    };
    let number = |bytes: &[u8], place: usize| {
        bytes
            .get(4 * place..)
            .and_then(<[u8]>::first_chunk)
            .map_or(0, |bytes| u64::from(u32::from_le_bytes(*bytes)))
    };
    let mut buffer = Vec::new();
    file.read(0, 8, &mut buffer)?;
    let found = number(&buffer, 0);
    if found != samples {
        return broken(format!("it has {found} samples, and {samples} by index.json"));
    }
    let mut before = number(&buffer, 1);
    if before < behind {
        return broken(format!(
            "its first sample begins at byte {before}, within its table of {behind} bytes"
        ));
    }
    let mut sample = 0;
    while sample < samples {
        let step = TABLE_STEP.min(samples - sample);
        file.read(8 + 4 * sample, 4 * step, &mut buffer)?;
        for place in 0..usize::try_from(step).unwrap_or(0) {
            let end = number(&buffer, place);
            if end < before || end > length {
                return broken(format!(
                    "its sample {sample} lies from byte {before} to {end}, and the file has {length}: it is cut off or damaged"
                ));
            }
            visit(Extent { offset: before, bytes: end - before })?;
            (before, sample) = (end, sample + 1);
        }
    }
    match before == length {
        true => Ok(()),
        false => broken(format!("its samples end at byte {before}, and the file has {length}")),
    }
}

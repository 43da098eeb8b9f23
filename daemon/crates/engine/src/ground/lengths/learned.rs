//! Lengths that are not in the index: the samples' files or values are read once, before the first batch, by several
//! threads, and the lengths saved next to the index.
//!
//! The saved file has a key of what the lengths are of (the dataset, its index file, the source); another key is no
//! error, the lengths are then learned again. It is read whole and checked by its digest.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError, mpsc};
use std::time::Duration;

use forebay_config::{Config, LengthUnit};
use forebay_dataset::opening::read_sample;
use forebay_dataset::{DatasetError, OpenOptions, Opened, ScanProgress, open_beside, path_beside};
use forebay_keys::ConfigError;
use forebay_media::decode::Decoders;
use forebay_protocol::ids::SampleId;
use forebay_storage::location::SampleBytes;
use forebay_storage::{Retries, StorageError};
use rustix::rand::{GetRandomFlags, getrandom};

use super::{UNKNOWN, as_length, substitutes, value};
use crate::ground::stream_error::StreamError;

/// The first bytes of a saved file: its name and the layout's number.
const MAGIC: [u8; 8] = *b"FBLENS\0\x01";
const DIGEST_BYTES: usize = 32;
/// Samples that a thread takes at once: neighbours are often in one file.
const SAMPLES_AT_ONCE: usize = 256;
/// More threads do not make reading faster.
const MOST_THREADS: u32 = 64;
/// How often progress is reported.
const REPORT_INTERVAL: Duration = Duration::from_millis(50);

/// What is learned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Learning {
    /// The sizes of the samples' files.
    FileSizes,
    /// The values of the field with this number, or their lengths, in this unit.
    Field(usize, LengthUnit),
    /// The sizes of the pictures of the field with this number, turned as their EXIF tags say or not.
    Shapes(usize, bool),
}

impl Learning {
    /// The key of `[batch]` that asks for it.
    const fn key(self) -> &'static str {
        match self {
            Self::FileSizes | Self::Field(..) => "budget",
            Self::Shapes(..) => "buckets",
        }
    }

    /// What it is called.
    const fn what(self) -> &'static str {
        match self {
            Self::FileSizes | Self::Field(..) => "length",
            Self::Shapes(..) => "shape",
        }
    }
}

/// The lengths of all samples, saved or read now.
pub(super) fn lengths(
    config: &Config,
    opened: &Opened,
    learning: Learning,
    options: OpenOptions<'_>,
) -> Result<Vec<u32>, StreamError> {
    let dataset = opened.dataset.as_ref();
    let count = usize::try_from(dataset.sample_count()).unwrap_or(usize::MAX);
    let source = match learning {
        Learning::FileSizes => "bytes".to_owned(),
        Learning::Field(place, unit) => {
            let name = &dataset.fields()[place].name;
            match unit {
                LengthUnit::Bytes | LengthUnit::Tokens => format!("field {name}"),
                LengthUnit::Seconds | LengthUnit::Pixels => format!("{} of {name}", unit.word()),
            }
        }
        Learning::Shapes(place, is_turned) => {
            let turned = if is_turned { "turned " } else { "" };
            format!("shapes of {turned}{}", dataset.fields()[place].name)
        }
    };
    let place = opened.report.path.as_deref().and_then(|index| {
        let key = key_of(index, &dataset.fingerprint(), &source)?;
        let name =
            blake3::Hash::from_bytes(blake3::derive_key("forebay lengths of", source.as_bytes()));
        Some((path_beside(index, &format!(".lengths-{}", &name.to_hex()[..16])), key))
    });
    let is_configured = config.dataset.index.is_some();
    if let Some((path, key)) = &place
        && let Ok(Some(lengths)) = read_saved(path, key, count, is_configured)
    {
        return Ok(lengths);
    }
    tracing::info!(
        stream = config.name,
        samples = count,
        "reading the {}s of all samples for batch.{} ({source}); the next start reads them from a file",
        learning.what(),
        learning.key()
    );
    let lengths = learn(config, opened, learning, count, options)?;
    if let Some((path, key)) = &place
        && let Err(error) = save(path, key, &lengths)
    {
        tracing::warn!(
            stream = config.name,
            "the {}s of the samples cannot be saved at {}, so the next start reads them again: {error}",
            learning.what(),
            path.display()
        );
    }
    Ok(lengths)
}

/// What the saved lengths are of: the dataset, the index file that is used, and the source.
fn key_of(index: &Path, fingerprint: &[u8; 32], source: &str) -> Option<[u8; DIGEST_BYTES]> {
    let status = std::fs::metadata(index).ok()?;
    let mut hasher = blake3::Hasher::new_derive_key("forebay key of saved lengths");
    hasher.update(fingerprint);
    for number in [status.mtime(), status.mtime_nsec(), status.size().cast_signed()] {
        hasher.update(&number.to_le_bytes());
    }
    hasher.update(source.as_bytes());
    Some(*hasher.finalize().as_bytes())
}

/// The saved lengths; `None`: others, or a damaged file.
fn read_saved(
    path: &Path,
    key: &[u8; DIGEST_BYTES],
    count: usize,
    is_configured: bool,
) -> io::Result<Option<Vec<u32>>> {
    if !path.try_exists()? {
        return Ok(None);
    }
    let (mut file, _) = open_beside(path, is_configured)?;
    let expected = MAGIC.len() + 2 * DIGEST_BYTES + 4 * count;
    if file.metadata()?.len() != expected as u64 {
        return Ok(None);
    }
    let mut bytes = Vec::with_capacity(expected);
    file.read_to_end(&mut bytes)?;
    let Some((body, digest)) = bytes.split_last_chunk::<DIGEST_BYTES>() else { return Ok(None) };
    let head = [&MAGIC[..], key].concat();
    if !body.starts_with(&head) || blake3::hash(body).as_bytes() != digest {
        return Ok(None);
    }
    let lengths = body[head.len()..].as_chunks().0;
    Ok(Some(lengths.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect()))
}

/// Writes the file beside its place and renames it.
fn save(path: &Path, key: &[u8; DIGEST_BYTES], lengths: &[u32]) -> io::Result<()> {
    let mut bytes = [&MAGIC[..], key].concat();
    bytes.extend(lengths.iter().flat_map(|length| length.to_le_bytes()));
    let digest = *blake3::hash(&bytes).as_bytes();
    bytes.extend(digest);
    // Each process has another name, also one of the same number in another container; a file that a killed process has
    // left is in nobody's way.
    let beside = path_beside(path, &format!(".partial-{:016x}", random()?));
    let written = write_new(&beside, &bytes).and_then(|()| std::fs::rename(&beside, path));
    if written.is_err() {
        let _ = std::fs::remove_file(&beside);
    }
    written
}

fn random() -> io::Result<u64> {
    let mut bytes = [0; 8];
    let mut filled = 0;
    while filled < bytes.len() {
        filled += getrandom(&mut bytes[filled..], GetRandomFlags::empty())?;
    }
    Ok(u64::from_le_bytes(bytes))
}

fn write_new(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = File::options().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(bytes)?;
    file.sync_data()
}

/// Why learning has ended early.
enum Failure {
    Storage(StorageError),
    /// A sample has no length: its id, and the reason.
    Sample(u64, String),
    /// The caller no longer waits.
    Cancelled,
}

fn learn(
    config: &Config,
    opened: &Opened,
    learning: Learning,
    count: usize,
    options: OpenOptions<'_>,
) -> Result<Vec<u32>, StreamError> {
    let mut lengths = vec![0; count];
    let threads = config.reads().0.clamp(1, MOST_THREADS) as usize;
    let threads = threads.min(count.div_ceil(SAMPLES_AT_ONCE)).max(1);
    let done = AtomicU64::new(0);
    let stop = AtomicBool::new(false);
    let failed = {
        let parts =
            Mutex::new((0..).step_by(SAMPLES_AT_ONCE).zip(lengths.chunks_mut(SAMPLES_AT_ONCE)));
        let reader = Reader { config, opened, learning, options: &options.patience };
        let (ended, ends) = mpsc::channel();
        std::thread::scope(|scope| {
            for _ in 0..threads {
                let ended = ended.clone();
                let (parts, reader, done, stop) = (&parts, &reader, &done, &stop);
                scope.spawn(move || {
                    let _ = ended.send(reader.read_parts(parts, done, stop));
                });
            }
            drop(ended);
            let mut failed: Option<Failure> = None;
            loop {
                match ends.recv_timeout(REPORT_INTERVAL) {
                    Ok(Ok(())) => {}
                    Ok(Err(failure)) => {
                        stop.store(true, Ordering::Relaxed);
                        // Of several samples the first, whatever the order of threads.
                        let id = |failure: &Failure| match failure {
                            Failure::Sample(id, _) => *id,
                            Failure::Storage(_) | Failure::Cancelled => u64::MAX,
                        };
                        if failed.as_ref().is_none_or(|earlier| id(&failure) < id(earlier)) {
                            failed = Some(failure);
                        }
                    }
                    Err(mpsc::RecvTimeoutError::Disconnected) => return failed,
                    Err(mpsc::RecvTimeoutError::Timeout) => {}
                }
                let samples = done.load(Ordering::Relaxed);
                let seen = ScanProgress { samples, ..ScanProgress::default() };
                if (options.progress)(seen).is_break() && failed.is_none() {
                    stop.store(true, Ordering::Relaxed);
                    failed = Some(Failure::Cancelled);
                }
            }
        })
    };
    let (what, location) = (learning.what(), config.location(&["batch", learning.key()]));
    match failed {
        None => Ok(lengths),
        Some(Failure::Sample(id, reason)) => {
            let name = opened.dataset.full_name(opened.storage.as_ref(), SampleId(id));
            let message = format!(
                "the {what} of sample {id} ({}) is not known: {reason}; repair or leave out the sample, or set \
                 `errors.on_bad_sample = \"substitute\"`",
                name.display()
            );
            Err(ConfigError::new(&location, message).into())
        }
        Some(Failure::Storage(error)) => {
            Err(StreamError::Dataset { location, error: DatasetError::from(error) })
        }
        Some(Failure::Cancelled) => {
            let message = format!("reading the {what}s of the samples was cancelled");
            Err(ConfigError::new(&location, message).into())
        }
    }
}

struct Reader<'a> {
    config: &'a Config,
    opened: &'a Opened,
    learning: Learning,
    options: &'a Option<&'a forebay_storage::Patience>,
}

/// A thread's buffers.
#[derive(Default)]
struct Buffers {
    locations: Vec<forebay_storage::location::Location>,
    opened: Vec<forebay_storage::Opened>,
    bytes: Vec<u8>,
    ends: Vec<usize>,
    decoders: Decoders,
}

impl Reader<'_> {
    /// Reads the lengths of parts until none is left.
    fn read_parts<'l>(
        &self,
        parts: &Mutex<impl Iterator<Item = (u64, &'l mut [u32])>>,
        done: &AtomicU64,
        stop: &AtomicBool,
    ) -> Result<(), Failure> {
        let mut buffers = Buffers::default();
        loop {
            let part = parts.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some((first, part)) = part else { return Ok(()) };
            for (id, length) in (first..).zip(part) {
                if stop.load(Ordering::Relaxed) {
                    return Ok(());
                }
                *length = self.length(SampleId(id), &mut buffers)?;
                done.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    fn length(&self, id: SampleId, buffers: &mut Buffers) -> Result<u32, Failure> {
        let (bad_is_substituted, unreadable_is_substituted) = substitutes(self.config);
        let mut retries: Option<Retries> = None;
        let length_or_reason = loop {
            let result = match self.options {
                Some(patience) => {
                    let path = || self.opened.dataset.full_name(self.opened.storage.as_ref(), id);
                    patience.call("reading", path, || self.look(id, buffers))
                }
                None => self.look(id, buffers),
            };
            match result {
                Ok(found) => break found,
                Err(error) => match self.options {
                    Some(patience) if patience.wait_after(&mut retries, &error) => {}
                    _ if unreadable_is_substituted && !is_outage(&error) => return Ok(UNKNOWN),
                    _ => return Err(Failure::Storage(error)),
                },
            }
        };
        if let Some(retries) = retries {
            retries.succeed();
        }
        match length_or_reason {
            Ok(length) => Ok(as_length(length)),
            Err(_) if bad_is_substituted => Ok(UNKNOWN),
            Err(reason) => Err(Failure::Sample(id.0, reason)),
        }
    }

    /// The length of a sample, or why it has none.
    fn look(
        &self,
        id: SampleId,
        buffers: &mut Buffers,
    ) -> Result<Result<u64, String>, StorageError> {
        let (dataset, storage) = (self.opened.dataset.as_ref(), self.opened.storage.as_ref());
        let Buffers { locations, opened, bytes, ends, decoders } = buffers;
        let limits = &self.config.dataset.limits;
        let limit_bytes = limits.sample_bytes;
        let (Learning::Field(place, _) | Learning::Shapes(place, _)) = self.learning else {
            locations.clear();
            dataset.locate(id, locations);
            return storage.open_all(dataset, locations, limit_bytes, opened).map(Ok);
        };
        read_sample(storage, dataset, id, limit_bytes, bytes, ends)?;
        let mut values = Vec::new();
        let read = dataset.read(id, SampleBytes::new(bytes, ends), &mut values);
        Ok(match (read, values.get(place)) {
            (Err(defect), _) => Err(defect.to_string()),
            (Ok(()), Some(value)) => match self.learning {
                Learning::Shapes(_, is_turned) => {
                    value::shape_of(value, (limits.pixels, is_turned), decoders)
                }
                Learning::Field(_, LengthUnit::Seconds) => value::milliseconds_of(value),
                Learning::Field(_, LengthUnit::Pixels) => {
                    value::pixels_of(value, limits.pixels, decoders)
                }
                Learning::Field(..) | Learning::FileSizes => value::length_of(value),
            },
            (Ok(()), None) => Err("it has no such field".to_owned()),
        })
    }
}

fn is_outage(error: &StorageError) -> bool {
    error.class() == forebay_storage::RetryClass::Outage
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn saved_lengths_are_read_with_their_key_only() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.lengths");
        let (key, lengths) = ([7; 32], vec![3, 1, 4]);
        let read = |key, count| read_saved(&path, &key, count, true).unwrap();
        assert_eq!(read(key, 3), None, "no file");
        save(&path, &key, &lengths).unwrap();
        assert_eq!(read(key, 3), Some(lengths));
        assert_eq!((read([8; 32], 3), read(key, 4)), (None, None));
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[45] ^= 1;
        std::fs::write(&path, bytes).unwrap();
        assert_eq!(read(key, 3), None, "damaged");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left behind");
    }

    #[test]
    fn files_left_by_a_killed_process_do_not_prevent_saving() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.lengths");
        let left = path_beside(&path, &format!(".partial-{}", std::process::id()));
        std::fs::write(&left, "some").unwrap();
        save(&path, &[7; 32], &[3]).unwrap();
        assert_eq!(read_saved(&path, &[7; 32], 1, true).unwrap(), Some(vec![3]));
        assert_eq!(std::fs::read(&left).unwrap(), b"some");
        assert_ne!(random().unwrap(), random().unwrap());
    }
}

//! Lengths and classes that are not in the index: the samples' files or values are read once, before the first batch, by
//! several threads, and a number for each sample is saved next to the index; of classes also their values.
//!
//! The saved file has a key of what the numbers are of (the dataset, its index file, the source) and what decides them
//! (the limits, the version of the readers); another key is no error, they are then learned again.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError, mpsc};
use std::time::Duration;

use forebay_config::{Config, LengthUnit, Limits};
use forebay_dataset::opening::read_sample;
use forebay_dataset::{
    DatasetError, FileKey, OpenOptions, Opened, ScanProgress, file_key, path_beside, read_checked,
    save_checked,
};
use forebay_keys::ConfigError;
use forebay_media::decode::Decoders;
use forebay_protocol::ids::SampleId;
use forebay_storage::location::SampleBytes;
use forebay_storage::{Retries, StorageError};

use super::{UNKNOWN, as_length, substitutes, value};
use crate::ground::classes::{ClassValue, ClassValues, Found};
use crate::ground::stream_error::StreamError;

/// The first bytes of a saved file of lengths: its name and the layout's number.
const MAGIC: [u8; 8] = *b"FBLENS\0\x01";
/// The same of classes.
const MAGIC_OF_CLASSES: [u8; 8] = *b"FBCLAS\0\x01";
/// The most bytes of a saved file after its numbers: of the values of classes.
const MOST_BYTES_BEHIND: usize = 512 << 20;
/// Samples that a thread takes at once: neighbours are often in one file.
const SAMPLES_AT_ONCE: usize = 256;
/// The version of what reads lengths, shapes and classes, which is raised when the same bytes give other numbers.
const READERS: u32 = 1;
/// More threads do not make reading faster.
const MOST_THREADS: u32 = 64;
/// How often progress is reported.
const REPORT_INTERVAL: Duration = Duration::from_millis(50);

/// What is learned.
#[derive(Debug, Clone, Copy)]
pub(super) enum Learning<'a> {
    /// The sizes of the samples' files.
    FileSizes,
    /// The values of the field with this number, or their lengths, in this unit.
    Field(usize, LengthUnit),
    /// The sizes of the pictures of the field with this number, turned as their EXIF tags say or not.
    Shapes(usize, bool),
    /// The classes that the values of the field with this number are, numbered here; for this key.
    Class(usize, &'a ClassValues, [&'static str; 2]),
}

impl Learning<'_> {
    /// The key that it is for.
    const fn key(self) -> [&'static str; 2] {
        match self {
            Self::FileSizes | Self::Field(..) => ["batch", "budget"],
            Self::Shapes(..) => ["batch", "buckets"],
            Self::Class(_, _, key) => key,
        }
    }

    /// Where it comes from.
    fn source(self, opened: &Opened) -> String {
        let name = |place: usize| &opened.dataset.fields()[place].name;
        match self {
            Self::FileSizes => "bytes".to_owned(),
            Self::Field(place, LengthUnit::Bytes | LengthUnit::Tokens) => {
                format!("field {}", name(place))
            }
            Self::Field(place, unit) => format!("{} of {}", unit.word(), name(place)),
            Self::Shapes(place, is_turned) => {
                format!("shapes of {}{}", if is_turned { "turned " } else { "" }, name(place))
            }
            Self::Class(place, ..) => format!("class {}", name(place)),
        }
    }

    /// The word for what is learned of a sample.
    const fn word(self) -> &'static str {
        match self {
            Self::FileSizes | Self::Field(..) => "lengths",
            Self::Shapes(..) => "shapes",
            Self::Class(..) => "classes",
        }
    }

    /// The word for what is learned of one sample.
    const fn word_of_one(self) -> &'static str {
        match self {
            Self::FileSizes | Self::Field(..) => "length",
            Self::Shapes(..) => "shape",
            Self::Class(..) => "class",
        }
    }
}

/// The refusal of a sample of which something is not known.
pub(in crate::ground) fn not_known(
    opened: &Opened,
    what: &str,
    id: SampleId,
    reason: &str,
) -> String {
    format!(
        "the {what} of sample {} ({}) is not known: {reason}; repair or leave out the sample, or set \
         `errors.on_bad_sample = \"substitute\"`",
        id.0,
        opened.dataset.full_name(opened.storage.as_ref(), id).display()
    )
}

/// The lengths of all samples, saved or read now.
pub(super) fn lengths(
    config: &Config,
    opened: &Opened,
    learning: Learning<'_>,
    options: OpenOptions<'_>,
) -> Result<Vec<u32>, StreamError> {
    let source = learning.source(opened);
    let place = place_of(config, opened, "lengths", &source);
    if let Some(place) = &place
        && let Some((lengths, behind)) = saved(config, opened, &MAGIC, place)
        && behind.is_empty()
    {
        return Ok(lengths);
    }
    let Learned { numbers, is_whole } = learn_and_say(config, opened, learning, &source, options)?;
    let place = place.as_ref().filter(|_| is_whole);
    keep(config, learning, place, |path, key| save(path, (&MAGIC, key), &numbers, &[]));
    Ok(numbers)
}

/// The classes of all samples by the values of a field, saved or read now; for this key.
pub(in crate::ground) fn classes(
    config: &Config,
    opened: &Opened,
    key: [&'static str; 2],
    field: usize,
    options: OpenOptions<'_>,
) -> Result<Found, StreamError> {
    let values = ClassValues::default();
    let learning = Learning::Class(field, &values, key);
    let source = learning.source(opened);
    let place = place_of(config, opened, "classes", &source);
    if let Some(place) = &place
        && let Some((class_of, behind)) = saved(config, opened, &MAGIC_OF_CLASSES, place)
        && let Some(values) = ClassValue::read_all(&behind)
    {
        return Ok((class_of, values));
    }
    let Learned { numbers, is_whole } = learn_and_say(config, opened, learning, &source, options)?;
    if let Some(reason) = values.too_many() {
        let message = format!("`{}`: {reason}", key.join("."));
        return Err(ConfigError::new(&config.location(&key), message).into());
    }
    let (class_of, found) = values.in_order(numbers);
    let place = place.as_ref().filter(|_| is_whole);
    keep(config, learning, place, |path, key| {
        save(path, (&MAGIC_OF_CLASSES, key), &class_of, &ClassValue::write_all(&found))
    });
    Ok((class_of, found))
}

/// A saved file and its key.
type Place = (PathBuf, FileKey);

/// The place of the saved file of what is learned; `None`: there is no index.
fn place_of(config: &Config, opened: &Opened, what: &str, source: &str) -> Option<Place> {
    let index = opened.report.path.as_deref()?;
    let dataset = opened.dataset.as_ref();
    let fingerprint = dataset.fingerprint();
    // Where bad samples are not substituted they are an error.
    let rule = if substitutes(config).0 { "\0substituted" } else { "" };
    // They decide which samples have no length.
    let Limits { sample_bytes, pixels, inflated_bytes } = config.dataset.limits;
    let readers = format!("\0{READERS} {sample_bytes} {pixels} {inflated_bytes}");
    let key = file_key(index, &fingerprint, &format!("{source}{rule}{readers}"))?;
    let mut of = source.as_bytes().to_vec();
    if dataset.kept().is_some() {
        // Selections of one dataset, such as its parts, have files of their own.
        of.extend(fingerprint);
    }
    let name = blake3::Hash::from_bytes(blake3::derive_key("forebay lengths of", &of));
    Some((path_beside(index, &format!(".{what}-{}", &name.to_hex()[..16])), key))
}

/// What is saved at a place; `None`: nothing, something else, or a damaged file.
fn saved(
    config: &Config,
    opened: &Opened,
    magic: &[u8; 8],
    (path, key): &Place,
) -> Option<(Vec<u32>, Vec<u8>)> {
    let is_configured = config.dataset.index.is_some();
    read_saved(path, (magic, key), samples(opened), is_configured).ok().flatten()
}

/// Saves what was learned, or says that it cannot be.
fn keep(
    config: &Config,
    learning: Learning<'_>,
    place: Option<&Place>,
    save: impl FnOnce(&Path, &FileKey) -> io::Result<()>,
) {
    if let Some((path, key)) = place
        && let Err(error) = save(path, key)
    {
        tracing::warn!(
            stream = config.name,
            "the {} of the samples cannot be saved at {}, so the next start reads them again: {error}",
            learning.word(),
            path.display()
        );
    }
}

fn samples(opened: &Opened) -> usize {
    usize::try_from(opened.dataset.sample_count()).unwrap_or(usize::MAX)
}

fn learn_and_say(
    config: &Config,
    opened: &Opened,
    learning: Learning<'_>,
    source: &str,
    options: OpenOptions<'_>,
) -> Result<Learned, StreamError> {
    let count = samples(opened);
    tracing::info!(
        stream = config.name,
        samples = count,
        "reading the {} of all samples for {} ({source}); the next start reads them from a file",
        learning.word(),
        learning.key().join(".")
    );
    learn(config, opened, learning, count, options)
}

/// The saved numbers and the bytes behind them; `None`: others, or a damaged file.
fn read_saved(
    path: &Path,
    (magic, key): (&[u8; 8], &FileKey),
    count: usize,
    is_configured: bool,
) -> io::Result<Option<(Vec<u32>, Vec<u8>)>> {
    let least = 4 * count;
    let sizes = least..=least.saturating_add(MOST_BYTES_BEHIND);
    let Some(mut bytes) = read_checked(path, (*magic, key), sizes, is_configured)? else {
        return Ok(None);
    };
    let behind = bytes.split_off(least);
    let numbers = bytes.as_chunks().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect();
    Ok(Some((numbers, behind)))
}

fn save(
    path: &Path,
    (magic, key): (&[u8; 8], &FileKey),
    numbers: &[u32],
    behind: &[u8],
) -> io::Result<()> {
    let mut bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
    bytes.extend(behind);
    save_checked(path, (*magic, key), &bytes)
}

/// A number for each sample.
struct Learned {
    numbers: Vec<u32>,
    /// No file was unreadable. Otherwise the numbers are not saved: the file may be there at the next start.
    is_whole: bool,
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
    learning: Learning<'_>,
    count: usize,
    options: OpenOptions<'_>,
) -> Result<Learned, StreamError> {
    let mut numbers = vec![0; count];
    let threads = config.reads().0.clamp(1, MOST_THREADS) as usize;
    let threads = threads.min(count.div_ceil(SAMPLES_AT_ONCE)).max(1);
    let done = AtomicU64::new(0);
    let (stop, is_whole) = (AtomicBool::new(false), AtomicBool::new(true));
    let failed = {
        let parts =
            Mutex::new((0..).step_by(SAMPLES_AT_ONCE).zip(numbers.chunks_mut(SAMPLES_AT_ONCE)));
        let patience = &options.patience;
        let reader = Reader { config, opened, learning, options: patience, is_whole: &is_whole };
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
    let location = config.location(&learning.key());
    match failed {
        None => Ok(Learned { numbers, is_whole: is_whole.into_inner() }),
        Some(Failure::Sample(id, reason)) => {
            let message = not_known(opened, learning.word_of_one(), SampleId(id), &reason);
            Err(ConfigError::new(&location, message).into())
        }
        Some(Failure::Storage(error)) => {
            Err(StreamError::Dataset { location, error: DatasetError::from(error) })
        }
        Some(Failure::Cancelled) => {
            let message = format!("reading the {} of the samples was cancelled", learning.word());
            Err(ConfigError::new(&location, message).into())
        }
    }
}

struct Reader<'a> {
    config: &'a Config,
    opened: &'a Opened,
    learning: Learning<'a>,
    options: &'a Option<&'a forebay_storage::Patience>,
    /// See [`Learned`].
    is_whole: &'a AtomicBool,
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
                *length = match self.opened.dataset.kept() {
                    Some(kept) if !kept.contains(id) => UNKNOWN,
                    _ => self.length(SampleId(id), &mut buffers)?,
                };
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
                // As for a row that is served: it is the same at each try.
                Err(error) if error.is_bad_sample() => break Err(error.to_string()),
                Err(error) => match self.options {
                    Some(patience) if patience.wait_after(&mut retries, &error) => {}
                    _ if unreadable_is_substituted && !is_outage(&error) => {
                        self.is_whole.store(false, Ordering::Relaxed);
                        return Ok(UNKNOWN);
                    }
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
        let place = match self.learning {
            Learning::FileSizes => {
                locations.clear();
                dataset.locate(id, locations);
                return storage.open_all(dataset, locations, limit_bytes, opened).map(Ok);
            }
            Learning::Field(place, _) | Learning::Shapes(place, _) | Learning::Class(place, ..) => {
                place
            }
        };
        read_sample(storage, dataset, id, limit_bytes, bytes, ends)?;
        let mut values = Vec::new();
        let read = dataset.read(id, SampleBytes::new(bytes, ends), &mut values);
        Ok(match (read, values.get(place)) {
            (Err(defect), _) => Err(defect.to_string()),
            (Ok(()), Some(value)) => match self.learning {
                Learning::Class(_, classes, _) => {
                    value::class_of(value).and_then(|value| classes.number_of(value)).map(u64::from)
                }
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
    fn saved_numbers_are_read_with_their_key_only() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.lengths");
        let (key, lengths) = ([7; 32], vec![3, 1, 4]);
        let read = |key, count| read_saved(&path, (&MAGIC, &key), count, true).unwrap();
        assert_eq!(read(key, 3), None, "no file");
        for behind in [&[][..], b"behind"] {
            save(&path, (&MAGIC, &key), &lengths, behind).unwrap();
            assert_eq!(read(key, 3), Some((lengths.clone(), behind.to_vec())));
            assert_eq!((read([8; 32], 3), read(key, 6)), (None, None));
            let of_classes = read_saved(&path, (&MAGIC_OF_CLASSES, &key), 3, true);
            assert_eq!(of_classes.unwrap(), None);
        }
    }

    #[test]
    fn a_sample_above_its_limit_has_no_length_and_is_known_once_the_limit_is_raised() {
        let folder = tempfile::tempdir().unwrap();
        let class = folder.path().join("data/a");
        std::fs::create_dir_all(&class).unwrap();
        for (name, size) in [("0.jpg", 10), ("1.jpg", 2000), ("2.jpg", 20)] {
            std::fs::write(class.join(name), vec![0; size]).unwrap();
        }
        let learn = |sample_bytes: &str, on_bad_sample: &str| {
            let text = format!(
                "dataset = {{ format = \"image-folder\", path = \"data\", index = \"index\" }}\n\
                 batch = {{ budget = {{ bytes = 4000 }}, max_rows = 2 }}\n\
                 stage = [{{ name = \"decode\", operations = [{{ op = \"decode-image\" }}] }}]\n\
                 limits.sample_bytes = \"{sample_bytes}\"\nerrors.on_bad_sample = \"{on_bad_sample}\"\n"
            );
            let path = folder.path().join("stream.toml");
            std::fs::write(&path, text).unwrap();
            let mut config = Config::from_file(&path, &[]).unwrap();
            let opened =
                forebay_formats::open_configured(&mut config.dataset, OpenOptions::default());
            lengths(&config, &opened.unwrap(), Learning::FileSizes, OpenOptions::default())
                .map_err(|error| error.to_string())
        };
        for _ in 0..2 {
            assert_eq!(learn("1000B", "substitute"), Ok(vec![10, UNKNOWN, 20]));
        }
        let error = learn("1000B", "fail").unwrap_err();
        assert!(error.contains("a/1.jpg") && error.contains("errors.on_bad_sample"), "{error}");
        assert_eq!(learn("3000B", "substitute"), Ok(vec![10, 2000, 20]));
        assert_eq!(learn("1000B", "substitute"), Ok(vec![10, UNKNOWN, 20]));
    }
}

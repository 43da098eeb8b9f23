//! Reads all samples for the fields or the sizes that a selection uses, on several threads.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread::available_parallelism;
use std::time::Duration;

use forebay_dataset::error::DatasetError;
use forebay_dataset::{ArrayValue, Dataset, Field, FieldValue};
use forebay_protocol::ids::SampleId;
use forebay_protocol::tensor::DType;
use forebay_select::{Subset, SubsetBuilder, Value};
use forebay_storage::{Storage, UnpackingStorage};

use super::judge::Judge;
use crate::sample_reader::SampleReader;

/// Samples that a thread takes at once: neighbours are often in one file.
const SAMPLES_AT_ONCE: u64 = 256;
/// The threads for a storage behind a URL, which wait most of the time.
const REMOTE_THREADS: usize = 16;
/// How often progress is reported.
const REPORT_INTERVAL: Duration = Duration::from_millis(50);

/// The samples that are kept.
///
/// # Errors
/// A sample cannot be read, or an error of the judge or of `report`.
pub(super) fn keep(
    judge: &Judge<'_>,
    dataset: &dyn Dataset,
    storage: &dyn Storage,
    report: &dyn Fn(u64) -> Result<(), DatasetError>,
) -> Result<Subset, DatasetError> {
    let samples = dataset.sample_count();
    let chunks = samples.div_ceil(SAMPLES_AT_ONCE);
    let cores = available_parallelism().map_or(1, NonZeroUsize::get);
    let most = if storage.remote_root().is_some() { cores.max(REMOTE_THREADS) } else { cores };
    let threads = most.min(usize::try_from(chunks).unwrap_or(most)).max(1);
    // Parts of files that are compressed as a whole were unpacked where the dataset was opened; pages are unpacked here.
    let unpacking = UnpackingStorage::new(storage, dataset.page_bytes().unwrap_or(0));
    let (next, done, stop) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
    let (give, given) = mpsc::channel();
    let limit_bytes = judge.limit_bytes();
    let work = || {
        let mut reader = SampleReader::new(dataset, &unpacking, limit_bytes);
        let mut scratch = judge.scratch();
        loop {
            // Relaxed, here and below: counts and a request, which order no other memory.
            let chunk = next.fetch_add(1, Ordering::Relaxed);
            if chunk >= chunks || stop.load(Ordering::Relaxed) {
                return Ok(());
            }
            let first = chunk * SAMPLES_AT_ONCE;
            let ids = first..samples.min(first + SAMPLES_AT_ONCE);
            let mut kept = Vec::new();
            for id in ids.map(SampleId) {
                let is_kept = match judge.has_fields() {
                    false => judge.keeps(id, &[], &mut scratch)?,
                    true => {
                        let read = reader.read(id, |values| {
                            let values = values_of(judge, dataset.fields(), values)?;
                            Ok(judge.keeps(id, &values, &mut scratch))
                        })?;
                        match read {
                            Ok(is_kept) => is_kept?,
                            Err(reason) => return Err(judge.unreadable(id, &reason).into()),
                        }
                    }
                };
                kept.push(is_kept);
                done.fetch_add(1, Ordering::Relaxed);
            }
            // The receiver is there until all threads have ended.
            let _ = give.send((chunk, kept));
        }
    };
    let mut found: Vec<(u64, Vec<bool>)> = Vec::new();
    let outcome = std::thread::scope(|scope| {
        let (ended, ends) = mpsc::channel();
        for _ in 0..threads {
            let (ended, work) = (ended.clone(), &work);
            scope.spawn(move || {
                let _ = ended.send(work());
            });
        }
        drop(ended);
        let mut failure: Option<DatasetError> = None;
        loop {
            match ends.recv_timeout(REPORT_INTERVAL) {
                Ok(Ok(())) | Err(mpsc::RecvTimeoutError::Timeout) => {}
                Ok(Err(error)) => {
                    stop.store(true, Ordering::Relaxed);
                    failure.get_or_insert(error);
                }
                Err(mpsc::RecvTimeoutError::Disconnected) => return failure.map_or(Ok(()), Err),
            }
            found.extend(given.try_iter());
            if failure.is_none()
                && let Err(error) = report(done.load(Ordering::Relaxed))
            {
                stop.store(true, Ordering::Relaxed);
                failure = Some(error);
            }
        }
    });
    outcome?;
    found.extend(given.try_iter());
    found.sort_unstable_by_key(|(chunk, _)| *chunk);
    let mut builder = SubsetBuilder::default();
    found.iter().flat_map(|(_, kept)| kept).for_each(|is_kept| builder.push(*is_kept));
    Ok(builder.build())
}

/// The values of all fields; null for those that the selection does not use.
fn values_of<'v>(
    judge: &Judge<'_>,
    fields: &[Field],
    values: &'v [FieldValue<'_>],
) -> Result<Vec<Value<'v>>, String> {
    let value = |(place, value)| match judge.uses_field(place) {
        false => Ok(Value::Null),
        true => value_of(value).map_err(|why| match fields.get(place) {
            Some(field) => format!("`{}` {why}", field.name),
            None => why,
        }),
    };
    values.iter().enumerate().map(value).collect()
}

/// A field's value for a condition; null for others than numbers and texts, which a condition cannot name.
fn value_of<'v>(value: &'v FieldValue<'_>) -> Result<Value<'v>, String> {
    Ok(match value {
        FieldValue::Integer(value) => Value::Integer(*value),
        FieldValue::Float(value) => Value::Float(*value),
        FieldValue::Text(text) => Value::Text(text),
        FieldValue::Array(array) if array.shape.is_empty() => number_of(array)?,
        _ => Value::Null,
    })
}

/// The value of an array without dimensions.
fn number_of(array: &ArrayValue<'_>) -> Result<Value<'static>, String> {
    let mut bytes = array.bytes.to_vec();
    if array.big_endian {
        bytes.reverse();
    }
    Ok(match forebay_columnar::Encoding::number(array.dtype.name(), &bytes)? {
        forebay_columnar::Number::Integer(value) if array.dtype == DType::Bool => {
            Value::Boolean(value != 0)
        }
        forebay_columnar::Number::Integer(value) => Value::Integer(value),
        forebay_columnar::Number::Float(value) => Value::Float(value),
    })
}

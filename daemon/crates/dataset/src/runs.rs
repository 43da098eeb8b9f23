//! Reads neighbouring samples of an object with one request if they are requested in that order.
//!
//! A request to a server takes as long as transferring some megabytes. So a run of samples is one [block](Unit::Block):
//! the engine fetches it once for all rows that need it and counts its bytes once. Runs are cut within groups of
//! samples by their numbers, so that the run of a sample depends on the index only; and groups within batches, so that
//! no rank reads what only another one needs.

use std::path::PathBuf;
use std::sync::Arc;

use forebay_protocol::ids::SampleId;
use forebay_protocol::tensor::DType;
use forebay_storage::version::ObjectStamp;

use crate::{Dataset, Defect, Description, Field, FieldValue, IndexBytes, SampleBlocks};
use forebay_storage::Storage;
use forebay_storage::location::{
    ByteRange, FileId, FileTable, Location, SampleBytes, Transform, Unit,
};

/// The maximum size of a run: a server transfers this much in about the time of another request.
const MOST_RUN_BYTES: u64 = 1 << 20;
/// The maximum number of unneeded bytes between two samples that are read anyway.
const MOST_GAP_BYTES: u64 = 64 << 10;
/// The maximum number of samples in a run, so that several requests of a batch are in flight.
const MOST_SAMPLES: u64 = 64;
/// The number of samples that are examined for the average size.
const LOOKED_AT: u64 = 16;

/// A dataset whose samples are read in runs.
#[derive(Debug)]
struct InRuns {
    inner: Arc<dyn Dataset>,
    /// The number of samples in a batch.
    batch: u64,
    /// The number of samples in a group; runs do not cross groups.
    group: u64,
    /// The maximum size of a run, in bytes.
    most_bytes: u64,
}

/// A sample's position in its run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct InRun {
    /// The location of the run.
    run: Location,
    /// The range of the sample.
    own: ByteRange,
}

impl InRun {
    /// The sample's bytes among the run's.
    fn part<'a>(&self, run: &'a [u8]) -> Option<&'a [u8]> {
        let start = usize::try_from(self.own.offset - self.run.range.offset).ok()?;
        let length = usize::try_from(self.own.length?).ok()?;
        run.get(start..start.checked_add(length)?)
    }
}

/// Reads the dataset's neighbours together where possible: samples that are parts of objects whose size and tag are
/// known. Samples are requested in batches of `batch`. `limit_bytes`: the maximum size of a sample.
pub fn in_runs(dataset: Arc<dyn Dataset>, batch: u64, limit_bytes: u64) -> Arc<dyn Dataset> {
    let samples = dataset.sample_count();
    if dataset.shares_units() || dataset.page_bytes().is_some() || samples < 2 {
        return dataset;
    }
    let most_bytes = MOST_RUN_BYTES.min(limit_bytes);
    let looked_at = (0..LOOKED_AT).map(|place| SampleId((samples - 1) * place / (LOOKED_AT - 1)));
    let (mut bytes, mut count) = (0_u64, 0);
    for id in looked_at {
        if let Some(own) = own_location(dataset.as_ref(), id, most_bytes) {
            bytes += own.range.length.unwrap_or(0);
            count += 1;
        }
    }
    if count == 0 {
        return dataset;
    }
    let group = (most_bytes / (bytes / count).max(1)).min(MOST_SAMPLES).min(batch);
    if group < 2 {
        return dataset;
    }
    Arc::new(InRuns { inner: dataset, batch, group, most_bytes })
}

/// The location of a sample that may be in a run.
fn own_location(dataset: &dyn Dataset, id: SampleId, most_bytes: u64) -> Option<Location> {
    let mut locations = Vec::with_capacity(1);
    dataset.locate(id, &mut locations);
    let &[location] = locations.as_slice() else { return None };
    let is_short = location.range.length.is_some_and(|length| length <= most_bytes);
    let is_part = is_short && location.unit == Unit::Sample;
    // Without a stamp it is not certain that the bytes between the samples exist.
    location.range.offset.checked_add(location.range.length?)?;
    (is_part && dataset.stamp(location.file).is_some()).then_some(location)
}

/// Samples that are read together.
#[derive(Debug, Clone, Copy)]
struct Run {
    file: FileId,
    start: u64,
    end: u64,
    samples: u64,
}

impl Run {
    fn of(location: Location) -> Self {
        let ByteRange { offset, length } = location.range;
        let end = offset.saturating_add(length.unwrap_or(0));
        Self { file: location.file, start: offset, end, samples: 1 }
    }

    /// Appends the next sample if it is near.
    fn with(self, next: Self, most_bytes: u64) -> Option<Self> {
        let is_near = self.file == next.file
            && next.start >= self.end
            && next.start - self.end <= MOST_GAP_BYTES
            && next.end - self.start <= most_bytes;
        is_near.then_some(Self { end: next.end, samples: self.samples + 1, ..self })
    }
}

impl InRuns {
    /// The run of a sample; `None`: it is read individually.
    fn run_of(&self, id: SampleId) -> Option<InRun> {
        let own_location = |id| own_location(self.inner.as_ref(), id, self.most_bytes);
        let own = own_location(id)?;
        let place = id.0 % self.batch;
        let first = id.0 - place % self.group;
        let end_of_batch = (id.0 - place).saturating_add(self.batch);
        let end = first.saturating_add(self.group).min(end_of_batch).min(self.inner.sample_count());
        let mut run: Option<Run> = None;
        for number in first..end {
            let next = match number == id.0 {
                true => Some(own),
                false => own_location(SampleId(number)),
            };
            let longer =
                run.zip(next).and_then(|(run, next)| run.with(Run::of(next), self.most_bytes));
            if longer.is_none() && number > id.0 {
                break;
            }
            run = longer.or(next.map(Run::of));
        }
        let Run { file, start, end, .. } = run.filter(|run| run.samples > 1)?;
        let range = ByteRange { offset: start, length: Some(end - start) };
        let run = Location { file, range, unit: Unit::Block(Transform::None) };
        Some(InRun { run, own: own.range })
    }
}

impl FileTable for InRuns {
    fn append_path(&self, file: FileId, path: &mut Vec<u8>) {
        self.inner.append_path(file, path);
    }

    fn stamp(&self, file: FileId) -> Option<ObjectStamp> {
        self.inner.stamp(file)
    }
}

impl Dataset for InRuns {
    fn sample_count(&self) -> u64 {
        self.inner.sample_count()
    }

    fn fields(&self) -> &[Field] {
        self.inner.fields()
    }

    fn locate(&self, id: SampleId, locations: &mut Vec<Location>) {
        match self.run_of(id) {
            Some(place) => locations.push(place.run),
            None => self.inner.locate(id, locations),
        }
    }

    fn own_range(&self, id: SampleId) -> ByteRange {
        self.inner.own_range(id)
    }

    fn label(&self, id: SampleId) -> Option<Result<i64, Defect>> {
        self.inner.label(id)
    }

    fn own_bytes(&self, id: SampleId, bytes: SampleBytes<'_>) -> u64 {
        self.run_of(id).and_then(|place| place.own.length).unwrap_or(bytes.length_bytes())
    }

    fn shares_units(&self) -> bool {
        true
    }

    fn page_bytes(&self) -> Option<u64> {
        self.inner.page_bytes()
    }

    fn blocks(&self) -> Option<SampleBlocks> {
        self.inner.blocks()
    }

    fn read<'a>(
        &'a self,
        id: SampleId,
        bytes: SampleBytes<'a>,
        values: &mut Vec<FieldValue<'a>>,
    ) -> Result<(), Defect> {
        let Some(place) = self.run_of(id) else {
            return self.inner.read(id, bytes, values);
        };
        let run = bytes.all();
        let own = place.part(run).filter(|_| Some(run.len() as u64) == place.run.range.length);
        let own = own.ok_or_else(|| {
            let expected = place.run.range.length.unwrap_or(0);
            Defect(format!(
                "{} bytes were read of {expected} that several samples lie in",
                run.len()
            ))
        })?;
        self.inner.read(id, own.into(), values)
    }

    /// The samples are parts of objects: nothing is known of one before it is read.
    fn unpacked_bytes(&self, bytes: SampleBytes<'_>) -> u64 {
        self.inner.unpacked_bytes(bytes)
    }

    fn output_dtype(&self, field: usize) -> Option<DType> {
        self.inner.output_dtype(field)
    }

    fn fingerprint(&self) -> [u8; 32] {
        self.inner.fingerprint()
    }

    fn index(&self) -> Option<&IndexBytes> {
        self.inner.index()
    }

    fn append_name(&self, id: SampleId, name: &mut Vec<u8>) {
        self.inner.append_name(id, name);
    }

    fn full_name(&self, storage: &dyn Storage, id: SampleId) -> PathBuf {
        self.inner.full_name(storage, id)
    }

    fn max_row_bytes(&self, field: usize) -> Option<u64> {
        self.inner.max_row_bytes(field)
    }

    fn description(&self) -> Description {
        let mut description = self.inner.description();
        let most = self.group;
        let text = format!("up to {most} neighbours by one request, since samples come in order");
        description.notes.push(("reads", text));
        description
    }

    fn classes(&self) -> &[String] {
        self.inner.classes()
    }
}

#[cfg(test)]
mod tests;

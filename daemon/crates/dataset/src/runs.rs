//! Reads neighbouring samples of an object with one request if they are requested in that order, or in blocks.
//!
//! A request to a server takes as long as transferring some megabytes. So a run of samples is one [block](Unit::Block):
//! the engine fetches it once for all rows that need it and counts its bytes once. Where samples come in order, runs are
//! cut within groups of samples by their numbers, so that the run of a sample depends on the index only; and groups
//! within batches, so that no rank reads what only another one needs. In an order in blocks, the runs are its blocks:
//! they depend on the samples' places in their files only, so that the order is the same in each storage.

use std::sync::Arc;

use forebay_protocol::ids::SampleId;
use forebay_storage::location::{
    ByteRange, FileId, FileTable, Location, SampleBytes, Transform, Unit,
};
use forebay_storage::version::ObjectStamp;

use crate::layer::Layer;
use crate::{Dataset, Defect, Description, FieldValue, PageBytes, SampleBlocks};

/// The maximum size of a run: a server transfers this much in about the time of another request. It and the next number
/// determine the blocks of an order in blocks: another one raises the stream version.
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
    cut: Cut,
    /// The maximum size of a run, in bytes.
    most_bytes: u64,
}

/// What runs do not cross.
#[derive(Debug)]
enum Cut {
    /// Groups of so many samples, within batches of so many.
    Batches { batch: u64, group: u64 },
    /// The blocks of the order.
    Blocks(SampleBlocks),
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
    if !has_own_places(dataset.as_ref()) || samples < 2 {
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
    Arc::new(InRuns { inner: dataset, cut: Cut::Batches { batch, group }, most_bytes })
}

/// Reads each block of [`blocks_of_neighbours`] with one request. A dataset without such blocks, and one with blocks of
/// its own, is returned as it is; so is one whose samples may not have as many bytes as a block, which a storage then
/// would not read. `limit_bytes`: the maximum size of a sample.
pub fn in_blocks(dataset: Arc<dyn Dataset>, limit_bytes: u64) -> Arc<dyn Dataset> {
    if limit_bytes < MOST_RUN_BYTES {
        return dataset;
    }
    match blocks_of_neighbours(dataset.as_ref()) {
        Some(blocks) => {
            let cut = Cut::Blocks(blocks);
            Arc::new(InRuns { inner: dataset, cut, most_bytes: MOST_RUN_BYTES })
        }
        None => dataset,
    }
}

/// Blocks for an order in blocks of samples that can be read individually: neighbours in a file, of which most blocks
/// have several. `None`: too few neighbours are in one file, or samples of the format share blocks already. Scans the whole
/// index.
pub fn blocks_of_neighbours(dataset: &dyn Dataset) -> Option<SampleBlocks> {
    if !has_own_places(dataset) {
        return None;
    }
    let samples = dataset.sample_count();
    let (mut firsts, mut open) = (Vec::new(), None::<Run>);
    let (mut used, mut read, mut most) = (PageBytes::default(), PageBytes::default(), 0);
    let mut end = |run: Option<Run>| {
        if let Some(Run { start, end, .. }) = run {
            read.add(end - start, end - start);
            most = most.max(end - start);
        }
    };
    for number in 0..samples {
        let next = part_of_file(dataset, SampleId(number), MOST_RUN_BYTES).map(Run::of);
        if let Some(own) = next {
            used.add(own.end - own.start, own.end - own.start);
        }
        let longer = open.zip(next).and_then(|(run, next)| run.with(next, MOST_RUN_BYTES));
        if longer.is_none() {
            end(open);
            firsts.push(number);
        }
        open = longer.or(next);
    }
    end(open);
    // Single samples would be an exact shuffle of groups, which helps nobody.
    (2 * firsts.len() as u64 <= samples).then_some(SampleBlocks {
        firsts,
        most_bytes: most,
        scratch_per_thousand: 0,
        used_bytes: used.packed,
        alone: used,
        together: read,
    })
}

/// Whether the samples may have places of their own in files, rather than pages or blocks that they share.
fn has_own_places(dataset: &dyn Dataset) -> bool {
    !dataset.shares_units() && dataset.page_bytes().is_none()
}

/// The location of a sample that may be in a run.
fn own_location(dataset: &dyn Dataset, id: SampleId, most_bytes: u64) -> Option<Location> {
    let location = part_of_file(dataset, id, most_bytes)?;
    // Without a stamp it is not certain that the bytes between the samples exist.
    dataset.stamp(location.file).is_some().then_some(location)
}

/// The location of a sample that is a part of a file, of at most so many bytes.
fn part_of_file(dataset: &dyn Dataset, id: SampleId, most_bytes: u64) -> Option<Location> {
    let mut locations = Vec::with_capacity(1);
    dataset.locate(id, &mut locations);
    let &[location] = locations.as_slice() else { return None };
    let is_short = location.range.length.is_some_and(|length| length <= most_bytes);
    location.range.offset.checked_add(location.range.length?)?;
    (is_short && location.unit == Unit::Sample).then_some(location)
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

    /// The run from this sample to the last one, of so many.
    const fn with_end(self, last: Self, samples: u64) -> Self {
        Self { end: last.end, samples, ..self }
    }

    /// The position of a sample in it; `None`: it is the only one.
    fn place_of(self, own: Location) -> Option<InRun> {
        let Self { file, start, end, samples } = self;
        let range = ByteRange { offset: start, length: Some(end.checked_sub(start)?) };
        let run = Location { file, range, unit: Unit::Block(Transform::None) };
        (samples > 1).then_some(InRun { run, own: own.range })
    }
}

impl InRuns {
    /// The run of a sample; `None`: it is read individually.
    fn run_of(&self, id: SampleId) -> Option<InRun> {
        let own_location = |id| own_location(self.inner.as_ref(), id, self.most_bytes);
        let own = own_location(id)?;
        let samples = self.inner.sample_count();
        let (first, end) = match &self.cut {
            Cut::Batches { batch, group } => {
                let place = id.0 % batch;
                let first = id.0 - place % group;
                let end_of_batch = (id.0 - place).saturating_add(*batch);
                (first, first.saturating_add(*group).min(end_of_batch).min(samples))
            }
            Cut::Blocks(SampleBlocks { firsts, .. }) => {
                let next = firsts.partition_point(|first| *first <= id.0);
                let first = firsts.get(next.checked_sub(1)?)?;
                let end = firsts.get(next).copied().unwrap_or(samples);
                // A block is a run.
                let [start, last] = [*first, end - 1].map(|id| own_location(SampleId(id)));
                let ends = Run::of(start?).with_end(Run::of(last?), end - first);
                return ends.place_of(own);
            }
        };
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
        run?.place_of(own)
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

impl Layer for InRuns {
    type Inner = dyn Dataset;

    fn inner(&self) -> &Self::Inner {
        self.inner.as_ref()
    }

    fn locate(&self, id: SampleId, locations: &mut Vec<Location>) {
        match self.run_of(id) {
            Some(place) => locations.push(place.run),
            None => self.inner.locate(id, locations),
        }
    }

    fn locate_drawn(&self, id: SampleId, draw: u64, locations: &mut Vec<Location>) {
        match self.run_of(id) {
            Some(place) => locations.push(place.run),
            None => self.inner.locate_drawn(id, draw, locations),
        }
    }

    fn own_bytes(&self, id: SampleId, bytes: SampleBytes<'_>) -> u64 {
        self.run_of(id).and_then(|place| place.own.length).unwrap_or(bytes.length_bytes())
    }

    fn shares_units(&self) -> bool {
        true
    }

    fn blocks(&self) -> Option<SampleBlocks> {
        match &self.cut {
            Cut::Batches { .. } => self.inner.blocks(),
            Cut::Blocks(blocks) => Some(blocks.clone()),
        }
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

    /// A sample of a run is the same for every draw.
    fn read_drawn<'a>(
        &'a self,
        id: SampleId,
        draw: u64,
        bytes: SampleBytes<'a>,
        values: &mut Vec<FieldValue<'a>>,
    ) -> Result<(), Defect> {
        match self.run_of(id) {
            Some(_) => Layer::read(self, id, bytes, values),
            None => self.inner.read_drawn(id, draw, bytes, values),
        }
    }

    fn description(&self) -> Description {
        let mut description = self.inner.description();
        let text = match &self.cut {
            Cut::Batches { group, .. } => {
                format!("up to {group} neighbours by one request, since samples come in order")
            }
            Cut::Blocks(blocks) => {
                format!("the samples of a block by one request, {} in all", blocks.firsts.len())
            }
        };
        description.notes.push(("reads", text));
        description
    }
}

#[cfg(test)]
mod tests;

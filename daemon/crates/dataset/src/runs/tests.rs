use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::{Field, FieldKind};

/// Samples that are parts of objects, or whole objects.
#[derive(Debug, Clone)]
struct Parts {
    /// Object, offset, length; without a length: the whole object.
    parts: Vec<(u64, u64, Option<u64>)>,
    has_stamps: bool,
    fields: [Field; 1],
}

const OBJECT_BYTES: u64 = 64 << 10;
const LIMIT: u64 = 1 << 30;

impl Parts {
    fn new(parts: Vec<(u64, u64, Option<u64>)>) -> Self {
        let fields = [Field { name: "text".to_owned(), kind: FieldKind::Bytes }];
        Self { parts, has_stamps: true, fields }
    }

    /// `count` samples of `length` bytes, separated by `gap` bytes.
    fn row(count: u64, length: u64, gap: u64) -> Self {
        Self::new((0..count).map(|n| (0, n * (length + gap), Some(length))).collect())
    }

    fn in_runs(self, batch: u64) -> Arc<dyn Dataset> {
        in_runs(Arc::new(self), batch, LIMIT)
    }

    fn in_blocks(self) -> Arc<dyn Dataset> {
        in_blocks(Arc::new(self), LIMIT)
    }
}

impl FileTable for Parts {
    fn append_path(&self, file: FileId, path: &mut Vec<u8>) {
        path.extend_from_slice(file.0.to_string().as_bytes());
    }

    fn stamp(&self, _file: FileId) -> Option<ObjectStamp> {
        self.has_stamps.then(|| ObjectStamp::new(OBJECT_BYTES, Some("tag")))
    }
}

impl Dataset for Parts {
    fn sample_count(&self) -> u64 {
        self.parts.len() as u64
    }

    fn fields(&self) -> &[Field] {
        &self.fields
    }

    fn locate(&self, id: SampleId, locations: &mut Vec<Location>) {
        let (file, offset, length) = self.parts[usize::try_from(id.0).unwrap()];
        let range = ByteRange { offset, length };
        locations.push(Location { range, ..Location::whole(FileId(file)) });
    }

    fn read<'a>(
        &'a self,
        _id: SampleId,
        bytes: SampleBytes<'a>,
        values: &mut Vec<FieldValue<'a>>,
    ) -> Result<(), Defect> {
        values.push(FieldValue::Bytes(bytes.all().into()));
        Ok(())
    }

    fn fingerprint(&self) -> [u8; 32] {
        [0; 32]
    }
}

fn located(dataset: &dyn Dataset, id: u64) -> Location {
    let mut locations = Vec::new();
    dataset.locate(SampleId(id), &mut locations);
    assert_eq!(locations.len(), 1);
    locations[0]
}

/// The object's bytes at a location.
fn bytes_at(location: Location) -> Vec<u8> {
    let start = location.range.offset;
    let end = location.range.length.map_or(OBJECT_BYTES, |length| start + length);
    (start..end).map(|place| (place ^ (place >> 8) ^ location.file.0).to_le_bytes()[0]).collect()
}

/// The distinct locations that an epoch fetches.
fn fetched(dataset: &dyn Dataset) -> BTreeSet<(u64, u64, u64)> {
    let all = (0..dataset.sample_count()).map(|id| located(dataset, id));
    all.map(|at| (at.file.0, at.range.offset, at.range.length.unwrap_or(OBJECT_BYTES))).collect()
}

#[test]
fn neighbours_of_a_batch_are_read_together() {
    let runs = Parts::row(1000, 24, 0).in_runs(50);
    assert_eq!(fetched(runs.as_ref()).len(), 20);
    assert_eq!(located(runs.as_ref(), 60).range, ByteRange { offset: 1200, length: Some(1200) });
    // At most 64 samples of a long batch, and at most the maximum size of a run.
    assert_eq!(fetched(Parts::row(1000, 24, 0).in_runs(1000).as_ref()).len(), 16);
    assert_eq!(fetched(Parts::row(40, 100_000, 0).in_runs(20).as_ref()).len(), 4);
    // Small gaps are read.
    assert_eq!(fetched(Parts::row(40, 1000, MOST_GAP_BYTES).in_runs(20).as_ref()).len(), 4);
    assert_eq!(fetched(Parts::row(40, 1000, MOST_GAP_BYTES + 1).in_runs(20).as_ref()).len(), 40);
}

#[test]
fn samples_that_cannot_share_a_read_are_read_individually() {
    let is_left = |parts: Parts, batch: u64, limit: u64| {
        !in_runs(Arc::new(parts), batch, limit).shares_units()
    };
    assert!(!is_left(Parts::row(40, 1000, 0), 20, LIMIT));
    assert!(is_left(Parts::row(40, 1000, 0), 1, LIMIT), "batches of one");
    assert!(is_left(Parts::row(4, 600_000, 0), 4, LIMIT), "long ones");
    assert!(is_left(Parts::row(40, 1000, 0), 20, 1500), "no room below limits.sample_bytes");
    assert!(is_left(Parts { has_stamps: false, ..Parts::row(40, 1000, 0) }, 20, LIMIT));
    let objects = (0..40).map(|object| (object, 0, None)).collect();
    assert!(is_left(Parts::new(objects), 20, LIMIT), "whole objects");
}

#[test]
fn blocks_are_neighbours_in_a_file_of_bounded_size() {
    let firsts = |parts: Parts| {
        let blocks = blocks_of_neighbours(&parts)?;
        let same = parts.in_blocks().blocks();
        assert_eq!(same.as_ref(), Some(&blocks));
        Some(blocks.firsts)
    };
    assert_eq!(firsts(Parts::row(1000, 24, 0)), Some(vec![0]));
    assert_eq!(firsts(Parts::row(40, 100_000, 0)), Some(vec![0, 10, 20, 30]));
    assert_eq!(firsts(Parts::row(4, 600_000, 0)), None, "blocks of one sample");
    assert_eq!(firsts(Parts::row(40, 1000, MOST_GAP_BYTES + 1)), None, "far from each other");
    // Of another file, before its neighbour, without a length: each begins a block.
    let part = |file, offset| (file, offset, Some(10));
    let mut parts =
        vec![part(0, 0), part(0, 10), part(0, 30), part(1, 40), part(1, 50), part(1, 20)];
    parts.extend([part(1, 30), (2, 0, None), part(2, 0), part(2, 10)]);
    let parts = Parts::new(parts);
    assert_eq!(firsts(parts.clone()), Some(vec![0, 3, 5, 7, 8]));
    let blocks = blocks_of_neighbours(&parts).unwrap();
    assert_eq!((blocks.used_bytes, blocks.most_bytes, blocks.together.packed), (90, 40, 100));
    // The order is that of a storage that knows its objects, and the reads are not joined.
    let unstamped = Parts { has_stamps: false, ..parts };
    assert_eq!(blocks_of_neighbours(&unstamped).unwrap(), blocks);
    assert_eq!(located(unstamped.clone().in_blocks().as_ref(), 1), located(&unstamped, 1));
    let limited = in_blocks(Arc::new(Parts::row(40, 1000, 0)), MOST_RUN_BYTES - 1);
    assert!(!limited.shares_units(), "a storage would not read the block");
}

#[test]
fn run_of_the_wrong_length_is_a_defect() {
    let runs = Parts::row(40, 10, 0).in_runs(20);
    let bytes = vec![0; 199];
    let error = runs.read(SampleId(3), bytes.as_slice().into(), &mut Vec::new()).unwrap_err();
    assert!(error.0.contains("199 bytes were read of 200"), "{error:?}");
}

proptest! {
    #[test]
    fn every_sample_gets_its_bytes_and_runs_stay_within_a_batch(
        parts in prop::collection::vec((0..3_u64, 0..5_000_u64, prop::option::weighted(0.9, 0..3_000_u64)), 2..80),
        batch in 1..30_u64,
        is_sorted in any::<bool>(),
    ) {
        let mut parts = parts;
        if is_sorted {
            parts.sort_unstable();
        }
        let plain = Parts::new(parts);
        let in_blocks = plain.clone().in_blocks();
        let blocks = in_blocks.blocks().filter(|_| in_blocks.shares_units());
        for id in 0..plain.sample_count() {
            let (own, run) = (located(&plain, id), located(in_blocks.as_ref(), id));
            let (own_bytes, run_bytes) = (bytes_at(own), bytes_at(run));
            let mut values = Vec::new();
            in_blocks.read(SampleId(id), run_bytes.as_slice().into(), &mut values).unwrap();
            let [FieldValue::Bytes(found)] = values.as_slice() else { panic!("{values:?}") };
            prop_assert_eq!(found.as_ref(), own_bytes.as_slice());
            if let (Some(blocks), true) = (&blocks, run != own) {
                let block = |id| blocks.firsts.partition_point(|first| *first <= id);
                let same = (0..plain.sample_count()).filter(|other| located(in_blocks.as_ref(), *other) == run);
                prop_assert!(same.clone().all(|other| block(other) == block(id)) && same.count() > 1);
            }
        }
        let runs = plain.clone().in_runs(batch);
        for id in 0..plain.sample_count() {
            let (own, run) = (located(&plain, id), located(runs.as_ref(), id));
            prop_assert_eq!(runs.own_range(SampleId(id)), own.range);
            let (own_bytes, run_bytes) = (bytes_at(own), bytes_at(run));
            let bytes = SampleBytes::from(run_bytes.as_slice());
            let mut values = Vec::new();
            runs.read(SampleId(id), bytes, &mut values).unwrap();
            let [FieldValue::Bytes(found)] = values.as_slice() else { panic!("{values:?}") };
            prop_assert_eq!(found.as_ref(), own_bytes.as_slice());
            prop_assert_eq!(runs.own_bytes(SampleId(id), bytes), own_bytes.len() as u64);
            if run != own {
                prop_assert!(run.range.length.unwrap() <= MOST_RUN_BYTES);
                let same = (0..plain.sample_count()).filter(|other| located(runs.as_ref(), *other) == run);
                let batches: BTreeSet<u64> = same.map(|other| other / batch).collect();
                prop_assert_eq!(batches.len(), 1);
            }
        }
    }
}

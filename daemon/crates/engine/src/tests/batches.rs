//! Operations on complete batches: in order, exact for any number of threads; a failing operation ends the stream.

use super::*;
use forebay_dataset::Defect;
use forebay_keys::ConfigError;
use forebay_protocol::tensor::{DType, TensorSpec};
use forebay_transform::batch::BatchRow;

/// Adds a field with the sum of the batch's first elements.
#[derive(Debug)]
struct Sum;

/// Replaces the sum by a multiple of it plus the row's number.
#[derive(Debug)]
struct Number {
    times: u64,
}

/// Fails on a batch, or panics.
#[derive(Debug)]
struct Failing {
    panics: bool,
}

const STAGE: &str = "[[stage]]\nname = \"work\"\noperations = []\n";

fn word(row: &mut BatchRow<'_>, tensor: usize) -> u64 {
    u64::from_ne_bytes(*row.row.dense(tensor).first_chunk().unwrap())
}

impl BatchOperation for Sum {
    fn name(&self) -> &'static str {
        "sum"
    }

    fn arguments(&self) -> String {
        String::new()
    }

    fn declare(&mut self, tensors: &mut Vec<TensorSpec>) -> Result<(), ConfigError> {
        tensors.push(TensorSpec::dense("sum", DType::U64, &[]));
        Ok(())
    }

    fn run(&self, rows: &mut [BatchRow<'_>], _operation: u64) -> Result<(), Defect> {
        let sum: u64 = rows.iter_mut().map(|row| word(row, 0)).sum();
        rows.iter_mut().for_each(|row| row.row.dense(1).copy_from_slice(&sum.to_ne_bytes()));
        Ok(())
    }
}

impl BatchOperation for Number {
    fn name(&self) -> &'static str {
        "number"
    }

    fn arguments(&self) -> String {
        format!("times = {}", self.times)
    }

    fn declare(&mut self, _tensors: &mut Vec<TensorSpec>) -> Result<(), ConfigError> {
        Ok(())
    }

    fn run(&self, rows: &mut [BatchRow<'_>], _operation: u64) -> Result<(), Defect> {
        for (number, row) in (0..).zip(rows) {
            let value = self.times * word(row, 1) + number;
            row.row.dense(1).copy_from_slice(&value.to_ne_bytes());
        }
        Ok(())
    }
}

impl BatchOperation for Failing {
    fn name(&self) -> &'static str {
        "failing"
    }

    fn arguments(&self) -> String {
        String::new()
    }

    fn declare(&mut self, _tensors: &mut Vec<TensorSpec>) -> Result<(), ConfigError> {
        Ok(())
    }

    fn run(&self, rows: &mut [BatchRow<'_>], _operation: u64) -> Result<(), Defect> {
        assert!(!self.panics, "a test's operation panics");
        Err(Defect(format!("{} rows", rows.len())))
    }
}

#[test]
fn batch_operations_run_once_and_in_order_on_any_number_of_threads() {
    for threads in [1, 4] {
        on_engine_thread(|| async move {
            let folder = tempfile::tempdir().unwrap();
            let stream = open_stream_with(
                folder.path(),
                false,
                STAGE,
                vec![Box::new(Sum), Box::new(Number { times: 10 })],
            );
            let engine = start_pool(&stream, 1 << 20, PoolOptions { threads, ..pool() });
            let mut client = Client::attach(&engine, false);
            // Every slot is used several times.
            for batch in 0..4 * SAMPLES / 8 {
                let taken = client.next().await;
                let base = client.terms.slot_bytes * u64::from(taken.slot.0);
                let start = batch * 8 % SAMPLES;
                let sum: u64 = (start..start + 8).sum();
                for row in 0..8 {
                    let at = (base + taken.tensors[1].offset_bytes) / 8 + row;
                    let value = client.data.word(usize::try_from(at).unwrap());
                    let value = value.load(forebay_protocol::sync::Ordering::Relaxed);
                    assert_eq!(value, 10 * sum + row, "row {row} of batch {batch}");
                }
                client.give_back(&taken);
            }
            // They are counted by batch, separately from the stages.
            let report = engine.borrow().report();
            let figures = report.streams[0].batch_operations.as_ref().unwrap();
            assert!(figures.num_tasks >= 4 * SAMPLES / 8, "{figures:?}");
            assert_eq!((figures.name.as_str(), figures.num_failures), ("batch.operations", 0));
        });
    }
}

#[test]
fn batch_operations_are_part_of_the_streams_fingerprint() {
    let folder = tempfile::tempdir().unwrap();
    let print = |operations: Vec<Box<dyn BatchOperation>>| {
        open_stream_with(folder.path(), false, STAGE, operations).config_fingerprint
    };
    let prints = [
        print(Vec::new()),
        print(vec![Box::new(Sum)]),
        print(vec![Box::new(Sum), Box::new(Number { times: 10 })]),
        print(vec![Box::new(Sum), Box::new(Number { times: 11 })]),
    ];
    for (place, print) in prints.iter().enumerate() {
        assert!(!prints[..place].contains(print), "{place}");
    }
    assert_eq!(print(vec![Box::new(Sum), Box::new(Number { times: 10 })]), prints[2]);
}

#[test]
fn stage_benchmark_runs_batch_operations() {
    let folder = tempfile::tempdir().unwrap();
    let stream = open_stream_with(folder.path(), false, STAGE, vec![Box::new(Sum)]);
    let mut alone = StageBenchmark::new(&stream, 2);
    alone.keep_inputs().unwrap();
    for threads in [1, 2] {
        let run = alone.batches(threads).unwrap();
        assert!(run.samples > 0 && run.samples.is_multiple_of(8), "{run:?}");
        assert!(run.concurrency == threads && run.seconds > 0.0, "{run:?}");
    }
    let failing = vec![Box::new(Failing { panics: false }) as Box<dyn BatchOperation>];
    let stream = open_stream_with(folder.path(), false, STAGE, failing);
    let mut alone = StageBenchmark::new(&stream, 2);
    alone.keep_inputs().unwrap();
    assert!(alone.batches(1).unwrap_err().contains("`failing`: 8 rows"));
}

#[test]
fn failing_batch_operation_ends_the_stream_with_its_name() {
    for (panics, expected) in [
        (false, "batch operation `failing`: 8 rows"),
        (true, "a batch operation panicked on batch 0"),
    ] {
        on_engine_thread(|| async move {
            let folder = tempfile::tempdir().unwrap();
            let stream = open_stream_with(
                folder.path(),
                false,
                STAGE,
                vec![Box::new(Sum), Box::new(Failing { panics })],
            );
            let engine = start_pool(&stream, 1 << 20, PoolOptions { threads: 2, ..pool() });
            let mut client = Client::attach(&engine, false);
            let fault = client.fault().await;
            assert!(fault.contains(expected), "{fault}");
            engine.borrow_mut().detach(client.number, &SessionEnd::ClientLeft);
        });
    }
}

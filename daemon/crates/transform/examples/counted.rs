//! Runs one of the innermost loops N times, for `scripts/count-instructions`, which counts its instructions.
//!
//! `counted KERNEL N`. The work before the loop does not depend on N, so two counts with different N give the
//! instructions of one round.

#[path = "support/in_memory.rs"]
mod in_memory;

use std::error::Error;
use std::hint::black_box;
use std::sync::Arc;

use forebay_order::{Dealing, DrawKey, Last, Schedule};
use forebay_protocol::ids::{BatchNumber, Generation, Position, SampleId, SlotIndex};
use forebay_protocol::publish::{
    Descriptor, PublishReader, PublishWriter, TensorEntry, publish_words,
};
use forebay_protocol::returns::{ReturnReader, ReturnWord, ReturnWriter, return_words};
use forebay_protocol::tensor::{DType, MAX_RANK};
use forebay_protocol::words::HeapWords;
use forebay_transform::{SamplePlan, SampleTask, WorkerScratch};
use in_memory::{InMemory, OneRow};

/// A photograph-like page of 1368 × 1048 pixels.
const PICTURE: &[u8] = include_bytes!("../../../../docs/operations.jpg");

const DECODE: &str = r#"
stage = [{ name = "decode", operations = [{ op = "decode-image" }, { op = "center-crop", size = [1048, 1368] }] }]
"#;
const RESIZE: &str = r#"
stage = [{ name = "decode", operations = [{ op = "decode-image" }, { op = "resize", size = [224, 224] }] }]
"#;
const TRAIN: &str = r#"
stage = [{ name = "decode", operations = [
    { op = "decode-image" }, { op = "random-resized-crop", size = [224, 224] }, { op = "random-horizontal-flip" },
] }]
output.image = { dtype = "float32", layout = "NCHW", mean = [0.485, 0.456, 0.406], std = [0.229, 0.224, 0.225] }
"#;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [kernel, rounds] = arguments.as_slice() else { return Err("KERNEL N".into()) };
    let rounds = rounds.parse()?;
    match kernel.as_str() {
        "decode" => run_plan(DECODE, rounds),
        "resize" => run_plan(RESIZE, rounds),
        "train" => run_plan(TRAIN, rounds),
        "order" => run_order(rounds),
        "ring" => run_ring(rounds),
        _ => Err("the kernels are decode, resize, train, order, ring".into()),
    }
}

/// Runs the operations on the picture, each round with other draws.
fn run_plan(config: &str, rounds: u64) -> Result<(), Box<dyn Error>> {
    let config = forebay_config::plain_config::plain_config(config);
    let dataset = InMemory::images();
    let plan = SamplePlan::compile(&config, &dataset)?;
    let row_bytes = plan.tensors()[0].row_pitch_bytes().ok_or("a row that large")?;
    let mut row = OneRow(vec![0; usize::try_from(row_bytes)?]);
    let mut scratch = WorkerScratch::default();
    for sample in 0..rounds {
        let key = DrawKey { seed: 1, epoch: 0, sample };
        let mut task = SampleTask::new(SampleId(sample), key, PICTURE.to_vec());
        plan.run(0, &mut task, &dataset, &mut row, &mut scratch)?;
        black_box(&row.0);
    }
    Ok(())
}

/// Plans batches of 256 rows of a shuffled epoch of 1.28 M samples.
fn run_order(rounds: u64) -> Result<(), Box<dyn Error>> {
    let dealing =
        Dealing { seed: 1, is_shuffled: true, epochs: None, batch_size: 256, last: Last::Drop };
    let schedule = Schedule::new(1_281_167, dealing, 0, 8)?;
    let order = schedule.epoch(0);
    for batch in 0..rounds {
        let position = Position { epoch: 0, samples: batch * 256 * 8 };
        let batch = schedule.batch_at(position).ok_or("an epoch of more batches")?;
        for row in batch.rows.iter(&order) {
            black_box(row);
        }
    }
    Ok(())
}

/// Publishes, takes and returns batches of two tensors, in one thread.
fn run_ring(rounds: u64) -> Result<(), Box<dyn Error>> {
    const SLOTS: u16 = 4;
    let tensor = TensorEntry {
        dtype: DType::F32,
        ragged: false,
        offset_bytes: 0,
        length_bytes: 1 << 20,
        table_offset_bytes: 0,
        rank: 4,
        dims: std::array::from_fn::<u64, { MAX_RANK }, _>(|axis| u64::from(axis < 4)),
    };
    let publish = Arc::new(HeapWords::new(publish_words(SLOTS, 2)));
    let back = Arc::new(HeapWords::new(return_words(SLOTS)));
    let mut writer = PublishWriter::new(Arc::clone(&publish), SLOTS, 2);
    let mut returned = ReturnReader::new(Arc::clone(&back), SLOTS);
    let reader = PublishReader::new(publish)?;
    let mut client = ReturnWriter::new(back, SLOTS);
    for number in 0..rounds {
        let slot = SlotIndex(u16::try_from(number % u64::from(SLOTS))?);
        let generation = Generation(1 + number / u64::from(SLOTS));
        writer.publish(&Descriptor {
            sequence: BatchNumber(number),
            slot,
            generation,
            payload_bytes: 2 << 20,
            epoch: 0,
            position_after: Position { epoch: 0, samples: number + 1 },
            seek_serial: 0,
            rows: 1,
            substitutes: 0,
            batches_after: 0,
            last_of_epoch: false,
            replayed: false,
            tensors: vec![tensor; 2],
        });
        black_box(reader.read(number)?);
        client.give_back(ReturnWord { slot, generation }, &reader);
        black_box(returned.take_return().map_err(|_| "the return ring is overrun")?);
    }
    Ok(())
}

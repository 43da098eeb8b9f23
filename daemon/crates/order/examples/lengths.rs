//! What batches by length cost: the share of padding, how close the ranks of a step are, how full batches are, and the
//! time to plan a pool and to count an epoch. `scripts/bench/lengths` runs it.
//!
//! Lengths are log-normal: a median and a shape as arguments, cut off at the budget.

use std::error::Error;
use std::sync::Arc;
use std::time::Instant;

use forebay_order::{ByLength, Dealing, DrawKey, Draws, Last, Schedule, Selection};
use forebay_protocol::ids::Position;

const BUDGET: u64 = 16_384;
const SAMPLES: u64 = 1_000_000;

fn main() -> Result<(), Box<dyn Error>> {
    println!(
        "budget {BUDGET}, {SAMPLES} samples, log-normal lengths; ranks: greatest / least cost of a step"
    );
    println!("median shape    pool ranks   steps padding    fill  ranks median   p90   count s");
    for (median, shape) in [(400.0, 0.8), (400.0, 1.2), (60.0, 0.6)] {
        let lengths: Arc<[u32]> = (0..SAMPLES).map(|id| length(id, median, shape)).collect();
        for pool in [16_384, 65_536] {
            for world_size in [1, 8, 64] {
                line(&lengths, (median, shape), pool, world_size)?;
            }
        }
    }
    Ok(())
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped")]
fn length(sample: u64, median: f64, shape: f64) -> u32 {
    let mut draws = Draws::new(DrawKey { seed: 1, epoch: 0, sample }, 0);
    // The sum of twelve uniform numbers is nearly normal.
    let sum: f64 = (0..12).map(|_| draws.uniform()).sum();
    ((sum - 6.0) * shape + median.ln()).exp().clamp(1.0, BUDGET as f64) as u32
}

fn line(
    lengths: &Arc<[u32]>,
    (median, shape): (f64, f64),
    pool: u64,
    world_size: u32,
) -> Result<(), Box<dyn Error>> {
    let by_length = Arc::new(ByLength::new(Arc::clone(lengths), pool, BUDGET, 1, 4096));
    let dealing =
        Dealing { seed: 1, is_shuffled: true, epochs: None, batch_size: 1, last: Last::Drop };
    let ranks = (0..world_size)
        .map(|rank| {
            let selection = Selection::Once(SAMPLES);
            Schedule::by_length(selection, dealing, rank, world_size, Arc::clone(&by_length))
        })
        .collect::<Result<Vec<_>, _>>()?;
    let begin = Instant::now();
    let steps = ranks[0].batches_of(0);
    let seconds = begin.elapsed().as_secs_f64();
    let order = ranks[0].epoch(0);
    let (mut padded, mut full, mut fills, mut spreads) = (0, 0, 0.0, Vec::new());
    let mut position = Position::default();
    while position.epoch == 0 {
        let (mut most, mut least) = (0, u64::MAX);
        let mut after = position;
        for rank in &ranks {
            let batch = rank.batch_at(position).ok_or("an epoch without an end")?;
            let lengths = batch.rows.iter(&order).map(|row| by_length.length(row.sample.0));
            let (longest, sum) = lengths.fold((0, 0), |(longest, sum), length| {
                (length.max(longest), sum + u64::from(length))
            });
            let cost = u64::from(longest) * u64::from(batch.rows.len());
            (most, least) = (cost.max(most), cost.min(least));
            (padded, full) = (padded + cost, full + sum);
            fills += cost as f64 / BUDGET as f64;
            after = batch.position_after;
        }
        spreads.push(most as f64 / least as f64);
        position = after;
    }
    spreads.sort_by(f64::total_cmp);
    let quantile = |share: usize| spreads[(spreads.len() - 1) * share / 100];
    println!(
        "{median:6} {shape:5} {pool:7} {world_size:5} {steps:7} {:6.2} % {:5.1} % {:13.3} {:5.3} {seconds:9.2}",
        100.0 * (1.0 - full as f64 / padded as f64),
        100.0 * fills / (spreads.len() * ranks.len()) as f64,
        quantile(50),
        quantile(90),
    );
    Ok(())
}

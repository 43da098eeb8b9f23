//! How long a thread that deals batches by length is held up, with ten million samples in pools of 65,536: where it plans
//! pools and counts epochs itself, and where threads do so ahead of it. Prints milliseconds.

use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_order::{ByLength, Dealing, DrawKey, Draws, Last, Schedule, Selection};
use forebay_protocol::ids::Position;

const SAMPLES: u64 = 10_000_000;
const POOL: u64 = 65_536;
const BUDGET: u64 = 16_384;
/// So many pools are dealt.
const POOLS: u64 = 12;

fn main() -> Result<(), Box<dyn Error>> {
    let lengths: Arc<[u32]> = (0..SAMPLES).map(length).collect();
    for is_ahead in [false, true] {
        let by_length = Arc::new(ByLength::new(Arc::clone(&lengths), POOL, BUDGET, 1, 4096));
        let dealing =
            Dealing { seed: 1, is_shuffled: true, epochs: None, batch_size: 1, last: Last::Drop };
        let schedule = Schedule::by_length(Selection::Once(SAMPLES), dealing, 0, 8, by_length)?;
        if is_ahead {
            // As an attach is prepared.
            schedule.prepare(Position::default(), &[]);
        }
        let (first, longest) = deal(&schedule, is_ahead)?;
        let who = if is_ahead { "planned ahead" } else { "planned where it is used" };
        println!("{who}: the first batch {first:.3} ms, the longest of the others {longest:.3} ms");
    }
    Ok(())
}

/// A length of 1 to 1,000; most are short.
fn length(sample: u64) -> u32 {
    let mut draws = Draws::new(DrawKey { seed: 1, epoch: 0, sample }, 0);
    let longest = 1_000 / (1 + draws.next_u64() % 4);
    u32::try_from(1 + draws.next_u64() % longest).unwrap_or(1)
}

/// The milliseconds that the first batch takes, and the most that another one takes.
fn deal(schedule: &Schedule, is_ahead: bool) -> Result<(f64, f64), Box<dyn Error>> {
    let milliseconds = |time: Duration| time.as_secs_f64() * 1e3;
    let (mut first, mut longest) = (None, 0.0_f64);
    let mut position = Position::default();
    while position.samples < POOLS * POOL {
        if is_ahead {
            while let Some(pool) = schedule.pool_to_plan(position) {
                std::thread::spawn(move || pool.plan());
            }
            // The engine thread does something else meanwhile.
            while !schedule.is_planned(position) {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        let begun = Instant::now();
        let batch = schedule.batch_at(position).ok_or("an epoch without an end")?;
        schedule.batches_left(batch.position_after);
        let took = milliseconds(begun.elapsed());
        match first {
            None => first = Some(took),
            Some(_) => longest = longest.max(took),
        }
        position = batch.position_after;
    }
    Ok((first.unwrap_or(0.0), longest))
}

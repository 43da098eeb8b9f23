//! The longest pause of a thread that deals batches by length of ten million samples: with pools planned by threads
//! ahead of it, and without. Prints milliseconds.

use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_order::{ByLength, Dealing, DrawKey, Draws, Last, Schedule, Selection};
use forebay_protocol::ids::Position;

const BUDGET: u64 = 16_384;
const SAMPLES: u64 = 10_000_000;
const POOL: u64 = 65_536;
/// The time that the batches of a pool take.
const POOL_TIME: Duration = Duration::from_millis(200);

fn main() -> Result<(), Box<dyn Error>> {
    let length = |sample| {
        let draws = &mut Draws::new(DrawKey { seed: 1, epoch: 0, sample }, 0);
        1 + (draws.next_u64() % 1_000) as u32 / (1 + (draws.next_u64() % 4) as u32)
    };
    let lengths: Arc<[u32]> = (0..SAMPLES).map(length).collect();
    for is_ahead in [false, true] {
        let by_length = Arc::new(ByLength::new(Arc::clone(&lengths), POOL, BUDGET, 1, 4096));
        let dealing =
            Dealing { seed: 1, is_shuffled: true, epochs: None, batch_size: 1, last: Last::Drop };
        let schedule = Schedule::by_length(Selection::Once(SAMPLES), dealing, 0, 8, by_length)?;
        let (mut longest, mut position) = (Duration::ZERO, Position::default());
        let mut first = Duration::ZERO;
        for pool in 0..20 {
            let end = Position { epoch: 0, samples: (pool + 1) * POOL };
            while position < end {
                if is_ahead {
                    while let Some(pool) = schedule.pool_to_plan(position) {
                        let plan = std::thread::spawn(move || pool.plan());
                        if position == Position::default() {
                            plan.join().map_err(|_| "a plan has panicked")?;
                        }
                    }
                    if schedule.should_count(0) {
                        let schedule = schedule.clone();
                        std::thread::spawn(move || schedule.batches_of(0))
                            .join()
                            .map_err(|_| "a count")?;
                    }
                    while !schedule.is_planned(position) {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                }
                let begun = Instant::now();
                let batch = schedule.batch_at(position).ok_or("an epoch without an end")?;
                schedule.batches_left(batch.position_after);
                let took = begun.elapsed();
                if position == Position::default() {
                    first = took
                } else {
                    longest = longest.max(took)
                }
                position = batch.position_after;
            }
            std::thread::sleep(if is_ahead { POOL_TIME } else { Duration::ZERO });
        }
        let name = if is_ahead { "planned ahead" } else { "planned where it is used" };
        println!(
            "{name}: the first batch {:.3} ms, the longest of the others {:.3} ms",
            first.as_secs_f64() * 1e3,
            longest.as_secs_f64() * 1e3
        );
    }
    Ok(())
}

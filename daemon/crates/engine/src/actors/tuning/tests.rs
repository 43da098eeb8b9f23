//! The rule and its steps over synthetic rows: a simulation answers with the rows that the limits would have processed.

use std::time::Duration;

use crate::actors::tuning::*;

/// A stage with a row's microseconds on a core and asleep.
#[derive(Clone, Copy)]
struct Stage {
    on_core_us: u64,
    asleep_us: u64,
    limit: u32,
    is_auto: bool,
}

fn auto(on_core_us: u64, asleep_us: u64) -> Stage {
    Stage { on_core_us, asleep_us, limit: 2, is_auto: true }
}

const TWO_CORES: Resources = Resources { cores: 2.0, max_threads: 32, rings_have_room: true };

/// The limits after each of `updates` updates.
fn run(stages: &mut [Stage], resources: Resources, updates: u64) -> Vec<Vec<u32>> {
    let mut tuner = Tuner::default();
    let mut history = Vec::new();
    for update in 1..=updates {
        let seen: Vec<StageSeen> = stages
            .iter()
            .map(|stage| {
                let rows = update * 100;
                // A measurement error of a few percent in both directions.
                let error = 97 + (update * 7) % 7;
                StageSeen {
                    limit: stage.limit,
                    is_auto: stage.is_auto,
                    total: Cost {
                        rows,
                        cpu: Duration::from_micros(rows * stage.on_core_us),
                        asleep: Duration::from_micros(rows * stage.asleep_us * error / 100),
                    },
                    occupancy: 1.0,
                }
            })
            .collect();
        let limits = tuner.update(&seen, resources);
        for (stage, limit) in stages.iter_mut().zip(&limits) {
            stage.limit = *limit;
        }
        assert!(!tuner.why(0).is_empty());
        history.push(limits);
    }
    history
}

#[test]
fn compute_bound_stage_gets_the_cores() {
    assert!(run(&mut [auto(900, 0)], TWO_CORES, 40).iter().all(|limits| limits == &[2]));
}

#[test]
fn compute_bound_stages_share_the_cores_by_their_cost() {
    let eight = Resources { cores: 8.0, ..TWO_CORES };
    let mut stages = [auto(900, 0), auto(300, 0)];
    stages.iter_mut().for_each(|stage| stage.limit = 8);
    assert_eq!(run(&mut stages, eight, 40).last().unwrap(), &[6, 2]);
}

#[test]
fn sleeping_stage_gets_more_threads_than_cores_and_settles() {
    // One row in a hundred sleeps 50 times a row's time: half a row's time on average.
    let history = run(&mut [auto(1000, 500)], TWO_CORES, 60);
    assert_eq!(history.last().unwrap(), &[5], "2 on a core, 1 asleep, and twice its spread");
    let changes = history.windows(2).filter(|pair| pair[0] != pair[1]).count();
    assert!(changes <= 2, "{history:?}");
    let history = run(&mut [auto(10, 25_000)], TWO_CORES, 60);
    assert_eq!(history.last().unwrap(), &[32], "the bound");
    assert!(history.windows(2).all(|pair| pair[1][0] <= pair[0][0] * 2));
}

#[test]
fn fixed_stage_keeps_its_threads_and_limits_the_others() {
    let mut fixed = auto(0, 10_000);
    (fixed.limit, fixed.is_auto) = (1, false);
    let mut stages = [fixed, auto(1000, 0)];
    stages[1].limit = 4;
    assert_eq!(run(&mut stages, TWO_CORES, 40).last().unwrap(), &[1, 1]);
}

#[test]
fn full_ring_or_empty_queue_raises_no_stage() {
    let full = Resources { rings_have_room: false, ..TWO_CORES };
    assert_eq!(run(&mut [auto(10, 25_000)], full, 20).last().unwrap(), &[2]);
}

#[test]
fn limit_below_one_core_leaves_one_thread() {
    let part = Resources { cores: 0.4, ..TWO_CORES };
    assert_eq!(run(&mut [auto(1000, 0)], part, 40).last().unwrap(), &[1]);
}

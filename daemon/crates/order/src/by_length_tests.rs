//! Every sample once per epoch over all ranks, equal steps, counts that are exact, and a continuation with other cuts
//! anywhere.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use forebay_protocol::ids::SampleId;
use forebay_select::Subset;
use proptest::prelude::*;

use super::*;
use crate::{Dealing, Drawn, Last, PlannedRow, Schedule, Selection};

const SEED: u64 = 7;

/// What batches are made of.
#[derive(Debug, Clone)]
struct Case {
    lengths: Vec<u32>,
    pool: u64,
    budget: u64,
    last: Last,
}

impl Case {
    fn by_length(&self, budget: u64) -> Arc<ByLength> {
        Arc::new(ByLength::new(self.lengths.clone().into(), self.pool, budget, 4, 16))
    }

    fn world(&self, world_size: u32, budget: u64) -> Vec<Schedule> {
        let by_length = self.by_length(budget);
        let dealing = Dealing {
            seed: SEED,
            is_shuffled: true,
            epochs: Some(3),
            batch_size: 16,
            last: self.last,
        };
        let selection = Selection::Once(self.lengths.len() as u64);
        let rank = |rank| {
            let by_length = Arc::clone(&by_length);
            Schedule::by_length(selection.clone(), dealing, rank, world_size, by_length).unwrap()
        };
        (0..world_size).map(rank).collect()
    }
}

fn cases() -> impl Strategy<Value = Case> {
    let lengths = prop::collection::vec(prop_oneof![0u32..200, 0u32..20, 90u32..110], 12..150);
    let last = prop_oneof![Just(Last::Drop), Just(Last::Pad)];
    let pool = prop_oneof![12u64..60, Just(1_000)];
    (lengths, pool, 150u64..800, last).prop_map(|(lengths, pool, budget, last)| Case {
        lengths,
        pool,
        budget,
        last,
    })
}

/// The rows that a world delivers from a position, at most `limit` steps and to the epoch's end, the position reached,
/// and the number of steps.
fn deliver(
    ranks: &[Schedule],
    from: Position,
    limit: u64,
    budget: u64,
) -> (Vec<PlannedRow>, Position, u64) {
    let (mut rows, mut position, mut steps) = (Vec::new(), from, 0);
    let order = ranks[0].epoch(from.epoch);
    while position.epoch == from.epoch && steps < limit {
        let mut after = None;
        for rank in ranks {
            let left = rank.batches_left(position);
            let batch = rank.batch_at(position).unwrap();
            assert!(!batch.rows.is_empty() && left > 0);
            assert_eq!(*after.get_or_insert(batch.position_after), batch.position_after);
            assert_eq!(batch.last_of_epoch, batch.position_after.epoch > from.epoch);
            assert_eq!((batch.last_of_rank, batch.last_of_epoch), (left == 1, left == 1));
            if !batch.last_of_epoch {
                assert_eq!(rank.batches_left(batch.position_after), left - 1);
            }
            assert_eq!(rank.normalise(batch.position_after).unwrap(), batch.position_after);
            let batch: Vec<_> = batch.rows.iter(&order).collect();
            let by_length = &rank.by_length.as_ref().unwrap().of;
            let length =
                |row: &PlannedRow| u64::from(by_length.length(row.sample.0)).next_multiple_of(4);
            let longest = batch.iter().map(length).max().unwrap();
            assert!(batch.len() <= 16);
            assert!(batch.len() == 1 || batch.len() as u64 * longest <= budget);
            rows.extend(batch);
        }
        position = after.unwrap();
        steps += 1;
    }
    (rows, position, steps)
}

fn distinct(rows: &[PlannedRow]) -> Vec<u64> {
    let mut ids: Vec<u64> = rows.iter().filter(|row| row.valid).map(|row| row.sample.0).collect();
    ids.sort_unstable();
    let count = ids.len();
    ids.dedup();
    assert_eq!(ids.len(), count, "a sample is repeated");
    ids
}

proptest! {
    #[test]
    fn every_sample_occurs_once_per_epoch(case in cases(), world_size in 1u32..6, epoch in 0u64..3) {
        let ranks = case.world(world_size, case.budget);
        let start = Position { epoch, samples: 0 };
        let (rows, end, steps) = deliver(&ranks, start, u64::MAX, case.budget);
        prop_assert_eq!(end, Position { epoch: epoch + 1, samples: 0 });
        prop_assert_eq!(steps, ranks[0].batches_of(epoch));
        prop_assert_eq!(steps, ranks[0].batches_left(start));
        let ids = distinct(&rows);
        let left_out = ranks[0].left_out_by_length(epoch);
        prop_assert_eq!(ids.len() as u64 + left_out, case.lengths.len() as u64);
        let padding = rows.iter().filter(|row| !row.valid).count() as u64;
        prop_assert_eq!(padding, ranks[0].padding_by_length(epoch));
        prop_assert!(case.last == Last::Pad || padding == 0);
        prop_assert!(case.last == Last::Drop || left_out == 0);
    }

    #[test]
    fn other_worlds_and_budgets_continue_anywhere(
        case in cases(),
        runs in prop::collection::vec((1u32..5, 150u64..800, 0u64..6), 1..6),
    ) {
        let case = Case { last: Last::Pad, ..case };
        let (mut position, mut cuts) = (Position::default(), Vec::new());
        let (mut rows, mut steps_so_far) = (Vec::new(), 0);
        for (number, (world_size, budget, steps)) in runs.iter().enumerate() {
            let steps = if number + 1 == runs.len() { u64::MAX } else { *steps };
            let ranks: Vec<_> = case
                .world(*world_size, *budget)
                .iter()
                .map(|rank| rank.beginning_at(position, &cuts).unwrap())
                .collect();
            prop_assert!(ranks.iter().all(|(_, at)| *at == position));
            let ranks: Vec<_> = ranks.into_iter().map(|(rank, _)| rank).collect();
            let (more, after, done) = deliver(&ranks, position, steps, *budget);
            rows.extend(more);
            steps_so_far += done;
            cuts = ranks[0].pools().unwrap().chain_at(after, (position, &cuts));
            position = after;
            if position.epoch > 0 {
                if case.pool >= case.lengths.len() as u64 {
                    prop_assert_eq!(steps_so_far, ranks[0].batches_of(0));
                }
                break;
            }
        }
        if position.epoch > 0 {
            prop_assert_eq!(distinct(&rows).len(), case.lengths.len());
        } else {
            distinct(&rows);
        }
    }

    #[test]
    fn saved_position_continues_as_the_run_would_have(
        case in cases(), world_size in 1u32..5, before in 0u64..8,
    ) {
        let ranks = case.world(world_size, case.budget);
        let (_, at, _) = deliver(&ranks, Position::default(), before, case.budget);
        let expected = deliver(&ranks, at, u64::MAX, case.budget);
        let cuts = ranks[0].pools().unwrap().chain_at(at, (Position::default(), &[]));
        for cuts in [&cuts[..], &[]] {
            let resumed: Vec<_> =
                ranks.iter().map(|rank| rank.beginning_at(at, cuts).unwrap().0).collect();
            prop_assert_eq!(&deliver(&resumed, at, u64::MAX, case.budget), &expected);
            prop_assert_eq!(resumed[0].batches_of(at.epoch), ranks[0].batches_of(at.epoch));
        }
    }
}

fn case() -> Case {
    let lengths = (0..200).map(|id| 1 + id * 37 % 90).collect();
    Case { lengths, pool: 50, budget: 300, last: Last::Drop }
}

#[test]
fn padding_of_a_later_pool_does_not_depend_on_how_the_first_was_begun() {
    // Rows that fill a batch, so that a pool of 50 leaves 2 for 3 ranks.
    let case = Case { lengths: vec![200; 150], pool: 50, budget: 200, last: Last::Pad };
    let before = case.world(2, case.budget);
    let (_, at, _) = deliver(&before, Position::default(), 3, case.budget);
    let cuts = before[0].pools().unwrap().chain_at(at, (Position::default(), &[]));
    let fresh = case.world(3, case.budget);
    let with_cuts: Vec<_> =
        fresh.iter().map(|rank| rank.beginning_at(at, &cuts).unwrap().0).collect();
    let second = Position { epoch: 0, samples: fresh[0].pools().unwrap().start_of(1) };
    let rows = |ranks: &[Schedule]| deliver(ranks, second, u64::MAX, case.budget).0;
    let expected = rows(&fresh);
    assert!(expected.iter().filter(|row| !row.valid).count() > 1);
    assert_eq!(rows(&with_cuts), expected);
}

#[test]
fn positions_inside_a_step_are_refused() {
    let case = case();
    let ranks = case.world(2, case.budget);
    let (_, after, _) = deliver(&ranks, Position::default(), 1, case.budget);
    let inside = Position { epoch: 0, samples: after.samples - 1 };
    let refusal = |position, cuts: &[Cut]| ranks[0].beginning_at(position, cuts).unwrap_err();
    let error = refusal(inside, &[]);
    assert_eq!(error, OrderError::BetweenSteps { samples: inside.samples, epoch: 0 });
    assert!(ranks[0].beginning_at(after, &[]).is_ok());
    let cut = ranks[0].pools().unwrap().cut;
    let other = Cut { world_size: 3, ..cut };
    assert!(matches!(refusal(after, &[other]), OrderError::BetweenSteps { .. }));
    for cuts in [
        vec![cut.starting_at(1)],
        vec![cut, cut.starting_at(after.samples + 1)],
        vec![Cut { world_size: 0, ..cut }],
    ] {
        assert!(matches!(refusal(after, &cuts), OrderError::WrongCuts { .. }), "{cuts:?}");
    }
    let many: Vec<_> = (0..65).map(|from| Cut { budget: from, ..cut.starting_at(from) }).collect();
    let far = Position { epoch: 0, samples: 90 };
    let one_pool = Case { pool: 200, ..case.clone() }.world(2, case.budget);
    let error = one_pool[0].beginning_at(far, &many[..64]).unwrap_err();
    assert!(matches!(error, OrderError::TooManyCuts { .. }));
    let past = Position { epoch: 0, samples: 201 };
    assert!(matches!(refusal(past, &[]), OrderError::BehindTheEpoch { .. }));
    let plans = || ranks[0].by_length.as_ref().unwrap().of.kept().plans.len();
    let before = plans();
    let late = Position { epoch: u64::MAX, samples: 1 };
    assert_eq!(refusal(late, &[]), OrderError::EpochTooLarge { epoch: u64::MAX });
    assert_eq!(plans(), before, "nothing is planned for it");
}

#[test]
fn work_for_a_chain_is_bounded() {
    // A pool of 3 Mi samples: two cuts are too many, one is not.
    let samples: u32 = 3 << 20;
    let case = Case { lengths: vec![1; samples as usize], pool: samples.into(), ..case() };
    let ranks = case.world(2, case.budget);
    let Pools { cut, .. } = ranks[0].pools().unwrap();
    let begun = |position: u64, cuts: &[Cut]| {
        let batches = ranks[0].by_length.as_ref().unwrap();
        batches.begin(Position { epoch: 0, samples: position }, cuts).map(|begun| begun.begun)
    };
    assert!(begun(32, &[cut]).unwrap().is_some());
    let other = Cut { world_size: 3, ..cut };
    let error = begun(48, &[other]).unwrap_err();
    let expected = OrderError::CutsTooLong { samples: 48, epoch: 0, cuts: 2, pool: samples.into() };
    assert_eq!(error, expected);
    assert!(error.to_string().contains("at most 4194304"), "{error}");
    // At a border of pools there is nothing to find.
    assert!(begun(0, &[other]).unwrap().is_none());
}

#[test]
fn fewer_samples_than_ranks_are_refused() {
    let case = Case { lengths: vec![1, 2], ..case() };
    let dealing =
        Dealing { seed: 1, is_shuffled: false, epochs: None, batch_size: 1, last: Last::Drop };
    let schedule = |last| {
        let dealing = Dealing { last, ..dealing };
        Schedule::by_length(Selection::Once(2), dealing, 0, 3, case.by_length(100))
    };
    let error = schedule(Last::Drop).unwrap_err().to_string();
    assert!(error.contains("2 samples give no batch to some of 3 ranks"), "{error}");
    assert_eq!(schedule(Last::Pad).unwrap().batches_of(0), 1);
}

#[test]
fn pools_of_fewer_samples_than_ranks_are_refused() {
    let case = Case { lengths: vec![3; 23], pool: 4, ..case() };
    let dealing =
        Dealing { seed: 1, is_shuffled: true, epochs: Some(1), batch_size: 1, last: Last::Drop };
    let schedule = |last, rank, world_size| {
        let dealing = Dealing { last, ..dealing };
        let by_length = case.by_length(100);
        Schedule::by_length(Selection::Once(23), dealing, rank, world_size, by_length)
    };
    for last in [Last::Drop, Last::Short] {
        let error = schedule(last, 0, 5).unwrap_err();
        assert_eq!(error, OrderError::PoolBelowRanks { pool: 4, world_size: 5 });
        assert!(error.to_string().contains("raise `order.pool`"), "{error}");
    }
    // Ranks as many as a pool's samples have one batch of it each.
    assert_eq!(schedule(Last::Drop, 0, 4).unwrap().batches_of(0), 5);
    // Padded, each pool is a step.
    let ranks: Vec<_> = (0..5).map(|rank| schedule(Last::Pad, rank, 5).unwrap()).collect();
    let (rows, end, steps) = deliver(&ranks, Position::default(), u64::MAX, 100);
    assert_eq!((end, steps), (Position { epoch: 1, samples: 0 }, 5));
    assert_eq!(distinct(&rows), (0..23).collect::<Vec<_>>());
}

#[test]
fn steps_are_in_another_order_each_epoch_and_not_sorted() {
    let case = case();
    let ranks = case.world(1, case.budget);
    let by_length = case.by_length(case.budget);
    let longest = |epoch| {
        let order = ranks[0].epoch(epoch);
        let mut position = Position { epoch, samples: 0 };
        let mut all = Vec::new();
        while position.epoch == epoch {
            let batch = ranks[0].batch_at(position).unwrap();
            let lengths = batch.rows.iter(&order).map(|row| by_length.length(row.sample.0));
            all.push(lengths.max().unwrap());
            position = batch.position_after;
        }
        all
    };
    let first = longest(0);
    assert!(!first.is_sorted() && !first.is_sorted_by(|one, next| one >= next), "{first:?}");
    assert_ne!(first, longest(1));
}

#[test]
fn each_epoch_is_counted_once() {
    let case = case();
    let ranks = case.world(1, case.budget);
    assert!(ranks[0].should_count(1));
    assert!(!ranks[0].should_count(1), "it is being counted");
    ranks[0].batches_of(1);
    assert!(!ranks[0].should_count(1), "it is counted");
    assert!(ranks[0].should_count(2));
}

#[test]
fn what_was_used_last_is_kept() {
    let case = Case { pool: 1, ..case() };
    let by_length = case.by_length(case.budget);
    let dealing =
        Dealing { seed: 1, is_shuffled: true, epochs: None, batch_size: 1, last: Last::Drop };
    let selection = Selection::Once(200);
    let schedule = Schedule::by_length(selection, dealing, 0, 1, Arc::clone(&by_length)).unwrap();
    for epoch in 0..64 {
        schedule.batches_of(epoch);
    }
    schedule.batches_of(0);
    schedule.batches_of(64);
    assert!(!schedule.should_count(0), "used since");
    assert!(schedule.should_count(1), "not used for longest");
    let order = schedule.epoch(0);
    (0..200).for_each(|position| assert!(order.draw_at(position).sample.0 < 200));
    // Each sample is a pool, a step and a batch: the most memory.
    let kept = by_length.kept();
    let plan = |plan: &PoolPlan| {
        4 * (plan.order.capacity() + plan.ends.capacity() + plan.starts.len() - 1)
    };
    let plans: usize = kept.plans.iter().map(|(_, kept)| plan(kept)).sum();
    let counts = |counts: &Counts| 8 * counts.before.len() + 4 * counts.rests.len();
    let counts: usize = kept.counts.iter().map(|(_, kept)| counts(kept)).sum();
    assert_eq!((kept.plans.len(), kept.counts.len()), (64, 64));
    assert!(((plans + counts + 4 * 200) as u64) <= by_length.memory_bytes(200));
    // Of the largest pools, as many as were always kept.
    let large = Case { pool: 4 << 20, ..case };
    assert_eq!(large.by_length(100).kept_plans(), 16);
    assert_eq!((kept_counts(1), kept_counts(u64::MAX)), (64, 4));
}

#[test]
fn samples_that_are_left_out_never_come() {
    let case = case();
    let kept = Arc::new(Subset::all(200).without([0, 7, 199]));
    let selection = Selection::Once(kept.kept());
    let dealing =
        Dealing { seed: 1, is_shuffled: true, epochs: None, batch_size: 1, last: Last::Drop };
    let ranks: Vec<_> = (0..2)
        .map(|rank| {
            let by_length = case.by_length(case.budget);
            let schedule = Schedule::by_length(selection.clone(), dealing, rank, 2, by_length);
            schedule.unwrap().among(Some(Arc::clone(&kept)))
        })
        .collect();
    let (rows, end, _) = deliver(&ranks, Position::default(), u64::MAX, case.budget);
    assert_eq!(end, Position { epoch: 1, samples: 0 });
    let expected: Vec<u64> = (0..200).filter(|id| ![0, 7, 199].contains(id)).collect();
    assert_eq!(distinct(&rows), expected);
}

#[test]
fn substitutes_keep_their_batch_within_the_budget() {
    let case = case();
    let by_length = case.by_length(case.budget);
    let selection = Selection::Once(200);
    for rows in [1, 3, 10, 40] {
        for bad in 0..200 {
            let bad = forebay_protocol::ids::SampleId(bad);
            let drawn = selection.substitute_by_length(None, 1, 2, bad, 0, (&by_length, rows));
            assert_eq!(
                drawn,
                selection.substitute_by_length(None, 1, 2, bad, 0, (&by_length, rows)),
                "the same again"
            );
            let plain = selection.substitute(None, 1, 2, bad, 0).unwrap();
            match drawn {
                Some(other) => {
                    assert!(by_length.may_replace(bad.0, other.0, rows) && other != bad);
                    assert!(
                        other == plain || !by_length.may_replace(bad.0, plain.0, rows),
                        "the first that fits"
                    );
                }
                None => panic!("{rows} rows: some samples of at most 4 fit"),
            }
        }
    }
    let bad = forebay_protocol::ids::SampleId(3);
    assert_eq!(
        selection.substitute_by_length(None, 1, 2, bad, 0, (&by_length, 200)),
        None,
        "none is so short"
    );
}

#[test]
fn pool_that_many_threads_plan_is_kept_once_and_few_are_cut_at_a_time() {
    let by_length = ByLength::new(vec![50; 800].into(), 100, 800, 4, 16);
    let pools = by_length.pools(800, 1);
    let plan = |pool: u64, order: &dyn Fn()| {
        let chain: Arc<[Cut]> = Arc::new([pools.cut.starting_at(pools.start_of(pool))]);
        let made = by_length.plan(&pools, (0, pool), &chain, SEED, || {
            order();
            let id = |number| Drawn { sample: SampleId(number), pass: 0 };
            EpochOrder::of_rows((0..800).map(id).collect())
        });
        assert!(made.unwrap().all_steps() > 0);
    };
    let start = std::sync::Barrier::new(8);
    let (cutting, most) = (AtomicU64::new(0), AtomicU64::new(0));
    // Longer than the other threads need to find that the pool is not kept.
    let order = || {
        most.fetch_max(cutting.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(50));
        cutting.fetch_sub(1, Ordering::SeqCst);
    };
    for same in [true, false] {
        std::thread::scope(|scope| {
            for number in 0..8 {
                let (start, plan, order) = (&start, &plan, &order);
                scope.spawn(move || {
                    start.wait();
                    plan(if same { 0 } else { number }, order);
                });
            }
        });
        assert_eq!(by_length.results_kept().0, if same { 1 } else { 8 });
    }
    assert_eq!(most.load(Ordering::SeqCst), CUT_AT_ONCE - 1);
}

//! What each class's draws are, whatever draws them.

use super::*;
use crate::permutation::tests::chi_squared_deviations as deviations;

/// One class of so many samples.
fn alone(samples: usize) -> Classes {
    Classes::new(vec![0; samples], 1).unwrap()
}

#[test]
fn samples_are_listed_by_class() {
    let none = Classes::NONE;
    let classes = Classes::new(vec![1, 0, none, 1, 1, 0, 7], 2).unwrap();
    assert_eq!((classes.count(), classes.samples()), (2, 5));
    assert_eq!([0, 1, 2, none].map(|class| classes.samples_of(class)), [2, 3, 0, 0]);
    let ids = |class, count| (0..count).map(|number| classes.sample(class, number).0).collect();
    let (first, second): (Vec<u64>, Vec<u64>) = (ids(0, 2), ids(1, 3));
    assert_eq!((first, second), (vec![1, 5], vec![0, 3, 4]));
    let class_of = [0, 1, 2, 6, 7, u64::MAX].map(|id| classes.class_of(SampleId(id)));
    assert_eq!(class_of, [Some(1), Some(0), None, None, None, None]);
    assert_eq!(classes.memory_bytes(), 4 * 7 + 4 * 5 + 8 * 3);
    for (class_of, count) in [(vec![0, 2], 3), (vec![none], 1), (vec![], 0), (vec![0], 0)] {
        assert_eq!(Classes::new(class_of, count), Err(OrderError::NoClasses));
    }
}

/// Whatever an epoch draws of a class, no sample is drawn two times more than another: in any epoch, and over all.
#[test]
fn samples_of_a_class_are_drawn_equally_often() {
    for samples in [1, 2, 5, 16, 17, 40] {
        let classes = alone(samples);
        for per_epoch in [1_u64, 3, 16, 17, 41, 100] {
            let mut over_all = vec![0_u64; samples];
            let mut passes = std::collections::BTreeSet::new();
            for epoch in 0..7_u64 {
                let mut counts = vec![0_u64; samples];
                let of_epoch =
                    ClassDraws { before: u128::from(epoch * per_epoch), draws: per_epoch };
                for number in 0..of_epoch.draws {
                    let drawn = classes.draw((3, epoch), (0, of_epoch), number, 1);
                    counts[index(drawn.sample.0)] += 1;
                    assert!(passes.insert((drawn.sample.0, drawn.pass)), "each draw has its pass");
                }
                for (all, count) in over_all.iter_mut().zip(&counts) {
                    *all += count;
                }
                for counts in [&counts, &over_all] {
                    let (least, most) = (counts.iter().min(), counts.iter().max());
                    assert!(
                        most.unwrap() - least.unwrap() <= 1,
                        "{samples}, {per_epoch}: {counts:?}"
                    );
                }
            }
        }
    }
}

/// All samples come before any of them comes again.
#[test]
fn rounds_have_each_sample_once() {
    let classes = alone(20);
    let of_epoch = ClassDraws { before: 13, draws: 50 };
    for first in [0, 20] {
        let mut ids: Vec<u64> = (first..first + 20)
            .map(|number| classes.draw((1, 0), (0, of_epoch), number, 1).sample.0)
            .collect();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), 20);
    }
}

#[test]
fn every_order_of_a_few_samples_is_as_frequent() {
    let classes = alone(4);
    let mut counts = [0_u64; 24];
    for epoch in 0..24_000 {
        let of_epoch = ClassDraws { before: u128::from(epoch) * 4, draws: 4 };
        let ids: Vec<u64> = (0..4)
            .map(|number| classes.draw((9, epoch), (0, of_epoch), number, 1).sample.0)
            .collect();
        let behind = |place: usize| ids[place + 1..].iter().filter(|id| **id < ids[place]).count();
        counts[behind(0) * 6 + behind(1) * 2 + behind(2)] += 1;
    }
    assert!(deviations(&counts).abs() < 5.0, "{counts:?}");
}

#[test]
fn draws_do_not_overflow() {
    let classes = alone(3);
    for epoch in [0, 1, u64::MAX] {
        let before = u128::from(epoch) * u128::from(i64::MAX as u64);
        let of_epoch = ClassDraws { before, draws: i64::MAX as u64 };
        for number in [0, of_epoch.draws / 2, of_epoch.draws - 1] {
            assert!(classes.draw((1, epoch), (0, of_epoch), number, 1).sample.0 < 3);
        }
    }
}

#[test]
fn substitutes_are_of_the_class_if_it_has_another_sample() {
    let classes = Classes::new(vec![0, 1, 0, 2, 0, Classes::NONE, 1], 3).unwrap();
    let others = |bad| {
        let mut seen = std::collections::BTreeSet::new();
        for pass in 0..100 {
            for attempt in 0..SUBSTITUTE_DRAWS {
                seen.insert(classes.substitute(5, pass, SampleId(bad), attempt).unwrap().0);
            }
        }
        assert_eq!(classes.substitute(5, 0, SampleId(bad), SUBSTITUTE_DRAWS), None);
        seen.into_iter().collect::<Vec<_>>()
    };
    assert_eq!(others(0), [2, 4]);
    assert_eq!(others(2), [0, 4]);
    assert_eq!(others(1), [6]);
    assert_eq!(others(3), [0, 1, 2, 4, 6]);
    assert_eq!(classes.substitute(5, 0, SampleId(5), 0), None);
    assert_eq!(alone(1).substitute(5, 0, SampleId(0), 0), None);
}

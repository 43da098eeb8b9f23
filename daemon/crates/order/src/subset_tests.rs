//! A subset of the samples comes in every kind of selection as all samples do: each once or alike, by their ids, for any
//! world size, and continued at another.

use std::sync::Arc;

use forebay_protocol::ids::{Position, SampleId};
use forebay_select::Subset;

use crate::{
    Balanced, Blocks, Classes, Dealing, Grouped, Last, Mixture, MixturePart, Schedule, Selection,
    Weighted,
};

const SAMPLES: u64 = 300;
/// The classes, and the samples of a group in a batch.
const CLASSES: u32 = 5;
const GROUP: u32 = 2;

fn subset() -> Arc<Subset> {
    Arc::new(Subset::of(SAMPLES, |id| id % 3 == 1 || id > 280))
}

/// The class of a kept sample by its number.
fn class_of(number: u64) -> u32 {
    u32::try_from(number).unwrap() * 7 / 3 % CLASSES
}

/// The samples of each class among these ids.
fn counts(kept: &Subset, ids: &[u64]) -> Vec<usize> {
    let of = |class| ids.iter().filter(|id| class_of(kept.number_of(**id)) == class).count();
    (0..CLASSES).map(of).collect()
}

/// Selections of each kind over the kept samples.
fn selections(kept: u64) -> Vec<Selection> {
    let part = |samples| MixturePart { samples, draws: samples };
    let mixture = Mixture::new(&[part(40), part(kept - 40)]).unwrap();
    let weights: Vec<f64> =
        (0..kept).map(|number| if number % 2 == 0 { 1.0 } else { 0.0 }).collect();
    let classes = Arc::new(Classes::new((0..kept).map(class_of).collect(), CLASSES).unwrap());
    let balanced = Balanced::new(Arc::clone(&classes), Some(kept)).unwrap();
    let grouped = Grouped::new(classes, GROUP, 4).unwrap();
    vec![
        Selection::Once(kept),
        Selection::InBlocks(Arc::new(Blocks::new(vec![0, 10, 11, 50], kept, 2).unwrap())),
        Selection::Mixture(Arc::new(mixture)),
        Selection::Weighted(Arc::new(Weighted::new(&weights, kept).unwrap())),
        Selection::Balanced(Arc::new(balanced)),
        Selection::Grouped(Arc::new(grouped)),
    ]
}

fn schedules(selection: &Selection, kept: &Arc<Subset>, world_size: u32) -> Vec<Schedule> {
    let dealing =
        Dealing { seed: 5, is_shuffled: true, epochs: None, batch_size: 4, last: Last::Short };
    let of = |rank| Schedule::of(selection.clone(), dealing, rank, world_size).unwrap();
    (0..world_size).map(|rank| of(rank).among(Some(Arc::clone(kept)))).collect()
}

/// The ids of all ranks from a position to the end of its epoch, in steps.
fn deliver(ranks: &[Schedule], from: Position, steps: usize) -> (Vec<u64>, Position) {
    let (mut ids, mut at) = (Vec::new(), from);
    for _ in 0..steps {
        if at.epoch != from.epoch {
            break;
        }
        let order = ranks[0].epoch(at.epoch);
        let batches = ranks.iter().map(|rank| rank.batch_at(at).unwrap());
        let mut next = at;
        for batch in batches {
            ids.extend(batch.rows.iter(&order).map(|row| row.sample.0));
            next = batch.position_after;
        }
        at = next;
    }
    (ids, at)
}

#[test]
fn kept_samples_come_once_also_if_the_epoch_is_continued_at_another_world_size() {
    let kept = subset();
    for selection in selections(kept.kept()) {
        let (mut ids, at) = deliver(&schedules(&selection, &kept, 2), Position::default(), 5);
        let (rest, end) = deliver(&schedules(&selection, &kept, 3), at, usize::MAX);
        assert_eq!((at.samples, end.epoch), (40, 1));
        ids.extend(rest);
        assert_eq!(ids.len() as u64, selection.draws_per_epoch());
        assert!(ids.iter().all(|id| kept.contains(*id)), "{selection:?}");
        match &selection {
            Selection::Weighted(_) => {}
            Selection::Balanced(_) => {
                let counts = counts(&kept, &ids);
                assert!(counts.iter().max().unwrap() - counts.iter().min().unwrap() <= 1);
            }
            Selection::Grouped(grouped) => {
                for pair in ids.chunks(GROUP as usize) {
                    assert!(counts(&kept, pair).contains(&pair.len()), "{pair:?}");
                }
                ids.sort_unstable();
                ids.dedup();
                assert_eq!(ids.len() as u64, kept.kept() - grouped.left_out());
            }
            _ => {
                ids.sort_unstable();
                assert_eq!(ids, kept.ids().collect::<Vec<_>>());
            }
        }
    }
}

#[test]
fn substitutes_are_other_kept_samples() {
    let kept = subset();
    for selection in selections(kept.kept()) {
        for bad in kept.ids() {
            for attempt in 0..3 {
                let other = selection.substitute(Some(&kept), 1, 0, SampleId(bad), attempt);
                let is_usable = |other: SampleId| kept.contains(other.0) && other.0 != bad;
                assert!(other.is_none_or(is_usable), "{selection:?}: {other:?} for {bad}");
                if let (Selection::Balanced(_) | Selection::Grouped(_), Some(other)) =
                    (&selection, other)
                {
                    let class = |id| class_of(kept.number_of(id));
                    assert_eq!(class(other.0), class(bad));
                }
            }
        }
    }
}

#[test]
fn all_samples_come_as_without_a_subset() {
    let all = Arc::new(Subset::all(SAMPLES));
    for selection in selections(SAMPLES) {
        let of = |schedules: &[Schedule]| deliver(schedules, Position::default(), usize::MAX);
        let plain: Vec<_> = schedules(&selection, &all, 2)
            .into_iter()
            .map(|schedule| schedule.among(None))
            .collect();
        assert_eq!(of(&plain), of(&schedules(&selection, &all, 2)));
    }
}

//! Which feeder makes a row, and which feeders a daemon connects to. Pure functions: nothing is agreed on between hosts.
//!
//! Rows of one unit (a shard, a page of a table, a file) go to one of two feeders, the same two for all daemons that
//! know them. So each feeder's caches and JPEG index hold a part of the data. Rendezvous hashing ranks the feeders of a
//! unit: one that joins or leaves moves its own units only.

use twox_hash::XxHash3_64;

use crate::discovery::Feeder;

/// Number of feeders that a daemon connects to if nothing else is configured (`feeders.spread`).
pub const DEFAULT_SPREAD: usize = 32;

/// A feeder's number for [`choose`] and [`pick`]: by its address alone, since daemons may write its host differently.
#[must_use]
pub fn feeder_key(feeder: &Feeder) -> u64 {
    XxHash3_64::oneshot(feeder.address.to_string().as_bytes())
}

/// A unit's number for [`pick`]: of a shard's path, or of a path and a page in it.
#[must_use]
pub fn unit_key(unit: &[u8]) -> u64 {
    XxHash3_64::oneshot(unit)
}

/// The feeders that a daemon connects to: `spread` of them, or all if there are fewer, in the daemon's order of preference.
/// One that joins or leaves changes at most one of them. `daemon` is any number that differs between daemons and stays
/// while one runs.
#[must_use]
pub fn choose(feeders: &[Feeder], daemon: u64, spread: usize) -> Vec<Feeder> {
    let mut ranked: Vec<(u64, &Feeder)> =
        feeders.iter().map(|feeder| (score(daemon, feeder_key(feeder)), feeder)).collect();
    let least = spread.min(ranked.len());
    ranked.sort_unstable_by(|one, other| other.cmp(one));
    ranked.truncate(least);
    ranked.into_iter().map(|(_, feeder)| feeder.clone()).collect()
}

/// The index of the feeder for a unit's rows: of the two whose scores are highest, the one with less load, the first on
/// a tie. `load` gives a feeder's outstanding rows, or `usize::MAX` if it takes none now; the next in rank takes its
/// place. `None`: no feeder takes rows.
#[must_use]
pub fn pick(unit: u64, feeders: &[u64], load: impl Fn(usize) -> usize) -> Option<usize> {
    let mut best: [Option<(u64, usize, usize)>; 2] = [None, None];
    for (index, key) in feeders.iter().enumerate() {
        let load = load(index);
        if load == usize::MAX {
            continue;
        }
        let found = (score(unit, *key), index, load);
        if best[0].is_none_or(|first| found.0 > first.0) {
            best = [Some(found), best[0]];
        } else if best[1].is_none_or(|second| found.0 > second.0) {
            best[1] = Some(found);
        }
    }
    match best {
        [Some(first), Some(second)] if second.2 < first.2 => Some(second.1),
        [first, _] => first.map(|(_, index, _)| index),
    }
}

/// A number that looks random and is the same for the same pair (the finalizer of `SplitMix64`).
fn score(one: u64, other: u64) -> u64 {
    let mut mixed = one.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ other;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn feeders(count: u16) -> Vec<Feeder> {
        (0..count)
            .map(|number| {
                let [high, low] = number.to_be_bytes();
                Feeder { address: ([10, 0, high, low], 9461).into(), host: "feeders".into() }
            })
            .collect()
    }

    fn keys(count: u16) -> Vec<u64> {
        feeders(count).iter().map(feeder_key).collect()
    }

    #[test]
    fn units_divide_evenly_among_feeders() {
        let keys = keys(16);
        let mut counts = [0_u32; 16];
        for unit in 0..16_000_u64 {
            counts[pick(unit, &keys, |_| 0).unwrap()] += 1;
        }
        // 1,000 each, ± five standard deviations of a binomial distribution.
        assert!(counts.iter().all(|count| (845..=1155).contains(count)), "{counts:?}");
    }

    #[test]
    fn feeder_that_joins_takes_units_from_others_and_moves_no_other() {
        let (before, after) = (keys(8), keys(9));
        let mut moved = 0;
        for unit in 0..9_000_u64 {
            let (old, new) = (pick(unit, &before, |_| 0), pick(unit, &after, |_| 0));
            if old != new {
                assert_eq!(new, Some(8));
                moved += 1;
            }
        }
        assert!((850..=1150).contains(&moved), "{moved}");
    }

    #[test]
    fn second_best_takes_rows_only_while_the_best_has_more_load() {
        let keys = keys(5);
        for unit in 0..200 {
            let best = pick(unit, &keys, |_| 3).unwrap();
            let second = pick(unit, &keys, |index| usize::from(index == best)).unwrap();
            assert_ne!(best, second);
            // A feeder with no load at all that is not among the best two gets nothing.
            let loads = |index| match index {
                index if index == best => 2,
                index if index == second => 1,
                _ => 0,
            };
            assert_eq!(pick(unit, &keys, loads), Some(second));
        }
    }

    #[test]
    fn feeder_that_takes_no_rows_is_replaced_by_the_next_in_rank() {
        let keys = keys(3);
        assert_eq!(pick(7, &keys, |_| usize::MAX), None);
        assert_eq!(pick(7, &[], |_| 0), None);
        for only in 0..3 {
            let load = |index| if index == only { 9 } else { usize::MAX };
            assert_eq!(pick(7, &keys, load), Some(only));
        }
    }

    #[test]
    fn daemons_choose_differently_and_each_the_same_again() {
        let feeders = feeders(200);
        let chosen = choose(&feeders, 1, 32);
        assert_eq!(chosen.len(), 32);
        assert_eq!(chosen.iter().collect::<HashSet<_>>().len(), 32);
        let mut reversed = feeders.clone();
        reversed.reverse();
        assert_eq!(chosen, choose(&reversed, 1, 32));
        assert_ne!(chosen, choose(&feeders, 2, 32));
        assert_eq!(choose(&feeders[..3], 1, 32).len(), 3);
    }

    #[test]
    fn leaving_feeder_changes_one_place_of_those_that_chose_it() {
        let feeders = feeders(100);
        let kept: Vec<Feeder> = feeders[1..].to_vec();
        let mut affected = 0;
        for daemon in 0..1_000 {
            let before: HashSet<_> = choose(&feeders, daemon, 32).into_iter().collect();
            let after: HashSet<_> = choose(&kept, daemon, 32).into_iter().collect();
            let changed = after.difference(&before).count();
            assert_eq!(changed, usize::from(before.contains(&feeders[0])));
            affected += changed;
        }
        assert!((245..=395).contains(&affected), "{affected}");
    }

    #[test]
    fn connections_of_many_daemons_divide_evenly() {
        let feeders = feeders(64);
        let mut counts = std::collections::HashMap::<Feeder, u32>::new();
        for daemon in 0..1_024 {
            for feeder in choose(&feeders, daemon, 8) {
                *counts.entry(feeder).or_default() += 1;
            }
        }
        // 128 each on average.
        assert!(counts.len() == 64 && counts.values().all(|count| (75..=185).contains(count)));
    }
}

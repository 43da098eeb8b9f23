//! Chooses the sample that replaces a bad one: a pure function, so that a repeated run finds the same substitutes.
//!
//! Whether a sample is bad, and how many may be, is decided elsewhere.

use forebay_protocol::ids::SampleId;

use super::draw::{DrawKey, Draws};
use super::purpose;

/// How many substitutes are tried for one position before the stream fails.
pub const SUBSTITUTE_DRAWS: u64 = 16;

/// The `attempt`-th substitute (counted from 0) of a sample: uniform over the other samples, keyed only by seed, epoch,
/// the bad sample's id and the attempt. Two attempts may give the same sample.
///
/// `None` from attempt [`SUBSTITUTE_DRAWS`] on, and if there are no other samples.
pub fn substitute(
    samples: u64,
    seed: u64,
    epoch: u64,
    bad: SampleId,
    attempt: u64,
) -> Option<SampleId> {
    if attempt >= SUBSTITUTE_DRAWS || samples < 2 {
        return None;
    }
    let key = DrawKey { seed, epoch, sample: bad.0 };
    let drawn = Draws::new(key, purpose::SUBSTITUTE_FIRST + attempt).below(samples - 1);
    // One value fewer than samples, with a gap at the bad sample's id.
    Some(SampleId(drawn + u64::from(drawn >= bad.0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn substitute_is_any_of_the_other_samples() {
        for samples in 2..20 {
            for bad in 0..samples {
                let mut seen = vec![0u32; usize::try_from(samples).unwrap()];
                for epoch in 0..100 {
                    for attempt in 0..SUBSTITUTE_DRAWS {
                        let other = substitute(samples, 3, epoch, SampleId(bad), attempt).unwrap();
                        assert!(other.0 < samples && other.0 != bad);
                        seen[usize::try_from(other.0).unwrap()] += 1;
                    }
                }
                // 1,600 draws over at most 18 others: each is expected at least 88 times.
                let rarest = seen.iter().filter(|count| **count > 0).min().unwrap();
                assert!(*rarest >= 40, "{seen:?}");
                assert_eq!(seen.iter().filter(|count| **count == 0).count(), 1);
            }
        }
    }

    #[test]
    fn attempts_epochs_and_seeds_draw_differently() {
        let draw =
            |seed, epoch, attempt| substitute(1 << 40, seed, epoch, SampleId(5), attempt).unwrap();
        let first = draw(1, 1, 0);
        assert_eq!(first, draw(1, 1, 0));
        for other in [draw(2, 1, 0), draw(1, 2, 0), draw(1, 1, 1)] {
            assert_ne!(first, other);
        }
    }

    #[test]
    fn there_are_sixteen_attempts_and_none_without_another_sample() {
        assert!(substitute(10, 0, 0, SampleId(3), 15).is_some());
        assert!(substitute(10, 0, 0, SampleId(3), 16).is_none());
        assert!(substitute(1, 0, 0, SampleId(0), 0).is_none());
        assert!(substitute(0, 0, 0, SampleId(0), 0).is_none());
    }
}

//! A dataset without some of its samples, which are few.

use forebay_protocol::ids::SampleId;

use super::error::OrderError;
use super::substitute::substitute;

/// The samples of a dataset without some: as many as are kept, numbered from 0 in the order of their ids.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Except {
    kept: u64,
    /// The ids of the others, increasing.
    left_out: Vec<u64>,
}

impl Except {
    /// `samples` samples without those with the ids `left_out`.
    ///
    /// # Errors
    /// None are kept.
    pub fn new(samples: u64, left_out: Vec<u64>) -> Result<Self, OrderError> {
        let mut left_out = left_out;
        left_out.sort_unstable();
        left_out.dedup();
        left_out.retain(|id| *id < samples);
        let kept = samples - left_out.len() as u64;
        if kept == 0 {
            return Err(OrderError::NoSamples);
        }
        Ok(Self { kept, left_out })
    }

    /// The number of samples that are kept.
    #[must_use]
    pub const fn kept(&self) -> u64 {
        self.kept
    }

    /// The number of samples that are left out.
    #[must_use]
    pub fn left_out(&self) -> u64 {
        self.left_out.len() as u64
    }

    /// Their memory.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        8 * self.left_out()
    }

    /// The id of a kept sample by its number.
    pub(super) fn id_of(&self, number: u64) -> u64 {
        // The kept samples before the one with this place in the list are its id without its place.
        let (mut low, mut high) = (0, self.left_out.len());
        while low < high {
            let middle = usize::midpoint(low, high);
            if self.left_out[middle] - middle as u64 <= number {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        number + low as u64
    }

    /// As [`substitute()`], among the kept samples.
    pub(super) fn substitute(
        &self,
        seed: u64,
        epoch: u64,
        bad: SampleId,
        attempt: u64,
    ) -> Option<SampleId> {
        let before = self.left_out.partition_point(|id| *id < bad.0) as u64;
        let number = SampleId(bad.0 - before);
        let other = substitute(self.kept, seed, epoch, number, attempt)?;
        Some(SampleId(self.id_of(other.0)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kept_samples_are_numbered_in_order() {
        for left_out in [vec![], vec![0], vec![9], vec![3, 4, 0, 3, 12], (0..9).collect()] {
            let except = Except::new(10, left_out.clone()).unwrap();
            let ids: Vec<u64> = (0..except.kept()).map(|number| except.id_of(number)).collect();
            let expected: Vec<u64> = (0..10).filter(|id| !left_out.contains(id)).collect();
            assert_eq!(ids, expected);
            let bad = SampleId(ids[ids.len() / 2]);
            for attempt in 0..16 {
                match except.substitute(1, 2, bad, attempt) {
                    Some(other) => assert!(expected.contains(&other.0) && other != bad),
                    None => assert_eq!(expected.len(), 1),
                }
            }
        }
        assert_eq!(Except::new(2, vec![0, 1]), Err(OrderError::NoSamples));
    }
}

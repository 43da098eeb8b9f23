//! The samples of a dataset by class, and even draws from each class.
//!
//! A class has one order of its samples, which is the same in all epochs, and its draws go round in it. So any number of
//! consecutive draws has each sample equally often, or once more: in an epoch, and over all epochs. The draws of an epoch
//! are then permuted in rounds of at most all samples of the class, so that a round has each sample once at most.
//! What the classes are, and how often each is drawn, is decided elsewhere.

use forebay_protocol::ids::SampleId;

use super::draw::{DrawKey, Drawn, Draws};
use super::error::OrderError;
use super::permutation::shuffled;
use super::purpose;
use super::substitute::{SUBSTITUTE_DRAWS, substitute};

/// The samples of each class. Takes eight bytes per sample and eight per class.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Classes {
    /// By sample: its class, or [`NONE`](Self::NONE).
    class_of: Vec<u32>,
    /// The samples in the order of their classes.
    samples: Vec<u32>,
    /// The first of each class's samples; their number at the end.
    starts: Vec<u64>,
}

/// The draws of a class in an epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ClassDraws {
    /// Its draws in all earlier epochs.
    pub(super) before: u128,
    /// Its draws in this one.
    pub(super) draws: u64,
}

impl Classes {
    /// The class of samples that belong to none and are never drawn.
    pub const NONE: u32 = u32::MAX;

    /// Classes from 0 to `count`, of these samples.
    ///
    /// # Errors
    /// A class has no samples, there are no classes, or more samples than 32 bits can count.
    pub fn new(class_of: Vec<u32>, count: u32) -> Result<Self, OrderError> {
        let all = class_of.len() as u64;
        if u32::try_from(all).is_err() {
            return Err(OrderError::TooManySamples { samples: all });
        }
        let mut starts = vec![0_u64; count as usize + 1];
        for class in class_of.iter().filter(|class| **class < count) {
            starts[*class as usize + 1] += 1;
        }
        if count == 0 || starts[1..].contains(&0) {
            return Err(OrderError::NoClasses);
        }
        for class in 0..count as usize {
            starts[class + 1] += starts[class];
        }
        let mut next = starts.clone();
        let drawn = usize::try_from(starts[count as usize]).unwrap_or(usize::MAX);
        let mut samples = vec![0; drawn];
        for (id, class) in (0_u32..).zip(&class_of).filter(|(_, class)| **class < count) {
            let place = &mut next[*class as usize];
            samples[index(*place)] = id;
            *place += 1;
        }
        Ok(Self { class_of, samples, starts })
    }

    /// The number of classes.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "numbered by u32")]
    pub const fn count(&self) -> u32 {
        (self.starts.len() - 1) as u32
    }

    /// The number of samples of a class; 0 if there is no such class.
    #[must_use]
    pub fn samples_of(&self, class: u32) -> u64 {
        match self.starts.get(class as usize..) {
            Some([start, end, ..]) => end - start,
            _ => 0,
        }
    }

    /// The number of samples that belong to a class.
    #[must_use]
    pub const fn samples(&self) -> u64 {
        self.samples.len() as u64
    }

    /// The class of a sample.
    #[must_use]
    pub fn class_of(&self, sample: SampleId) -> Option<u32> {
        let class = usize::try_from(sample.0).ok().and_then(|id| self.class_of.get(id)).copied();
        class.filter(|class| *class < self.count())
    }

    /// Their memory.
    #[must_use]
    pub const fn memory_bytes(&self) -> u64 {
        4 * (self.class_of.len() + self.samples.len()) as u64 + 8 * self.starts.len() as u64
    }

    /// A sample of a class by its number among them.
    fn sample(&self, class: u32, number: u64) -> SampleId {
        SampleId(self.samples[index(self.starts[class as usize] + number)].into())
    }

    /// The draw of a class with this number in the epoch. A round is as many of its draws as have whole tuples of `tuple`
    /// samples, of which the class has one at least. The pass of a draw is the number of times that its sample was drawn
    /// before, over all epochs.
    pub(super) fn draw(
        &self,
        (seed, epoch): (u64, u64),
        (class, of_epoch): (u32, ClassDraws),
        number: u64,
        tuple: u64,
    ) -> Drawn {
        let samples = self.samples_of(class);
        let round = samples - samples % tuple;
        let first = number - number % round;
        let key = DrawKey { seed, epoch, sample: class.into() };
        let draws = Draws::new(key, purpose::ROUND_OF_CLASS).of_entry(first);
        let place = shuffled(round.min(of_epoch.draws - first), number - first, draws);
        let drawn = of_epoch.before + u128::from(first + place);
        let key = DrawKey { seed, epoch: 0, sample: class.into() };
        let draws = Draws::new(key, purpose::ORDER_OF_CLASS);
        #[expect(clippy::cast_possible_truncation, reason = "below the samples; a key")]
        let (place, pass) =
            ((drawn % u128::from(samples)) as u64, (drawn / u128::from(samples)) as u64);
        Drawn { sample: self.sample(class, shuffled(samples, place, draws)), pass }
    }

    /// As [`substitute()`], from the class of the bad sample; if it has no other sample, from all classes.
    pub(super) fn substitute(
        &self,
        seed: u64,
        pass: u64,
        bad: SampleId,
        attempt: u64,
    ) -> Option<SampleId> {
        let class = self.class_of(bad)?;
        let start = self.starts[class as usize];
        let of_class = &self.samples[index(start)..index(start + self.samples_of(class))];
        if let [_] = of_class {
            if attempt >= SUBSTITUTE_DRAWS || self.samples.len() < 2 {
                return None;
            }
            let key = DrawKey { seed, epoch: pass, sample: bad.0 };
            let drawn =
                Draws::new(key, purpose::SUBSTITUTE_FIRST + attempt).below(self.samples() - 1);
            // One value fewer than samples, with a gap at the bad sample's place.
            return Some(SampleId(self.samples[index(drawn + u64::from(drawn >= start))].into()));
        }
        let number = of_class.partition_point(|id| u64::from(*id) < bad.0) as u64;
        // The draws are those of the sample, not of its number in the class.
        let key = Draws::new(DrawKey { seed, epoch: pass, sample: bad.0 }, purpose::ORDER_OF_CLASS);
        let seed = key.clone().next_u64();
        let other = substitute(of_class.len() as u64, seed, pass, SampleId(number), attempt)?;
        Some(self.sample(class, other.0))
    }
}

#[expect(clippy::cast_possible_truncation, reason = "an index into memory")]
const fn index(place: u64) -> usize {
    place as usize
}

#[cfg(test)]
#[path = "classes_tests.rs"]
mod tests;

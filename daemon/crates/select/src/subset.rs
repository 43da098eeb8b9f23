//! A set of sample ids that are kept: one bit for each sample of the dataset, and counts of bits, so that the id of the
//! n-th kept sample and the number of kept samples before an id are found in logarithmic and constant time.
//!
//! Takes 1.125 bits a sample: 1.4 MB for ten million.

/// Bits of a word.
const WORD_BITS: u64 = 64;
/// Words between two counts.
const GROUP_WORDS: usize = 8;

/// The kept samples of a dataset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subset {
    /// The number of samples of the dataset.
    samples: u64,
    kept: u64,
    words: Vec<u64>,
    /// The kept samples before each group of words.
    before: Vec<u64>,
}

/// A subset under construction. Samples are added in the order of their ids.
#[derive(Debug, Clone, Default)]
pub struct SubsetBuilder {
    words: Vec<u64>,
    samples: u64,
}

impl SubsetBuilder {
    /// Adds the next sample.
    pub fn push(&mut self, is_kept: bool) {
        let place = self.samples % WORD_BITS;
        if place == 0 {
            self.words.push(0);
        }
        if let Some(word) = self.words.last_mut() {
            *word |= u64::from(is_kept) << place;
        }
        self.samples += 1;
    }

    /// The number of samples so far.
    #[must_use]
    pub const fn samples(&self) -> u64 {
        self.samples
    }

    /// Ends the construction.
    #[must_use]
    pub fn build(self) -> Subset {
        Subset::of_words(self.samples, self.words)
    }
}

impl Subset {
    /// The subset of these words; bits after the last sample are 0.
    fn of_words(samples: u64, words: Vec<u64>) -> Self {
        let mut kept = 0;
        let mut before = Vec::with_capacity(words.len().div_ceil(GROUP_WORDS));
        for group in words.chunks(GROUP_WORDS) {
            before.push(kept);
            kept += group.iter().map(|word| u64::from(word.count_ones())).sum::<u64>();
        }
        Self { samples, kept, words, before }
    }

    /// The samples for whose ids `is_kept` is true.
    #[must_use]
    pub fn of(samples: u64, is_kept: impl FnMut(u64) -> bool) -> Self {
        let mut builder = SubsetBuilder::default();
        (0..samples).map(is_kept).for_each(|is_kept| builder.push(is_kept));
        builder.build()
    }

    /// All samples.
    #[must_use]
    pub fn all(samples: u64) -> Self {
        Self::of(samples, |_| true)
    }

    /// Reads the bytes of [`to_bytes`](Self::to_bytes); `None`: they are not those of a subset of so many samples.
    #[must_use]
    pub fn from_bytes(samples: u64, bytes: &[u8]) -> Option<Self> {
        let (words, rest) = bytes.as_chunks();
        let is_whole = rest.is_empty() && words.len() as u64 == samples.div_ceil(WORD_BITS);
        let words: Vec<u64> = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
        let unused = words.last().map_or(0, |last| match samples % WORD_BITS {
            0 => 0,
            used => last >> used,
        });
        (is_whole && unused == 0).then(|| Self::of_words(samples, words))
    }

    /// The bytes of a subset of so many samples.
    #[must_use]
    pub const fn bytes_of(samples: u64) -> u64 {
        samples.div_ceil(WORD_BITS) * 8
    }

    /// The bits, 64 at a time, little endian.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        self.words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    /// The subsets of several datasets, whose samples are numbered consecutively, as one.
    #[must_use]
    pub fn joined<'s>(parts: impl IntoIterator<Item = (u64, Option<&'s Self>)>) -> Self {
        let mut builder = SubsetBuilder::default();
        for (samples, part) in parts {
            (0..samples).for_each(|id| builder.push(part.is_none_or(|part| part.contains(id))));
        }
        builder.build()
    }

    /// The same without some samples.
    #[must_use]
    pub fn without(&self, left_out: impl IntoIterator<Item = u64>) -> Self {
        let mut words = self.words.clone();
        for id in left_out {
            if let Some(word) = place(id / WORD_BITS).and_then(|place| words.get_mut(place)) {
                *word &= !(1 << (id % WORD_BITS));
            }
        }
        Self::of_words(self.samples, words)
    }

    /// The number of samples of the dataset.
    #[must_use]
    pub const fn samples(&self) -> u64 {
        self.samples
    }

    /// The number of kept samples.
    #[must_use]
    pub const fn kept(&self) -> u64 {
        self.kept
    }

    /// Its memory.
    #[must_use]
    pub const fn memory_bytes(&self) -> u64 {
        8 * (self.words.len() + self.before.len()) as u64
    }

    /// Whether a sample is kept.
    #[must_use]
    pub fn contains(&self, id: u64) -> bool {
        let word = place(id / WORD_BITS).and_then(|place| self.words.get(place));
        word.is_some_and(|word| word >> (id % WORD_BITS) & 1 == 1)
    }

    /// The number of kept samples with smaller ids.
    #[must_use]
    pub fn number_of(&self, id: u64) -> u64 {
        let Some(word) = place(id / WORD_BITS).filter(|word| *word < self.words.len()) else {
            return self.kept;
        };
        let group = word / GROUP_WORDS;
        let whole = &self.words[group * GROUP_WORDS..word];
        let below = self.words[word] & ((1 << (id % WORD_BITS)) - 1);
        let ones = whole.iter().chain([&below]).map(|word| u64::from(word.count_ones()));
        self.before[group] + ones.sum::<u64>()
    }

    /// The id of a kept sample by its number, counted from 0.
    ///
    /// # Panics
    /// The number is not below [`kept`](Self::kept).
    #[must_use]
    pub fn id_of(&self, number: u64) -> u64 {
        assert!(number < self.kept, "number {number} of {} kept samples", self.kept);
        let group = self.before.partition_point(|before| *before <= number) - 1;
        let mut left = number - self.before[group];
        for (place, word) in self.words.iter().enumerate().skip(group * GROUP_WORDS) {
            let ones = u64::from(word.count_ones());
            if left < ones {
                let mut word = *word;
                for _ in 0..left {
                    word &= word - 1;
                }
                return place as u64 * WORD_BITS + u64::from(word.trailing_zeros());
            }
            left -= ones;
        }
        unreachable!("the counts are those of the words")
    }

    /// The ids of the kept samples, increasing.
    pub fn ids(&self) -> impl Iterator<Item = u64> {
        (0_u64..).zip(&self.words).flat_map(|(place, word)| {
            let mut word = *word;
            std::iter::from_fn(move || {
                let bit = (word != 0).then(|| u64::from(word.trailing_zeros()))?;
                word &= word - 1;
                Some(place * WORD_BITS + bit)
            })
        })
    }

    /// BLAKE3 of the set.
    #[must_use]
    pub fn digest(&self) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new_derive_key("forebay subset of samples");
        hasher.update(&self.samples.to_le_bytes());
        for word in &self.words {
            hasher.update(&word.to_le_bytes());
        }
        *hasher.finalize().as_bytes()
    }
}

fn place(number: u64) -> Option<usize> {
    usize::try_from(number).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn ids_and_numbers_are_inverse(bits in proptest::collection::vec(any::<bool>(), 0..3000)) {
            let samples = bits.len() as u64;
            let subset = Subset::of(samples, |id| bits[usize::try_from(id).unwrap()]);
            let expected: Vec<u64> = (0..samples).filter(|id| bits[usize::try_from(*id).unwrap()]).collect();
            prop_assert_eq!(subset.kept(), expected.len() as u64);
            prop_assert_eq!(&subset.ids().collect::<Vec<_>>(), &expected);
            for (number, id) in (0..).zip(&expected) {
                prop_assert_eq!(subset.id_of(number), *id);
                prop_assert_eq!(subset.number_of(*id), number);
                prop_assert!(subset.contains(*id));
            }
            prop_assert!(!subset.contains(samples));
            prop_assert_eq!(subset.number_of(samples), subset.kept());
            let again = Subset::from_bytes(samples, &subset.to_bytes());
            prop_assert_eq!(again.as_ref(), Some(&subset));
            let fewer = subset.without(expected.iter().copied().step_by(3));
            let kept = expected.iter().enumerate().filter(|(place, _)| place % 3 > 0);
            prop_assert_eq!(fewer.ids().collect::<Vec<_>>(), kept.map(|(_, id)| *id).collect::<Vec<_>>());
        }
    }

    #[test]
    fn damaged_bytes_are_not_a_subset() {
        let bytes = Subset::all(70).to_bytes();
        assert!(Subset::from_bytes(70, &bytes).is_some());
        for samples in [0, 64, 69, 129] {
            assert_eq!(Subset::from_bytes(samples, &bytes), None, "{samples}");
        }
        assert_eq!(Subset::from_bytes(70, &bytes[1..]), None);
    }

    #[test]
    fn parts_are_numbered_one_after_the_other() {
        let even = Subset::of(5, |id| id % 2 == 0);
        let joined = Subset::joined([(5, Some(&even)), (2, None), (5, Some(&even))]);
        assert_eq!(joined.ids().collect::<Vec<_>>(), [0, 2, 4, 5, 6, 7, 9, 11]);
        assert_ne!(joined.digest(), Subset::all(12).digest());
    }
}

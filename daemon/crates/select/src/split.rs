//! Parts of a dataset by a hash of a key: disjoint, and stable when samples are added.
//!
//! The hash of (seed, key) is a number from 0 to 2⁶⁴, which the parts divide in the order of their names. So the part of a
//! sample depends on its key, the seed and the fractions only, and samples with equal keys are in one part.

/// How far the sum of fractions may be from 1 and count as 1.
const ROUNDING: f64 = 1e-9;
/// The number of hashes.
const HASHES: u128 = 1 << 64;

/// Fractions with names, and a seed.
#[derive(Debug, Clone, PartialEq)]
pub struct Split {
    seed: u64,
    /// Sorted by name: the fraction, and the first hash after the part.
    parts: Vec<(String, f64, u128)>,
}

/// Why fractions are no split.
#[derive(Debug, Clone, PartialEq)]
pub enum SplitError {
    /// There are none.
    Empty,
    /// A part's fraction is not above 0 and at most 1.
    Fraction(String),
    /// The sum is above 1.
    Sum(f64),
    /// Two parts have one name.
    Twice(String),
}

impl Split {
    /// Parts with these fractions.
    ///
    /// # Errors
    /// See [`SplitError`].
    pub fn new(fractions: &[(String, f64)], seed: u64) -> Result<Self, SplitError> {
        if fractions.is_empty() {
            return Err(SplitError::Empty);
        }
        let is_valid = |fraction: f64| fraction > 0.0 && fraction <= 1.0;
        if let Some((name, _)) = fractions.iter().find(|(_, fraction)| !is_valid(*fraction)) {
            return Err(SplitError::Fraction(name.clone()));
        }
        let mut sorted = fractions.to_vec();
        sorted.sort_by(|one, other| one.0.cmp(&other.0));
        if let Some(pair) = sorted.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            return Err(SplitError::Twice(pair[0].0.clone()));
        }
        let mut sum = 0.0;
        let parts = sorted.into_iter().map(|(name, fraction)| {
            sum += fraction;
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_precision_loss,
                clippy::cast_sign_loss,
                reason = "at least 0, and a fraction of a power of two"
            )]
            let end = if sum > 1.0 - ROUNDING { HASHES } else { (sum * HASHES as f64) as u128 };
            (name, fraction, end)
        });
        let parts = parts.collect();
        match sum > 1.0 + ROUNDING {
            true => Err(SplitError::Sum(sum)),
            false => Ok(Self { seed, parts }),
        }
    }

    /// The names of the parts.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.parts.iter().map(|(name, ..)| name.as_str())
    }

    /// The place of a part by its name.
    #[must_use]
    pub fn place_of(&self, name: &str) -> Option<usize> {
        self.names().position(|other| other == name)
    }

    /// The place of a key's part; `None`: the fractions are less than 1, and it is in the rest.
    #[must_use]
    pub fn part_of(&self, key: &[u8]) -> Option<usize> {
        let mut hasher = blake3::Hasher::new_derive_key("forebay split");
        hasher.update(&self.seed.to_le_bytes());
        hasher.update(key);
        let hash = u64::from_le_bytes(hasher.finalize().as_bytes().as_chunks().0[0]);
        let place = self.parts.partition_point(|(.., end)| *end <= hash.into());
        (place < self.parts.len()).then_some(place)
    }

    /// Everything that determines the parts, as text.
    #[must_use]
    pub fn words(&self) -> String {
        let parts = self.parts.iter().map(|(name, fraction, _)| format!("{name} {fraction}"));
        format!("{} seed {}", parts.collect::<Vec<_>>().join(", "), self.seed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(fractions: &[(&str, f64)], seed: u64) -> Result<Split, SplitError> {
        let named = fractions.iter().map(|(name, fraction)| ((*name).to_owned(), *fraction));
        Split::new(&named.collect::<Vec<_>>(), seed)
    }

    fn parts(split: &Split, keys: u32) -> Vec<Option<usize>> {
        (0..keys).map(|key| split.part_of(key.to_string().as_bytes())).collect()
    }

    #[test]
    fn fractions_divide_the_keys() {
        let of = split(&[("val", 0.1), ("train", 0.8), ("test", 0.1)], 0).unwrap();
        assert_eq!(of.names().collect::<Vec<_>>(), ["test", "train", "val"]);
        let found = parts(&of, 20_000);
        for (part, expected) in [(0, 2000_i64), (1, 16_000), (2, 2000)] {
            let count = found.iter().filter(|of| **of == Some(part)).count();
            assert!((i64::try_from(count).unwrap() - expected).abs() < 250, "{part}: {count}");
        }
        assert!(!found.contains(&None));
        // The order in which they are written has no effect, the seed has.
        let other = split(&[("test", 0.1), ("train", 0.8), ("val", 0.1)], 0).unwrap();
        assert_eq!(parts(&other, 1000), found[..1000]);
        let other = split(&[("test", 0.1), ("train", 0.8), ("val", 0.1)], 1).unwrap();
        assert_ne!(parts(&other, 1000), found[..1000]);
        assert_ne!(of.words(), other.words());
    }

    #[test]
    fn parts_do_not_change() {
        // The parts of published runs: a change here is a change of everyone's split.
        let of = split(&[("train", 0.5), ("val", 0.5)], 7).unwrap();
        let found: String =
            parts(&of, 32).iter().map(|part| if *part == Some(0) { 't' } else { 'v' }).collect();
        assert_eq!(found, GOLDEN);
    }

    const GOLDEN: &str = "ttvvvtttvtvtvtvvtvtttvttttvttttv";

    #[test]
    fn rest_is_in_no_part_and_rounding_leaves_none() {
        let half = split(&[("train", 0.5)], 0).unwrap();
        let rest = parts(&half, 10_000).iter().filter(|part| part.is_none()).count();
        assert!((4700..5300).contains(&rest), "{rest}");
        let tenths: Vec<_> = (0..10).map(|part| (part.to_string(), 0.1)).collect();
        let of = Split::new(&tenths, 0).unwrap();
        assert_eq!(of.parts.last().unwrap().2, HASHES);
        assert_eq!(split(&[("a", 1.0)], 0).unwrap().part_of(b"x"), Some(0));
        // A fraction that is smaller than one hash is an empty part.
        let of = split(&[("a", 1e-20), ("b", 0.5)], 0).unwrap();
        assert_eq!(of.parts[0].2, 0);
        assert!(parts(&of, 1000).iter().all(|part| *part != Some(0)));
        assert!(parts(&of, 1000).contains(&Some(1)));
    }

    #[test]
    fn unusable_fractions_are_refused() {
        assert_eq!(split(&[], 0), Err(SplitError::Empty));
        for fraction in [0.0, -0.1, 1.1, f64::NAN] {
            let found = split(&[("a", 0.1), ("b", fraction)], 0);
            assert_eq!(found, Err(SplitError::Fraction("b".to_owned())), "{fraction}");
        }
        assert!(matches!(split(&[("a", 0.9), ("b", 0.2)], 0), Err(SplitError::Sum(_))));
        assert_eq!(split(&[("a", 0.1), ("a", 0.2)], 0), Err(SplitError::Twice("a".to_owned())));
    }
}

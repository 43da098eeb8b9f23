//! Mixing of rows that a batch operation leaves to the client's GPU, for a tensor with a
//! [`Finish`](crate::finish::Finish): the finished rows are mixed in pairs, row `i` of `n` with row `n - 1 - i`; the
//! middle row of an odd number is unchanged.
//!
//! The mixes of a batch precede the tensor's rows in its slot, [`MIX_WORDS`] words each, and are applied in order. The
//! daemon draws them; the client chooses the device.

use std::ops::Range;

/// The maximum number of mixes of a tensor.
pub const MAX_MIXES: u32 = 64;
/// The number of words of a mix in a slot.
pub const MIX_WORDS: usize = 4;

const SUM: u64 = 1;
const PART: u64 = 2;

/// One mix of a batch's rows.
#[derive(Debug, Clone, PartialEq)]
pub enum Mix {
    /// Rows are unchanged.
    Nothing,
    /// Each element becomes `share` × itself + (1 − `share`) × the partner's, each step rounded to float32, and the sum
    /// then to the tensor's type, to nearest, ties to even.
    Sum {
        /// The share of the row itself.
        share: f32,
    },
    /// A rectangle is replaced by the partner's.
    Part {
        /// The range of its pixels along the width.
        columns: Range<u32>,
        /// The range of its pixels along the height.
        rows: Range<u32>,
    },
}

impl Mix {
    /// The words in a slot.
    #[must_use]
    pub fn to_words(&self) -> [u64; MIX_WORDS] {
        let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        match self {
            Self::Nothing => [0; MIX_WORDS],
            Self::Sum { share } => [SUM | u64::from(share.to_bits()) << 32, 0, 0, 0],
            Self::Part { columns, rows } => {
                [PART, pair(columns.start, columns.end), pair(rows.start, rows.end), 0]
            }
        }
    }

    /// Decodes a mix; `None` for words that no daemon writes.
    #[must_use]
    pub fn of_words(words: [u64; MIX_WORDS]) -> Option<Self> {
        #[expect(clippy::cast_possible_truncation, reason = "the two halves of a word")]
        let [first, columns, rows] =
            [0, 1, 2].map(|at| (words[at] as u32, (words[at] >> 32) as u32));
        let mix = match u64::from(first.0) {
            0 => Self::Nothing,
            SUM => Self::Sum { share: f32::from_bits(first.1) },
            PART => Self::Part { columns: columns.0..columns.1, rows: rows.0..rows.1 },
            _ => return None,
        };
        (mix.to_words() == words).then_some(mix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_pinned_and_round_trip() {
        for (mix, words) in [
            (Mix::Nothing, [0; 4]),
            (Mix::Sum { share: 0.75 }, [0x3f40_0000_0000_0001, 0, 0, 0]),
            (
                Mix::Part { columns: 3..7, rows: 0..9 },
                [2, 0x0000_0007_0000_0003, 0x0000_0009_0000_0000, 0],
            ),
        ] {
            assert_eq!(mix.to_words(), words);
            assert_eq!(Mix::of_words(words), Some(mix));
        }
        for words in [[3, 0, 0, 0], [1 << 32, 0, 0, 0], [2, 0, 0, 1], [2 | 1 << 40, 0, 0, 0]] {
            assert_eq!(Mix::of_words(words), None, "{words:x?}");
        }
    }
}

//! Reads bits, the most significant first, from data without stuffing.

/// A position in the data, and the bits after it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bits<'d> {
    data: &'d [u8],
    /// The next bits, at the top. Below the first `count` there are some of the following bits, or zeros.
    next: u64,
    /// Only the lowest six bits count; the upper ones are left over from look-ups.
    count: u32,
    /// The byte after the `count` bits, rounded down.
    at: usize,
}

impl<'d> Bits<'d> {
    /// Starts at a byte.
    pub(crate) fn new(data: &'d [u8], at: usize) -> Self {
        Self { data, next: 0, count: 0, at }
    }

    /// Starts at a bit.
    pub(crate) fn from_bit(data: &'d [u8], position: usize) -> Self {
        let mut bits = Self::new(data, position / 8);
        bits.refill();
        bits.skip((position % 8) as u32);
        bits
    }

    /// The position, in bits.
    pub(crate) fn position(&self) -> usize {
        self.at * 8 - (self.count & 63) as usize
    }

    /// Makes at least 56 bits available; past the end they are zeros.
    #[inline(always)]
    pub(crate) fn refill(&mut self) {
        let word = match self.data.get(self.at..).and_then(<[u8]>::first_chunk) {
            Some(bytes) => u64::from_be_bytes(*bytes),
            None => 0,
        };
        self.next |= word >> (self.count & 63);
        self.at += (7 - (self.count >> 3 & 7)) as usize;
        self.count |= 56;
    }

    /// The next `count` available bits; at least one.
    #[inline(always)]
    pub(crate) fn peek(&self, count: u32) -> usize {
        (self.next >> (64 - count)) as usize
    }

    /// Advances by the number of bits in the lowest six bits of `count`; they must be available.
    #[inline(always)]
    pub(crate) fn skip(&mut self, count: u32) {
        self.next <<= count & 63;
        self.count = self.count.wrapping_sub(count);
    }

    /// The number that `size` bits represent (T.81, F.2.2.1: EXTEND).
    #[inline(always)]
    pub(crate) fn signed(&mut self, size: u32) -> i32 {
        if size == 0 {
            return 0;
        }
        let number = extend(self.peek(size) as u32, size);
        self.skip(size);
        number
    }
}

/// T.81, F.2.2.1: numbers with a first bit of 0 are negative.
#[inline(always)]
pub(crate) const fn extend(bits: u32, size: u32) -> i32 {
    let half = 1 << (size - 1);
    if bits & half == 0 { bits.cast_signed() - (1 << size) + 1 } else { bits.cast_signed() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_read_at_every_position() {
        // Zeros at the end, as after a scan's data.
        let data: Vec<u8> =
            (0..40_u8).map(|byte| if byte < 32 { byte.wrapping_mul(37) } else { 0 }).collect();
        let bit = |at: usize| data.get(at / 8).map_or(0, |byte| byte >> (7 - at % 8) & 1);
        for step in 1..=26_u32 {
            let mut bits = Bits::new(&data, 0);
            while bits.position() < (data.len() - 8) * 8 {
                bits.refill();
                let at = bits.position();
                let expected =
                    (at..at + step as usize).fold(0, |sum, at| sum << 1 | usize::from(bit(at)));
                assert_eq!(bits.peek(step), expected, "{step} bits at {at}");
                bits.skip(step);
            }
        }
    }

    #[test]
    fn reading_can_start_at_every_bit() {
        let data: Vec<u8> = (0..40_u8).map(|byte| byte.wrapping_mul(37)).collect();
        let mut read = Bits::new(&data, 0);
        for position in 0..200 {
            let mut begun = Bits::from_bit(&data, position);
            begun.refill();
            read.refill();
            assert_eq!(begun.position(), position);
            assert_eq!(begun.peek(26), read.peek(26), "at {position}");
            read.skip(1);
        }
    }

    #[test]
    fn numbers_of_both_signs_are_extended() {
        assert_eq!([0, 1].map(|bits| extend(bits, 1)), [-1, 1]);
        assert_eq!([0, 3, 4, 7].map(|bits| extend(bits, 3)), [-7, -4, 4, 7]);
    }
}

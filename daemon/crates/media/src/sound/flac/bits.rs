//! Reads the bits of a FLAC frame, the highest of each byte first.

use super::defect;
use forebay_dataset::Defect;

/// A position in a frame's bytes.
pub(super) struct Bits<'f> {
    bytes: &'f [u8],
    /// In bits.
    at: usize,
}

impl<'f> Bits<'f> {
    pub(super) const fn new(bytes: &'f [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// The number of bytes that are read, the last one perhaps in part.
    pub(super) const fn bytes_read(&self) -> usize {
        self.at.div_ceil(8)
    }

    /// Skips to the next whole byte.
    pub(super) const fn align(&mut self) {
        self.at = self.bytes_read() * 8;
    }

    /// The next bits, at most 32, as a number.
    pub(super) fn take(&mut self, count: u32) -> Result<u32, Defect> {
        let end = self.at + count as usize;
        if end > self.bytes.len() * 8 {
            return Err(defect("it is truncated"));
        }
        let first = self.at / 8;
        let window = (first..first + 5).fold(0, |window: u64, at| {
            window << 8 | u64::from(self.bytes.get(at).copied().unwrap_or(0))
        });
        let behind = 40 - self.at % 8 - count as usize;
        self.at = end;
        let value = window >> behind & ((1 << count) - 1);
        u32::try_from(value).map_err(defect)
    }

    /// The same as a signed number.
    pub(super) fn take_signed(&mut self, count: u32) -> Result<i32, Defect> {
        let value = self.take(count)?;
        let beyond = 32 - count;
        Ok(if count == 0 { 0 } else { (value << beyond).cast_signed() >> beyond })
    }

    /// The number of zeros before the next one, which is read, too.
    pub(super) fn take_unary(&mut self) -> Result<u32, Defect> {
        let mut zeros = 0;
        loop {
            let byte = self.bytes.get(self.at / 8).ok_or_else(|| defect("it is truncated"))?;
            let (left, rest) = (8 - self.at % 8, byte << (self.at % 8));
            if rest != 0 {
                let here = rest.leading_zeros();
                self.at += here as usize + 1;
                return Ok(zeros + here);
            }
            self.at += left;
            zeros += u32::try_from(left).unwrap_or(8);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_across_bytes() {
        let mut bits = Bits::new(&[0b1010_0000, 0b0000_0001, 0xff, 0, 0, 0, 1, 0b1000_0000]);
        assert_eq!((bits.take(3).unwrap(), bits.take(0).unwrap()), (5, 0));
        assert_eq!(bits.take_unary().unwrap(), 12);
        assert_eq!(bits.take_signed(4).unwrap(), -1);
        bits.align();
        assert_eq!((bits.bytes_read(), bits.take(32).unwrap()), (3, 1));
        assert_eq!(bits.take_signed(2).unwrap(), -2);
        assert!(bits.take(7).is_err() && bits.take_unary().is_err());
    }
}

//! How large the codebooks of Vorbis are, read before the decoder makes them: a few bytes of a hostile header can ask for
//! gigabytes.

/// The most entries of all codebooks, and the most numbers that they stand for: several times those of any encoder.
const MOST_ENTRIES: u64 = 1 << 17;
const MOST_NUMBERS: u64 = 1 << 20;

/// A position in bits, the lowest of each byte first.
struct Bits<'s> {
    bytes: &'s [u8],
    at: usize,
}

impl Bits<'_> {
    /// The next bits, at most 32.
    fn take(&mut self, count: u32) -> Result<u32, &'static str> {
        let end = self.at + count as usize;
        if end > self.bytes.len() * 8 {
            return Err("its codebooks are truncated");
        }
        let first = self.at / 8;
        let window = (first..first + 5).rev().fold(0, |window: u64, at| {
            window << 8 | u64::from(self.bytes.get(at).copied().unwrap_or(0))
        });
        let value = window >> (self.at % 8) & ((1 << count) - 1);
        self.at = end;
        u32::try_from(value).map_err(|_| "its codebooks are malformed")
    }

    /// Skips bits.
    fn skip(&mut self, count: u64) -> Result<(), &'static str> {
        let end = usize::try_from(count).ok().and_then(|count| self.at.checked_add(count));
        self.at =
            end.filter(|end| *end <= self.bytes.len() * 8).ok_or("its codebooks are truncated")?;
        Ok(())
    }
}

/// Verifies that the codebooks of a setup header are of a usual size.
///
/// # Errors
/// They are larger, or malformed.
pub(super) fn verify(setup: &[u8]) -> Result<(), &'static str> {
    // The kind of the header and the word `vorbis`.
    let mut bits = Bits { bytes: setup.get(7..).unwrap_or_default(), at: 0 };
    let (mut entries, mut numbers) = (0, 0);
    for _ in 0..=bits.take(8)? {
        let (own, dimensions) = verify_one(&mut bits)?;
        entries += own;
        numbers += own * dimensions;
        if entries > MOST_ENTRIES || numbers > MOST_NUMBERS {
            return Err("its codebooks are larger than those of any encoder");
        }
    }
    Ok(())
}

/// Reads a codebook: its entries, and the numbers that each stands for.
fn verify_one(bits: &mut Bits<'_>) -> Result<(u64, u64), &'static str> {
    if bits.take(24)? != 0x56_4342 {
        return Err("its codebooks are malformed");
    }
    let (dimensions, entries) = (bits.take(16)?, bits.take(24)?);
    if u64::from(entries) > MOST_ENTRIES {
        return Err("its codebooks are larger than those of any encoder");
    }
    if bits.take(1)? == 1 {
        bits.take(5)?;
        let mut given = 0;
        while given < entries {
            given += bits.take(u32::BITS - (entries - given).leading_zeros())?;
        }
    } else if bits.take(1)? == 1 {
        for _ in 0..entries {
            if bits.take(1)? == 1 {
                bits.take(5)?;
            }
        }
    } else {
        bits.skip(5 * u64::from(entries))?;
    }
    let values = match bits.take(4)? {
        0 => return Ok((entries.into(), 0)),
        1 => lookup_values(entries, dimensions),
        2 => u64::from(entries) * u64::from(dimensions),
        _ => return Err("its codebooks are malformed"),
    };
    bits.skip(64)?;
    let each = bits.take(4)? + 1;
    bits.skip(1 + values * u64::from(each))?;
    Ok((entries.into(), dimensions.into()))
}

/// The largest number whose power of so many dimensions is at most the number of entries.
fn lookup_values(entries: u32, dimensions: u32) -> u64 {
    let fits =
        |value: u64| value.checked_pow(dimensions).is_some_and(|power| power <= u64::from(entries));
    if dimensions == 0 || entries == 0 {
        return 0;
    }
    let (mut low, mut high) = (1, u64::from(entries) + 1);
    while high - low > 1 {
        let middle = low.midpoint(high);
        if fits(middle) { low = middle } else { high = middle }
    }
    low
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roots_are_rounded_down() {
        let cases =
            [(625, 4, 5), (624, 4, 4), (81, 4, 3), (7, 1, 7), (1, 9, 1), (6561, 8, 3), (9, 0, 0)];
        for (entries, dimensions, values) in cases {
            assert_eq!(lookup_values(entries, dimensions), values, "{entries} {dimensions}");
        }
    }

    #[test]
    fn few_bytes_that_ask_for_much_are_refused() {
        // One codebook of 32 dimensions, all of 2¹⁷ entries of 17 bits.
        let mut setup = b"\x05vorbis\0BCV\x20\0".to_vec();
        setup.extend([0, 0, 2]);
        let mut tail = vec![0_u8; 64];
        // Ordered, the first length 17, and 2¹⁷ entries of it.
        tail[0] = 1 | 16 << 1;
        setup.extend(tail);
        let refused = verify(&setup).unwrap_err();
        assert!(refused.contains("truncated") || refused.contains("larger"), "{refused}");
        assert!(verify(b"\x05vorbis\0BCV").unwrap_err().contains("truncated"));
        assert!(verify(b"\x05vorbis\0ABC\0\0\0").unwrap_err().contains("malformed"));
    }
}

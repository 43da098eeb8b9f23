//! The encoding `DELTA_BINARY_PACKED`. Each block contains its smallest difference, then the excess of each difference
//! over it, in groups with a bit width each. Lengths of texts use the encoding, too.

const CUT: &str = "its numbers by differences end early";
/// The maximum number of values in a block. Writers use 128 or 256.
const MAX_BLOCK: u64 = 1 << 16;

/// The remaining bytes.
struct Reader<'b> {
    rest: &'b [u8],
}

impl<'b> Reader<'b> {
    fn unsigned(&mut self) -> Result<u64, &'static str> {
        let mut number = 0_u64;
        for shift in (0..70).step_by(7) {
            let (byte, rest) = self.rest.split_first().ok_or(CUT)?;
            self.rest = rest;
            // Bits beyond 64 are dropped, because numbers wrap.
            number |= u64::from(byte & 0x7f).checked_shl(shift).unwrap_or(0);
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err("a number of it has more than 64 bits")
    }

    /// Zigzag-encoded.
    fn signed(&mut self) -> Result<i64, &'static str> {
        let number = self.unsigned()?;
        Ok((number >> 1).cast_signed() ^ -(number & 1).cast_signed())
    }

    fn take(&mut self, bytes: u64) -> Result<&'b [u8], &'static str> {
        let bytes = usize::try_from(bytes).map_err(|_| CUT)?;
        let (taken, rest) = self.rest.split_at_checked(bytes).ok_or(CUT)?;
        self.rest = rest;
        Ok(taken)
    }
}

/// Reads `count` numbers, with 64-bit wrapping; also gives the bytes after them.
///
/// # Errors
/// The bytes end early, or contain another number of values.
pub(super) fn read(bytes: &[u8], count: usize) -> Result<(Vec<i64>, &[u8]), &'static str> {
    let mut reader = Reader { rest: bytes };
    let (block, groups, all) = (reader.unsigned()?, reader.unsigned()?, reader.unsigned()?);
    if all != count as u64 {
        return Err("there are not as many numbers by differences as the page has values");
    }
    let is_whole = |block: u64| block > 0 && groups > 0 && block.is_multiple_of(groups);
    if block > MAX_BLOCK || !is_whole(block) || !(block / groups).is_multiple_of(32) {
        return Err("its blocks of numbers by differences are none that Parquet has");
    }
    let first = reader.signed()?;
    // Grows while bytes are read, so that a damaged count does not reserve memory.
    let mut numbers = Vec::new();
    if count > 0 {
        numbers.push(first);
    }
    let (mut last, each) = (first, block / groups);
    while numbers.len() < count {
        let least = reader.signed()?;
        let widths = reader.take(groups)?;
        for width in widths {
            if numbers.len() == count {
                break;
            }
            if *width > 64 {
                return Err("its numbers by differences have more than 64 bits");
            }
            let packed = reader.take(each / 8 * u64::from(*width))?;
            let taken = usize::try_from(each).unwrap_or(usize::MAX).min(count - numbers.len());
            for place in 0..taken {
                last = last.wrapping_add(least).wrapping_add(bits(packed, place, *width));
                numbers.push(last);
            }
        }
    }
    Ok((numbers, reader.rest))
}

/// The number at an index of a bit-packed group, the lowest bit first.
fn bits(bytes: &[u8], place: usize, width: u8) -> i64 {
    let first = place * usize::from(width);
    let (byte, shift) = (first / 8, first % 8);
    let mut wide = [0; 16];
    let part = &bytes[byte.min(bytes.len())..bytes.len().min(byte + 9)];
    wide[..part.len()].copy_from_slice(part);
    let mask = (1_u128 << width) - 1;
    u64::try_from(u128::from_le_bytes(wide) >> shift & mask).unwrap_or(0).cast_signed()
}

/// Reads lengths.
///
/// # Errors
/// As [`read`], or a length is negative.
pub(super) fn read_lengths(bytes: &[u8], count: usize) -> Result<(Vec<u64>, &[u8]), &'static str> {
    let (numbers, rest) = read(bytes, count)?;
    let lengths = numbers.into_iter().map(u64::try_from).collect::<Result<_, _>>();
    Ok((lengths.map_err(|_| "a length of it is negative")?, rest))
}

/// The expected maximum length of so many encoded lengths, in blocks of usual sizes.
pub(super) const fn bytes_of_lengths(count: u64) -> u64 {
    1024 + count.saturating_mul(6)
}

#[test]
fn delta_encoded_numbers_match_the_specification() {
    // The examples of the format's specification: 1 to 5, in blocks of 128 in 4 groups; and 7, 5, 3, 1, 2, 3, 4, 5.
    let rising = [0x80, 1, 4, 5, 2, 2, 0, 0, 0, 0];
    assert_eq!(read(&rising, 5).unwrap(), (vec![1, 2, 3, 4, 5], &[][..]));
    let packed = [0b1100_0000, 0b0011_1111];
    let falling = [&[0x80, 1, 4, 8, 14, 3, 2, 0, 0, 0][..], &packed, &[0; 6], b"behind"].concat();
    assert_eq!(read(&falling, 8).unwrap(), (vec![7, 5, 3, 1, 2, 3, 4, 5], &b"behind"[..]));
    assert_eq!(read(&[0x80, 1, 4, 0, 0, 9], 0).unwrap(), (vec![], &[9][..]));
    // All 64 bits, with wrapping.
    let far = [&[0x80, 1, 4, 2, 0, 1, 64, 0, 0, 0][..], &[0xff; 8], &[0; 248]].concat();
    assert_eq!(read(&far, 2).unwrap().0, [0, -2]);
    for (bytes, count) in [
        (&rising[..9], 5),
        (&rising[..], 6),
        (&falling[..12], 8),
        (&[0x80, 1, 0, 5, 2][..], 5),
        (&[0x81, 1, 4, 5, 2, 2, 0, 0, 0, 0], 5),
        (&[0x80, 1, 4, 5, 2, 2, 65, 0, 0, 0], 5),
        (&[0xff; 12], 5),
    ] {
        read(bytes, count).unwrap_err();
    }
    assert_eq!(read_lengths(&[0x80, 1, 4, 1, 1], 1), Err("a length of it is negative"));
}

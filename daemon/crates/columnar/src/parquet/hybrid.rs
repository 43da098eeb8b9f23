//! Parquet's hybrid encoding of levels, booleans and dictionary indices: runs of one value, and bit-packed groups of
//! eight values.

/// Reads `count` numbers of `width` bits, and ignores the bytes after them.
///
/// # Errors
/// The bytes end early.
pub(super) fn read(bytes: &[u8], width: u32, count: usize) -> Result<Vec<u32>, &'static str> {
    read_as(bytes, width, count, Some)
}

/// Reads `count` levels from 0 to `most`, and ignores the bytes after them.
///
/// # Errors
/// The bytes end early, or have another level.
pub(super) fn read_levels(bytes: &[u8], most: u32, count: usize) -> Result<Vec<u8>, &'static str> {
    if most == 0 {
        return Ok(vec![0; count]);
    }
    let level = |number: u32| u8::try_from(number).ok().filter(|_| number <= most);
    read_as(bytes, u32::BITS - most.leading_zeros(), count, level)
}

/// Reads `count` numbers of `width` bits as `narrow` has them.
fn read_as<T: Clone>(
    mut bytes: &[u8],
    width: u32,
    count: usize,
    narrow: impl Fn(u32) -> Option<T>,
) -> Result<Vec<T>, &'static str> {
    const HIGH: &str = "a level is higher than its schema allows";
    const CUT: &str = "its runs of small numbers end early";
    if width > 32 {
        return Err("its small numbers have more than 32 bits");
    }
    let mut numbers = Vec::new();
    while numbers.len() < count {
        let mut head = 0_u64;
        for shift in (0..35).step_by(7) {
            let (byte, rest) = bytes.split_first().ok_or(CUT)?;
            bytes = rest;
            head |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                break;
            }
        }
        let left = count - numbers.len();
        let length = usize::try_from(head >> 1).map_err(|_| CUT)?;
        if head & 1 == 0 {
            let size = usize::try_from(width.div_ceil(8)).map_err(|_| CUT)?;
            let (value, rest) = bytes.split_at_checked(size).ok_or(CUT)?;
            bytes = rest;
            let mut wide = [0; 4];
            wide[..size].copy_from_slice(value);
            if length == 0 {
                return Err("a run of small numbers has none");
            }
            let number = narrow(u32::from_le_bytes(wide)).ok_or(HIGH)?;
            numbers.extend(std::iter::repeat_n(number, length.min(left)));
        } else {
            let taken = length.saturating_mul(8).min(left);
            let bits = |place: usize| {
                let first = place.checked_mul(width as usize)?;
                let (byte, shift) = (first / 8, first % 8);
                let mut wide = [0; 8];
                let part = bytes.get(byte..bytes.len().min(byte + 5))?;
                wide[..part.len()].copy_from_slice(part);
                let is_there = part.len() * 8 >= shift + width as usize;
                let mask = (1_u64 << width) - 1;
                is_there.then(|| u32::try_from(u64::from_le_bytes(wide) >> shift & mask).ok())?
            };
            for place in 0..taken {
                numbers.push(narrow(bits(place).ok_or(CUT)?).ok_or(HIGH)?);
            }
            let size = length.checked_mul(width as usize).ok_or(CUT)?;
            // The last group may be truncated after the last number.
            bytes = bytes.get(size..).unwrap_or_default();
            if taken == 0 {
                return Err(CUT);
            }
        }
    }
    Ok(numbers)
}

#[test]
fn runs_and_groups_match_the_specification() {
    // The example of the format's specification: 0 to 7 in three bits each.
    assert_eq!(read(&[3, 0x88, 0xc6, 0xfa], 3, 8).unwrap(), [0, 1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(read(&[8, 5, 4, 6], 3, 6).unwrap(), [5, 5, 5, 5, 6, 6]);
    assert_eq!(read(&[200, 1, 1], 1, 3).unwrap(), [1, 1, 1]);
    assert_eq!(read(&[6], 0, 3).unwrap(), [0, 0, 0]);
    for (bytes, width) in [(&[][..], 1), (&[3, 0x88], 3), (&[0, 1], 1), (&[1], 1), (&[4], 40)] {
        read(bytes, width, 8).unwrap_err();
    }
}

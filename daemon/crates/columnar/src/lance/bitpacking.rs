//! Numbers of few bits, in the order of FastLanes: 1024 numbers are packed in as many lanes as 1024 bits have words.
//!
//! Bits of lane `l` are in the words `l`, `l + lanes`, and so on. The numbers of a lane are those of its rows, and row
//! `r` of lane `l` is the number `ORDER[r / 8] * 16 + (r % 8) * 128 + l`.

/// The numbers of a block.
pub(super) const BLOCK: usize = 1024;
const ORDER: [usize; 8] = [0, 4, 2, 6, 1, 5, 3, 7];

/// The bytes of a packed block of numbers of `width` bits.
pub(super) const fn block_bytes(width: usize) -> usize {
    BLOCK * width / 8
}

/// Unpacks a block, and appends its numbers of `size` bytes each: 1, 2, 4 or 8. `None`: the length of the block does not
/// match its width, or the width exceeds the size.
pub(super) fn unpack(block: &[u8], size: usize, width: usize, out: &mut Vec<u8>) -> Option<()> {
    let bits = 8 * size;
    if width > bits || block.len() != block_bytes(width) {
        return None;
    }
    let lanes = BLOCK / bits;
    let word = |number: usize| {
        let mut wide = [0; 8];
        let start = number * size;
        wide[..size].copy_from_slice(block.get(start..start + size)?);
        Some(u64::from_le_bytes(wide))
    };
    let mask = if width == 64 { u64::MAX } else { (1 << width) - 1 };
    let start = out.len();
    out.resize(start + BLOCK * size, 0);
    if width == 0 {
        return Some(());
    }
    let numbers = &mut out[start..];
    for row in 0..bits {
        let (first, shift) = (row * width / bits, row * width % bits);
        let place = ORDER[row / 8] * 16 + row % 8 * 128;
        for lane in 0..lanes {
            let mut number = word(first * lanes + lane)? >> shift;
            if shift + width > bits {
                number |= word((first + 1) * lanes + lane)? << (bits - shift);
            }
            let at = (place + lane) * size;
            numbers[at..at + size].copy_from_slice(&(number & mask).to_le_bytes()[..size]);
        }
    }
    Some(())
}

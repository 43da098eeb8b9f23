//! Blocks of coefficients: decoded or skipped (T.81, F.2.2).
//!
//! Data that libjpeg reads differently or warns of is never accepted: codes and sizes that a baseline file does not
//! have, more than 63 coefficients after the first. The caller checks once per MCU that no bit past the end of the data
//! was read.

use crate::bits::Bits;
use crate::huffman::{Pair, SKIP_WINDOW, Skipped, Table, Two, WINDOW};
use crate::request::Unsure;

/// The coefficients of a block, row by row.
pub(crate) type Block = [i16; 64];

/// Positions in a block of the coefficients in zigzag order (T.81, figure A.6), and a position for coefficients past
/// the last.
pub(crate) const ZIGZAG: [u8; 128] = {
    let mut places = [63; 128];
    let (mut row, mut column) = (0_u8, 0_u8);
    let mut at = 0;
    while at < 64 {
        places[at] = row * 8 + column;
        let up = (row + column) % 2 == 0;
        if up {
            if column == 7 {
                row += 1;
            } else {
                column += 1;
                row = row.saturating_sub(1);
            }
        } else if row == 7 {
            column += 1;
        } else {
            row += 1;
            column = column.saturating_sub(1);
        }
        at += 1;
    }
    places
};

const OVERRUN: Unsure = Unsure("more coefficients than a block has");
const TOO_LARGE: Unsure = Unsure("coefficients beyond every picture's");

/// The next symbol and its number, with at least 26 available bits. `None`: the end of the block.
#[inline(always)]
fn take(bits: &mut Bits<'_>, table: &Table) -> Result<Option<(usize, i32)>, Unsure> {
    let found = table.single(bits.peek(16))?;
    bits.skip(found.consumed());
    if !found.is_rare() {
        return Ok(Some((found.advance(), found.number())));
    }
    Ok((!found.is_end()).then(|| (found.advance(), bits.signed(found.pending()))))
}

/// The difference of a block's first coefficient to the previous block's. Leaves at least 29 bits available.
#[inline(always)]
fn difference(bits: &mut Bits<'_>, table: &Table) -> Result<i32, Unsure> {
    bits.refill();
    Ok(take(bits, table)?.map_or(0, |(_, number)| number))
}

/// Decodes a block. `before` is the first coefficient of the previous block and is set to this block's. Returns the
/// zigzag position of the last coefficient that is not zero, or a later one; 0: only the first.
///
/// # Errors
/// The block is in doubt.
#[inline(always)]
pub(crate) fn decode(
    bits: &mut Bits<'_>,
    tables: Pair<'_>,
    before: &mut i32,
    block: &mut Block,
) -> Result<usize, Unsure> {
    let first = before.wrapping_add(difference(bits, tables.dc)?);
    *before = first;
    *block = [0; 64];
    block[0] = i16::try_from(first).map_err(|_| TOO_LARGE)?;
    let mut at = 0;
    'known: loop {
        bits.refill();
        // Three look-ups of the window's bits; longer codes begin with new bits.
        for _ in 0..3 {
            let two = tables.two[bits.peek(WINDOW)];
            let after = at + two.to_second();
            let [first, second] = two.numbers();
            let to_first = (at + two.to_first()) & 127;
            if after >= 63 {
                let last = after.wrapping_sub(Two::END);
                if last < 63 {
                    bits.skip(two.consumed());
                    block[usize::from(ZIGZAG[to_first] & 63)] = first;
                    block[usize::from(ZIGZAG[last] & 63)] = second;
                    return Ok(last);
                }
                // Near the end the next bits may belong to the next block. At most twice the window's bits are consumed
                // by now.
                let Some((advance, number)) = take(bits, tables.ac)? else {
                    return Ok(at);
                };
                at += advance;
                // At most ten bits and a sign.
                block[usize::from(ZIGZAG[at & 127] & 63)] = number as i16;
                match at {
                    ..63 => continue 'known,
                    63 => return Ok(at),
                    _ => return Err(OVERRUN),
                }
            }
            bits.skip(two.consumed());
            block[usize::from(ZIGZAG[to_first] & 63)] = first;
            block[usize::from(ZIGZAG[after] & 63)] = second;
            at = after;
        }
    }
}

/// Skips a block; only its first coefficient is kept, for the next block.
///
/// # Errors
/// The block is in doubt.
#[inline(always)]
pub(crate) fn skip(bits: &mut Bits<'_>, tables: Pair<'_>, before: &mut i32) -> Result<(), Unsure> {
    *before = before.wrapping_add(difference(bits, tables.dc)?);
    let mut at = 0;
    let Some(table) = tables.skip else {
        return skip_singly(bits, tables.ac, at);
    };
    loop {
        bits.refill();
        // Two look-ups of at most 23 bits.
        for _ in 0..2 {
            let skipped = table[bits.peek(SKIP_WINDOW)];
            let after = at + skipped.advance();
            if after >= 63 {
                if after.wrapping_sub(Skipped::END) < 63 {
                    bits.skip(skipped.consumed());
                    return Ok(());
                }
                // Near the end the next bits may belong to the next block.
                return skip_singly(bits, tables.ac, at);
            }
            bits.skip(skipped.consumed());
            at = after;
        }
    }
}

/// The rest of a block after the coefficient at `at`, symbol by symbol.
fn skip_singly(bits: &mut Bits<'_>, table: &Table, mut at: usize) -> Result<(), Unsure> {
    while at < 63 {
        bits.refill();
        let Some((advance, _)) = take(bits, table)? else {
            return Ok(());
        };
        at += advance;
    }
    if at > 63 { Err(OVERRUN) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::ZIGZAG;

    #[test]
    fn zigzag_order_is_the_standards() {
        assert_eq!(ZIGZAG[..10], [0, 1, 8, 16, 9, 2, 3, 10, 17, 24]);
        assert_eq!(ZIGZAG[54..64], [39, 46, 53, 60, 61, 54, 47, 55, 62, 63]);
        let mut all: Vec<u8> = ZIGZAG[..64].to_vec();
        all.sort_unstable();
        assert!(all.into_iter().eq(0..64));
    }
}

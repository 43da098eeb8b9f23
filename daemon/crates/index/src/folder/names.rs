//! Front coding of the sorted file names of one directory: about one to four bytes per name.
//!
//! Names are stored in blocks of [`BLOCK_NAMES`], which decode independently. A name is a stem and an extension from
//! the format's list. One tag byte encodes how it follows from the previous name in the block:
//!
//! ```text
//! 0nnn nnnn   the previous stem with its trailing decimal number increased by n + 1; the same extension
//! 1edd dsss   the previous stem without its last d bytes, then s suffix bytes; e: an extension code follows, a varint.
//!             d = 7: a varint with the excess over 7 follows the tag
//!             s = 7: a varint follows with twice the excess over 7, plus 1 if the suffix is packed: lower-case
//!             hexadecimal digits only, two per byte, the first in the upper half, an unused half is zero
//! ```
//! Packing is for names made of hashes, which front coding does not shorten. The first name of a block follows an empty
//! stem and extension code 0. An extension code is the index in the format's list times 32, plus one bit for each
//! upper-case letter. Decoding checks every step, so damaged bytes give `None`, never a panic.

/// Names per block: at most this many are decoded to find one name.
pub const BLOCK_NAMES: u64 = 16;

const EXCESS: usize = 7;
/// Numbers up to 18 digits fit a u64.
const MAX_DIGITS: usize = 18;
const HEXADECIMAL: &[u8; 16] = b"0123456789abcdef";

/// The extensions of a format: lower case, with the dot, ASCII, of at most five letters.
pub type Extensions = &'static [&'static str];

/// Splits a file name into the length of its stem and the code of its extension; `None` if the format does not have the
/// extension.
#[must_use]
pub fn split_extension(name: &[u8], extensions: Extensions) -> Option<(usize, u16)> {
    extensions.iter().zip(0_u16..).find_map(|(extension, place)| {
        let stem_length = name.len().checked_sub(extension.len())?;
        let tail = &name[stem_length..];
        if !tail.eq_ignore_ascii_case(extension.as_bytes()) {
            return None;
        }
        let upper_case = tail[1..].iter().enumerate().fold(0_u16, |bits, (letter, byte)| {
            bits | (u16::from(byte.is_ascii_uppercase()) << letter)
        });
        Some((stem_length, place * 32 + upper_case))
    })
}

/// Appends the extension of a code.
fn push_extension(code: u16, extensions: Extensions, name: &mut Vec<u8>) -> Option<()> {
    let extension = extensions.get(usize::from(code / 32))?.as_bytes();
    name.push(b'.');
    name.extend(extension[1..].iter().enumerate().map(|(letter, byte)| {
        if code >> letter & 1 == 1 { byte.to_ascii_uppercase() } else { *byte }
    }));
    Some(())
}

/// Encodes one directory's names, in order.
#[derive(Debug, Default)]
pub struct NameEncoder {
    stem: Vec<u8>,
    extension: u16,
    count: u64,
}

impl NameEncoder {
    /// Appends one name to `encoded`; at the start of a block, first appends its offset to `block_offsets`.
    ///
    /// # Errors
    /// The offset does not fit 32 bits: the directory has more than a billion files.
    pub fn push(
        &mut self,
        stem: &[u8],
        extension: u16,
        encoded: &mut Vec<u8>,
        block_offsets: &mut Vec<u32>,
    ) -> Result<(), std::num::TryFromIntError> {
        if self.count.is_multiple_of(BLOCK_NAMES) {
            block_offsets.push(u32::try_from(encoded.len())?);
            self.stem.clear();
            self.extension = 0;
        }
        self.count += 1;
        match successor_step(&self.stem, stem) {
            Some(step) if extension == self.extension => encoded.push(step - 1),
            _ => self.push_general(stem, extension, encoded),
        }
        self.stem.clear();
        self.stem.extend_from_slice(stem);
        self.extension = extension;
        Ok(())
    }

    fn push_general(&self, stem: &[u8], extension: u16, encoded: &mut Vec<u8>) {
        let shared = self.stem.iter().zip(stem).take_while(|(before, now)| before == now).count();
        let (dropped, suffix) = (self.stem.len() - shared, &stem[shared..]);
        let other_extension = extension != self.extension;
        let short = |length: usize| u8::try_from(length.min(EXCESS)).unwrap_or(7);
        encoded.push(
            0x80 | u8::from(other_extension) << 6 | short(dropped) << 3 | short(suffix.len()),
        );
        if dropped >= EXCESS {
            push_varint(dropped - EXCESS, encoded);
        }
        if suffix.len() < EXCESS {
            encoded.extend_from_slice(suffix);
        } else {
            let start = encoded.len();
            let excess = (suffix.len() - EXCESS) << 1;
            push_varint(excess | 1, encoded);
            if push_packed(suffix, encoded).is_none() {
                encoded.truncate(start);
                push_varint(excess, encoded);
                encoded.extend_from_slice(suffix);
            }
        }
        if other_extension {
            push_varint(extension.into(), encoded);
        }
    }
}

/// The increase (1 to 128) of the number at the end of `now` over that of `before`, if everything else is equal.
fn successor_step(before: &[u8], now: &[u8]) -> Option<u8> {
    if before.len() != now.len() {
        return None;
    }
    let shared = before.iter().zip(now).take_while(|(left, right)| left == right).count();
    if shared == now.len() || now.len() - shared > MAX_DIGITS {
        return None;
    }
    let number = |digits: &[u8]| {
        digits.iter().try_fold(0_u64, |number, digit| {
            digit.is_ascii_digit().then(|| number * 10 + u64::from(digit - b'0'))
        })
    };
    let step = number(&now[shared..])?.checked_sub(number(&before[shared..])?)?;
    u8::try_from(step).ok().filter(|step| (1..=128).contains(step))
}

fn push_varint(mut value: usize, encoded: &mut Vec<u8>) {
    while value >= 0x80 {
        encoded.push(u8::try_from(value & 0x7F).unwrap_or(0) | 0x80);
        value >>= 7;
    }
    encoded.push(u8::try_from(value).unwrap_or(0));
}

/// Appends hexadecimal digits, two per byte; `None`, with some of them appended, if there is another character.
fn push_packed(digits: &[u8], encoded: &mut Vec<u8>) -> Option<()> {
    let value = |digit: &u8| match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    };
    for pair in digits.chunks(2) {
        let lower = pair.get(1).map_or(Some(0), value)?;
        encoded.push(value(&pair[0])? << 4 | lower);
    }
    Some(())
}

/// Iterates over the names of one block, or of adjacent blocks of one directory.
#[derive(Debug, Clone)]
pub struct NameDecoder<'a> {
    encoded: &'a [u8],
    extensions: Extensions,
    extension: u16,
    /// The number of decoded names.
    count: u64,
    /// The start of the stem in the caller's buffer.
    start: usize,
}

impl<'a> NameDecoder<'a> {
    /// Starts at a block. Names are appended to a buffer that already has `start` bytes.
    #[must_use]
    pub fn new(encoded: &'a [u8], extensions: Extensions, start: usize) -> Self {
        Self { encoded, extensions, extension: 0, count: 0, start }
    }

    /// Turns the previous stem, which ends the buffer, into the next one. `None`: the bytes are damaged.
    #[inline]
    pub fn next_stem(&mut self, buffer: &mut Vec<u8>) -> Option<()> {
        if self.count.is_multiple_of(BLOCK_NAMES) {
            buffer.truncate(self.start);
            self.extension = 0;
        }
        self.count += 1;
        let tag = self.byte()?;
        if tag < 0x80 {
            return add_to_number(buffer.get_mut(self.start..)?, tag + 1);
        }
        let mut dropped = usize::from(tag >> 3 & 7);
        let mut suffix_length = usize::from(tag & 7);
        if dropped == EXCESS {
            dropped = dropped.checked_add(self.varint()?)?;
        }
        let mut is_packed = false;
        if suffix_length == EXCESS {
            let excess = self.varint()?;
            is_packed = excess & 1 == 1;
            suffix_length += excess >> 1;
        }
        let shared = buffer.len().checked_sub(dropped).filter(|shared| *shared >= self.start)?;
        let stored = if is_packed { suffix_length.div_ceil(2) } else { suffix_length };
        let (suffix, rest) = self.encoded.split_at_checked(stored)?;
        buffer.truncate(shared);
        if is_packed {
            let digits = suffix.iter().flat_map(|pair| [pair >> 4, pair & 15]);
            buffer.extend(digits.take(suffix_length).map(|digit| HEXADECIMAL[usize::from(digit)]));
        } else {
            buffer.extend_from_slice(suffix);
        }
        self.encoded = rest;
        if tag & 0x40 != 0 {
            self.extension = u16::try_from(self.varint()?).ok()?;
        }
        Some(())
    }

    /// Appends the extension of the most recently decoded stem.
    pub fn finish_name(&self, buffer: &mut Vec<u8>) -> Option<()> {
        push_extension(self.extension, self.extensions, buffer)
    }

    /// The code of that extension.
    #[must_use]
    pub fn extension(&self) -> u16 {
        self.extension
    }

    fn byte(&mut self) -> Option<u8> {
        let (byte, rest) = self.encoded.split_first()?;
        self.encoded = rest;
        Some(*byte)
    }

    fn varint(&mut self) -> Option<usize> {
        let mut value = 0_usize;
        for shift in [0, 7, 14, 21] {
            let byte = self.byte()?;
            value |= usize::from(byte & 0x7F) << shift;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }
}

/// Adds to the decimal number at the end of a name, in place.
fn add_to_number(name: &mut [u8], step: u8) -> Option<()> {
    let mut carry = step;
    for byte in name.iter_mut().rev() {
        if !byte.is_ascii_digit() {
            return None;
        }
        let sum = *byte - b'0' + carry % 10;
        *byte = b'0' + sum % 10;
        carry = carry / 10 + sum / 10;
        if carry == 0 {
            return Some(());
        }
    }
    None
}

#[cfg(test)]
mod tests;

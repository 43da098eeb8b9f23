//! Huffman tables as look-up tables, built once per content and cached (T.81, annexes C and F).
//!
//! Most files of a data set share a few tables: those of the standard's annex K, or an encoder's. A file with tables
//! that no other file uses gets them without the multiple look-ups, which would cost more than they save.

use crate::markers::Frame;
use crate::request::Unsure;

/// Bits of a decoding look-up.
pub(crate) const WINDOW: u32 = 10;
/// Bits of a skipping look-up.
pub(crate) const SKIP_WINDOW: u32 = 13;
/// Look-ups by 16 bits for codes longer than the window; few tables need more.
const MOST_FAR: usize = 2048;
/// Cached tables of each class; more than the six of one file.
const KEPT: usize = 12;

/// Result of a look-up: one symbol, with its number if both are within the window.
///
/// From the lowest bit: 6 bits: the bits to consume; 5: the zigzag positions to advance by (run and one); 4: the size
/// of a number that is still to be read; 1: [`Found::is_rare`]; 16: the number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Found(u32);

const RARE: u32 = 1 << 15;

impl Found {
    /// No code within the window, or a symbol that baseline files do not have: see [`Table::long`].
    const LONG: Self = Self(RARE);

    /// The number of bits to consume, in the lowest six bits.
    #[inline(always)]
    pub(crate) fn consumed(self) -> u32 {
        self.0
    }

    #[inline(always)]
    pub(crate) fn advance(self) -> usize {
        (self.0 >> 6 & 31) as usize
    }

    #[inline(always)]
    pub(crate) fn pending(self) -> u32 {
        self.0 >> 11 & 15
    }

    /// Not a symbol with its number: [`Self::is_long`], [`Self::is_end`], or a number that is still to be read.
    #[inline(always)]
    pub(crate) fn is_rare(self) -> bool {
        self.0 & RARE != 0
    }

    #[inline(always)]
    pub(crate) fn is_long(self) -> bool {
        self == Self::LONG
    }

    /// The end of the block.
    #[inline(always)]
    pub(crate) fn is_end(self) -> bool {
        self.advance() == 0
    }

    #[inline(always)]
    pub(crate) fn number(self) -> i32 {
        self.0.cast_signed() >> 16
    }

    /// A symbol with a code of `length` bits, whose number is still to be read.
    fn new(class: Class, symbol: u8, length: u32) -> Option<Self> {
        let (run, size) = (u32::from(symbol >> 4), u32::from(symbol & 15));
        let is_known = match class {
            Class::Dc => symbol <= 11,
            Class::Ac => size <= 10 && (size > 0 || matches!(run, 0 | 15)),
        };
        let is_end = class == Class::Ac && symbol == 0;
        let advance = if is_end { 0 } else { run + 1 };
        let rare = if is_end || size > 0 { RARE } else { 0 };
        is_known.then_some(Self(length | advance << 6 | size << 11 | rare))
    }

    /// Adds the number, which follows the code in the window.
    fn with_number(self, window: u32) -> Self {
        let (length, size) = (self.consumed() & 63, self.pending());
        if size == 0 || length + size > WINDOW {
            return self;
        }
        let bits = window >> (WINDOW - length - size) & ((1 << size) - 1);
        let number = crate::bits::extend(bits, size).cast_unsigned() << 16;
        Self(number | (self.advance() as u32) << 6 | (length + size))
    }
}

/// Result of a skipping look-up: all complete symbols in the window.
///
/// From the lowest bit: 6 bits: the bits to consume; 10: the zigzag positions to advance by, plus [`Self::END`] if the
/// block ends: so one comparison detects both the end and positions past it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Skipped(u16);

impl Skipped {
    /// No complete symbol: leads past the block's end.
    const NONE: Self = Self(64 << 6);
    /// Added to the positions if the block ends.
    pub(crate) const END: usize = 256;

    /// The number of bits to consume, in the lowest six bits.
    #[inline(always)]
    pub(crate) fn consumed(self) -> u32 {
        u32::from(self.0)
    }

    #[inline(always)]
    pub(crate) fn advance(self) -> usize {
        usize::from(self.0 >> 6)
    }
}

/// Result of a decoding look-up: two symbols with their numbers, or one, or one and the end of the block.
///
/// One byte each: the bits to consume; the zigzag positions from here to the first number; to the second one, plus
/// [`Self::END`] if the block ends: so one comparison detects both the end and positions past it. From bit 32 on the
/// numbers, 16 bits each. A single number is repeated.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Two(u64);

impl Two {
    /// A symbol that needs more bits than the window has, or none: leads past the block's end, where decoding continues
    /// symbol by symbol.
    const NONE: Self = Self(64 << 16);
    /// Added to the positions to the second number if the block ends.
    pub(crate) const END: usize = 128;

    fn new(first: Found, second: Option<Found>) -> Self {
        if first.is_rare() {
            return Self::NONE;
        }
        let number = |found: Found| u64::from(found.0 >> 16);
        let (mut consumed, mut advance, mut end) = (first.consumed() & 63, first.advance(), 0);
        let mut last = first;
        if let Some(second) = second {
            consumed += second.consumed() & 63;
            if second.is_end() {
                end = Self::END as u64;
            } else {
                last = second;
                advance += second.advance();
            }
        }
        let places = (first.advance() as u64) << 8 | (advance as u64 + end) << 16;
        Self(u64::from(consumed) | places | number(first) << 32 | number(last) << 48)
    }

    /// The number of bits to consume, in the lowest six bits.
    #[inline(always)]
    pub(crate) fn consumed(self) -> u32 {
        self.0 as u32
    }

    #[inline(always)]
    pub(crate) fn to_first(self) -> usize {
        (self.0 >> 8 & 255) as usize
    }

    #[inline(always)]
    pub(crate) fn to_second(self) -> usize {
        (self.0 >> 16 & 255) as usize
    }

    #[inline(always)]
    pub(crate) fn numbers(self) -> [i16; 2] {
        [(self.0 >> 32) as i16, (self.0 >> 48) as i16]
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    Dc,
    Ac,
}

/// One table.
#[derive(Debug)]
pub(crate) struct Table {
    single: Box<[Found; 1 << WINDOW]>,
    /// For coefficients after the first.
    two: Option<Box<[Two; 1 << WINDOW]>>,
    /// Built when a second file uses the table.
    skip: Option<Box<[Skipped; 1 << SKIP_WINDOW]>>,
    /// For each length: the first longer code, at the top of 16 bits, and the difference between a code and its
    /// symbol's position.
    longer: [(u32, i32); 17],
    /// The symbols of the first codes longer than the window, by 16 bits from `first_far` on.
    far: Vec<Found>,
    first_far: usize,
    symbols: Vec<Option<Found>>,
}

impl Table {
    /// # Errors
    /// Libjpeg would refuse the table.
    fn new(class: Class, content: &[u8]) -> Result<Self, Unsure> {
        let bad = Unsure("a strange Huffman table");
        let (counts, symbols) = content.split_at_checked(16).ok_or(bad)?;
        let mut table = Self {
            single: Box::new([Found::LONG; 1 << WINDOW]),
            two: None,
            skip: None,
            longer: [(0, 0); 17],
            far: Vec::new(),
            first_far: 0,
            symbols: Vec::with_capacity(symbols.len()),
        };
        let (mut code, mut rest) = (0_u32, symbols.iter());
        for (length, count) in (1_u32..).zip(counts) {
            let first = i32::try_from(table.symbols.len()).map_err(|_| bad)?;
            table.longer[length as usize].1 = first - code.cast_signed();
            for symbol in rest.by_ref().take((*count).into()) {
                let found = Found::new(class, *symbol, length);
                if class == Class::Dc && found.is_none() {
                    return Err(bad);
                }
                table.symbols.push(found);
                if let (Some(found), true) = (found, length <= WINDOW && code < 1 << length) {
                    let from = code << (WINDOW - length);
                    for window in from..from + (1 << (WINDOW - length)) {
                        table.single[window as usize] = found.with_number(window);
                    }
                }
                if length > WINDOW && table.far.len() < MOST_FAR {
                    let count = table.far.len() + (1 << (16 - length));
                    table.far.resize(count.min(MOST_FAR), found.unwrap_or(Found::LONG));
                }
                code += 1;
            }
            // A code never consists of ones only.
            if *count > 0 && code >= 1 << length {
                return Err(bad);
            }
            table.longer[length as usize].0 = code << (16 - length);
            if length == WINDOW {
                table.first_far = (code << (16 - length)) as usize;
            }
            code <<= 1;
        }
        if class == Class::Ac {
            table.make_two();
        }
        Ok(table)
    }

    /// The next symbol, from the next 16 bits. Its number may be still to be read.
    #[inline(always)]
    pub(crate) fn single(&self, bits: usize) -> Result<Found, Unsure> {
        let found = self.single[bits >> (16 - WINDOW)];
        if !found.is_long() {
            return Ok(found);
        }
        match bits.checked_sub(self.first_far).and_then(|far| self.far.get(far)) {
            Some(found) if !found.is_long() => Ok(*found),
            _ => self.long(bits),
        }
    }

    /// Builds the look-ups of two symbols.
    fn make_two(&mut self) {
        let mut two = vec![Two::NONE; 1 << WINDOW];
        for (window, two) in two.iter_mut().enumerate() {
            let first = self.single[window];
            let consumed = first.consumed() & 63;
            let second = self.single[window << consumed & ((1 << WINDOW) - 1)];
            // Its bits are known if they are all within the window; the end has no number.
            let is_known = consumed + (second.consumed() & 63) <= WINDOW
                && (!second.is_rare() || (second.is_end() && !second.is_long()));
            *two = Two::new(first, Some(second).filter(|_| is_known));
        }
        self.two = two.try_into().ok();
    }

    /// The symbol of a code of any length, from the next 16 bits. Its number is still to be read.
    #[cold]
    pub(crate) fn long(&self, bits: usize) -> Result<Found, Unsure> {
        for length in 1..=16_u32 {
            let (end, offset) = self.longer[length as usize];
            if bits < end as usize {
                let code = (bits >> (16 - length)) as i32;
                let symbol = usize::try_from(code + offset).ok();
                let found = symbol.and_then(|symbol| self.symbols.get(symbol).copied().flatten());
                return found.ok_or(Unsure("a symbol that baseline files do not have"));
            }
        }
        Err(Unsure("a code that the table does not have"))
    }

    /// Builds the multiple look-ups.
    fn make_skip(&mut self) {
        let mut skip = vec![Skipped::NONE; 1 << SKIP_WINDOW];
        for (window, skipped) in skip.iter_mut().enumerate() {
            let (mut consumed, mut advance, mut end) = (0, 0, 0);
            while consumed < SKIP_WINDOW {
                let left = SKIP_WINDOW - consumed;
                let shown = (window & ((1 << left) - 1)) << (16 - left);
                // The code must be within the window; the number after it is only skipped.
                let Ok(found) = self.long(shown) else { break };
                let length = found.consumed() & 63;
                if length > left || advance + found.advance() > 64 {
                    break;
                }
                consumed += length + found.pending();
                if found.is_end() {
                    end = Skipped::END;
                    break;
                }
                advance += found.advance();
            }
            if consumed > 0 {
                let packed = consumed as usize | (advance + end) << 6;
                *skipped = u16::try_from(packed).map_or(Skipped::NONE, Skipped);
            }
        }
        self.skip = skip.try_into().ok();
    }
}

/// A cached table.
#[derive(Debug)]
struct Kept {
    content: Vec<u8>,
    table: Table,
    /// The number of the last file that used it.
    file: u64,
}

/// The tables of one class.
#[derive(Debug)]
struct Shelf {
    class: Class,
    kept: Vec<Kept>,
}

impl Shelf {
    /// The slot of the table with this content.
    fn place(&mut self, content: &[u8], file: u64) -> Result<usize, Unsure> {
        if let Some(place) = self.kept.iter().position(|kept| kept.content == content) {
            let kept = &mut self.kept[place];
            if kept.file != file && kept.table.skip.is_none() && self.class == Class::Ac {
                kept.table.make_skip();
            }
            kept.file = file;
            return Ok(place);
        }
        let table = Table::new(self.class, content)?;
        let kept = Kept { content: content.to_vec(), table, file };
        if self.kept.len() < KEPT {
            self.kept.push(kept);
            return Ok(self.kept.len() - 1);
        }
        let oldest = (0..KEPT).min_by_key(|place| self.kept[*place].file).unwrap_or(0);
        self.kept[oldest] = kept;
        Ok(oldest)
    }
}

/// The tables of earlier files.
#[derive(Debug)]
pub(crate) struct Tables {
    dc: Shelf,
    ac: Shelf,
    files: u64,
}

impl Default for Tables {
    fn default() -> Self {
        let shelf = |class| Shelf { class, kept: Vec::new() };
        Self { dc: shelf(Class::Dc), ac: shelf(Class::Ac), files: 0 }
    }
}

/// The tables of one component.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pair<'t> {
    pub dc: &'t Table,
    pub ac: &'t Table,
    /// Look-ups of two symbols.
    pub two: &'t [Two; 1 << WINDOW],
    /// Multiple look-ups for skipping.
    pub skip: Option<&'t [Skipped; 1 << SKIP_WINDOW]>,
}

impl Tables {
    /// The tables of a frame's components; for a grey frame the same tables three times.
    ///
    /// # Errors
    /// A table is missing or invalid.
    pub(crate) fn of(&mut self, frame: &Frame<'_>) -> Result<[Pair<'_>; 3], Unsure> {
        const NEVER: &[Two; 1 << WINDOW] = &[Two::NONE; 1 << WINDOW];
        let missing = Unsure("a Huffman table that is missing");
        self.files += 1;
        let mut places = [(0, 0); 3];
        for (component, place) in frame.components().iter().zip(&mut places) {
            let dc = self.dc.place(frame.dc[component.dc].ok_or(missing)?, self.files)?;
            *place = (dc, self.ac.place(frame.ac[component.ac].ok_or(missing)?, self.files)?);
        }
        // A file's slots are not reused while it is read: there are more of them than a file uses.
        Ok(places.map(|(dc, ac)| {
            let (dc, ac) = (&self.dc.kept[dc].table, &self.ac.kept[ac].table);
            Pair { dc, ac, two: ac.two.as_deref().unwrap_or(NEVER), skip: ac.skip.as_deref() }
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Codes 0, 10, 110, 1110 … and one of 12 bits; EOB is the second.
    const CONTENT: [u8; 16 + 6] =
        [1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0x01, 0x00, 0x12, 0xf0, 0x0a, 0x0b];

    #[test]
    fn symbols_have_their_numbers_if_these_are_within_the_window() {
        let table = Table::new(Class::Ac, &CONTENT).unwrap();
        // 0 and the number 1; then EOB.
        let found = table.single[0b01_1000_0000];
        assert_eq!((found.consumed() & 63, found.advance(), found.number()), (2, 1, 1));
        let end = table.single[0b10_0000_0000];
        assert!(end.is_rare() && end.is_end() && !end.is_long() && end.consumed() & 63 == 2);
        // 110 and two bits: run 1, number -2.
        let found = table.single[0b11_0010_0000];
        assert_eq!((found.consumed() & 63, found.advance(), found.number()), (5, 2, -2));
        assert!(table.single[0b11_1100_0000].is_long());
        let long = table.long(0b1111_0000_0000_0000).unwrap();
        assert_eq!((long.consumed() & 63, long.pending()), (12, 10));
        assert!(table.long(0b1111_0000_0001_0000).is_err(), "a size of 11");
        assert!(table.long(0xffff).is_err());
        // All codes longer than the window, by their look-ups and by their lengths.
        assert_eq!((table.first_far, table.far.len()), (0b1111 << 12, 32));
        for bits in 0..1 << 16 {
            if table.single[bits >> (16 - WINDOW)].is_long() {
                assert_eq!(table.single(bits), table.long(bits), "{bits:016b}");
            }
        }
    }

    #[test]
    fn decoding_look_up_takes_two_symbols_or_the_end() {
        let table = Table::new(Class::Ac, &CONTENT).unwrap();
        let two = table.two.unwrap();
        let shown = |two: Two| {
            let (after, ends) = match two.to_second().checked_sub(Two::END) {
                Some(after) => (after, true),
                None => (two.to_second(), false),
            };
            (two.consumed() & 63, two.to_first(), after, two.numbers(), ends)
        };
        // 0 1, 110 01: 1 and -2.
        assert_eq!(shown(two[0b01_1100_1000]), (7, 1, 3, [1, -2], false));
        // 0 0, 10: -1 and the end.
        assert_eq!(shown(two[0b00_1000_0000]), (4, 1, 1, [-1, -1], true));
        // 1110 (sixteen zeros), 1111…: one.
        assert_eq!(shown(two[0b11_1011_1100]), (4, 16, 16, [0, 0], false));
        assert_eq!(two[0b10_0000_0000].to_second(), 64, "the end at once");
    }

    #[test]
    fn skipping_look_up_takes_complete_symbols() {
        let mut table = Table::new(Class::Ac, &CONTENT).unwrap();
        table.make_skip();
        let skip = table.skip.unwrap();
        // 0 1, 0 0, 110 01, 10: three symbols and the end.
        let skipped = skip[0b0_1001_1001_1000];
        assert_eq!((skipped.consumed() & 63, skipped.advance()), (11, Skipped::END + 4));
        // Six symbols, and the code of a seventh, whose number is past the window.
        let skipped = skip[0];
        assert_eq!((skipped.consumed() & 63, skipped.advance()), (14, 7));
        assert_eq!(skip[(1 << SKIP_WINDOW) - 1].advance(), 64, "none");
    }

    #[test]
    fn invalid_tables_are_refused() {
        let mut content = CONTENT;
        content[0] = 3;
        assert!(Table::new(Class::Ac, &content).is_err(), "three codes of one bit");
        assert!(Table::new(Class::Dc, &content[..10]).is_err());
    }
}

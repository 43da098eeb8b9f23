//! An image with other images and text drawn on it, and its JPEG file.

use anyhow::Context as _;
use jpeg_encoder::{ColorType, Encoder};

/// An RGB image.
#[derive(Debug)]
pub(super) struct Picture {
    pub width: usize,
    pub height: usize,
    /// Height × width × 3.
    pub pixels: Vec<u8>,
}

/// The width and the height of a letter in dots; one more column separates letters.
const LETTER: (usize, usize) = (5, 7);

/// The letters that occur in names of operations: rows from the top, as on most small displays; the lowest bit is the
/// rightmost dot.
const LETTERS: [(char, [u8; 7]); 27] = [
    ('-', [0x00, 0x00, 0x00, 0x1f, 0x00, 0x00, 0x00]),
    ('a', [0x00, 0x00, 0x0e, 0x01, 0x0f, 0x11, 0x0f]),
    ('b', [0x10, 0x10, 0x16, 0x19, 0x11, 0x11, 0x1e]),
    ('c', [0x00, 0x00, 0x0e, 0x10, 0x10, 0x11, 0x0e]),
    ('d', [0x01, 0x01, 0x0d, 0x13, 0x11, 0x11, 0x0f]),
    ('e', [0x00, 0x00, 0x0e, 0x11, 0x1f, 0x10, 0x0e]),
    ('f', [0x06, 0x09, 0x08, 0x1c, 0x08, 0x08, 0x08]),
    ('g', [0x00, 0x0f, 0x11, 0x11, 0x0f, 0x01, 0x0e]),
    ('h', [0x10, 0x10, 0x16, 0x19, 0x11, 0x11, 0x11]),
    ('i', [0x04, 0x00, 0x0c, 0x04, 0x04, 0x04, 0x0e]),
    ('j', [0x02, 0x00, 0x06, 0x02, 0x02, 0x12, 0x0c]),
    ('k', [0x10, 0x10, 0x12, 0x14, 0x18, 0x14, 0x12]),
    ('l', [0x0c, 0x04, 0x04, 0x04, 0x04, 0x04, 0x0e]),
    ('m', [0x00, 0x00, 0x1a, 0x15, 0x15, 0x11, 0x11]),
    ('n', [0x00, 0x00, 0x16, 0x19, 0x11, 0x11, 0x11]),
    ('o', [0x00, 0x00, 0x0e, 0x11, 0x11, 0x11, 0x0e]),
    ('p', [0x00, 0x00, 0x1e, 0x11, 0x1e, 0x10, 0x10]),
    ('q', [0x00, 0x00, 0x0d, 0x13, 0x0f, 0x01, 0x01]),
    ('r', [0x00, 0x00, 0x16, 0x19, 0x10, 0x10, 0x10]),
    ('s', [0x00, 0x00, 0x0e, 0x10, 0x0e, 0x01, 0x1e]),
    ('t', [0x08, 0x08, 0x1c, 0x08, 0x08, 0x09, 0x06]),
    ('u', [0x00, 0x00, 0x11, 0x11, 0x11, 0x13, 0x0d]),
    ('v', [0x00, 0x00, 0x11, 0x11, 0x11, 0x0a, 0x04]),
    ('w', [0x00, 0x00, 0x11, 0x11, 0x15, 0x15, 0x0a]),
    ('x', [0x00, 0x00, 0x11, 0x0a, 0x04, 0x0a, 0x11]),
    ('y', [0x00, 0x00, 0x11, 0x11, 0x0f, 0x01, 0x0e]),
    ('z', [0x00, 0x00, 0x1f, 0x02, 0x04, 0x08, 0x1f]),
];

impl Picture {
    /// A white image.
    pub(super) fn white(width: usize, height: usize) -> Self {
        Self { width, height, pixels: vec![255; width * height * 3] }
    }

    fn set(&mut self, x: usize, y: usize, colour: [u8; 3]) {
        if x < self.width && y < self.height {
            self.pixels[(y * self.width + x) * 3..][..3].copy_from_slice(&colour);
        }
    }

    /// Draws another image at a position; parts outside are clipped.
    pub(super) fn draw(&mut self, other: &Self, left: usize, top: usize) {
        for (place, pixel) in other.pixels.chunks_exact(3).enumerate() {
            let (x, y) = (place % other.width, place / other.width);
            self.set(left + x, top + y, [pixel[0], pixel[1], pixel[2]]);
        }
    }

    /// Writes a word with two pixels per dot; an unknown character is left blank.
    pub(super) fn write(&mut self, word: &str, left: usize, top: usize) {
        const DOT: usize = 2;
        for (place, letter) in word.chars().enumerate() {
            let rows = LETTERS.iter().find(|(known, _)| *known == letter).map(|(_, rows)| *rows);
            for (row, dots) in rows.unwrap_or_default().into_iter().enumerate() {
                let columns =
                    (0..LETTER.0).filter(|column| dots >> (LETTER.0 - 1 - column) & 1 == 1);
                for column in columns {
                    let x = left + (place * (LETTER.0 + 1) + column) * DOT;
                    for (right, down) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
                        self.set(x + right, top + row * DOT + down, [0; 3]);
                    }
                }
            }
        }
    }

    /// Encodes it as JPEG.
    pub(super) fn jpeg(&self, quality: u8) -> anyhow::Result<Vec<u8>> {
        let side =
            |side: usize| u16::try_from(side).context("a side of a JPEG has 65,535 pixels at most");
        let mut file = Vec::new();
        let encoder = Encoder::new(&mut file, quality);
        encoder.encode(&self.pixels, side(self.width)?, side(self.height)?, ColorType::Rgb)?;
        Ok(file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_of_an_operation_can_be_drawn() {
        for (name, _) in forebay_transform::operation_examples() {
            for letter in name.chars() {
                assert!(LETTERS.iter().any(|(known, _)| *known == letter), "{letter} of {name}");
            }
        }
        let mut sheet = Picture::white(40, 16);
        sheet.write("il", 0, 1);
        let dark = sheet.pixels.chunks_exact(3).filter(|pixel| **pixel == [0; 3]).count();
        // 9 dots of `i` and 10 of `l`, of four pixels.
        assert_eq!(dark, 4 * (9 + 10));
    }
}

//! The orientation tag of an EXIF block, and its transformation of an image.
//!
//! A malformed block means no orientation.

use super::tiff::directory::Directory;
use crate::size::Size;

/// The transformation of the stored image: the value of EXIF 2.3's tag 0x0112, 1 to 8.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Orientation(u8);

impl Orientation {
    pub(crate) const AS_STORED: Self = Self(1);

    /// The meaning of the tag; values other than 2 to 8 mean none.
    pub(crate) const fn from_tag(tag: u8) -> Self {
        if matches!(tag, 2..=8) { Self(tag) } else { Self::AS_STORED }
    }

    /// Whether width and height are swapped.
    pub(crate) const fn swaps_sides(self) -> bool {
        self.0 >= 5
    }

    /// Writes the turned image. Both buffers have exactly the image's size.
    pub(crate) fn apply(self, stored: &[u8], size: Size, channels: u8, turned: &mut [u8]) {
        let (width, height) = (size.width as usize, size.height as usize);
        let channels = usize::from(channels);
        let out_width = if self.swaps_sides() { height } else { width };
        for (row, line) in turned.chunks_exact_mut(out_width * channels).enumerate() {
            for (column, pixel) in line.chunks_exact_mut(channels).enumerate() {
                let (x, y) = match self.0 {
                    2 => (width - 1 - column, row),
                    3 => (width - 1 - column, height - 1 - row),
                    4 => (column, height - 1 - row),
                    5 => (row, column),
                    // A quarter clockwise.
                    6 => (row, height - 1 - column),
                    7 => (width - 1 - row, height - 1 - column),
                    // A quarter counter-clockwise.
                    8 => (width - 1 - row, column),
                    _ => (column, row),
                };
                let from = (y * width + x) * channels;
                pixel.copy_from_slice(&stored[from..from + channels]);
            }
        }
    }
}

const ORIENTATION: u16 = 0x0112;

/// The orientation tag in a TIFF block, 1 to 8; 1 if it is missing.
pub(crate) fn orientation(tiff: &[u8]) -> u8 {
    let tag = Directory::open(tiff).and_then(|directory| directory.value(ORIENTATION));
    tag.and_then(|tag| u8::try_from(tag).ok()).filter(|tag| (1..=8).contains(tag)).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(big_endian: bool, tag: u16, value: u16) -> Vec<u8> {
        let short = |v: u16| {
            if big_endian { v.to_be_bytes() } else { v.to_le_bytes() }
        };
        let long = |v: u32| {
            if big_endian { v.to_be_bytes() } else { v.to_le_bytes() }
        };
        let mut block = if big_endian { b"MM".to_vec() } else { b"II".to_vec() };
        block.extend(short(42));
        block.extend(long(8));
        block.extend(short(2));
        for (tag, value) in [(0x0100, 7), (tag, value)] {
            block.extend(short(tag));
            block.extend(short(3));
            block.extend(long(1));
            block.extend(short(value));
            block.extend(short(0));
        }
        block
    }

    #[test]
    fn the_tag_is_found_in_both_byte_orders() {
        for big_endian in [false, true] {
            let found = block(big_endian, 0x0112, 6);
            assert_eq!(orientation(&found), 6);
            assert_eq!(orientation(&block(big_endian, 0x0112, 9)), 1);
            assert_eq!(orientation(&block(big_endian, 0x0113, 6)), 1);
            for length in 0..found.len() {
                let _ = orientation(&found[..length]);
            }
        }
        assert_eq!(orientation(&[0xff; 40]), 1);
    }

    #[test]
    fn each_orientation_moves_the_corners() {
        // 1 2 3
        // 4 5 6
        let stored = [1, 2, 3, 4, 5, 6];
        let expected: [[u8; 6]; 8] = [
            [1, 2, 3, 4, 5, 6],
            [3, 2, 1, 6, 5, 4],
            [6, 5, 4, 3, 2, 1],
            [4, 5, 6, 1, 2, 3],
            [1, 4, 2, 5, 3, 6],
            [4, 1, 5, 2, 6, 3],
            [6, 3, 5, 2, 4, 1],
            [3, 6, 2, 5, 1, 4],
        ];
        for (tag, expected) in (1..=8).zip(expected) {
            let mut turned = [0; 6];
            let size = Size { width: 3, height: 2 };
            Orientation::from_tag(tag).apply(&stored, size, 1, &mut turned);
            assert_eq!(turned, expected, "{tag}");
        }
    }
}

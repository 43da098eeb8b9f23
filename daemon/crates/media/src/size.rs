//! Sizes and parts of images in whole pixels.

/// Width and height in pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    /// Pixels from left to right.
    pub width: u32,
    /// Pixels from top to bottom.
    pub height: u32,
}

/// A part of an image in whole pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rectangle {
    /// Pixels to its left.
    pub left: u32,
    /// Pixels above it.
    pub top: u32,
    /// Pixels from left to right.
    pub width: u32,
    /// Pixels from top to bottom.
    pub height: u32,
}

/// Whether a pixel of this many bytes has levels of 16 bits: one, three or four.
pub const fn is_wide(pixel_bytes: u8) -> bool {
    matches!(pixel_bytes, 2 | 6 | 8)
}

impl Rectangle {
    /// All of an image.
    pub const fn whole(size: Size) -> Self {
        Self { left: 0, top: 0, width: size.width, height: size.height }
    }

    /// Width and height.
    pub const fn size(self) -> Size {
        Size { width: self.width, height: self.height }
    }

    /// The smallest rectangle that contains both.
    pub fn around(self, other: Self) -> Self {
        let axis = |start: u32, length: u32, other_start: u32, other_length: u32| {
            let first = start.min(other_start);
            (first, (start + length).max(other_start + other_length) - first)
        };
        let (left, width) = axis(self.left, self.width, other.left, other.width);
        let (top, height) = axis(self.top, self.height, other.top, other.height);
        Self { left, top, width, height }
    }

    /// Whether it contains no pixel.
    pub const fn is_empty(self) -> bool {
        self.width == 0 || self.height == 0
    }
}

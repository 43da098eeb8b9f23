//! Decoding at 1/2, 1/4 or 1/8 of the size.
//!
//! A pixel of the smaller image represents a square of the larger one, the first pixel the square in the corner.
//! Independent of pixels and formats.

use super::size::{Rectangle, Size};

/// The factor by which an image is reduced in both directions: 1, 2, 4 or 8.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reduction(u32);

/// The wanted part of an image.
#[derive(Debug, Clone, Copy)]
pub struct Wanted {
    /// The reduction.
    pub reduction: Reduction,
    /// 1, 3 or 4.
    pub channels: u8,
    /// The needed pixels of the image reduced by `reduction`.
    pub needed: Rectangle,
    /// Whether a row of a colour image may be returned as all its reds, then all its greens, then all its blues.
    pub in_colour_rows: bool,
}

/// The part of an image that was decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decoded {
    /// The decoded pixels.
    pub area: Rectangle,
    /// Whether a row has all its reds first, then its greens, then its blues.
    pub in_colour_rows: bool,
}

impl From<Rectangle> for Decoded {
    /// Pixel by pixel.
    fn from(area: Rectangle) -> Self {
        Self { area, in_colour_rows: false }
    }
}

/// All reductions.
pub const REDUCTIONS: [Reduction; 4] = [Reduction(1), Reduction(2), Reduction(4), Reduction(8)];

impl Reduction {
    /// By 8, 4 or 2: the reductions of decoders, the largest first.
    pub const SMALLER: [Self; 3] = [Self(8), Self(4), Self(2)];

    /// No reduction.
    pub const NONE: Self = Self(1);

    /// The smaller of two reductions.
    pub fn allowed_by_both(self, other: Self) -> Self {
        Self(self.0.min(other.0))
    }

    /// The factor.
    pub const fn factor(self) -> u32 {
        self.0
    }

    /// The size of the smaller image; a remainder at the right and the bottom becomes one more pixel.
    pub const fn size(self, image: Size) -> Size {
        Size { width: image.width.div_ceil(self.0), height: image.height.div_ceil(self.0) }
    }

    /// Whether each pixel of the smaller image represents a whole square, so that reduction commutes with mirroring and
    /// turning.
    pub const fn divides(self, image: Size) -> bool {
        image.width.is_multiple_of(self.0) && image.height.is_multiple_of(self.0)
    }
}

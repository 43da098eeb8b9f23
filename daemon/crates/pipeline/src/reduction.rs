//! Decoding at 1/2, 1/4 or 1/8 of the size: when that can be done, and where a geometry lies in the smaller image.
//!
//! A pixel of the smaller image stands for a square of the larger one, the first one for the square in its corner. Knows
//! no pixels and no format.

use super::geometry::Geometry;
use super::size::{Rectangle, Size};

/// By how much an image is decoded smaller than it is, in both directions: 1, 2, 4 or 8.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Reduction(u32);

/// What is to be decoded of an image.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted {
    pub reduction: Reduction,
    /// 1, 3 or 4.
    pub channels: u8,
    /// The pixels that are needed of the image made smaller by `reduction`.
    pub needed: Rectangle,
    /// Whether a row of a colour image may be given as all its reds, then all its greens, then all its blues.
    pub in_colour_rows: bool,
}

/// The part of an image that was decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Decoded {
    pub area: Rectangle,
    pub in_colour_rows: bool,
}

impl From<Rectangle> for Decoded {
    /// Pixel after pixel.
    fn from(area: Rectangle) -> Self {
        Self { area, in_colour_rows: false }
    }
}

/// All of them.
pub(crate) const REDUCTIONS: [Reduction; 4] =
    [Reduction(1), Reduction(2), Reduction(4), Reduction(8)];

impl Reduction {
    /// The image as it is.
    pub(crate) const NONE: Self = Self(1);

    /// The largest after which a geometry's resampling still makes the image smaller, or keeps its size, in both
    /// directions. A smaller image does not have the single pixels that a resampling picks.
    pub(crate) fn allowed_by(geometry: &Geometry) -> Self {
        let Some((target, sampling)) = geometry.resampling else {
            return Self::NONE;
        };
        if sampling.picks() {
            return Self::NONE;
        }
        let source = geometry.source;
        [8, 4, 2]
            .into_iter()
            .find(|factor| {
                source.width / factor >= target.width && source.height / factor >= target.height
            })
            .map_or(Self::NONE, Self)
    }

    /// The smaller of two: what both allow.
    pub(crate) fn allowed_by_both(self, other: Self) -> Self {
        Self(self.0.min(other.0))
    }

    /// The factor.
    pub(crate) const fn factor(self) -> u32 {
        self.0
    }

    /// The size of the smaller image; what is left over at the right and the bottom takes a pixel of its own.
    pub(crate) const fn size(self, image: Size) -> Size {
        Size { width: image.width.div_ceil(self.0), height: image.height.div_ceil(self.0) }
    }

    /// The pixels of the smaller image that a geometry's result depends on.
    pub(crate) fn needed(self, geometry: &Geometry) -> Rectangle {
        let (Some((target, sampling)), true) = (geometry.resampling, self != Self::NONE) else {
            return geometry.needed();
        };
        let Geometry { source, visible, .. } = *geometry;
        let axis = |start: u32, length: u32, target: u32, from: u32, count: u32| {
            let factor = f64::from(self.0);
            let origin = f64::from(start) / factor;
            let scale = f64::from(length) / factor / f64::from(target);
            let support = sampling.reach() * scale.max(1.0) + 1.0;
            let (edge, end) = (start / self.0, (start + length).div_ceil(self.0));
            let first = (origin + f64::from(from) * scale - support).floor().max(edge.into());
            let last = (origin + f64::from(from + count) * scale + support).ceil().min(end.into());
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "both lie between the two edges, which are u32"
            )]
            let (first, last) = (first as u32, last as u32);
            (first, last.saturating_sub(first))
        };
        let (left, width) =
            axis(source.left, source.width, target.width, visible.left, visible.width);
        let (top, height) =
            axis(source.top, source.height, target.height, visible.top, visible.height);
        Rectangle { left, top, width, height }
    }

    /// Whether each pixel of the smaller image stands for a whole square, so that mirroring or turning the image and
    /// making it smaller may change places.
    pub(crate) const fn divides(self, image: Size) -> bool {
        image.width.is_multiple_of(self.0) && image.height.is_multiple_of(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments::Interpolation;

    fn resized(crop: Rectangle, to: (u32, u32), interpolation: Interpolation) -> Geometry {
        let mut geometry = Geometry::identity(Size { width: 1003, height: 801 });
        geometry.crop(crop.left.into(), crop.top.into(), crop.size());
        assert!(geometry.resize(Size { width: to.0, height: to.1 }, interpolation));
        geometry
    }

    #[test]
    fn the_result_is_never_larger_than_what_was_decoded() {
        let crop = |width, height| Rectangle { left: 5, top: 9, width, height };
        let factor = |width, height, to, by| {
            Reduction::allowed_by(&resized(crop(width, height), to, by)).factor()
        };
        let bilinear = Interpolation::Bilinear;
        assert_eq!(factor(800, 784, (98, 98), bilinear), 8);
        assert_eq!(factor(800, 783, (98, 98), bilinear), 4);
        assert_eq!(factor(400, 783, (98, 98), bilinear), 4);
        assert_eq!(factor(391, 783, (98, 98), bilinear), 2);
        assert_eq!(factor(195, 783, (98, 98), bilinear), 1);
        assert_eq!(factor(50, 50, (98, 98), bilinear), 1);
        assert_eq!(factor(800, 784, (98, 98), Interpolation::Nearest), 1);
        let identity = Geometry::identity(Size { width: 4000, height: 4000 });
        assert_eq!(Reduction::allowed_by(&identity), Reduction::NONE);
    }

    #[test]
    fn what_is_needed_covers_the_visible_part_and_ends_with_the_crop() {
        let crop = Rectangle { left: 101, top: 50, width: 803, height: 700 };
        let mut geometry = resized(crop, (100, 50), Interpolation::Bilinear);
        let reduction = Reduction::allowed_by(&geometry);
        assert_eq!(reduction.factor(), 8);
        let whole = reduction.needed(&geometry);
        assert_eq!(whole, Rectangle { left: 12, top: 6, width: 101, height: 88 });
        geometry.crop(50, 25, Size { width: 10, height: 5 });
        // 12.625 + 50 · 1.00375 − 2.00375 and 12.625 + 60 · 1.00375 + 2.00375.
        let part = reduction.needed(&geometry);
        assert_eq!((part.left, part.left + part.width), (60, 75));
    }
}

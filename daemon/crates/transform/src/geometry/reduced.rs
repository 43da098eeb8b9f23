//! The requirements of a geometry for an image that is decoded at a reduced size.

use super::Geometry;
use forebay_media::reduction::Reduction;
use forebay_media::size::Rectangle;

impl Geometry {
    /// The largest reduction after which the resampling still shrinks the image, or keeps its size, in both directions.
    /// A reduced image lacks the single pixels that a resampling picks.
    pub(crate) fn reduction(&self) -> Reduction {
        let Some((target, sampling)) = self.resampling else {
            return Reduction::NONE;
        };
        if sampling.picks() {
            return Reduction::NONE;
        }
        let source = self.source;
        let fits = |reduction: &Reduction| {
            let factor = reduction.factor();
            source.width / factor >= target.width && source.height / factor >= target.height
        };
        Reduction::SMALLER.into_iter().find(fits).unwrap_or(Reduction::NONE)
    }

    /// The pixels of the reduced image that the result depends on.
    pub(crate) fn needed_after(&self, reduction: Reduction) -> Rectangle {
        let (Some((target, sampling)), true) = (self.resampling, reduction != Reduction::NONE)
        else {
            return self.needed();
        };
        let Geometry { source, visible, .. } = *self;
        let axis = |start: u32, length: u32, target: u32, from: u32, count: u32| {
            let factor = f64::from(reduction.factor());
            let origin = f64::from(start) / factor;
            let scale = f64::from(length) / factor / f64::from(target);
            let support = sampling.reach() * scale.max(1.0) + 1.0;
            let (edge, end) =
                (start / reduction.factor(), (start + length).div_ceil(reduction.factor()));
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments::Interpolation;
    use forebay_media::size::Size;

    fn resized(crop: Rectangle, to: (u32, u32), interpolation: Interpolation) -> Geometry {
        let mut geometry = Geometry::identity(Size { width: 1003, height: 801 });
        geometry.crop(crop.left.into(), crop.top.into(), crop.size());
        assert!(geometry.resize(Size { width: to.0, height: to.1 }, interpolation));
        geometry
    }

    #[test]
    fn result_is_never_larger_than_the_decoded_image() {
        let crop = |width, height| Rectangle { left: 5, top: 9, width, height };
        let factor =
            |width, height, to, by| resized(crop(width, height), to, by).reduction().factor();
        let bilinear = Interpolation::Bilinear;
        assert_eq!(factor(800, 784, (98, 98), bilinear), 8);
        assert_eq!(factor(800, 783, (98, 98), bilinear), 4);
        assert_eq!(factor(400, 783, (98, 98), bilinear), 4);
        assert_eq!(factor(391, 783, (98, 98), bilinear), 2);
        assert_eq!(factor(195, 783, (98, 98), bilinear), 1);
        assert_eq!(factor(50, 50, (98, 98), bilinear), 1);
        assert_eq!(factor(800, 784, (98, 98), Interpolation::Nearest), 1);
        let identity = Geometry::identity(Size { width: 4000, height: 4000 });
        assert_eq!(identity.reduction(), Reduction::NONE);
    }

    #[test]
    fn needed_pixels_cover_the_visible_part_within_the_crop() {
        let crop = Rectangle { left: 101, top: 50, width: 803, height: 700 };
        let mut geometry = resized(crop, (100, 50), Interpolation::Bilinear);
        let reduction = geometry.reduction();
        assert_eq!(reduction.factor(), 8);
        let whole = geometry.needed_after(reduction);
        assert_eq!(whole, Rectangle { left: 12, top: 6, width: 101, height: 88 });
        geometry.crop(50, 25, Size { width: 10, height: 5 });
        // 12.625 + 50 · 1.00375 − 2.00375 and 12.625 + 60 · 1.00375 + 2.00375.
        let part = geometry.needed_after(reduction);
        assert_eq!((part.left, part.left + part.width), (60, 75));
    }
}

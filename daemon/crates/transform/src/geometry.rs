//! The geometric operations on one image, composed but not yet executed. Independent of pixels.
//!
//! The order from the decoded image to the result: a hard crop of whole pixels, at most one resampling, its visible
//! part, the position on a canvas of zeros, flips. Operations that do not fit this order must be executed first:
//! [`Geometry::resize`] detects this.

mod reduced;

use super::arguments::Interpolation;
use forebay_media::size::{Rectangle, Size};

/// How a resampling computes its pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sampling {
    /// By an operation's `interpolation`.
    Interpolated(Interpolation),
    /// For a mask: picks the single pixels of torch's `interpolate(mode="nearest")`. They differ from the pixels of
    /// [`Interpolation::Nearest`].
    Mask,
}

impl Sampling {
    /// Whether it picks single pixels and does not mix pixels.
    pub(crate) const fn picks(self) -> bool {
        matches!(self, Self::Mask | Self::Interpolated(Interpolation::Nearest))
    }

    /// The filter's radius, in pixels of the larger of the two images.
    pub(crate) const fn reach(self) -> f64 {
        match self {
            Self::Interpolated(interpolation) => interpolation.reach(),
            Self::Mask => 1.0,
        }
    }
}

impl From<Interpolation> for Sampling {
    fn from(interpolation: Interpolation) -> Self {
        Self::Interpolated(interpolation)
    }
}

/// The pending geometric operations of an image.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Geometry {
    /// The part of the decoded image that all later operations use.
    pub source: Rectangle,
    /// The new size of `source`.
    pub resampling: Option<(Size, Sampling)>,
    /// The visible part of the resampled image, or of the cropped image without a resampling.
    pub visible: Rectangle,
    /// The result's size.
    pub canvas: Size,
    /// The position of `visible` on the canvas, before the flips; zeros surround it.
    pub place: (u32, u32),
    /// Whether the canvas is mirrored left to right.
    pub flip_horizontally: bool,
    /// Whether the canvas is mirrored top to bottom.
    pub flip_vertically: bool,
}

/// One axis of a crop: (start of the visible part, its length, its position on the new canvas).
fn crop_axis(visible: (u32, u32), place: u32, start: i64, length: u32) -> (u32, u32, u32) {
    let begin = i64::from(place).clamp(start, start + i64::from(length));
    let end = (i64::from(place) + i64::from(visible.1)).clamp(start, start + i64::from(length));
    let narrow = |value: i64| u32::try_from(value).unwrap_or(0);
    if end <= begin {
        return (visible.0, 0, 0);
    }
    (visible.0 + narrow(begin - i64::from(place)), narrow(end - begin), narrow(begin - start))
}

impl Geometry {
    /// No pending operation.
    pub(crate) const fn identity(size: Size) -> Self {
        Self {
            source: Rectangle::whole(size),
            resampling: None,
            visible: Rectangle::whole(size),
            canvas: size,
            place: (0, 0),
            flip_horizontally: false,
            flip_vertically: false,
        }
    }

    /// Whether the canvas contains pixels outside the image.
    pub(crate) fn is_padded(&self) -> bool {
        self.visible.size() != self.canvas
    }

    /// Whether the decoded image is the result.
    pub(crate) fn is_identity(&self, decoded: Size) -> bool {
        *self == Self::identity(decoded)
    }

    /// Whether only a part of the decoded image is planned: any resampling can follow.
    pub(crate) fn is_part(&self) -> bool {
        let is_mirrored = self.flip_horizontally || self.flip_vertically;
        self.resampling.is_none() && !self.is_padded() && !is_mirrored
    }

    /// Crops to a part, given in the coordinates of the current result. The area outside becomes zeros.
    pub(crate) fn crop(&mut self, left: i64, top: i64, size: Size) {
        let mirrored = |flip: bool, whole: u32, start: i64, part: u32| {
            if flip { i64::from(whole) - start - i64::from(part) } else { start }
        };
        let left = mirrored(self.flip_horizontally, self.canvas.width, left, size.width);
        let top = mirrored(self.flip_vertically, self.canvas.height, top, size.height);
        let (x, width, place_x) =
            crop_axis((self.visible.left, self.visible.width), self.place.0, left, size.width);
        let (y, height, place_y) =
            crop_axis((self.visible.top, self.visible.height), self.place.1, top, size.height);
        self.visible = Rectangle { left: x, top: y, width, height };
        self.place = (place_x, place_y);
        self.canvas = size;
    }

    /// Resamples the current result to a size. Returns false, and does nothing, if the pending operations must be
    /// executed first: a resampling, zeros around the image, or a flip if single pixels are picked (which is not
    /// symmetrical).
    #[must_use]
    pub(crate) fn resize(&mut self, size: Size, sampling: impl Into<Sampling>) -> bool {
        let sampling = sampling.into();
        if size == self.canvas {
            return true;
        }
        let flipped = self.flip_horizontally || self.flip_vertically;
        if self.resampling.is_some() || self.is_padded() || (flipped && sampling.picks()) {
            return false;
        }
        self.source = Rectangle {
            left: self.source.left + self.visible.left,
            top: self.source.top + self.visible.top,
            ..self.visible
        };
        self.resampling = Some((size, sampling));
        self.visible = Rectangle::whole(size);
        self.canvas = size;
        true
    }

    /// Mirrors the current result left to right.
    pub(crate) const fn mirror_horizontally(&mut self) {
        self.flip_horizontally = !self.flip_horizontally;
    }

    /// Mirrors the current result top to bottom.
    pub(crate) const fn mirror_vertically(&mut self) {
        self.flip_vertically = !self.flip_vertically;
    }

    /// The pixels of the decoded image that the result depends on: the visible part, widened by the resampling filter's
    /// radius, within `source`.
    pub(crate) fn needed(&self) -> Rectangle {
        let Self { source, visible, .. } = *self;
        let Some((target, sampling)) = self.resampling else {
            let (left, top) = (source.left + visible.left, source.top + visible.top);
            return Rectangle { left, top, ..visible };
        };
        let axis = |start: u32, length: u32, target: u32, from: u32, count: u32| {
            let scale = f64::from(length) / f64::from(target);
            let support = sampling.reach() * scale.max(1.0) + 1.0;
            let first = (f64::from(from) * scale - support).floor().max(0.0);
            let last = (f64::from(from + count) * scale + support).ceil().min(f64::from(length));
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "both lie between 0 and the length, which is a u32"
            )]
            let (first, last) = (first as u32, last as u32);
            (start + first, last.saturating_sub(first))
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

    const fn size(width: u32, height: u32) -> Size {
        Size { width, height }
    }

    /// Executes a geometry without resampling on numbered pixels.
    fn show(geometry: &Geometry, decoded: Size) -> Vec<u32> {
        assert!(geometry.resampling.is_none());
        let mut pixels = vec![0; (geometry.canvas.width * geometry.canvas.height) as usize];
        for y in 0..geometry.visible.height {
            for x in 0..geometry.visible.width {
                let from = (geometry.source.top + geometry.visible.top + y) * decoded.width
                    + geometry.source.left
                    + geometry.visible.left
                    + x;
                let mut column = geometry.place.0 + x;
                let mut row = geometry.place.1 + y;
                if geometry.flip_horizontally {
                    column = geometry.canvas.width - 1 - column;
                }
                if geometry.flip_vertically {
                    row = geometry.canvas.height - 1 - row;
                }
                pixels[(row * geometry.canvas.width + column) as usize] = from + 1;
            }
        }
        pixels
    }

    /// The same, one operation at a time.
    fn crop_now(pixels: &[u32], from: Size, left: i64, top: i64, to: Size) -> Vec<u32> {
        let mut result = Vec::new();
        for y in 0..i64::from(to.height) {
            for x in 0..i64::from(to.width) {
                let (column, row) = (x + left, y + top);
                let inside = (0..i64::from(from.width)).contains(&column)
                    && (0..i64::from(from.height)).contains(&row);
                result.push(if inside {
                    pixels[usize::try_from(row * i64::from(from.width) + column).unwrap()]
                } else {
                    0
                });
            }
        }
        result
    }

    #[test]
    fn composed_crops_and_flips_equal_sequential_ones() {
        let mut draws = forebay_media::test_images::draws(1);
        for _ in 0..2000 {
            let decoded = size(5, 4);
            let mut geometry = Geometry::identity(decoded);
            let mut pixels: Vec<u32> = (1..=20).collect();
            let mut present = decoded;
            for _ in 0..4 {
                match draws.below(3) {
                    0 => {
                        geometry.mirror_horizontally();
                        for row in pixels.chunks_mut(present.width as usize) {
                            row.reverse();
                        }
                    }
                    1 => {
                        geometry.mirror_vertically();
                        let width = present.width as usize;
                        pixels = pixels.chunks(width).rev().flatten().copied().collect();
                    }
                    _ => {
                        let left = i64::try_from(draws.below(9)).unwrap() - 4;
                        let top = i64::try_from(draws.below(9)).unwrap() - 4;
                        let to = size(
                            u32::try_from(draws.below(7)).unwrap() + 1,
                            u32::try_from(draws.below(7)).unwrap() + 1,
                        );
                        geometry.crop(left, top, to);
                        pixels = crop_now(&pixels, present, left, top, to);
                        present = to;
                    }
                }
            }
            assert_eq!(show(&geometry, decoded), pixels);
        }
    }

    #[test]
    fn crop_after_a_resize_needs_little_of_the_source() {
        let mut geometry = Geometry::identity(size(1000, 1000));
        assert!(geometry.resize(size(500, 500), Interpolation::Bilinear));
        geometry.crop(200, 100, size(100, 50));
        assert_eq!(geometry.needed(), Rectangle { left: 397, top: 197, width: 206, height: 106 });
        assert_eq!(geometry.source, Rectangle::whole(size(1000, 1000)));
    }

    #[test]
    fn crop_before_a_resize_limits_the_source() {
        let mut geometry = Geometry::identity(size(100, 80));
        geometry.mirror_horizontally();
        geometry.crop(10, 20, size(30, 40));
        assert!(geometry.resize(size(15, 20), Interpolation::Bilinear));
        let crop = Rectangle { left: 60, top: 20, width: 30, height: 40 };
        assert_eq!(geometry.source, crop);
        assert_eq!(geometry.needed(), crop);
        assert!(geometry.flip_horizontally);
    }

    #[test]
    fn operations_that_cannot_be_composed_are_refused() {
        let mut resized = Geometry::identity(size(100, 80));
        assert!(resized.resize(size(50, 40), Interpolation::Bilinear));
        assert!(resized.resize(size(50, 40), Interpolation::Lanczos), "the same size is nothing");
        assert!(!resized.resize(size(20, 20), Interpolation::Bilinear));
        let mut padded = Geometry::identity(size(10, 10));
        padded.crop(-5, 0, size(20, 10));
        assert!(!padded.resize(size(5, 5), Interpolation::Bilinear));
        let mut flipped = Geometry::identity(size(10, 10));
        flipped.mirror_vertically();
        assert!(!flipped.resize(size(5, 5), Interpolation::Nearest));
        assert!(!flipped.resize(size(5, 5), Sampling::Mask));
        assert!(flipped.resize(size(5, 5), Interpolation::Bicubic));
    }
}

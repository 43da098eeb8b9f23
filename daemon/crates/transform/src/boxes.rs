//! Boxes in an image: the corners x1, y1, x2, y2 of each in pixels, in single precision.
//!
//! Operations change boxes as torchvision v2 changes `tv_tensors.BoundingBoxes`, step by step in the same precision.
//! After each operation they are clipped and dropped as by its `ClampBoundingBoxes` and `SanitizeBoundingBoxes`.

use forebay_media::size::{Rectangle, Size};

/// Minimal width and height of a kept box: the defaults of `SanitizeBoundingBoxes`, which imply its minimal area.
const MIN_SIDE: f32 = 1.0;

/// x1, y1, x2, y2.
pub(crate) type Corners = [f32; 4];

#[expect(clippy::cast_precision_loss, reason = "a side of an image")]
const fn side(pixels: u32) -> f32 {
    pixels as f32
}

/// Translated by whole pixels to the right and down.
#[expect(clippy::cast_precision_loss, reason = "a place in an image")]
pub(crate) fn moved(corners: Corners, right: i64, down: i64) -> Corners {
    let [x1, y1, x2, y2] = corners;
    let (right, down) = (right as f32, down as f32);
    [x1 + right, y1 + down, x2 + right, y2 + down]
}

/// Relative to a part of the image, and clipped to it.
pub(crate) fn cut_out(corners: Corners, part: Rectangle) -> Corners {
    let moved = moved(corners, -i64::from(part.left), -i64::from(part.top));
    clipped(moved, part.size())
}

/// In the image after a resize.
pub(crate) fn scaled(corners: Corners, from: Size, to: Size) -> Corners {
    let ratio = |from: u32, to: u32| {
        #[expect(clippy::cast_possible_truncation, reason = "torch rounds it as well")]
        let ratio = (f64::from(to) / f64::from(from)) as f32;
        ratio
    };
    let [x1, y1, x2, y2] = corners;
    let (x, y) = (ratio(from.width, to.width), ratio(from.height, to.height));
    [x1 * x, y1 * y, x2 * x, y2 * y]
}

/// In the image mirrored left to right.
pub(crate) fn mirrored_horizontally(corners: Corners, image: Size) -> Corners {
    let ([x1, y1, x2, y2], width) = (corners, side(image.width));
    [width - x2, y1, width - x1, y2]
}

/// In the image mirrored top to bottom.
pub(crate) fn mirrored_vertically(corners: Corners, image: Size) -> Corners {
    let ([x1, y1, x2, y2], height) = (corners, side(image.height));
    [x1, height - y2, x2, height - y1]
}

/// The smallest box around the four corners after mapping them.
pub(crate) fn enclosing(corners: Corners, place: impl Fn([f64; 2]) -> [f64; 2]) -> Corners {
    let [x1, y1, x2, y2] = corners.map(f64::from);
    let placed = [[x1, y1], [x2, y1], [x2, y2], [x1, y2]].map(place);
    #[expect(clippy::cast_possible_truncation, reason = "boxes are of single precision")]
    let among = |axis: usize, choose: fn(f64, f64) -> f64| {
        placed.iter().map(|place| place[axis]).reduce(choose).unwrap_or(f64::NAN) as f32
    };
    [among(0, f64::min), among(1, f64::min), among(0, f64::max), among(1, f64::max)]
}

/// Clipped to the image.
pub(crate) fn clipped(corners: Corners, image: Size) -> Corners {
    let [x1, y1, x2, y2] = corners;
    let (width, height) = (side(image.width), side(image.height));
    [x1.clamp(0.0, width), y1.clamp(0.0, height), x2.clamp(0.0, width), y2.clamp(0.0, height)]
}

/// Whether a clipped box is large enough to be kept. A box with a NaN corner is not.
pub(crate) fn stays(corners: Corners) -> bool {
    let [x1, y1, x2, y2] = corners;
    x2 - x1 >= MIN_SIDE && y2 - y1 >= MIN_SIDE
}

#[cfg(test)]
mod tests {
    use super::*;

    const IMAGE: Size = Size { width: 100, height: 60 };

    #[test]
    fn boxes_follow_the_image() {
        let corners = [10.0, 5.0, 40.0, 25.5];
        let part = Rectangle { left: 20, top: 10, width: 30, height: 12 };
        assert_eq!(cut_out(corners, part), [0.0, 0.0, 20.0, 12.0]);
        assert_eq!(
            scaled(corners, IMAGE, Size { width: 50, height: 120 }),
            [5.0, 10.0, 20.0, 51.0]
        );
        assert_eq!(mirrored_horizontally(corners, IMAGE), [60.0, 5.0, 90.0, 25.5]);
        assert_eq!(mirrored_vertically(corners, IMAGE), [10.0, 34.5, 40.0, 55.0]);
        assert_eq!(clipped([-3.0, -1.0, 140.0, 61.0], IMAGE), [0.0, 0.0, 100.0, 60.0]);
    }

    #[test]
    fn box_smaller_than_a_pixel_is_dropped() {
        assert!(stays([3.0, 4.0, 4.0, 5.0]));
        for corners in [
            [3.0, 4.0, 3.9, 30.0],
            [3.0, 4.0, 30.0, 4.5],
            [9.0, 4.0, 3.0, 30.0],
            [100.0, 0.0, 100.0, 60.0],
            [f32::NAN, 0.0, 9.0, 9.0],
            [0.0, 0.0, 9.0, f32::NAN],
        ] {
            assert!(!stays(clipped(corners, IMAGE)), "{corners:?}");
        }
    }
}

//! Turns of pictures by quarters, clockwise.

use forebay_video::codec::Rotation;

use super::PIXEL_BYTES;
use crate::size::Size;

/// The size of a picture of this size, turned.
pub(super) const fn turned_size(size: Size, rotation: Rotation) -> Size {
    let Size { width, height } = size;
    if rotation.swaps_sides() { Size { width: height, height: width } } else { size }
}

/// Writes the pixels of the row `y` of a picture to their places in the turned picture. `turned`: its size.
pub(super) fn write_turned_row(
    row: &[u8],
    y: usize,
    rotation: Rotation,
    turned: Size,
    out: &mut [u8],
) {
    let (width, height) = (turned.width as usize, turned.height as usize);
    for (x, pixel) in row.chunks_exact(PIXEL_BYTES).enumerate() {
        let (to_x, to_y) = match rotation {
            Rotation::None => (x, y),
            Rotation::Quarter => (width - 1 - y, x),
            Rotation::Half => (width - 1 - x, height - 1 - y),
            Rotation::ThreeQuarters => (y, height - 1 - x),
        };
        let at = (to_y * width + to_x) * PIXEL_BYTES;
        out[at..at + PIXEL_BYTES].copy_from_slice(pixel);
    }
}

/// A picture of red, green and blue, turned, and its size.
///
/// # Panics
/// If `pixels` has fewer bytes than a picture of this size.
#[must_use]
pub fn turned(pixels: &[u8], size: Size, rotation: Rotation) -> (Vec<u8>, Size) {
    let after = turned_size(size, rotation);
    let row_bytes = size.width as usize * PIXEL_BYTES;
    let mut out = vec![0; row_bytes * size.height as usize];
    for y in 0..size.height as usize {
        write_turned_row(&pixels[y * row_bytes..][..row_bytes], y, rotation, after, &mut out);
    }
    (out, after)
}

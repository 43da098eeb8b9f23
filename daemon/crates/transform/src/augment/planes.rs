//! Pixels with three channels as three planes, a block at a time, so that compilers can vectorise.

use super::rounded;

/// Number of pixels per block.
pub(super) const PIXELS: usize = 32;
pub(super) type Plane = [f32; PIXELS];

/// The planes of a block's pixels; the rest of a plane is 0.
#[inline(always)]
fn planes(pixels: &[[u8; 3]]) -> [Plane; 3] {
    let mut padded = [[0; 3]; PIXELS];
    let pixels: &[[u8; 3]; PIXELS] = match pixels.first_chunk() {
        Some(whole) => whole,
        None => {
            padded[..pixels.len()].copy_from_slice(pixels);
            &padded
        }
    };
    std::array::from_fn(|channel| std::array::from_fn(|at| f32::from(pixels[at][channel])))
}

/// Calls a function with the planes of each block and the block's number of pixels.
#[inline(always)]
pub(super) fn each(bytes: &[u8], mut of: impl FnMut(&[Plane; 3], usize)) {
    for pixels in bytes.as_chunks::<3>().0.chunks(PIXELS) {
        of(&planes(pixels), pixels.len());
    }
}

/// Changes all pixels: the function leaves levels from 0 to 255 in the planes, which are rounded.
#[inline(always)]
pub(super) fn change(bytes: &mut [u8], mut of: impl FnMut(&mut [Plane; 3])) {
    for pixels in bytes.as_chunks_mut::<3>().0.chunks_mut(PIXELS) {
        let mut planes = planes(pixels);
        of(&mut planes);
        for (at, pixel) in pixels.iter_mut().enumerate() {
            *pixel = std::array::from_fn(|channel| rounded(planes[channel][at]));
        }
    }
}

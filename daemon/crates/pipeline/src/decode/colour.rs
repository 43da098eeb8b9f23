//! Conversions between colours, bit for bit as Pillow's `Image.convert` computes them (its `Convert.c`).

/// Pillow's `L24`: ITU-R 601-2 luma in 16-bit fixed point, rounded.
pub(crate) const fn luma(red: u8, green: u8, blue: u8) -> u8 {
    let sum = red as u32 * 19595 + green as u32 * 38470 + blue as u32 * 7471 + 0x8000;
    #[expect(clippy::cast_possible_truncation, reason = "the weights add up to 2¹⁶")]
    let luma = (sum >> 16) as u8;
    luma
}

/// `a · b / 255`, rounded, as Pillow's `MULDIV255`.
const fn multiply_divide_255(a: u8, b: u8) -> u8 {
    let product = a as u32 * b as u32 + 128;
    #[expect(clippy::cast_possible_truncation, reason = "at most 255")]
    let quotient = (((product >> 8) + product) >> 8) as u8;
    quotient
}

/// RGB to grey, pixel by pixel.
pub(crate) fn rgb_to_grey(rgb: &[u8], grey: &mut [u8]) {
    for (colour, grey) in rgb.chunks_exact(3).zip(grey) {
        *grey = luma(colour[0], colour[1], colour[2]);
    }
}

/// CMYK as Adobe stores it (255 is no ink) to 1, 3 or 4 channels.
pub(crate) fn inverted_cmyk_to(channels: u8, cmyk: &[u8], out: &mut [u8]) {
    for (ink, out) in cmyk.chunks_exact(4).zip(out.chunks_exact_mut(usize::from(channels))) {
        let light = ink[3];
        let [red, green, blue] = [ink[0], ink[1], ink[2]]
            .map(|c| light.saturating_sub(multiply_divide_255(255 - c, light)));
        put(out, red, green, blue, 255);
    }
}

/// Pixels of 1 (grey), 2 (grey, alpha), 3 or 4 channels to 1, 3 or 4 channels; alpha is dropped or opaque.
pub(crate) fn convert(from_channels: u8, from: &[u8], channels: u8, out: &mut [u8]) {
    let pixels = from
        .chunks_exact(usize::from(from_channels))
        .zip(out.chunks_exact_mut(usize::from(channels)));
    match from_channels {
        1 => pixels.for_each(|(from, out)| put_grey(out, from[0], 255)),
        2 => pixels.for_each(|(from, out)| put_grey(out, from[0], from[1])),
        3 => pixels.for_each(|(from, out)| put(out, from[0], from[1], from[2], 255)),
        _ => pixels.for_each(|(from, out)| put(out, from[0], from[1], from[2], from[3])),
    }
}

fn put_grey(out: &mut [u8], grey: u8, alpha: u8) {
    match out {
        [out] => *out = grey,
        [red, green, blue] => (*red, *green, *blue) = (grey, grey, grey),
        [red, green, blue, opacity] => {
            (*red, *green, *blue, *opacity) = (grey, grey, grey, alpha);
        }
        _ => {}
    }
}

fn put(out: &mut [u8], red: u8, green: u8, blue: u8, alpha: u8) {
    match out {
        [out] => *out = luma(red, green, blue),
        [r, g, b] => (*r, *g, *b) = (red, green, blue),
        [r, g, b, a] => (*r, *g, *b, *a) = (red, green, blue, alpha),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inks_become_light() {
        let mut rgb = [0; 9];
        // No ink; full black; cyan at full light.
        inverted_cmyk_to(3, &[255, 255, 255, 255, 9, 9, 9, 0, 0, 255, 255, 255], &mut rgb);
        assert_eq!(rgb, [255, 255, 255, 0, 0, 0, 0, 255, 255]);
    }

    #[test]
    fn grey_has_the_weights_of_pillow() {
        assert_eq!((luma(255, 255, 255), luma(255, 0, 0), luma(0, 255, 0)), (255, 76, 150));
        let mut out = [0; 4];
        convert(2, &[7, 8], 4, &mut out);
        assert_eq!(out, [7, 7, 7, 8]);
    }
}

//! Conversions between colours, bit for bit as Pillow's `Image.convert` computes them (its `Convert.c`).

use forebay_dataset::Defect;

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

/// CMYK as Adobe stores it (255 means zero ink) to 1, 3 or 4 channels.
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

/// 16-bit levels (in native order) to 8 bits, at the buffer's start. Pillow keeps 16-bit grey and clips it on
/// conversion; of other colours it reads the high bytes.
pub(crate) fn narrow(levels: &mut [u8], clips: bool) {
    for at in 0..levels.len() / 2 {
        let [low, high] = u16::from_ne_bytes([levels[2 * at], levels[2 * at + 1]]).to_le_bytes();
        levels[at] = match (clips, high) {
            (false, _) => high,
            (true, 0) => low,
            (true, _) => 255,
        };
    }
}

/// Whether an image of these bits and channels can be read as 16-bit levels of 1, 3 or 4 channels.
///
/// # Errors
/// The reason.
pub(crate) fn check_wide(bits: u8, from_channels: usize, channels: u8) -> Result<(), Defect> {
    if bits != 16 {
        return Err(Defect(format!("its levels have {bits} bits, and 16 are requested")));
    }
    if from_channels > 2 && channels == 1 {
        return Err(Defect(
            "it has colours, and its 16-bit levels are requested as grey; set `channels = 3`"
                .to_owned(),
        ));
    }
    Ok(())
}

/// As [`convert`], with two bytes per level, in native order. Colours are not converted to grey.
///
/// # Errors
/// As [`check_wide`].
pub(crate) fn convert_wide(
    from_channels: usize,
    from: &[u8],
    channels: u8,
    out: &mut [u8],
) -> Result<(), Defect> {
    check_wide(16, from_channels, channels)?;
    let (from, _) = from.as_chunks::<2>();
    let (out, _) = out.as_chunks_mut::<2>();
    let opaque = [0xff; 2];
    for (from, out) in from.chunks_exact(from_channels).zip(out.chunks_exact_mut(channels.into())) {
        let pixel = match *from {
            [grey] => [grey, grey, grey, opaque],
            [grey, alpha] => [grey, grey, grey, alpha],
            [red, green, blue] => [red, green, blue, opaque],
            [red, green, blue, alpha, ..] => [red, green, blue, alpha],
            [] => [opaque; 4],
        };
        out.copy_from_slice(&pixel[..out.len()]);
    }
    Ok(())
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
    fn inks_are_converted_to_light() {
        let mut rgb = [0; 9];
        // White; black; only cyan.
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

//! Puts a picture with alpha on white, as Transformers does before it resizes: bit for bit what `alpha_composite` of Pillow
//! gives on an opaque background.

/// Pillow's extra bits of precision.
const PRECISION: u32 = 7;

/// Writes RGB from RGBA.
pub(super) fn on_white(rgba: &[u8], rgb: &mut [u8]) {
    let (from, to) = (rgba.as_chunks::<4>().0, rgb.as_chunks_mut::<3>().0);
    for ([red, green, blue, alpha], to) in from.iter().zip(to) {
        *to = match *alpha {
            255 => [*red, *green, *blue],
            alpha => [*red, *green, *blue].map(|level| blended(level, alpha)),
        };
    }
}

#[expect(clippy::cast_possible_truncation, reason = "a mean of two bytes")]
fn blended(level: u8, alpha: u8) -> u8 {
    let (level, alpha) = (u32::from(level), u32::from(alpha));
    let sum = ((level * alpha + 255 * (255 - alpha)) << PRECISION) + (0x80 << PRECISION);
    (((sum >> 8) + sum) >> 8 >> PRECISION) as u8
}

#[test]
fn levels_are_those_of_pillow() {
    // Printed by Pillow 13.0.0 for a picture of these pixels on white.
    let rgba = [8, 65, 102, 212, 101, 129, 61, 230, 79, 208, 128, 129, 9, 9, 9, 0, 7, 8, 9, 255];
    let mut rgb = [0; 15];
    on_white(&rgba, &mut rgb);
    assert_eq!(rgb, [50, 97, 128, 116, 141, 80, 166, 231, 191, 255, 255, 255, 7, 8, 9]);
}

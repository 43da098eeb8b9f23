//! A row of planes to red, green and blue.
//!
//! Coefficients have 16 binary digits after the point. Sums fit into 32 bits for samples of up to 12 bits.

use forebay_decoders::{Colors, Family, Format};

/// Binary digits after the point, for samples of 8 bits; deeper ones have so many more.
const POINT: u32 = 16;

/// Samples of chroma that are converted at once.
const BLOCK: usize = 16;

/// Kr and Kb of the matrix coefficients of ITU-T H.273, as far as pictures have them.
const fn luma_weights(matrix: u8) -> (f64, f64) {
    match matrix {
        1 => (0.2126, 0.0722),
        4 => (0.30, 0.11),
        7 => (0.212, 0.087),
        9 | 10 => (0.2627, 0.0593),
        // BT.601 by its numbers 5 and 6, and where nothing is said.
        _ => (0.299, 0.114),
    }
}

/// Matrix 0: the planes are green, blue and red.
const IDENTITY: u8 = 0;

/// The rows of a plane that a row of the picture depends on: three quarters of the near one, and a quarter of the other.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Rows<'p> {
    pub(super) near: &'p [u8],
    pub(super) far: &'p [u8],
}

/// Converts rows of one format and colour description.
#[derive(Debug, Clone, Copy)]
pub(super) struct RowConverter {
    format: Format,
    /// Whether the planes are colours already.
    is_identity: bool,
    /// The sample of black.
    black: i32,
    /// The sample of no colour.
    grey: i32,
    luma: i32,
    red_of_v: i32,
    green_of_u: i32,
    green_of_v: i32,
    blue_of_u: i32,
    /// Digits after the point, and a half of the last one before it.
    shift: u32,
    half: i32,
}

impl RowConverter {
    pub(super) fn new(format: Format, colors: Colors) -> Self {
        let is_identity = format.family == Family::Gbr
            || (colors.matrix == IDENTITY && (format.shift_x, format.shift_y) == (0, 0));
        let is_full = colors.full_range.unwrap_or(format.family == Family::Gbr);
        let (red, blue) = luma_weights(colors.matrix);
        let green = 1.0 - red - blue;
        let deeper = u32::from(format.bits.clamp(8, 12)) - 8;
        // A full range ends at the largest number, a limited one at multiples of those of 8 bits.
        let full = f64::from((1_u32 << (8 + deeper)) - 1) / f64::from(1_u32 << deeper);
        let (luma_range, chroma_range) = if is_full { (full, full) } else { (219.0, 224.0) };
        let fixed = |factor: f64| {
            #[expect(clippy::cast_possible_truncation, reason = "factors are below 4")]
            let fixed = (factor * f64::from(1_u32 << POINT)).round() as i32;
            fixed
        };
        let chroma = |factor: f64| fixed(factor * 255.0 / chroma_range);
        let shift = POINT + deeper;
        Self {
            format,
            is_identity,
            black: if is_full { 0 } else { 16 << deeper },
            grey: 128 << deeper,
            luma: fixed(255.0 / luma_range),
            red_of_v: chroma(2.0 * (1.0 - red)),
            green_of_u: chroma(-2.0 * blue * (1.0 - blue) / green),
            green_of_v: chroma(-2.0 * red * (1.0 - red) / green),
            blue_of_u: chroma(2.0 * (1.0 - blue)),
            shift,
            half: 1 << (shift - 1),
        }
    }

    /// Converts `out.len() / 3` pixels from the pixel `left` on.
    pub(super) fn convert(&self, planes: [Rows<'_>; 3], left: usize, out: &mut [u8]) {
        if self.format.bits == 8 {
            let done = self.convert_blocks(planes, left, out);
            let out = out.get_mut(3 * done..).unwrap_or_default();
            let left = left + done;
            self.convert_samples(|plane, at| i32::from(planes[plane].near[at]), left, out);
        } else {
            // Bits above the format's are not there in a sound decoder's planes.
            let of_row = |row: &[u8], at: usize| {
                i32::from(u16::from_le_bytes([row[2 * at], row[2 * at + 1]]) & 0xfff)
            };
            let sample = |plane: usize, at: usize| {
                let Rows { near, far } = planes[plane];
                if plane == 0 {
                    of_row(near, at)
                } else {
                    (3 * of_row(near, at) + of_row(far, at) + 2) >> 2
                }
            };
            self.convert_samples(sample, left, out);
        }
    }

    /// Converts whole blocks of the most common format, in loops that the compiler makes into vectors; returns the number of
    /// pixels.
    fn convert_blocks(&self, planes: [Rows<'_>; 3], left: usize, out: &mut [u8]) -> usize {
        let is_usual = self.format.family == Family::Yuv && self.format.shift_x == 1;
        if self.is_identity || !is_usual || !left.is_multiple_of(2) {
            return 0;
        }
        let [luma, u, v] =
            [(0, left), (1, left / 2), (2, left / 2)].map(|(plane, from): (usize, usize)| {
                planes[plane].near.get(from..).unwrap_or_default()
            });
        let luma = luma.as_chunks::<{ 2 * BLOCK }>().0;
        let (u, v) = (u.as_chunks::<BLOCK>().0, v.as_chunks::<BLOCK>().0);
        let blocks = out.as_chunks_mut::<{ 6 * BLOCK }>().0;
        let mut done = 0;
        for (((y, u), v), out) in luma.iter().zip(u).zip(v).zip(blocks) {
            let mut chroma = [[0; BLOCK]; 3];
            for (at, (u, v)) in u.iter().zip(v).enumerate() {
                let sums = self.chroma((*u).into(), (*v).into());
                (chroma[0][at], chroma[1][at], chroma[2][at]) = (sums[0], sums[1], sums[2]);
            }
            let y = y.map(|y| self.luma(y.into()));
            let mut levels = [[0; 2 * BLOCK]; 3];
            for (levels, chroma) in levels.iter_mut().zip(&chroma) {
                for at in 0..BLOCK {
                    levels[2 * at] = self.level(y[2 * at] + chroma[at]);
                    levels[2 * at + 1] = self.level(y[2 * at + 1] + chroma[at]);
                }
            }
            for (at, pixel) in out.as_chunks_mut::<3>().0.iter_mut().enumerate() {
                *pixel = [levels[0][at], levels[1][at], levels[2][at]];
            }
            done += 2 * BLOCK;
        }
        done
    }

    fn convert_samples(&self, sample: impl Fn(usize, usize) -> i32, left: usize, out: &mut [u8]) {
        let pixels = (left..).zip(out.as_chunks_mut::<3>().0);
        match (self.format.family, self.is_identity) {
            (Family::Gray, _) => {
                for (x, pixel) in pixels {
                    *pixel = [self.level(self.luma(sample(0, x))); 3];
                }
            }
            (_, true) => {
                for (x, pixel) in pixels {
                    *pixel = [2, 0, 1].map(|plane| self.level(self.luma(sample(plane, x))));
                }
            }
            (_, false) => {
                let shift = self.format.shift_x;
                let mut chroma = [0; 3];
                let mut known = usize::MAX;
                for (x, pixel) in pixels {
                    if x >> shift != known {
                        known = x >> shift;
                        chroma = self.chroma(sample(1, known), sample(2, known));
                    }
                    let luma = self.luma(sample(0, x));
                    *pixel = chroma.map(|chroma| self.level(luma + chroma));
                }
            }
        }
    }

    fn luma(&self, sample: i32) -> i32 {
        (sample - self.black) * self.luma + self.half
    }

    /// What two samples of chroma add to red, green and blue.
    fn chroma(&self, u: i32, v: i32) -> [i32; 3] {
        let (u, v) = (u - self.grey, v - self.grey);
        [v * self.red_of_v, u * self.green_of_u + v * self.green_of_v, u * self.blue_of_u]
    }

    #[expect(clippy::cast_sign_loss, reason = "clamped")]
    fn level(&self, sum: i32) -> u8 {
        (sum >> self.shift).clamp(0, 255) as u8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn alone(row: &[u8]) -> Rows<'_> {
        Rows { near: row, far: row }
    }

    fn converter(bits: u8, matrix: u8, full_range: bool) -> RowConverter {
        let format = Format { family: Family::Yuv, bits, shift_x: 1, shift_y: 1 };
        let full_range = Some(full_range);
        let colors = Colors { matrix, primaries: 2, transfer: 2, full_range, chroma_location: 1 };
        RowConverter::new(format, colors)
    }

    fn pixel(converter: &RowConverter, [y, u, v]: [u16; 3]) -> [u8; 3] {
        let mut out = [0; 3];
        if converter.format.bits == 8 {
            let [y, u, v] = [y, u, v].map(|sample| [u8::try_from(sample).unwrap()]);
            converter.convert([&y[..], &u, &v].map(alone), 0, &mut out);
        } else {
            let [y, u, v] = [y, u, v].map(u16::to_le_bytes);
            converter.convert([&y[..], &u, &v].map(alone), 0, &mut out);
        }
        out
    }

    /// The same in floating point.
    fn expected(bits: u8, matrix: u8, full_range: bool, sample: [u16; 3]) -> [f64; 3] {
        let (kr, kb) = luma_weights(matrix);
        let scale = f64::from(1_u16 << (bits - 8));
        let most = scale * 256.0 - 1.0;
        let [y, u, v] = sample.map(f64::from);
        let (u, v) = (u - 128.0 * scale, v - 128.0 * scale);
        let (y, u, v) = if full_range {
            (y / most, u / most, v / most)
        } else {
            ((y / scale - 16.0) / 219.0, u / scale / 224.0, v / scale / 224.0)
        };
        let red = y + 2.0 * (1.0 - kr) * v;
        let blue = y + 2.0 * (1.0 - kb) * u;
        let green = (y - kr * red - kb * blue) / (1.0 - kr - kb);
        [red, green, blue].map(|level| (level * 255.0).clamp(0.0, 255.0))
    }

    #[test]
    fn levels_are_those_of_the_matrix_within_a_half() {
        for (bits, matrix, full_range) in [
            (8, 1, false),
            (8, 2, false),
            (8, 6, true),
            (8, 9, false),
            (8, 7, true),
            (8, 4, false),
            (10, 9, false),
            (10, 1, true),
            (12, 1, false),
            (12, 9, true),
        ] {
            let converter = converter(bits, matrix, full_range);
            let most = (1_u16 << bits) - 1;
            let step = usize::from(most / 13);
            for y in (0..=most).step_by(step) {
                for u in (0..=most).step_by(step) {
                    for v in (0..=most).step_by(step) {
                        let found = pixel(&converter, [y, u, v]);
                        let expected = expected(bits, matrix, full_range, [y, u, v]);
                        for (found, expected) in found.iter().zip(expected) {
                            let difference = (f64::from(*found) - expected).abs();
                            assert!(
                                difference < 0.51,
                                "{bits} {matrix} {full_range} {y} {u} {v}: {found} {expected}"
                            );
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn a_sample_of_chroma_counts_for_its_pixels() {
        let converter = converter(8, 1, false);
        let mut all = [0; 15];
        let (y, u, v) = ([30, 60, 90, 120, 150], [90, 140, 200], [200, 100, 60]);
        converter.convert([&y[..], &u, &v].map(alone), 0, &mut all);
        for x in 0..5 {
            let alone = pixel(&converter, [y[x], u[x / 2], v[x / 2]].map(u16::from));
            assert_eq!(all[3 * x..][..3], alone);
        }
        let mut part = [0; 9];
        converter.convert([&y[..], &u, &v].map(alone), 1, &mut part);
        assert_eq!(part, all[3..12]);
    }

    #[test]
    fn blocks_have_the_pixels_of_single_samples() {
        let plane = |length: usize, step: usize| -> Vec<u8> {
            (0..length).map(|at| u8::try_from((at * step + at / 3) % 256).unwrap()).collect()
        };
        let (y, u, v) = (plane(151, 37), plane(76, 101), plane(76, 59));
        for full_range in [false, true] {
            let converter = converter(8, 1, full_range);
            // Odd and even beginnings, whole blocks and rests.
            for (left, pixels) in [(0, 151), (0, 64), (2, 33), (3, 148), (86, 65), (150, 1)] {
                let mut out = vec![0; 3 * pixels];
                converter.convert([&y[..], &u, &v].map(alone), left, &mut out);
                for (x, found) in (left..).zip(out.as_chunks::<3>().0) {
                    let alone = pixel(&converter, [y[x], u[x / 2], v[x / 2]].map(u16::from));
                    assert_eq!(*found, alone, "{x} from {left}");
                }
            }
        }
    }

    #[test]
    fn deep_chroma_is_interpolated_between_rows() {
        let row = |sample: u16| sample.to_le_bytes();
        let converter = converter(10, 1, false);
        let mut out = [0; 3];
        let (luma, u) = (row(512), row(512));
        let v = Rows { near: &row(600), far: &row(700) };
        converter.convert([alone(&luma), alone(&u), v], 0, &mut out);
        assert_eq!(out, pixel(&converter, [512, 512, 625]));
    }

    #[test]
    fn planes_of_colours_stay_as_they_are() {
        let format = Format { family: Family::Gbr, bits: 8, shift_x: 0, shift_y: 0 };
        let colors =
            Colors { matrix: 0, primaries: 2, transfer: 2, full_range: None, chroma_location: 0 };
        let converter = RowConverter::new(format, colors);
        for level in 0..=255 {
            let mut out = [0; 3];
            converter.convert([&[level][..], &[1], &[254]].map(alone), 0, &mut out);
            assert_eq!(out, [254, level, 1]);
        }
    }
}

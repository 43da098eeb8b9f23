//! Bicubic resizing of RGB with the arithmetic of Pillow itself, for results that must be bit for bit a reference's: each
//! side with weights of 22 bits, in Pillow's order ([`rows_come_first`]). The other resamplers compute rows first, with
//! weights of 16 bits as Pillow-SIMD; they are faster, and levels may differ.

use std::ops::Range;

use crate::request::Filter;

/// Bits behind the point of a weight.
const PRECISION: u32 = 32 - 8 - 2;
/// The reach of the filter in pixels of the larger image.
const SUPPORT: f64 = 2.0;

/// A work thread's state, kept between images.
#[derive(Debug, Default)]
pub struct PillowResampler {
    columns: Weights,
    rows: Weights,
    /// The image after its columns are computed.
    between: Vec<u8>,
    /// The sums of a row.
    sums: Vec<i32>,
}

impl PillowResampler {
    /// Resizes an image of interleaved pixels.
    ///
    /// # Panics
    /// The length of pixels does not match their size, or a side is 0.
    pub fn resize(&mut self, pixels: &[u8], from: (u32, u32), to: (u32, u32), out: &mut [u8]) {
        let bytes = |(width, height): (u32, u32)| width as usize * height as usize * 3;
        assert_eq!((pixels.len(), out.len()), (bytes(from), bytes(to)), "the lengths of pixels");
        let Self { columns, rows, between, sums } = self;
        let (has_columns, has_rows) = (from.0 != to.0, from.1 != to.1);
        if has_columns {
            columns.make(from.0, to.0);
        }
        if has_rows {
            rows.make(from.1, to.1);
        }
        match (has_columns, has_rows) {
            (false, false) => out.copy_from_slice(pixels),
            (true, false) => resize_columns(columns, pixels, from.0, out),
            (false, true) => resize_rows(rows, pixels, from.0, sums, out),
            (true, true) if rows_come_first(from, to) => {
                between.resize(bytes((from.0, to.1)), 0);
                resize_rows(rows, pixels, from.0, sums, between);
                resize_columns(columns, between, from.0, out);
            }
            (true, true) => {
                between.resize(bytes((to.0, from.1)), 0);
                resize_columns(columns, pixels, from.0, between);
                resize_rows(rows, between, to.0, sums, out);
            }
        }
    }

    /// An upper bound for the bytes of memory of a resizing.
    #[must_use]
    pub fn needed_bytes(from: (u32, u32), to: (u32, u32)) -> u64 {
        let [from_width, from_height, width, height] = [from.0, from.1, to.0, to.1].map(u64::from);
        // A result has 4 pixels of the larger image, and 3 for rounding, each with a weight of 8 and one of 4 bytes.
        let weights = 64 * (from_width + from_height + 2 * (width + height));
        let between = (width * from_height).max(from_width * height);
        3 * between + 12 * width.max(from_width) + weights
    }

    /// Bytes of memory.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        let own = self.between.capacity() + self.sums.capacity() * size_of::<i32>();
        own + self.columns.held_bytes() + self.rows.held_bytes()
    }
}

/// Whether Pillow resizes rows before columns: since version 13, where the height shrinks by more than twice what the width
/// does. Older versions never do.
fn rows_come_first(from: (u32, u32), to: (u32, u32)) -> bool {
    let shrinks = |from: u32, to: u32| i64::from(from) - i64::from(to);
    to.1 < from.1 && shrinks(from.1, to.1) > 2 * shrinks(from.0, to.0)
}

/// The pixels and weights of each result of a side.
#[derive(Debug, Default)]
struct Weights {
    /// By result: the first pixel, and its weights.
    places: Vec<(usize, Range<usize>)>,
    weights: Vec<i32>,
    exact: Vec<f64>,
}

impl Weights {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "as Pillow computes them; sides are far below 2^31"
    )]
    fn make(&mut self, from: u32, to: u32) {
        let scale = f64::from(from) / f64::from(to);
        let filter_scale = scale.max(1.0);
        let (support, step) = (SUPPORT * filter_scale, 1.0 / filter_scale);
        self.places.clear();
        self.weights.clear();
        for result in 0..to {
            let center = (f64::from(result) + 0.5) * scale;
            // Truncated towards 0, as C does.
            let first = ((center - support + 0.5) as i64).max(0);
            let end = ((center + support + 0.5) as i64).min(from.into());
            self.exact.clear();
            self.exact.extend(
                (first..end)
                    .map(|pixel| Filter::CatmullRom.at((pixel as f64 - center + 0.5) * step)),
            );
            let sum: f64 = self.exact.iter().fold(0.0, |sum, weight| sum + weight);
            let start = self.weights.len();
            self.weights.extend(self.exact.iter().map(|weight| {
                let weight = if sum == 0.0 { *weight } else { weight / sum };
                let scaled = weight * f64::from(1 << PRECISION);
                (if weight < 0.0 { scaled - 0.5 } else { scaled + 0.5 }) as i32
            }));
            self.places.push((first as usize, start..self.weights.len()));
        }
    }

    fn iter(&self) -> impl Iterator<Item = (usize, &[i32])> {
        self.places.iter().map(|(first, range)| (*first, &self.weights[range.clone()]))
    }

    const fn held_bytes(&self) -> usize {
        let places = self.places.capacity() * size_of::<(usize, Range<usize>)>();
        places
            + self.weights.capacity() * size_of::<i32>()
            + self.exact.capacity() * size_of::<f64>()
    }
}

/// The level of a sum of weighted levels that began at [`HALF`].
#[expect(clippy::cast_sign_loss, reason = "clamped to a byte")]
fn level(sum: i32) -> u8 {
    (sum >> PRECISION).clamp(0, 255) as u8
}

/// A half, for rounding.
const HALF: i32 = 1 << (PRECISION - 1);

fn resize_columns(weights: &Weights, pixels: &[u8], from_width: u32, out: &mut [u8]) {
    let from = pixels.chunks_exact(from_width as usize * 3);
    let to = out.chunks_exact_mut(weights.places.len() * 3);
    for (line, out) in from.zip(to) {
        let line = line.as_chunks::<3>().0;
        for ((first, weights), out) in weights.iter().zip(out.as_chunks_mut::<3>().0) {
            let mut sums = [HALF; 3];
            for (pixel, weight) in line[first..].iter().zip(weights) {
                for (sum, level) in sums.iter_mut().zip(pixel) {
                    *sum += i32::from(*level) * weight;
                }
            }
            *out = sums.map(level);
        }
    }
}

fn resize_rows(weights: &Weights, pixels: &[u8], width: u32, sums: &mut Vec<i32>, out: &mut [u8]) {
    let line_bytes = width as usize * 3;
    sums.resize(line_bytes, 0);
    for ((first, weights), out) in weights.iter().zip(out.chunks_exact_mut(line_bytes)) {
        sums.fill(HALF);
        for (line, weight) in pixels[first * line_bytes..].chunks_exact(line_bytes).zip(weights) {
            for (sum, level) in sums.iter_mut().zip(line) {
                *sum += i32::from(*level) * weight;
            }
        }
        for (out, sum) in out.iter_mut().zip(&*sums) {
            *out = level(*sum);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_those_of_pillow() {
        // Image.fromarray(levels).resize(size, Image.BICUBIC) of Pillow 13.0.0, where the level of a pixel's channel is
        // (37 × row² + 11 × column × channel + 5 × column²) % 256.
        let level = |row: usize, column: usize, channel: usize| {
            u8::try_from((37 * row * row + 11 * column * channel + 5 * column * column) % 256)
                .unwrap()
        };
        let pixels: Vec<u8> = (0..7)
            .flat_map(|row| {
                (0..9).flat_map(move |column| (0..3).map(move |it| level(row, column, it)))
            })
            .collect();
        let mut resampler = PillowResampler::default();
        for (to, expected) in EXPECTED {
            let mut out = vec![0; to.0 as usize * to.1 as usize * 3];
            resampler.resize(&pixels, (9, 7), *to, &mut out);
            assert_eq!(out, *expected, "{to:?}");
        }
    }

    const EXPECTED: &[((u32, u32), &[u8])] = &[
        (
            (4, 3),
            &[
                48, 57, 65, 87, 109, 119, 141, 149, 125, 132, 127, 124, 105, 116, 124, 152, 160,
                155, 113, 73, 131, 101, 156, 129, 104, 115, 124, 147, 154, 139, 134, 114, 126, 123,
                147, 122,
            ],
        ),
        (
            (9, 3),
            &[
                45, 45, 45, 50, 61, 72, 65, 87, 109, 90, 123, 102, 125, 115, 159, 116, 179, 122,
                179, 133, 101, 132, 111, 134, 109, 143, 127, 102, 102, 102, 107, 118, 129, 122,
                144, 166, 147, 180, 131, 182, 144, 188, 145, 22, 74, 22, 85, 158, 84, 168, 163,
                166, 172, 79, 101, 101, 101, 106, 117, 128, 121, 143, 165, 146, 179, 108, 181, 121,
                165, 122, 122, 80, 122, 91, 157, 90, 167, 140, 165, 149, 85,
            ],
        ),
        (
            (5, 7),
            &[
                1, 6, 11, 24, 47, 71, 80, 129, 179, 181, 198, 126, 151, 115, 187, 38, 43, 48, 61,
                84, 116, 122, 172, 148, 171, 99, 83, 69, 141, 98, 149, 154, 169, 179, 203, 137,
                171, 73, 54, 56, 130, 155, 179, 126, 91, 78, 83, 88, 101, 132, 156, 168, 144, 188,
                75, 49, 123, 97, 191, 138, 81, 86, 91, 104, 135, 159, 171, 147, 191, 78, 52, 126,
                100, 194, 141, 158, 163, 178, 188, 212, 146, 180, 82, 63, 65, 139, 164, 188, 135,
                100, 53, 58, 63, 76, 99, 131, 137, 187, 163, 186, 114, 98, 84, 156, 113,
            ],
        ),
        (
            (13, 2),
            &[
                67, 66, 65, 69, 74, 79, 75, 88, 103, 85, 107, 130, 101, 135, 115, 124, 142, 126,
                147, 123, 167, 132, 121, 121, 122, 118, 105, 121, 116, 125, 114, 128, 141, 122,
                143, 127, 132, 152, 107, 102, 101, 100, 104, 109, 114, 110, 123, 139, 120, 142,
                166, 136, 172, 135, 160, 173, 137, 182, 135, 179, 154, 90, 99, 111, 73, 98, 75, 91,
                161, 78, 154, 161, 125, 171, 119, 171, 163, 76,
            ],
        ),
        (
            (2, 9),
            &[
                28, 53, 74, 147, 157, 165, 51, 74, 90, 132, 141, 123, 117, 123, 114, 126, 123, 101,
                161, 152, 133, 122, 115, 115, 109, 114, 140, 106, 121, 145, 106, 113, 143, 106,
                124, 150, 153, 148, 142, 124, 123, 131, 149, 148, 130, 139, 131, 117, 82, 102, 114,
                141, 148, 120,
            ],
        ),
    ];
}

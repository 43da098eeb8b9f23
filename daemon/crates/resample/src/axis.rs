//! The weights for one side of an image, as fast_image_resize computes them: in double precision, then in 16 bits.

use crate::request::{Filter, Shown};

/// Maximal fractional bits of a weight: of 32 bits a sum needs eight for its pixel and two for overshoots.
const MOST_PRECISION: u32 = 32 - 8 - 2 - 1;
/// A weight and its sign take 16 bits.
const WEIGHT_LIMIT: i32 = 1 << 15;

impl Filter {
    /// Its radius, in pixels of the smaller side.
    const fn support(self) -> f64 {
        match self {
            Self::Bilinear => 1.0,
            Self::CatmullRom => 2.0,
            Self::Lanczos3 => 3.0,
        }
    }

    /// Its value. Every operation is as in fast_image_resize: another order rounds differently.
    #[inline(always)]
    pub(crate) fn at(self, x: f64) -> f64 {
        match self {
            Self::Bilinear => {
                let x = x.abs();
                if x < 1.0 { 1.0 - x } else { 0.0 }
            }
            Self::CatmullRom => {
                const A: f64 = -0.5;
                let x = x.abs();
                if x < 1.0 {
                    ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0
                } else if x < 2.0 {
                    (((x - 5.0) * x + 8.0) * x - 4.0) * A
                } else {
                    0.0
                }
            }
            Self::Lanczos3 => {
                if (-3.0..3.0).contains(&x) {
                    sinc(x) * sinc(x / 3.0)
                } else {
                    0.0
                }
            }
        }
    }
}

fn sinc(x: f64) -> f64 {
    if x == 0.0 {
        return 1.0;
    }
    let x = x * std::f64::consts::PI;
    x.sin() / x
}

/// Parameters of an axis.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Key {
    /// Pixels of the source's side.
    pub from: u32,
    pub shown: Shown,
    /// Pixels of the target's side.
    pub to: u32,
    pub filter: Filter,
}

/// The weights for one side of an image. Kept between images: equal parameters are not computed again.
#[derive(Debug, Default)]
pub(crate) struct Axis {
    key: Option<Key>,
    /// The number of weights per position, padded with zeros.
    window: usize,
    exact: Vec<f64>,
    weights: Vec<i16>,
    /// For each position: its first pixel and its number of pixels.
    bounds: Vec<(u32, u32)>,
    precision: u32,
}

impl Axis {
    /// `false`: the part is outside of the source. A side that keeps its length has a single weight of one per
    /// position.
    #[inline(always)]
    pub(crate) fn make(&mut self, key: Key) -> bool {
        let Key { from, shown: Shown { start, length }, to, .. } = key;
        let is_inside = start >= 0.0 && length > 0.0 && start + length <= f64::from(from);
        if !is_inside || to == 0 {
            return false;
        }
        if self.key != Some(key) {
            // None while it is incomplete.
            self.key = None;
            self.weigh(key);
            self.round();
            self.key = Some(key);
        }
        true
    }

    /// Weights in double precision. Their sum is one at each position.
    #[inline(always)]
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "places within the source, which is a u32 long"
    )]
    fn weigh(&mut self, key: Key) {
        let Key { from, shown: Shown { start, length }, to, filter } = key;
        let scale = (start + length - start) / f64::from(to);
        let filter_scale = scale.max(1.0);
        let radius = filter.support() * filter_scale;
        let per_pixel = 1.0 / filter_scale;
        self.window = radius.ceil() as usize * 2 + 1;
        self.exact.clear();
        self.bounds.clear();
        for place in 0..to {
            let middle = start + (f64::from(place) + 0.5) * scale;
            let first = (middle - radius).floor().max(0.0) as u32;
            let end = (middle + radius).ceil().min(from.into()) as u32;
            let (mut bound, mut bound_end) = (first, end);
            let (begin, mut sum) = (self.exact.len(), 0.0);
            let centre = middle - 0.5;
            for pixel in first..end {
                let weight = filter.at((f64::from(pixel) - centre) * per_pixel);
                if pixel == bound && weight == 0.0 {
                    bound += 1;
                } else {
                    self.exact.push(weight);
                    sum += weight;
                }
            }
            let own = &mut self.exact[begin..];
            bound_end -= own.iter().rev().take_while(|weight| **weight == 0.0).count() as u32;
            if sum != 0.0 {
                own.iter_mut().for_each(|weight| *weight /= sum);
            }
            self.exact.resize(begin + self.window, 0.0);
            self.bounds.push((bound, bound_end.saturating_sub(bound)));
        }
    }

    /// The weights in 16 bits, with as many fractional bits as the largest weight allows.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "a weight is below two to the 15th")]
    fn round(&mut self) {
        let largest = self.exact.iter().copied().fold(0.0, f64::max);
        let exceeds =
            |bits: u32| ((largest * f64::from(1 << (bits + 1))).round() as i32) >= WEIGHT_LIMIT;
        self.precision = (0..MOST_PRECISION).find(|bits| exceeds(*bits)).unwrap_or(MOST_PRECISION);
        let scale = f64::from(1 << self.precision);
        self.weights.clear();
        self.weights.extend(self.exact.iter().map(|weight| (weight * scale).round() as i16));
    }

    /// The first pixel of a position, and its weights.
    pub(crate) fn place(&self, place: usize) -> (usize, &[i16]) {
        let (first, count) = self.bounds[place];
        (first as usize, &self.weights[place * self.window..][..count as usize])
    }

    pub(crate) fn places(&self) -> usize {
        self.bounds.len()
    }

    /// The maximal number of pairs of weights per position.
    pub(crate) fn most_pairs(&self) -> usize {
        self.bounds.iter().map(|(_, count)| count.div_ceil(2)).max().unwrap_or(0) as usize
    }

    pub(crate) fn precision(&self) -> u32 {
        self.precision
    }

    pub(crate) fn bytes(&self) -> usize {
        self.exact.capacity() * size_of::<f64>()
            + self.weights.capacity() * size_of::<i16>()
            + self.bounds.capacity() * size_of::<(u32, u32)>()
    }
}

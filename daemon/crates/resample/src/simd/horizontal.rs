//! Weighted sums of neighbours within a row, equally for three colours.
//!
//! Four results of a colour are in half of a register. Their first two weighted pixels are within sixteen bytes of the
//! plane; one shuffle moves them into place, one multiplication weights and adds them. Likewise for the next two.

use std::arch::x86_64::*;

use super::registers::{
    BLOCK, Line, MOST_PAIRS, PLANE_SLACK, all, descale, half_a_unit, load, load_half, store,
};
use crate::axis::{Axis, Key};

/// No byte, in a shuffle.
const NONE: u8 = 0x80;
/// Results in half a register.
const QUAD: usize = 4;

/// Two weights of eight results, and the bytes that they apply to.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(32))]
struct Step {
    /// For each half, counted from its offset.
    places: [u8; 32],
    weights: [i16; 16],
    /// The start of each half's sixteen bytes.
    offsets: [u32; 2],
}

const EMPTY: Step = Step { places: [NONE; 32], weights: [0; 16], offsets: [0; 2] };

/// How the results of a row are computed from its source.
#[derive(Debug, Default)]
pub(crate) struct Gather {
    /// Its parameters, and whether it is mirrored.
    key: Option<(Key, bool)>,
    /// For each block four registers, each of `pairs` steps. Their lower halves have its first 16 results, the upper
    /// halves the others, so that packing puts them in order.
    steps: Vec<Step>,
    pairs: usize,
    /// All offsets are below this.
    width: usize,
    precision: u32,
}

impl Gather {
    /// `false`: pixels of neighbouring results are too far apart.
    pub(crate) fn make(&mut self, columns: &Axis, key: Key, mirror: bool) -> bool {
        let pairs = columns.most_pairs().max(1);
        if self.key == Some((key, mirror)) {
            return true;
        }
        self.key = None;
        if pairs > MOST_PAIRS {
            return false;
        }
        (self.pairs, self.precision, self.width) = (pairs, columns.precision(), key.from as usize);
        self.steps.clear();
        self.steps.resize(columns.places().div_ceil(BLOCK) * (BLOCK / 8) * pairs, EMPTY);
        let is_near = (0..columns.places().div_ceil(QUAD))
            .all(|quad| (0..pairs).all(|pair| self.put(columns, mirror, quad, pair)));
        if is_near {
            self.key = Some((key, mirror));
        }
        is_near
    }

    /// Adds a pair of weights of four results.
    fn put(&mut self, columns: &Axis, mirror: bool, quad: usize, pair: usize) -> bool {
        let results = (quad * QUAD..columns.places().min((quad + 1) * QUAD)).map(|result| {
            let place = if mirror { columns.places() - 1 - result } else { result };
            let (first, weights) = columns.place(place);
            (first + pair * 2, weights.get(pair * 2..).unwrap_or_default())
        });
        let with_weights = results.clone().filter(|(_, weights)| !weights.is_empty());
        let Some(offset) = with_weights.map(|(first, _)| first).min() else { return true };
        // A block's first 16 results are in the lower halves of its four registers.
        let (block, within) = (quad / 8, quad % 8);
        let (half, register) = (within / 4, within % 4);
        let Some(step) = self.steps.get_mut((block * 4 + register) * self.pairs + pair) else {
            return false;
        };
        let Ok(known) = u32::try_from(offset) else { return false };
        if offset >= self.width {
            return false;
        }
        step.offsets[half] = known;
        for (result, (first, weights)) in results.enumerate() {
            for (which, weight) in weights.iter().take(2).enumerate() {
                let Some(place) =
                    u8::try_from(first + which - offset).ok().filter(|place| *place < 16)
                else {
                    return false;
                };
                step.places[half * 16 + result * 4 + which * 2] = place;
                step.weights[half * 8 + result * 2 + which] = *weight;
            }
        }
        true
    }

    pub(crate) fn bytes(&self) -> usize {
        self.steps.capacity() * size_of::<Step>()
    }

    /// Computes the results of a row.
    #[target_feature(enable = "avx2")]
    pub(super) fn row(&self, planes: [&[u8]; 3], to: Line<'_>) {
        assert!(
            planes.iter().all(|plane| plane.len() >= self.width + PLANE_SLACK),
            "a plane that is too short"
        );
        match self.pairs {
            1 => self.blocks::<1>(planes, to),
            2 => self.blocks::<2>(planes, to),
            3 => self.blocks::<3>(planes, to),
            _ => self.blocks::<MOST_PAIRS>(planes, to),
        }
    }

    /// The caller has compared the planes with `width`.
    #[target_feature(enable = "avx2")]
    #[inline]
    fn blocks<const PAIRS: usize>(&self, planes: [&[u8]; 3], mut to: Line<'_>) {
        let (start, precision) = (half_a_unit(self.precision), all(self.precision));
        let blocks = self.steps.as_chunks::<PAIRS>().0.as_chunks::<4>().0;
        for (number, block) in blocks.iter().enumerate() {
            let mut sums = [[start; 4]; 3];
            for (register, steps) in block.iter().enumerate() {
                for step in steps {
                    let places = load(&step.places);
                    // SAFETY: the array is 32 bytes, and the load needs no alignment.
                    let weights = unsafe { _mm256_loadu_si256(step.weights.as_ptr().cast()) };
                    let [low, high] = [step.offsets[0] as usize, step.offsets[1] as usize];
                    for (sums, plane) in sums.iter_mut().zip(planes) {
                        // SAFETY: offsets are below `width`, and `row` has seen that each plane has 16 bytes more;
                        // the loads need no alignment.
                        let (low, high) = unsafe {
                            (
                                _mm_loadu_si128(plane.as_ptr().add(low).cast()),
                                _mm_loadu_si128(plane.as_ptr().add(high).cast()),
                            )
                        };
                        let pixels = _mm256_shuffle_epi8(_mm256_set_m128i(high, low), places);
                        let products = _mm256_madd_epi16(pixels, weights);
                        sums[register] = _mm256_add_epi32(sums[register], products);
                    }
                }
            }
            let [red, green, blue] = sums;
            let (red, green) = (descale(red, precision), descale(green, precision));
            let colours = [red, green, descale(blue, precision)];
            match &mut to {
                Line::Planar(lines) => {
                    for (line, colour) in lines.iter_mut().zip(colours) {
                        store_or_cut(colour, &mut line[number * BLOCK..]);
                    }
                }
                Line::Interleaved(line) => interleave(colours, &mut line[number * BLOCK * 3..]),
            }
        }
    }
}

/// Writes a block of one colour, or as much as fits the line.
#[target_feature(enable = "avx2")]
#[inline]
fn store_or_cut(colour: __m256i, line: &mut [u8]) {
    if let Some(place) = line.first_chunk_mut::<BLOCK>() {
        store(colour, place);
        return;
    }
    let mut block = [0; BLOCK];
    store(colour, &mut block);
    line.copy_from_slice(&block[..line.len()]);
}

/// Writes a block of pixels, or as much as fits the line.
#[target_feature(enable = "avx2")]
#[inline]
fn interleave(colours: [__m256i; 3], line: &mut [u8]) {
    if let Some(place) = line.first_chunk_mut::<{ BLOCK * 3 }>() {
        interleave_block(colours, place);
        return;
    }
    let mut block = [0; BLOCK * 3];
    interleave_block(colours, &mut block);
    line.copy_from_slice(&block[..line.len()]);
}

/// For each byte of sixteen pixels, in three parts, and each colour: the index of the colour's byte.
const TO_PIXELS: [[[u8; 16]; 3]; 3] = {
    let mut places = [[[NONE; 16]; 3]; 3];
    let mut byte = 0;
    while byte < 16 * 3 {
        places[byte / 16][byte % 3][byte % 16] = THIRDS[byte];
        byte += 1;
    }
    places
};

/// For each colour and each part of sixteen pixels: the indices of the colour's bytes in the part.
const TO_COLOURS: [[[u8; 16]; 3]; 3] = {
    let mut places = [[[NONE; 16]; 3]; 3];
    let mut byte = 0;
    while byte < 16 * 3 {
        places[byte % 3][byte / 16][THIRDS[byte] as usize] = SIXTEENTHS[byte];
        byte += 1;
    }
    places
};

/// A byte's pixel.
const THIRDS: [u8; 48] = {
    let mut thirds = [0; 48];
    let mut at = 3;
    while at < 48 {
        thirds[at] = thirds[at - 3] + 1;
        at += 1;
    }
    thirds
};

/// A byte's index in its part.
const SIXTEENTHS: [u8; 48] = {
    let mut places = [0; 48];
    let mut at = 1;
    while at < 48 {
        places[at] = if at % 16 == 0 { 0 } else { places[at - 1] + 1 };
        at += 1;
    }
    places
};

/// One of three combinations of three times sixteen bytes.
#[target_feature(enable = "avx2")]
#[inline]
fn mix(from: [__m128i; 3], places: &[[u8; 16]; 3]) -> __m128i {
    let first = _mm_shuffle_epi8(from[0], load_half(&places[0]));
    let second = _mm_shuffle_epi8(from[1], load_half(&places[1]));
    let third = _mm_shuffle_epi8(from[2], load_half(&places[2]));
    _mm_or_si128(_mm_or_si128(first, second), third)
}

#[target_feature(enable = "avx2")]
#[inline]
fn store_half(bytes: __m128i, place: &mut [u8; 16]) {
    // SAFETY: the array is 16 bytes, and the store needs no alignment.
    unsafe { _mm_storeu_si128(place.as_mut_ptr().cast(), bytes) }
}

/// Separates the colours of interleaved pixels, sixteen at a time.
#[target_feature(enable = "avx2")]
pub(super) fn separate(line: &[u8], [red, green, blue]: [&mut [u8]; 3]) {
    let planes = [red, green, blue].map(|plane| plane.as_chunks_mut::<16>().0);
    let [red, green, blue] = planes;
    let parts = line.as_chunks::<16>().0.as_chunks::<3>().0;
    for (((part, red), green), blue) in parts.iter().zip(red).zip(green).zip(blue) {
        let from = [load_half(&part[0]), load_half(&part[1]), load_half(&part[2])];
        for (places, place) in TO_COLOURS.iter().zip([red, green, blue]) {
            store_half(mix(from, places), place);
        }
    }
}

/// A block of pixels.
#[target_feature(enable = "avx2")]
#[inline]
fn interleave_block([red, green, blue]: [__m256i; 3], out: &mut [u8; BLOCK * 3]) {
    let low =
        [_mm256_castsi256_si128(red), _mm256_castsi256_si128(green), _mm256_castsi256_si128(blue)];
    let high = [
        _mm256_extracti128_si256::<1>(red),
        _mm256_extracti128_si256::<1>(green),
        _mm256_extracti128_si256::<1>(blue),
    ];
    let parts = out.as_chunks_mut::<16>().0.as_chunks_mut::<3>().0;
    for (half, parts) in [low, high].into_iter().zip(parts) {
        for (places, part) in TO_PIXELS.iter().zip(parts) {
            store_half(mix(half, places), part);
        }
    }
}

//! Changes the sample rate: the polyphase filter of SciPy's `signal.resample_poly` with its defaults, a sinc of ten
//! zeros on each side of the slower rate in a Kaiser window (β = 5), zeros outside the sound.

use forebay_dataset::Defect;

/// The ratio of rates: `up` frames for `down`, without a common divisor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ratio {
    up: u32,
    down: u32,
}

/// The filter has twenty times as many taps.
const MOST_STEPS: u32 = 1 << 17;
const ZEROS: usize = 10;
const BETA: f64 = 5.0;
/// Results that are computed at once: each is one chain of additions, for which a processor waits.
const AT_ONCE: usize = 4;

impl Ratio {
    /// From one rate to another.
    ///
    /// # Errors
    /// They have too small a divisor in common.
    pub(super) fn new(from: u32, to: u32) -> Result<Self, Defect> {
        let (mut divisor, mut rest) = (from, to);
        while rest > 0 {
            (divisor, rest) = (rest, divisor % rest);
        }
        let (up, down) = (to / divisor.max(1), from / divisor.max(1));
        if up.max(down) > MOST_STEPS {
            return Err(Defect(format!(
                "the sound has {from} samples a second, which cannot be made {to}: the rates have no large divisor in common"
            )));
        }
        Ok(Self { up, down })
    }

    pub(super) const fn is_one(self) -> bool {
        self.up == self.down
    }

    /// The number of frames after resampling.
    pub(super) fn result_frames(self, frames: u64) -> u64 {
        frames.saturating_mul(self.up.into()).div_ceil(self.down.into())
    }

    const fn half(self) -> usize {
        let steps = if self.up > self.down { self.up } else { self.down };
        ZEROS * steps as usize
    }

    /// The memory of its filter.
    pub(super) const fn filter_bytes(self) -> u64 {
        if self.is_one() { 0 } else { (2 * self.half() as u64 + 1) * 8 }
    }

    /// Appends the resampled frames, of `kept` floats each. All floats are in native byte order.
    pub(super) fn resample(
        self,
        filter: &Filter,
        floats: &[[u8; 4]],
        kept: usize,
        out: &mut Vec<u8>,
    ) {
        if floats.is_empty() {
            return;
        }
        let frames = floats.len() / kept;
        let count = usize::try_from(self.result_frames(frames as u64)).unwrap_or(0);
        out.reserve_exact(count * kept * 4);
        for first in (0..count).step_by(AT_ONCE) {
            let taps: [_; AT_ONCE] =
                std::array::from_fn(|place| filter.taps_of(self, first + place, frames));
            let at = out.len();
            let results = AT_ONCE.min(count - first);
            out.resize(at + results * kept * 4, 0);
            let results = out[at..].as_chunks_mut::<4>().0;
            for channel in 0..kept {
                let floats = &floats[channel..];
                // Compiled for the usual numbers of channels.
                let sums = match kept {
                    1 => sums(&taps, floats, 1),
                    2 => sums(&taps, floats, 2),
                    _ => sums(&taps, floats, kept),
                };
                let results = results.iter_mut().skip(channel).step_by(kept);
                for (result, sum) in results.zip(sums) {
                    #[expect(clippy::cast_possible_truncation, reason = "single precision")]
                    let value = sum as f32;
                    *result = value.to_ne_bytes();
                }
            }
        }
    }
}

/// The sums of some results, each in the order of its frames; of the frames' floats one of `kept` is of the channel.
#[inline(always)]
fn sums(results: &[Meeting<'_>; AT_ONCE], floats: &[[u8; 4]], kept: usize) -> [f64; AT_ONCE] {
    let float = |frame: usize| f64::from(f32::from_ne_bytes(floats[frame * kept]));
    let common = results.iter().map(|result| result.taps.len()).min().unwrap_or(0);
    // The neutral number of addition.
    let mut sums = [-0.0; AT_ONCE];
    for at in 0..common {
        for (sum, result) in sums.iter_mut().zip(results) {
            *sum += result.taps[at] * float(result.first + at);
        }
    }
    for (sum, result) in sums.iter_mut().zip(results) {
        for (at, tap) in result.taps.iter().enumerate().skip(common) {
            *sum += tap * float(result.first + at);
        }
    }
    sums
}

/// What a result is summed from: frames from the first one on, times taps.
#[derive(Debug, Clone, Copy)]
struct Meeting<'f> {
    first: usize,
    taps: &'f [f64],
}

/// A ratio's taps.
#[derive(Debug)]
pub(super) struct Filter {
    ratio: Ratio,
    /// In the order of the frames that they meet: those that are `up` apart follow one another.
    taps: Vec<f64>,
}

impl Filter {
    /// The filter of a ratio; computed if another one is kept.
    pub(super) fn kept(kept: &mut Option<Self>, ratio: Ratio) -> &Self {
        if kept.as_ref().is_none_or(|kept| kept.ratio != ratio) {
            *kept = None;
        }
        kept.get_or_insert_with(|| Self::new(ratio))
    }

    /// SciPy's `firwin`, times `up`.
    fn new(ratio: Ratio) -> Self {
        let half = ratio.half();
        #[expect(clippy::cast_precision_loss, reason = "whole numbers below 2⁵³")]
        let tap = |place: usize| {
            let offset = place as f64 - half as f64;
            let share = offset / half as f64;
            let x = offset * ZEROS as f64 / half as f64 * std::f64::consts::PI;
            let sinc = if place == half { 1.0 } else { libm::sin(x) / x };
            sinc * bessel(BETA * libm::sqrt((1.0 - share * share).max(0.0)))
        };
        let mut taps: Vec<f64> = (0..=2 * half).map(tap).collect();
        let scale = f64::from(ratio.up) / taps.iter().sum::<f64>();
        taps.iter_mut().for_each(|tap| *tap *= scale);
        let up = ratio.up as usize;
        let phase = |phase: usize| taps.iter().skip(phase).step_by(up).rev().copied();
        let taps = (0..up).flat_map(phase).collect();
        Self { ratio, taps }
    }

    /// The taps for one result, and the first frame that they meet, of which there are so many.
    fn taps_of(&self, ratio: Ratio, place: usize, frames: usize) -> Meeting<'_> {
        let (up, down, half) = (ratio.up as usize, ratio.down as usize, ratio.half());
        let middle = place * down;
        let first = middle.saturating_sub(half).div_ceil(up);
        let end = frames.min((middle + half) / up + 1);
        // The place of the first one, `middle + half - first * up`, as one of its phase, of which the last is met first.
        let (in_phase, phase) = ((middle + half - first * up) / up, (middle + half) % up);
        let all = 2 * half + 1;
        let of_phase = |phase: usize| (all - phase).div_ceil(up);
        // Earlier phases: each has as many taps as the first, or one less.
        let before = phase * (all / up) + phase.min(all % up);
        let start = before + of_phase(phase) - 1 - in_phase;
        Meeting { first, taps: &self.taps[start..start + end.saturating_sub(first)] }
    }

    pub(super) fn bytes(&self) -> usize {
        self.taps.capacity() * size_of::<f64>()
    }
}

/// The modified Bessel function of the first kind and order 0, by its series.
fn bessel(x: f64) -> f64 {
    let (mut sum, mut term, mut place) = (1.0, 1.0, 1.0);
    while term > sum * 1e-18 {
        term *= (x / (2.0 * place)) * (x / (2.0 * place));
        sum += term;
        place += 1.0;
    }
    sum
}

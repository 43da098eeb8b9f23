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

    /// Appends the resampled frames, of `kept` floats each, in native byte order.
    pub(super) fn resample(self, filter: &Filter, floats: &[f32], kept: usize, out: &mut Vec<u8>) {
        let (up, down, half) = (self.up as usize, self.down as usize, self.half());
        let frames = floats.len() / kept;
        let count = usize::try_from(self.result_frames(frames as u64)).unwrap_or(0);
        out.reserve_exact(count * kept * 4);
        for place in 0..count {
            // Every `up`-th tap that meets an existing frame.
            let middle = place * down;
            let first = (middle.saturating_sub(half)).div_ceil(up);
            let end = frames.min((middle + half) / up + 1);
            for channel in 0..kept {
                let meet = (first..end).map(|frame| {
                    filter.taps[middle + half - frame * up]
                        * f64::from(floats[frame * kept + channel])
                });
                #[expect(clippy::cast_possible_truncation, reason = "rounded to single precision")]
                let value = meet.sum::<f64>() as f32;
                out.extend(value.to_ne_bytes());
            }
        }
    }
}

/// A ratio's taps.
#[derive(Debug)]
pub(super) struct Filter {
    ratio: Ratio,
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
        Self { ratio, taps }
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

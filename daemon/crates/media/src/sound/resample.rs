//! Changes the sample rate: the polyphase filter of SciPy's `signal.resample_poly` with its defaults, a sinc of ten
//! zeros on each side of the slower rate in a Kaiser window (β = 5), zeros outside the sound.

use std::ops::Range;

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
/// Sums that a processor adds to at once: one alone waits for each of its additions.
const LANES: usize = 8;

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

    /// Writes the resampled frames, of `kept` floats each. All floats are in native byte order.
    pub(super) fn resample(
        self,
        filter: &Filter,
        floats: &[[u8; 4]],
        kept: usize,
        out: &mut Vec<u8>,
    ) {
        let frames = floats.len() / kept;
        let count = usize::try_from(self.result_frames(frames as u64)).unwrap_or(0);
        out.resize(count * kept * 4, 0);
        let results = out.as_chunks_mut::<4>().0;
        let mut of_channel = Vec::with_capacity(if kept > 1 { frames } else { 0 });
        for channel in 0..kept {
            let floats = if kept == 1 {
                floats
            } else {
                of_channel.clear();
                of_channel.extend(floats.iter().skip(channel).step_by(kept));
                &of_channel
            };
            let meetings = Meetings::new(self);
            for (result, meeting) in results.iter_mut().skip(channel).step_by(kept).zip(meetings) {
                let (met, taps) = meeting.within(frames);
                #[expect(clippy::cast_possible_truncation, reason = "rounded to single precision")]
                let value = sum(&filter.taps[taps], &floats[met]) as f32;
                *result = value.to_ne_bytes();
            }
        }
    }
}

/// The frames that a result is made of, and their taps in [`Filter::taps`], as if there were frames before the first one.
struct Meeting {
    /// After the last frame.
    end: usize,
    /// The place of the first tap.
    start: usize,
    count: usize,
}

impl Meeting {
    /// The places of the frames that exist, and of their taps.
    fn within(&self, frames: usize) -> (Range<usize>, Range<usize>) {
        let first = self.end.saturating_sub(self.count);
        let start = self.start + self.count.saturating_sub(self.end);
        let end = self.end.min(frames);
        (first..end, start..start + (end - first))
    }
}

/// The meeting of each result, one after another: without divisions, which take longer than the sums.
struct Meetings {
    ratio: Ratio,
    /// Taps of each phase; so many phases, the first ones, have one more.
    least: usize,
    more: usize,
    /// The last frame of the next result, and its phase.
    last: usize,
    phase: usize,
}

impl Meetings {
    const fn new(ratio: Ratio) -> Self {
        let (up, half) = (ratio.up as usize, ratio.half());
        let all = 2 * half + 1;
        Self { ratio, least: all / up, more: all % up, last: half / up, phase: half % up }
    }
}

impl Iterator for Meetings {
    type Item = Meeting;

    fn next(&mut self) -> Option<Meeting> {
        let (up, down) = (self.ratio.up as usize, self.ratio.down as usize);
        let start = self.phase * self.least + self.phase.min(self.more);
        let count = self.least + usize::from(self.phase < self.more);
        let meeting = Meeting { end: self.last + 1, start, count };
        self.phase += down;
        while self.phase >= up {
            (self.phase, self.last) = (self.phase - up, self.last + 1);
        }
        Some(meeting)
    }
}

/// The sum of taps times floats, in lanes as those of a vector.
fn sum(taps: &[f64], floats: &[[u8; 4]]) -> f64 {
    let product = |(tap, float): (&f64, &[u8; 4])| tap * f64::from(f32::from_ne_bytes(*float));
    let (taps, last_taps) = taps.as_chunks::<LANES>();
    let (floats, last_floats) = floats.as_chunks::<LANES>();
    let mut lanes = [0.0; LANES];
    for (taps, floats) in taps.iter().zip(floats) {
        for (lane, both) in lanes.iter_mut().zip(taps.iter().zip(floats)) {
            *lane += product(both);
        }
    }
    for (lane, both) in lanes.iter_mut().zip(last_taps.iter().zip(last_floats)) {
        *lane += product(both);
    }
    let [a, b, c, d, e, f, g, h] = lanes;
    ((a + e) + (b + f)) + ((c + g) + (d + h))
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

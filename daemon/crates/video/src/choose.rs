//! Which frames of a video a sample is made of: a pure function of the times of its frames and of a draw.
//!
//! A frame is shown from its own time until the next one: the frame at a time is the last one that is not later.

use crate::codec::TimeBase;

/// How frames are chosen.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sampling {
    /// The frames of a clip, at least 1.
    pub frames: u32,
    /// The clips, at least 1.
    pub clips: u32,
    /// What lies between two frames of a clip.
    pub spacing: Spacing,
    /// Where clips begin.
    pub start: Start,
    /// What becomes of a video that is shorter than a clip.
    pub short: Short,
}

/// What lies between two frames of a clip.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Spacing {
    /// The frames of a clip are spread evenly over the whole video, its first and its last frame included.
    Whole,
    /// So many frames of the video, at least 1: 1 is each frame.
    Stride(u32),
    /// This many frames a second, above 0, whatever the video's own rate is.
    Rate(f64),
}

impl Spacing {
    /// What the keys of a configuration say, and where its clips begin and how many there are; `None`: `stride` and
    /// `rate` exclude each other.
    #[must_use]
    pub fn of_keys(stride: Option<u32>, rate: Option<f64>, clips: (Start, u32)) -> Option<Self> {
        Some(match (stride, rate) {
            (Some(_), Some(_)) => return None,
            (Some(stride), None) => Self::Stride(stride),
            (None, Some(rate)) => Self::Rate(rate),
            (None, None) if clips == (Start::Uniform, 1) => Self::Whole,
            (None, None) => Self::Stride(1),
        })
    }
}

/// Where clips begin.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Start {
    /// At any place where a whole clip follows, each with the same probability.
    Random,
    /// At equal distances, the first at the beginning and the last one where it just fits. A single one begins with the
    /// video.
    Uniform,
    /// At a time after the first frame, in seconds.
    Seconds(f64),
}

/// What becomes of a video that is shorter than a clip.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Short {
    /// Its last frame is repeated.
    Pad,
    /// It begins again.
    Repeat,
    /// It is left out.
    Drop,
}

/// The times of the frames of a video that can be shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shown {
    /// Ascending, without repetitions; not empty.
    pub times: Vec<i64>,
    /// When the last one ends.
    pub end: i64,
    /// The clock.
    pub time_base: TimeBase,
}

impl Sampling {
    /// As a part of a sentence: `16 frames with stride 4 from a random place`. `start`: where clips begin, if a field of
    /// the samples says it.
    #[must_use]
    pub fn words(&self, start: Option<&str>) -> String {
        let Self { frames, clips, spacing, .. } = self;
        let clips = if *clips > 1 { format!("{clips} clips of ") } else { String::new() };
        let spacing = match spacing {
            Spacing::Whole => " over the whole".to_owned(),
            Spacing::Stride(1) => String::new(),
            Spacing::Stride(stride) => format!(" with stride {stride}"),
            Spacing::Rate(rate) => format!(" at {rate} a second"),
        };
        let start = match (self.start, start) {
            (_, Some(field)) => format!(" from the time in `{field}` on"),
            _ if self.spacing == Spacing::Whole => String::new(),
            (Start::Random, None) => " from a random place".to_owned(),
            (Start::Uniform, None) if self.clips > 1 => " at equal distances".to_owned(),
            (Start::Uniform, None) => " from the beginning".to_owned(),
            (Start::Seconds(seconds), None) => format!(" from {seconds} s on"),
        };
        format!("{clips}{frames} frames{spacing}{start}")
    }
}

impl Sampling {
    /// The times of the frames of all clips, one after the other. `None`: the video is too short and left out.
    #[must_use]
    pub fn choose(&self, shown: &Shown, draw: u64) -> Option<Vec<i64>> {
        if shown.times.is_empty() || (self.short == Short::Drop && !self.fits(shown)) {
            return None;
        }
        let mut wanted = Vec::with_capacity(self.frames as usize * self.clips as usize);
        let mut draws = draw;
        for clip in 0..self.clips {
            draws = next(draws);
            match self.spacing {
                Spacing::Whole => self.spread(shown, &mut wanted),
                Spacing::Stride(stride) => {
                    let first = self.first_frame(shown, stride, clip, draws);
                    self.step(shown, first, stride, &mut wanted);
                }
                Spacing::Rate(rate) => {
                    let begin = self.first_tick(shown, rate, clip, draws);
                    self.sample(shown, begin, rate, &mut wanted);
                }
            }
        }
        Some(wanted)
    }

    /// The dimensions of a sample's frames: `[frames]`, with several clips `[clips, frames]`.
    #[must_use]
    pub fn shape(&self) -> Vec<u64> {
        let clips = (self.clips > 1).then_some(self.clips);
        clips.into_iter().chain([self.frames]).map(u64::from).collect()
    }

    /// Bytes that differ if other frames are chosen of the same video for the same draw.
    #[must_use]
    pub fn identity(&self) -> Vec<u8> {
        let Self { frames, clips, spacing, start, short } = *self;
        let (spacing, step) = match spacing {
            Spacing::Whole => (0, 0),
            Spacing::Stride(stride) => (1, u64::from(stride)),
            Spacing::Rate(rate) => (2, rate.to_bits()),
        };
        let (start, seconds) = match start {
            Start::Random => (0, 0),
            Start::Uniform => (1, 0),
            Start::Seconds(seconds) => (2, seconds.to_bits()),
        };
        [frames.into(), clips.into(), spacing, step, start, seconds, short as u64]
            .iter()
            .flat_map(|number: &u64| number.to_le_bytes())
            .collect()
    }

    /// Whether clips begin at a time when a video has ended.
    #[must_use]
    pub fn begins_behind(&self, shown: &Shown) -> bool {
        matches!(self.start, Start::Seconds(seconds)
            if offset(shown, seconds).saturating_add(first(shown)) >= shown.end)
    }

    /// Whether a clip of this video needs no frame twice or from outside.
    #[must_use]
    pub fn fits(&self, shown: &Shown) -> bool {
        match self.spacing {
            Spacing::Whole => shown.times.len() >= self.frames as usize,
            Spacing::Stride(stride) => {
                let first = match self.start {
                    Start::Seconds(_) => self.first_frame(shown, stride, 0, 0),
                    _ => 0,
                };
                self.last_start(shown, stride).is_some_and(|last| first <= last)
            }
            Spacing::Rate(rate) => {
                let begin = match self.start {
                    Start::Seconds(_) => self.first_tick(shown, rate, 0, 0),
                    _ => first(shown),
                };
                ticks(shown, self.frames.saturating_sub(1), rate).saturating_add(begin) < shown.end
            }
        }
    }

    fn spread(&self, shown: &Shown, wanted: &mut Vec<i64>) {
        let last = shown.times.len() as u64 - 1;
        let parts = u64::from(self.frames).saturating_sub(1).max(1);
        for frame in 0..u64::from(self.frames) {
            let place = match self.short {
                Short::Repeat if last + 1 < u64::from(self.frames) => frame % (last + 1),
                _ => frame * last / parts,
            };
            wanted.push(time(shown, place));
        }
    }

    /// The last frame at which a clip can begin; `None`: the video is shorter than a clip.
    fn last_start(&self, shown: &Shown, stride: u32) -> Option<u64> {
        let span = u64::from(self.frames).saturating_sub(1) * u64::from(stride) + 1;
        (shown.times.len() as u64).checked_sub(span)
    }

    fn first_frame(&self, shown: &Shown, stride: u32, clip: u32, draw: u64) -> u64 {
        let last = self.last_start(shown, stride).unwrap_or(0);
        match self.start {
            Start::Random => below(draw, last.saturating_add(1)),
            Start::Uniform => {
                u64::from(clip) * last / u64::from(self.clips).saturating_sub(1).max(1)
            }
            Start::Seconds(seconds) => {
                let wanted = offset(shown, seconds).saturating_add(first(shown));
                let before = shown.times.partition_point(|time| *time <= wanted);
                before.saturating_sub(1) as u64
            }
        }
    }

    fn step(&self, shown: &Shown, first: u64, stride: u32, wanted: &mut Vec<i64>) {
        let count = shown.times.len() as u64;
        for frame in 0..u64::from(self.frames) {
            let place = first.saturating_add(frame * u64::from(stride));
            let place = match self.short {
                Short::Repeat => place % count,
                Short::Pad | Short::Drop => place.min(count - 1),
            };
            wanted.push(time(shown, place));
        }
    }

    fn first_tick(&self, shown: &Shown, rate: f64, clip: u32, draw: u64) -> i64 {
        let begin = first(shown);
        let span = ticks(shown, self.frames.saturating_sub(1), rate);
        // The last clip begins so that its last frame is the last one at the latest.
        let free = shown.end.saturating_sub(begin).saturating_sub(span).max(1).unsigned_abs();
        let ahead = match self.start {
            Start::Random => below(draw, free),
            Start::Uniform => {
                let parts = u64::from(self.clips).saturating_sub(1).max(1);
                let part = u128::from(clip) * u128::from(free - 1) / u128::from(parts);
                u64::try_from(part).unwrap_or(0)
            }
            Start::Seconds(seconds) => offset(shown, seconds).unsigned_abs(),
        };
        begin.saturating_add_unsigned(ahead)
    }

    fn sample(&self, shown: &Shown, begin: i64, rate: f64, wanted: &mut Vec<i64>) {
        let (start, end) = (first(shown), shown.end);
        let length = end.saturating_sub(start).max(1);
        for frame in 0..self.frames {
            let mut at = begin.saturating_add(ticks(shown, frame, rate));
            if self.short == Short::Repeat {
                at = start.saturating_add(at.saturating_sub(start) % length);
            }
            let before = shown.times.partition_point(|time| *time <= at);
            wanted.push(time(shown, before.saturating_sub(1) as u64));
        }
    }
}

fn first(shown: &Shown) -> i64 {
    shown.times.first().copied().unwrap_or(0)
}

fn time(shown: &Shown, place: u64) -> i64 {
    let place = usize::try_from(place).unwrap_or(usize::MAX).min(shown.times.len() - 1);
    shown.times[place]
}

/// The ticks from the first frame of a clip to another one, rounded down. One rounding: exact where it can be.
#[expect(clippy::cast_possible_truncation, reason = "saturates, as it should")]
fn ticks(shown: &Shown, frames: u32, rate: f64) -> i64 {
    let TimeBase { numerator, denominator } = shown.time_base;
    let ticks = f64::from(frames) * f64::from(denominator) / (f64::from(numerator) * rate);
    ticks.floor() as i64
}

/// The ticks of seconds, at least 0, rounded to the nearest: a time in a table was rounded too.
#[expect(clippy::cast_possible_truncation, reason = "saturates, as it should")]
fn offset(shown: &Shown, seconds: f64) -> i64 {
    let TimeBase { numerator, denominator } = shown.time_base;
    ((seconds * f64::from(denominator) / f64::from(numerator)).round() as i64).max(0)
}

/// The next draw of a clip (SplitMix64).
const fn next(draw: u64) -> u64 {
    let mut z = draw.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A number below a bound, which is at least 1. The bound is below 2⁶⁴ by so much that its bias is not seen.
const fn below(draw: u64, bound: u64) -> u64 {
    ((draw as u128 * bound as u128) >> 64) as u64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn shown(count: i64) -> Shown {
        let times = (0..count).map(|frame| frame * 512).collect();
        Shown { times, end: count * 512, time_base: TimeBase { numerator: 1, denominator: 15_360 } }
    }

    fn sampling(frames: u32, spacing: Spacing, start: Start, short: Short) -> Sampling {
        Sampling { frames, clips: 1, spacing, start, short }
    }

    fn frames_of(sampling: &Sampling, count: i64, draw: u64) -> Option<Vec<i64>> {
        let times = sampling.choose(&shown(count), draw)?;
        Some(times.iter().map(|time| time / 512).collect())
    }

    #[test]
    fn frames_follow_the_keys() {
        use {Short::*, Spacing::*, Start::*};
        let of = |frames, spacing, start, short, count| {
            frames_of(&sampling(frames, spacing, start, short), count, 7)
        };
        assert_eq!(of(4, Whole, Uniform, Pad, 10), Some(vec![0, 3, 6, 9]));
        assert_eq!(of(3, Stride(2), Uniform, Pad, 10), Some(vec![0, 2, 4]));
        assert_eq!(of(3, Stride(2), Uniform, Pad, 4), Some(vec![0, 2, 3]));
        assert_eq!(of(3, Stride(2), Uniform, Repeat, 4), Some(vec![0, 2, 0]));
        assert_eq!(of(3, Stride(2), Uniform, Drop, 4), None);
        assert_eq!(of(3, Stride(2), Uniform, Drop, 5), Some(vec![0, 2, 4]));
        // 30 frames a second: 10 of them are each third.
        assert_eq!(of(3, Rate(10.0), Uniform, Pad, 10), Some(vec![0, 3, 6]));
        assert_eq!(of(3, Rate(10.0), Seconds(0.1), Pad, 10), Some(vec![3, 6, 9]));
        assert_eq!(of(3, Rate(10.0), Seconds(0.15), Drop, 10), None);
        assert_eq!(of(3, Rate(60.0), Uniform, Pad, 10), Some(vec![0, 0, 1]));
        assert_eq!(of(3, Stride(1), Seconds(0.1), Pad, 10), Some(vec![3, 4, 5]));
        assert_eq!(of(2, Rate(10.0), Seconds(0.3), Repeat, 10), Some(vec![9, 2]));
        let three = Sampling { clips: 3, ..sampling(2, Stride(1), Uniform, Pad) };
        assert_eq!(frames_of(&three, 10, 0), Some(vec![0, 1, 4, 5, 8, 9]));
    }

    #[test]
    fn every_place_is_drawn_alike() {
        let random = sampling(3, Spacing::Stride(2), Start::Random, Short::Pad);
        let mut counts = [0_u32; 6];
        for draw in 0..60_000 {
            let first = frames_of(&random, 10, draw).unwrap()[0];
            counts[usize::try_from(first).unwrap()] += 1;
        }
        assert!(counts.iter().all(|count| (9_500..10_500).contains(count)), "{counts:?}");
    }

    proptest! {
        #[test]
        fn chosen_frames_are_frames_of_the_video(
            gaps in prop::collection::vec(1_i64..5000, 1..60),
            (frames, clips, stride, rate) in (1_u32..9, 1_u32..4, 1_u32..9, 0.5_f64..90.0),
            (spacing, start, short) in (0_usize..3, 0_usize..3, 0_usize..3),
            seconds in 0.0_f64..10.0,
            draw in any::<u64>(),
        ) {
            let mut at = -300;
            let times: Vec<_> = gaps.iter().map(|gap| { at += gap; at }).collect();
            let shown = Shown { end: at + 512, times, time_base: TimeBase { numerator: 1, denominator: 15_360 } };
            let sampling = Sampling {
                frames,
                clips,
                spacing: [Spacing::Whole, Spacing::Stride(stride), Spacing::Rate(rate)][spacing],
                start: [Start::Random, Start::Uniform, Start::Seconds(seconds)][start],
                short: [Short::Pad, Short::Repeat, Short::Drop][short],
            };
            let wanted = sampling.choose(&shown, draw);
            prop_assert_eq!(&wanted, &sampling.choose(&shown, draw));
            let dropped = sampling.short == Short::Drop && !sampling.fits(&shown);
            prop_assert_eq!(wanted.is_none(), dropped);
            for clip in wanted.iter().flat_map(|wanted| wanted.chunks(frames as usize)) {
                prop_assert!(clip.iter().all(|time| shown.times.binary_search(time).is_ok()));
                prop_assert!(sampling.short == Short::Repeat || clip.is_sorted());
            }
            prop_assert!(wanted.is_none_or(|wanted| wanted.len() == (frames * clips) as usize));
        }
    }
}

//! Edit lists: which part of a track is shown when.
//!
//! An edit shows the frames from its media time on, for its duration. Decoding begins at the key packet before; packets
//! before and after the edit, which decoding needs, stay in the table and are discarded. The first frame that is shown has
//! the time 0, after edits that are empty. The rules, with their less obvious parts, are those of `FFmpeg`'s `mov` demuxer
//! (`advanced_editlist`, its default), so that frames have the same times.

use super::boxes::Numbers;
use super::left::Left;
use super::samples::Sample;
use crate::codec::Codec;
use crate::error::{Result, refuse};
use crate::table::Packet;

/// The most edits of a track.
const MAX_EDITS: usize = 4096;

/// One entry of an edit list.
#[derive(Debug, Clone, Copy)]
pub(super) struct Edit {
    /// In ticks of the movie.
    duration: u64,
    /// In ticks of the track; -1: nothing is shown.
    time: i64,
}

/// Reads `elst`.
pub(super) fn read(body: &[u8]) -> Result<Vec<Edit>> {
    let (mut numbers, version, _) = Numbers::versioned(*b"elst", body)?;
    numbers.u32()?;
    let entry_bytes = if version == 1 { 20 } else { 12 };
    // As long as the box is: its number of entries is wrong in files of some writers.
    let count = numbers.rest().len() / entry_bytes;
    if count > MAX_EDITS {
        return refuse!("a track has {count} edits, more than the limit of {MAX_EDITS}");
    }
    let mut edits = Vec::with_capacity(count);
    for _ in 0..count {
        let duration = numbers.wide(version)?;
        let time = match version {
            1 => numbers.u64()?.cast_signed(),
            _ => numbers.i32()?.into(),
        };
        numbers.u32()?;
        if i64::try_from(duration).is_err() {
            return refuse!("an edit lasts {duration} ticks");
        }
        edits.push(Edit { duration, time });
    }
    Ok(edits)
}

/// `number * by / over`, rounded to the nearest.
fn rescale(number: u64, by: u32, over: u32) -> i64 {
    let product = u128::from(number) * u128::from(by) + u128::from(over) / 2;
    i64::try_from(product / u128::from(over.max(1))).unwrap_or(i64::MAX)
}

/// The media time at which a list begins, less its first empty edit: what the times of fragments are shifted by.
pub(super) fn start(edits: &[Edit], scale: u32, movie_scale: u32) -> i64 {
    let (empty, first) = match edits {
        [Edit { duration, time: -1 }, rest @ ..] if movie_scale > 0 => {
            (rescale(*duration, scale, movie_scale), rest.first())
        }
        [Edit { time: -1, .. }, rest @ ..] => (0, rest.first()),
        all => (0, all.first()),
    };
    let time = first.map_or(0, |edit| edit.time.max(0));
    time.saturating_sub(empty)
}

/// What the times of a track's packets follow from.
#[derive(Debug)]
pub(super) struct Timing<'a> {
    pub(super) edits: &'a [Edit],
    pub(super) scale: u32,
    pub(super) movie_scale: u32,
    /// See [`samples::read`](super::samples::read).
    pub(super) shift: i64,
    pub(super) codec: Codec,
}

/// Packets that are made of edits.
#[derive(Debug, Default)]
struct Shown {
    packets: Vec<Packet>,
    /// The times of the frames that are shown: the earliest, roughly as far as it is negative.
    earliest: Option<i64>,
    /// The frames of a sound that are decoded and not heard.
    skipped: i64,
    /// Whether the first edit of a sound was seen.
    has_begun: bool,
}

/// The samples of a track.
#[derive(Debug, Clone, Copy)]
struct Samples<'a> {
    all: &'a [Sample],
    /// Whether a frame may be shown at another time than it is decoded.
    is_reordered: bool,
}

impl Timing<'_> {
    /// The packets of the samples, at most what is left; for a sound also the number of frames that are not heard.
    pub(super) fn packets(
        &self,
        samples: &[Sample],
        left: &mut Left,
    ) -> Result<(Vec<Packet>, u32)> {
        if self.edits.is_empty() || self.movie_scale == 0 || samples.is_empty() {
            left.take(samples.len(), 0)?;
            let packet =
                |sample: &Sample| self.packet(sample, sample.dts.saturating_sub(self.shift), false);
            return Ok((samples.iter().map(packet).collect(), 0));
        }
        let is_reordered = self.shift > 0 || samples.iter().any(|sample| sample.pts != sample.dts);
        let samples = Samples { all: samples, is_reordered };
        let mut shown = Shown::default();
        let mut end = -self.shift;
        let mut empty = 0_i64;
        for edit in self.edits {
            let duration = rescale(edit.duration, self.scale, self.movie_scale);
            let begin = end;
            end = end.saturating_add(duration);
            // A later edit of nothing is one of no time before the track.
            if edit.time == -1 && !shown.has_begun {
                empty = empty.saturating_add(duration);
                continue;
            }
            let duration = if edit.time.checked_add(duration).is_some() { duration } else { 0 };
            self.show(samples, (edit.time, duration), begin, left, &mut shown)?;
            shown.has_begun = true;
        }
        let late = shown.earliest.unwrap_or(-1).saturating_sub(empty);
        if self.codec.is_video() && late > 0 {
            for packet in &mut shown.packets {
                packet.dts = packet.dts.saturating_sub(late);
                packet.pts = packet.pts.saturating_sub(late);
            }
        }
        Ok((shown.packets, u32::try_from(shown.skipped).unwrap_or(0)))
    }

    fn packet(&self, sample: &Sample, dts: i64, discard: bool) -> Packet {
        let ahead = sample.pts.saturating_sub(sample.dts).saturating_add(self.shift);
        Packet {
            offset: sample.offset,
            size: sample.size,
            pts: dts.saturating_add(ahead),
            dts,
            duration: sample.duration,
            key: sample.key,
            discard,
        }
    }

    /// Adds the packets of one edit, the first of which is decoded at `begin`.
    fn show(
        &self,
        Samples { all: samples, is_reordered }: Samples<'_>,
        (time, duration): (i64, i64),
        begin: i64,
        left: &mut Left,
        shown: &mut Shown,
    ) -> Result<()> {
        let is_video = self.codec.is_video();
        let is_first_sound = !is_video && !shown.has_begun;
        // A decoder of sound needs what comes before: a second is enough for all.
        let wanted = if is_video { time } else { time.saturating_sub(self.scale.into()).max(0) };
        let first = first_needed(samples, wanted, is_reordered);
        let until = time.saturating_add(duration);
        let mut dts = begin;
        let mut has_started = false;
        let mut keys_after = 0;
        // The packets of this edit before its first frame, for whose times this frame is needed.
        let place = shown.packets.len();
        for (number, sample) in samples.iter().enumerate().skip(first) {
            left.take(1, sample.size.into())?;
            let next = samples.get(number + 1);
            let lasts = next.map_or(duration, |next| next.dts.saturating_sub(sample.dts));
            let cuts_off = time.saturating_sub(sample.pts);
            let is_inside = sample.pts >= time && sample.pts < until;
            let is_begun = is_first_sound
                && self.codec != Codec::Vorbis
                && cuts_off > 0
                && sample.pts.saturating_add(lasts) > time;
            if is_begun {
                shown.skipped = shown.skipped.saturating_add(cuts_off);
                dts = dts.saturating_sub(cuts_off);
            } else if is_inside {
                let ahead = sample.pts.saturating_sub(sample.dts).saturating_add(self.shift);
                let pts = dts.saturating_add(ahead);
                let before = shown.earliest.filter(|earliest| *earliest >= 0);
                shown.earliest = Some(before.map_or(pts, |earliest| earliest.min(pts)));
            }
            if (is_begun || is_inside) && !has_started {
                has_started = true;
                shown.set_lead_in(place, dts);
            }
            let discard = !is_begun && !is_inside;
            if discard && !has_started && is_first_sound && self.codec != Codec::Vorbis {
                shown.skipped = shown.skipped.saturating_add(lasts);
            }
            shown.packets.push(self.packet(sample, dts, discard));
            if has_started {
                dts = dts.saturating_add(lasts);
            }
            if sample.pts.saturating_add(lasts) >= until && (sample.key || !is_video) {
                // Frames that are shown before the first key packet may follow it.
                keys_after += 1;
                if !is_reordered || !is_video || keys_after > 1 {
                    break;
                }
            }
        }
        Ok(())
    }
}

impl Shown {
    /// Sets when the packets from a place on are decoded: before the one that follows them, at `dts`.
    fn set_lead_in(&mut self, place: usize, dts: i64) {
        let mut dts = dts;
        for packet in self.packets[place..].iter_mut().rev() {
            let ahead = packet.pts.saturating_sub(packet.dts);
            dts = dts.saturating_sub(packet.duration.into());
            packet.dts = dts;
            packet.pts = dts.saturating_add(ahead);
        }
    }
}

/// The packet at which decoding begins for a time: the last key packet that is decoded and shown no later.
fn first_needed(samples: &[Sample], time: i64, is_reordered: bool) -> usize {
    let decoded = samples.partition_point(|sample| sample.dts <= time);
    let before = &samples[..decoded];
    let key = before.iter().rposition(|sample| sample.key && sample.pts <= time);
    key.or_else(|| decoded.checked_sub(1).filter(|_| !is_reordered)).unwrap_or(0)
}

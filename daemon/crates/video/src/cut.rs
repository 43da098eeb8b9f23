//! What of a file is read and decoded for some frames of a stream.
//!
//! A frame needs the packets from the last key packet that is decoded and shown no later than it, up to its own one in
//! the order of decoding. Runs of packets that meet are one run.

use std::borrow::Cow;
use std::ops::Range;

use crate::choose::{Sampling, Shown};
use crate::clip::{self, Clip, MAX_WANTED};
use crate::error::{Refused, Result, refuse};
use crate::table::{Media, Packet, Stream};

/// Two runs are read at once if no more than one byte in so many lies between them.
const BYTES_A_BYTE_BETWEEN: u64 = 16;

/// The packets that some frames need, and where they are in the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cut {
    /// The presentation time of each frame.
    pub wanted: Vec<i64>,
    /// The places to read, one after another.
    pub ranges: Vec<Range<u64>>,
    /// The runs of packets, by their places in the stream's table, and in which range each one is.
    runs: Vec<(Range<usize>, usize)>,
}

impl Stream {
    /// The frames that can be shown; `None`: there are none.
    #[must_use]
    pub fn shown(&self) -> Option<Shown> {
        let shown = self.packets.iter().filter(|packet| !packet.discard);
        let mut times: Vec<_> = shown.map(|packet| (packet.pts, packet.duration)).collect();
        times.sort_unstable();
        let (last, duration) = *times.last()?;
        let mut times: Vec<_> = times.into_iter().map(|(time, _)| time).collect();
        times.dedup();
        let end = last.saturating_add(i64::from(duration).max(1));
        Some(Shown { times, end, time_base: self.time_base })
    }

    /// What is needed for frames that can be shown.
    ///
    /// # Errors
    /// A frame is not in the table, cannot be decoded, or there are too many.
    pub fn cut(&self, wanted: Vec<i64>) -> Result<Cut> {
        if wanted.is_empty() || wanted.len() > MAX_WANTED as usize {
            return refuse!("{} frames of a video exceed the limit of {MAX_WANTED}", wanted.len());
        }
        let mut times = wanted.clone();
        times.sort_unstable();
        times.dedup();
        let mut needed = self.needed(&times)?;
        needed.sort_unstable_by_key(|run| (run.start, run.end));
        let mut runs: Vec<Range<usize>> = Vec::new();
        for run in needed {
            match runs.last_mut().filter(|last| run.start <= last.end) {
                Some(last) => last.end = last.end.max(run.end),
                None => runs.push(run),
            }
        }
        let mut cut = Cut { wanted, ranges: Vec::new(), runs: Vec::new() };
        for run in runs {
            let range = self.range_of(&run);
            let joined = cut.ranges.last_mut().filter(|last| {
                let gap = range.start.checked_sub(last.end);
                gap.is_some_and(|gap| gap <= (last.end - last.start) / BYTES_A_BYTE_BETWEEN)
            });
            match joined {
                Some(last) => last.end = range.end,
                None => cut.ranges.push(range),
            }
            cut.runs.push((run, cut.ranges.len() - 1));
        }
        Ok(cut)
    }

    /// What is needed for the frames that a sampling chooses for a draw.
    ///
    /// # Errors
    /// There are no frames, or too few, or the clips begin behind the end; or as [`cut`](Self::cut).
    pub fn choose(&self, sampling: &Sampling, draw: u64) -> Result<Cut> {
        let shown = self.shown().ok_or_else(|| Refused("it shows no pictures".to_owned()))?;
        if sampling.begins_behind(&shown) {
            let length = shown.end.saturating_sub(shown.times.first().copied().unwrap_or(0));
            let seconds = shown.time_base.seconds(length);
            return refuse!("its clip begins behind its end: it lasts {seconds:.3} s");
        }
        let wanted = sampling.choose(&shown, draw);
        self.cut(wanted.ok_or_else(|| Refused("it is shorter than a clip".to_owned()))?)
    }

    /// The packets that frames which can be shown need, as a stream of its own.
    ///
    /// # Errors
    /// There are no frames, or one is not in the table or cannot be decoded.
    pub fn part(&self, wanted: &[i64]) -> Result<Self> {
        let mut times = wanted.to_vec();
        times.sort_unstable();
        times.dedup();
        let needed = self.needed(&times)?;
        let start = needed.iter().map(|run| run.start).min();
        let end = needed.iter().map(|run| run.end).max();
        let Some((start, end)) = start.zip(end) else {
            return refuse!("no frames of a video are wanted");
        };
        let packets = self.packets.get(start..end).unwrap_or_default().to_vec();
        Ok(Self { packets, configuration: self.configuration.clone(), ..*self })
    }

    /// For each time, the packets that its frame needs.
    fn needed(&self, times: &[i64]) -> Result<Vec<Range<usize>>> {
        let mut found = vec![None; times.len()];
        for (place, packet) in self.packets.iter().enumerate().filter(|(_, packet)| !packet.discard)
        {
            if let Ok(time) = times.binary_search(&packet.pts) {
                found[time].get_or_insert(place);
            }
        }
        let mut runs = Vec::with_capacity(times.len());
        for (time, place) in times.iter().zip(found) {
            let Some(place) = place else { return refuse!("no packet has the frame at {time}") };
            let key = self.packets[..=place]
                .iter()
                .rposition(|packet| packet.key && packet.pts <= *time)
                .ok_or_else(|| {
                    Refused(format!("the frame at {time} has no key packet before it"))
                })?;
            runs.push(key..place + 1);
        }
        Ok(runs)
    }

    /// The packets of a run that are decoded: those that are shown before its key packet need others.
    fn decoded(&self, run: &Range<usize>) -> impl Iterator<Item = &Packet> {
        let packets = self.packets.get(run.clone()).unwrap_or_default();
        let key = packets.first().map_or(i64::MIN, |packet| packet.pts);
        let mut is_leading = true;
        packets.iter().enumerate().filter_map(move |(place, packet)| {
            is_leading &= place == 0 || !packet.key;
            (!is_leading || packet.pts >= key).then_some(packet)
        })
    }

    /// Where a run is in the file, with what lies between its packets.
    fn range_of(&self, run: &Range<usize>) -> Range<u64> {
        let start = self.decoded(run).map(|packet| packet.offset).min().unwrap_or(0);
        let end = self.decoded(run).map(Packet::end).max().unwrap_or(0);
        start..end
    }

    /// The clip of a cut, from the bytes of its ranges, one after another.
    ///
    /// # Errors
    /// The bytes are fewer than the ranges say, or the cut is of another table.
    pub fn clip<'a>(&self, cut: &Cut, data: impl Into<Cow<'a, [u8]>>) -> Result<Clip<'a>> {
        let mut clip = self.empty_clip();
        clip.data = data.into();
        clip.wanted.clone_from(&cut.wanted);
        let mut starts = Vec::with_capacity(cut.ranges.len());
        let mut at = 0_u64;
        for range in &cut.ranges {
            starts.push((at, range.start));
            at = at.saturating_add(range.end.saturating_sub(range.start));
        }
        if at != clip.data.len() as u64 {
            return refuse!(
                "a clip needs {at} bytes, and {} were read: the file is another one",
                clip.data.len()
            );
        }
        for (run, range) in &cut.runs {
            let (place, start) = starts.get(*range).copied().unwrap_or_default();
            for (number, packet) in self.decoded(run).enumerate() {
                let offset = packet.offset.saturating_sub(start).saturating_add(place);
                let Ok(start) = u32::try_from(offset) else {
                    return refuse!("a clip has packets at {offset} bytes, beyond 4 GiB");
                };
                clip.packets.push(clip::Packet {
                    pts: packet.pts,
                    dts: packet.dts,
                    duration: packet.duration,
                    start,
                    length: packet.size,
                    key: packet.key,
                    discard: packet.discard,
                    restarts: number == 0,
                });
            }
        }
        clip.check()?;
        Ok(clip)
    }

    /// A clip without packets.
    fn empty_clip<'a>(&self) -> Clip<'a> {
        let (width, height, color, rotation) = match self.media {
            Media::Video { width, height, color, rotation } => (width, height, color, rotation),
            Media::Audio { .. } => Default::default(),
        };
        Clip {
            codec: self.codec,
            configuration: Cow::Owned(self.configuration.clone()),
            width,
            height,
            color,
            rotation,
            time_base: self.time_base,
            packets: Vec::new(),
            wanted: Vec::new(),
            data: Cow::Borrowed(&[]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::{Codec, Color, Rotation, TimeBase};

    /// Two groups; the second one is open: two frames before its key follow it.
    fn stream() -> Stream {
        let times = [
            (0, true),
            (3, false),
            (1, false),
            (2, false),
            (6, true),
            (4, false),
            (5, false),
            (7, false),
        ];
        let packet = |(place, (pts, key)): (usize, &(i64, bool))| Packet {
            offset: 100 + 10 * place as u64,
            size: 10,
            pts: *pts,
            dts: i64::try_from(place).unwrap() - 2,
            duration: 1,
            key: *key,
            discard: false,
        };
        let (color, rotation) = (Color::default(), Rotation::None);
        Stream {
            number: 0,
            codec: Codec::H264,
            configuration: Vec::new(),
            media: Media::Video { width: 8, height: 8, color, rotation },
            time_base: TimeBase { numerator: 1, denominator: 30 },
            packets: times.iter().enumerate().map(packet).collect(),
        }
    }

    #[test]
    fn frames_need_their_group_up_to_them() {
        let stream = stream();
        let bytes: Vec<u8> = (0..200).collect();
        // The first byte and the end of each range.
        let cut = |wanted: &[i64]| {
            let cut = stream.cut(wanted.to_vec()).unwrap();
            let data: Vec<u8> = cut
                .ranges
                .iter()
                .flat_map(|range| range.clone())
                .map(|at| bytes[usize::try_from(at).unwrap()])
                .collect();
            let clip = stream.clip(&cut, &data).unwrap();
            let part = stream.part(wanted).unwrap();
            assert_eq!(part.cut(wanted.to_vec()).unwrap().ranges, cut.ranges);
            assert_eq!(part.clip(&part.cut(wanted.to_vec()).unwrap(), &data).unwrap(), clip);
            for packet in &clip.packets {
                let place = stream.packets.iter().position(|other| other.pts == packet.pts);
                assert_eq!(clip.bytes(packet)[0], 100 + 10 * u8::try_from(place.unwrap()).unwrap());
            }
            let packets = clip.packets.iter().map(|packet| packet.pts).collect::<Vec<_>>();
            let ranges = cut.ranges.iter().map(|range| (range.start, range.end));
            (ranges.collect::<Vec<_>>(), packets)
        };
        assert_eq!(cut(&[1]), (vec![(100, 130)], vec![0, 3, 1]));
        assert_eq!(cut(&[3, 1, 3]), (vec![(100, 130)], vec![0, 3, 1]));
        // A leading frame needs the group before; without it, it is left out.
        assert_eq!(cut(&[4]), (vec![(100, 160)], vec![0, 3, 1, 2, 6, 4]));
        assert_eq!(cut(&[7]), (vec![(140, 180)], vec![6, 7]));
        assert_eq!(cut(&[0, 6]), (vec![(100, 110), (140, 150)], vec![0, 6]));
        assert_eq!(cut(&[2, 7]), (vec![(100, 180)], vec![0, 3, 1, 2, 6, 4, 5, 7]));
        assert!(stream.cut(vec![9]).is_err() && stream.cut(Vec::new()).is_err());
    }

    #[test]
    fn frames_without_a_key_packet_are_refused() {
        let mut stream = stream();
        stream.packets[0].key = false;
        assert!(stream.cut(vec![1]).unwrap_err().0.contains("no key packet"));
        let cut = stream.cut(vec![7]).unwrap();
        assert!(stream.clip(&cut, &[0; 39]).unwrap_err().0.contains("39 were read"));
    }
}

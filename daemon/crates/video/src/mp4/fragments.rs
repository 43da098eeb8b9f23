//! `moof`: the packets of a fragment.

use super::boxes::{Numbers, Part, parts};
use super::movie::Movie;
use crate::error::{Result, refuse};
use crate::table::Packet;

/// A packet that decoding cannot begin with, and one that depends on others.
const NOT_KEY: u32 = 0x0101_0000;

/// `trex`: what the fragments of a track have unless they say so.
#[derive(Debug, Clone, Copy)]
pub(super) struct Extends {
    track: u32,
    duration: u32,
    size: u32,
    flags: u32,
}

impl Extends {
    pub(super) fn read(body: &[u8]) -> Result<Self> {
        let (mut numbers, ..) = Numbers::versioned(*b"trex", body)?;
        let (track, _, duration) = (numbers.u32()?, numbers.u32()?, numbers.u32()?);
        Ok(Self { track, duration, size: numbers.u32()?, flags: numbers.u32()? })
    }
}

/// A track's part of a fragment.
struct Fragment {
    /// The index of its track; `None`: the file has no such track.
    track: Option<usize>,
    defaults: Extends,
    /// Where the places of its packets are counted from.
    base: u64,
    /// Where the next packet of the fragment begins, unless it says so.
    next: u64,
    /// When its next packet is decoded, if it says so.
    time: Option<i64>,
}

impl Movie {
    /// Adds the packets of a fragment, whose head is at `start` in the file.
    pub(super) fn add_fragment(&mut self, start: u64, body: &[u8]) -> Result<()> {
        let mut next = start;
        for part in parts(body) {
            let Part { kind, body } = part?;
            if kind == *b"traf" {
                next = self.add_track_fragment(start, next, body)?;
            }
        }
        Ok(())
    }

    fn add_track_fragment(&mut self, start: u64, next: u64, body: &[u8]) -> Result<u64> {
        let mut fragment: Option<Fragment> = None;
        for part in parts(body) {
            let Part { kind, body } = part?;
            if kind == *b"tfhd" {
                fragment = Some(self.read_fragment_header(start, next, body)?);
                continue;
            }
            if kind != *b"tfdt" && kind != *b"trun" {
                continue;
            }
            let Some(fragment) = &mut fragment else {
                return refuse!("a fragment at byte {start} does not say its track (`tfhd`)");
            };
            if kind == *b"trun" {
                self.add_run(fragment, body)?;
            } else {
                let (mut numbers, version, _) = Numbers::versioned(kind, body)?;
                let time = numbers.wide(version)?;
                let Ok(time) = i64::try_from(time) else {
                    return refuse!("a fragment at byte {start} begins at {time} ticks");
                };
                fragment.time = Some(time);
            }
        }
        Ok(fragment.map_or(next, |fragment| fragment.next))
    }

    fn read_fragment_header(&self, start: u64, next: u64, body: &[u8]) -> Result<Fragment> {
        let (mut numbers, _, flags) = Numbers::versioned(*b"tfhd", body)?;
        let id = numbers.u32()?;
        let base = match flags {
            flags if flags & 1 != 0 => numbers.u64()?,
            flags if flags & 0x2_0000 != 0 => start,
            _ => next,
        };
        let track = self.tracks.iter().position(|track| track.id == id);
        let Some(mut defaults) = self.extends.iter().find(|extends| extends.track == id).copied()
        else {
            return refuse!(
                "a fragment at byte {start} is of track {id}, which has no fragments (`trex`)"
            );
        };
        if flags & 2 != 0 {
            let description = numbers.u32()?;
            if description > 1 {
                return refuse!(
                    "a fragment changes its codec's configuration (sample description {description}), which is not read"
                );
            }
        }
        for (flag, value) in
            [(8, &mut defaults.duration), (16, &mut defaults.size), (32, &mut defaults.flags)]
        {
            if flags & flag != 0 {
                *value = numbers.u32()?;
            }
        }
        Ok(Fragment { track, defaults, base, next: base, time: None })
    }

    /// Adds the packets of `trun`.
    fn add_run(&mut self, fragment: &mut Fragment, body: &[u8]) -> Result<()> {
        let (mut numbers, _, flags) = Numbers::versioned(*b"trun", body)?;
        let count = numbers.u32()?;
        let Some(track) = fragment.track else { return Ok(()) };
        let start = self.start_of(track);
        let (Some(track), left) = (self.tracks.get_mut(track), &mut self.left) else {
            return Ok(());
        };
        let Ok(description) = &track.description else { return Ok(()) };
        let is_video = description.codec.is_video();
        let mut offset = fragment.next;
        if flags & 1 != 0 {
            let from = i64::from(numbers.i32()?);
            let Some(place) = fragment.base.checked_add_signed(from) else {
                return refuse!("a fragment's packets begin at {from} of byte {}", fragment.base);
            };
            offset = place;
        }
        let defaults = fragment.defaults;
        let mut first_flags = if flags & 4 != 0 { Some(numbers.u32()?) } else { None };
        let entry_bytes = 4 * (flags & 0xf00).count_ones() as usize;
        let fits = entry_bytes == 0 || count as usize <= numbers.rest().len() / entry_bytes;
        if !fits {
            return refuse!(
                "a fragment announces {count} packets in {} bytes",
                numbers.rest().len()
            );
        }
        let mut dts = fragment.time.unwrap_or(track.end).saturating_sub(start);
        let before = track.fragments.last().map(|packet| packet.dts);
        let before = before.or_else(|| track.samples_end());
        for _ in 0..count {
            let mut of = |flag: u32, usual: u32| -> Result<u32> {
                if flags & flag != 0 { numbers.u32() } else { Ok(usual) }
            };
            let duration = of(0x100, defaults.duration)?;
            let size = of(0x200, defaults.size)?;
            let usual = first_flags.take().unwrap_or(defaults.flags);
            let packet_flags = of(0x400, usual)?;
            let ahead = i64::from(of(0x800, 0)?.cast_signed());
            if size == 0 {
                return refuse!("a fragment has a packet without bytes");
            }
            left.take(1, size.into())?;
            track.shift = track.shift.max(-ahead);
            track.fragments.push(Packet {
                offset,
                size,
                // The shift is known when all fragments are.
                pts: dts.saturating_add(ahead),
                dts,
                duration,
                key: !is_video || packet_flags & NOT_KEY == 0,
                // Fragments may overlap: what was decoded before is not shown again.
                discard: before.is_some_and(|before| before >= dts),
            });
            dts = dts.saturating_add(duration.into());
            offset = offset.saturating_add(size.into());
        }
        fragment.next = offset;
        track.end = dts.saturating_add(start);
        fragment.time = Some(track.end);
        Ok(())
    }
}

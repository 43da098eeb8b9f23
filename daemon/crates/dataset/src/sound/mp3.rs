//! MP3: where its frames are, what the encoder added before and after the sound, and hence how long the sound is.
//!
//! No sample is decoded here. The length is that of FFmpeg: all frames but the one that only describes the file, without
//! the delay and the padding that LAME and FFmpeg write into that frame.

use std::ops::Range;

use super::{SoundCoding, SoundHeader, tag_bytes};
use crate::Defect;

/// The header of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mp3Frame {
    /// Bytes of the frame with its header.
    pub bytes: usize,
    /// Samples of each channel: 1,152, or 576 below 32,000 a second.
    pub frames: u16,
    /// Samples a second.
    pub rate: u32,
    /// 1 or 2.
    pub channels: u16,
    /// Bytes of the side information, which follows the header.
    side_bytes: usize,
    /// What all frames of a file have in common: version, layer and rate.
    kind: u32,
}

const FREE: &str = "an MP3 file of a free bit rate is not read: encode it again with a bit rate that the standard lists";

impl Mp3Frame {
    /// Reads a header; `None`: these are no bytes of one, or of another layer.
    fn read(bytes: &[u8]) -> Option<Self> {
        const RATES: [u32; 3] = [44_100, 48_000, 32_000];
        const HIGH: [u32; 15] = [0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320];
        const LOW: [u32; 15] = [0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160];
        let word = u32::from_be_bytes(*bytes.first_chunk::<4>()?);
        // Eleven ones, the version, and layer 3.
        if word >> 21 != 0x7ff || word >> 17 & 3 != 1 {
            return None;
        }
        let halvings = match word >> 19 & 3 {
            0 => 2,
            2 => 1,
            3 => 0,
            _ => return None,
        };
        let is_low = halvings > 0;
        let rate = RATES.get((word >> 10 & 3) as usize)? >> halvings;
        let kilobits = *if is_low { LOW } else { HIGH }.get((word >> 12 & 15) as usize)?;
        let channels = if word >> 6 & 3 == 3 { 1 } else { 2 };
        let whole = (if is_low { 72_000 } else { 144_000 }) * kilobits / rate + (word >> 9 & 1);
        let side_bytes = match (is_low, channels) {
            (false, 2) => 32,
            (false, _) | (true, 2) => 17,
            (true, _) => 9,
        };
        let bytes = if kilobits == 0 { 0 } else { whole as usize };
        let frames = if is_low { 576 } else { 1152 };
        Some(Self { bytes, frames, rate, channels, side_bytes, kind: word & 0xfffe_0c00 })
    }

    /// The most frames before another one on which its samples depend: those that hold a part of its data, and two
    /// whose filters reach into it.
    pub const fn frames_before(self) -> u64 {
        // At most 511 bytes of 4 in each frame, or 255 of 9 bytes.
        if self.frames == 1152 { 12 } else { 34 }
    }
}

/// A file's frames.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mp3 {
    /// The header of the first frame.
    pub first: Mp3Frame,
    /// Where frames of sound begin and end in the file.
    pub data: Range<usize>,
    /// The number of frames.
    pub count: u64,
    /// Samples that the encoder and decoder add before the sound.
    pub skipped: u64,
    /// Samples of the sound.
    pub samples: u64,
}

/// The first place from `at` at which a frame begins and another one, or the end, follows.
fn synchronise(file: &[u8], mut at: usize) -> Option<(usize, Mp3Frame)> {
    loop {
        at += file.get(at..)?.iter().position(|byte| *byte == 0xff)?;
        let rest = &file[at..];
        if let Some(frame) = Mp3Frame::read(rest).filter(|frame| frame.bytes <= rest.len()) {
            let next = &rest[frame.bytes..];
            let follows = Mp3Frame::read(next).is_some_and(|next| next.kind == frame.kind);
            if frame.bytes == 0 || follows || next.len() < 4 || ends_here(next) {
                return Some((at, frame));
            }
        }
        at += 1;
    }
}

/// Whether the bytes after a frame look like tags or zeros.
fn ends_here(rest: &[u8]) -> bool {
    rest.starts_with(b"TAG") || rest.starts_with(b"APETAGEX") || rest.starts_with(&[0; 4])
}

/// The place behind tags and zeros that end a file: zeros, `TAG` only as the last 128 bytes, an APE tag by its length.
fn behind_tags(file: &[u8], mut at: usize) -> usize {
    loop {
        let rest = file.get(at..).unwrap_or_default();
        at += match rest {
            [0, ..] => rest.iter().take_while(|byte| **byte == 0).count(),
            [b'T', b'A', b'G', ..] if rest.len() == 128 => 128,
            // The extension of such a tag, before it.
            [b'T', b'A', b'G', b'+', ..] if rest.len() == 227 + 128 => 227,
            [b'A', b'P', b'E', b'T', b'A', b'G', b'E', b'X', _, _, _, _, a, b, c, d, ..] => {
                let size = u32::from_le_bytes([*a, *b, *c, *d]) as usize;
                match size.checked_add(32).filter(|size| *size <= rest.len()) {
                    Some(size) => size,
                    None => return at,
                }
            }
            _ => return at,
        };
    }
}

impl Mp3 {
    /// Finds the frames.
    ///
    /// # Errors
    /// There are none, or the file lacks some.
    pub fn read(file: &[u8]) -> Result<Self, Defect> {
        let at = tag_bytes(file);
        let none = || Defect("the MP3 file has no frame".to_owned());
        let (start, first) = synchronise(file, at).ok_or_else(none)?;
        if first.bytes == 0 {
            return Err(Defect(FREE.to_owned()));
        }
        let described = Description::read(&file[start..start + first.bytes], first);
        let (start, first) = match described {
            Some(_) => match synchronise(file, start + first.bytes) {
                Some((start, next)) if next.bytes > 0 => (start, next),
                _ => (start + first.bytes, first),
            },
            None => (start, first),
        };
        let mut frames = Mp3Frames { file, at: start, kind: first.kind };
        let count = frames.by_ref().count() as u64;
        let end = frames.at;
        // What is left is a tag, or the beginning of a frame that was cut off, which no decoder reads.
        if let Some((at, _)) = synchronise(file, behind_tags(file, end)) {
            return Err(Defect(format!(
                "the MP3 file has {} bytes that belong to no frame, at byte {end}",
                at - end
            )));
        }
        let Description { said, skipped, padded } = described.unwrap_or_default();
        // Some encoders count the frame with the description.
        if let Some(said) = said.filter(|said| count + 1 < u64::from(*said)) {
            return Err(Defect(format!(
                "the sound file is truncated: {count} of {said} frames of MP3"
            )));
        }
        let all = count * u64::from(first.frames);
        let end_at = match said {
            Some(said) if count == u64::from(said) => all - u64::from(padded).min(all),
            _ => all,
        };
        let skipped = u64::from(skipped);
        let samples = end_at.saturating_sub(skipped);
        Ok(Self { first, data: start..end, count, skipped, samples })
    }

    /// The frames, from the first one.
    pub const fn frames<'f>(&self, file: &'f [u8]) -> Mp3Frames<'f> {
        Mp3Frames { file, at: self.data.start, kind: self.first.kind }
    }

    /// As [`SoundHeader::read`].
    pub(super) fn header(file: &[u8]) -> Result<SoundHeader, Defect> {
        Self::read(file).map(|Self { first, data, samples, .. }| SoundHeader {
            coding: SoundCoding::Mp3,
            channels: first.channels,
            rate: first.rate,
            frames: Some(samples),
            data,
        })
    }
}

/// The places of consecutive frames.
#[derive(Debug, Clone)]
pub struct Mp3Frames<'f> {
    file: &'f [u8],
    at: usize,
    kind: u32,
}

impl Iterator for Mp3Frames<'_> {
    type Item = Range<usize>;

    fn next(&mut self) -> Option<Range<usize>> {
        let rest = self.file.get(self.at..)?;
        let frame = Mp3Frame::read(rest).filter(|frame| {
            frame.kind == self.kind && frame.bytes > 0 && frame.bytes <= rest.len()
        })?;
        let start = self.at;
        self.at += frame.bytes;
        Some(start..self.at)
    }
}

/// What the frame that is no sound says: those of Xing, of LAME and FFmpeg (`Info`), and of Fraunhofer (`VBRI`).
#[derive(Debug, Clone, Copy, Default)]
struct Description {
    /// The number of frames.
    said: Option<u32>,
    /// Samples before the sound, with the 529 of a decoder.
    skipped: u32,
    /// Samples after it, without those 529.
    padded: u32,
}

/// The samples by which every decoder is late.
const DECODER_DELAY: u32 = 529;

impl Description {
    fn read(frame: &[u8], header: Mp3Frame) -> Option<Self> {
        let word = |at: usize| {
            frame
                .get(at..)
                .and_then(|rest| rest.first_chunk::<4>())
                .map(|at| u32::from_be_bytes(*at))
        };
        let at = 4 + header.side_bytes;
        if let Some(b"Xing" | b"Info") = frame.get(at..at + 4) {
            let flags = word(at + 4)?;
            let mut next = at + 8;
            let mut take = |flag: u32, bytes: usize| {
                (flags & flag != 0).then(|| {
                    next += bytes;
                    word(next - bytes).unwrap_or(0)
                })
            };
            let said = take(1, 4).filter(|said| *said > 0);
            let size = take(2, 4).filter(|size| *size > 0);
            take(4, 100);
            take(8, 4);
            if said.is_none() && size.is_none() {
                return None;
            }
            let mut described = Self { said, ..Self::default() };
            let is_written_by =
                |name: &[u8]| frame.get(next..).is_some_and(|at| at.starts_with(name));
            if [&b"LAME"[..], b"Lavf", b"Lavc"].iter().any(|name| is_written_by(name)) {
                // Twelve bits each, after 21 bytes.
                let delays = word(next + 21).unwrap_or(0) >> 8;
                described.skipped = (delays >> 12) + DECODER_DELAY;
                described.padded = (delays & 0xfff).saturating_sub(DECODER_DELAY);
            }
            return Some(described);
        }
        let is_fraunhofers = frame.get(36..42) == Some(b"VBRI\0\x01");
        let said = word(50).filter(|said| is_fraunhofers && *said > 0)?;
        Some(Self { said: Some(said), ..Self::default() })
    }
}

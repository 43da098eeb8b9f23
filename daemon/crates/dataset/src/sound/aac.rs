//! AAC: what a decoder's configuration says, and the frames of a file of AAC alone (ADTS). Nothing is decoded here.
//!
//! `AudioSpecificConfig` by ISO/IEC 14496-3, ADTS by ISO/IEC 13818-7.

use std::ops::Range;

use super::packets::PacketSound;
use super::{cut, not_read, tag_bytes};
use crate::Defect;
use forebay_video::codec::Codec;

/// Samples of a packet.
const SAMPLES: u32 = 1024;
/// Frames a second by their number.
const RATES: [u32; 13] = [
    96_000, 88_200, 64_000, 48_000, 44_100, 32_000, 24_000, 22_050, 16_000, 12_000, 11_025, 8_000,
    7_350,
];
/// The kinds of AAC that are read, by number: Main, LC, LTP; and spectral band replication (SBR), which doubles the rate,
/// and parametric stereo.
const MAIN: u32 = 1;
const LC: u32 = 2;
const LTP: u32 = 4;
const SBR: u32 = 5;
const PARAMETRIC_STEREO: u32 = 29;
/// What announces SBR and parametric stereo after a configuration that decoders without them read.
const SBR_FOLLOWS: u32 = 0x2b7;
const STEREO_FOLLOWS: u32 = 0x548;

/// What a configuration says of the decoded sound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct AacForm {
    /// `None`: in a table that is not read.
    pub(super) channels: Option<u16>,
    /// Frames a second.
    pub(super) rate: u32,
    /// Samples of a packet.
    pub(super) samples: u32,
}

/// Bits of a configuration, the highest first.
#[derive(Debug, Clone, Copy)]
struct Bits<'c> {
    bytes: &'c [u8],
    at: usize,
}

impl Bits<'_> {
    fn left(self) -> usize {
        self.bytes.len() * 8 - self.at
    }

    /// At most 24 bits.
    fn take(&mut self, count: usize) -> Result<u32, Defect> {
        if self.left() < count {
            return Err(Defect("the configuration of AAC ends early".to_owned()));
        }
        let bit = |at: usize| u32::from(self.bytes[at / 8] >> (7 - at % 8) & 1);
        let number = (self.at..self.at + count).fold(0, |number, at| number << 1 | bit(at));
        self.at += count;
        Ok(number)
    }

    fn flag(&mut self) -> Result<bool, Defect> {
        self.take(1).map(|bit| bit != 0)
    }

    fn kind(&mut self) -> Result<u32, Defect> {
        match self.take(5)? {
            31 => Ok(32 + self.take(6)?),
            kind => Ok(kind),
        }
    }

    fn rate(&mut self) -> Result<u32, Defect> {
        match self.take(4)? {
            15 => self.take(24),
            number => rate_of(number),
        }
    }
}

fn rate_of(number: u32) -> Result<u32, Defect> {
    let rate = usize::try_from(number).ok().and_then(|number| RATES.get(number));
    rate.copied().ok_or_else(|| Defect(format!("AAC has the reserved rate {number}")))
}

fn channels_of(number: u32) -> Option<u16> {
    match number {
        1..=6 => u16::try_from(number).ok(),
        7 => Some(8),
        _ => None,
    }
}

impl AacForm {
    /// Reads a configuration.
    ///
    /// # Errors
    /// It ends early, or its kind of AAC is not read; the error names it.
    pub(super) fn read(configuration: &[u8]) -> Result<Self, Defect> {
        let mut bits = Bits { bytes: configuration, at: 0 };
        let mut kind = bits.kind()?;
        let mut rate = bits.rate()?;
        let channels = bits.take(4)?;
        let core_rate = rate;
        let (mut has_sbr, mut is_stereo) = (false, kind == PARAMETRIC_STEREO);
        if kind == SBR || is_stereo {
            has_sbr = true;
            rate = bits.rate()?;
            kind = bits.kind()?;
        }
        if ![MAIN, LC, LTP].contains(&kind) {
            return Err(Defect(not_read(&format!(
                "AAC of the kind {kind} (not Main, LC, LTP or HE)"
            ))));
        }
        if bits.flag()? {
            return Err(Defect(not_read("AAC of 960 samples a packet")));
        }
        if bits.flag()? {
            bits.take(14)?;
        }
        bits.flag()?;
        // What decoders of other kinds do not look for.
        while !has_sbr && bits.left() > 15 {
            let mut ahead = bits;
            if ahead.take(11)? == SBR_FOLLOWS {
                if ahead.kind()? == SBR && ahead.flag()? {
                    rate = ahead.rate()?;
                    has_sbr = rate != core_rate;
                    is_stereo =
                        ahead.left() > 11 && ahead.take(11)? == STEREO_FOLLOWS && ahead.flag()?;
                }
                break;
            }
            bits.at += 1;
        }
        let channels = match channels_of(channels) {
            Some(1) if is_stereo => Some(2),
            channels => channels,
        };
        let samples = if has_sbr { 2 * SAMPLES } else { SAMPLES };
        Ok(Self { channels, rate, samples })
    }
}

/// The head of a frame of ADTS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Head {
    /// Kind, rate and channels, which all frames of a file share.
    form: (u32, u32, u32),
    /// Bytes of the head.
    head_bytes: usize,
    /// Bytes of the frame with its head.
    bytes: usize,
}

impl Head {
    /// `None`: these are no bytes of one.
    fn read(bytes: &[u8]) -> Result<Option<Self>, Defect> {
        if !begins_adts(bytes) {
            return Ok(None);
        }
        let mut bits = Bits { bytes: bytes.get(..7).ok_or_else(cut)?, at: 15 };
        let has_no_checksum = bits.flag()?;
        let (kind, rate) = (bits.take(2)? + 1, bits.take(4)?);
        bits.flag()?;
        let channels = bits.take(3)?;
        bits.take(4)?;
        let length = bits.take(13)? as usize;
        bits.take(11)?;
        if bits.take(2)? != 0 {
            return Err(Defect(not_read("AAC with several blocks in a frame")));
        }
        let head_bytes = if has_no_checksum { 7 } else { 9 };
        if length <= head_bytes {
            return Err(Defect(format!("a frame of AAC has {length} bytes")));
        }
        Ok(Some(Self { form: (kind, rate, channels), head_bytes, bytes: length }))
    }
}

/// Whether a file begins as one of AAC alone: twelve ones, then a layer that is none of MP3's.
pub(super) fn begins_adts(bytes: &[u8]) -> bool {
    matches!(bytes, [0xff, second, ..] if second & 0xf6 == 0xf0)
}

/// The packets of a file of AAC alone. As FFmpeg gives it, the encoder's delay is a part of the sound: nothing says how
/// long it is.
///
/// # Errors
/// The file is cut off, or has bytes that belong to no frame.
pub(super) fn adts(file: &[u8]) -> Result<PacketSound, Defect> {
    let mut at = tag_bytes(file);
    let mut form = None;
    let mut packets: Vec<Range<usize>> = Vec::new();
    while at < file.len() {
        let rest = &file[at..];
        if rest.len() == 128 && rest.starts_with(b"TAG") || rest.iter().all(|byte| *byte == 0) {
            break;
        }
        let Some(head) = Head::read(rest)? else {
            return Err(Defect(format!(
                "the AAC file has bytes that belong to no frame, at byte {at}"
            )));
        };
        if *form.get_or_insert(head.form) != head.form {
            return Err(Defect(format!(
                "the AAC file changes its kind, rate or channels at byte {at}"
            )));
        }
        let end = at.checked_add(head.bytes).filter(|end| *end <= file.len()).ok_or_else(cut)?;
        packets.push(at + head.head_bytes..end);
        at = end;
    }
    let Some((kind, rate, channels)) = form else {
        return Err(Defect("the AAC file has no frame".to_owned()));
    };
    let bits = kind << 11 | rate << 7 | channels << 3;
    let configuration = u16::try_from(bits).unwrap_or(0).to_be_bytes().to_vec();
    let form = AacForm::read(&configuration)?;
    let samples = packets.len() as u64 * u64::from(form.samples);
    let lengths = vec![form.samples; packets.len()];
    let channels = form.channels.ok_or_else(unknown_channels)?;
    let (codec, rate) = (Codec::Aac, form.rate);
    Ok(PacketSound { codec, configuration, channels, rate, skipped: 0, samples, packets, lengths })
}

pub(super) fn unknown_channels() -> Defect {
    Defect(not_read("AAC whose channels are in a table of the stream"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configurations_say_what_is_decoded() {
        let read = |bytes: &[u8]| {
            AacForm::read(bytes).map(|form| (form.channels, form.rate, form.samples))
        };
        // As FFmpeg writes it, with the announcement that there is no SBR.
        assert_eq!(read(&[0x12, 0x10, 0x56, 0xe5, 0x00]), Ok((Some(2), 44_100, 1024)));
        assert_eq!(read(&[0x11, 0x88]), Ok((Some(1), 48_000, 1024)));
        // HE: 22,050 by the core, 44,100 decoded; with parametric stereo; announced afterwards.
        assert_eq!(read(&[0x2b, 0x92, 0x08, 0x00]), Ok((Some(2), 44_100, 2048)));
        assert_eq!(read(&[0xeb, 0x8a, 0x08, 0x00]), Ok((Some(2), 44_100, 2048)));
        assert_eq!(read(&[0x13, 0x90, 0x56, 0xe5, 0xa0]), Ok((Some(2), 44_100, 2048)));
        assert_eq!(read(&[0x13, 0x88, 0x56, 0xe5, 0xa5, 0x48, 0x80]), Ok((Some(2), 44_100, 2048)));
        assert_eq!(read(&[0x12, 0x00]), Ok((None, 44_100, 1024)));
        let refused = |bytes: &[u8]| AacForm::read(bytes).unwrap_err().0;
        assert!(refused(&[0xf9, 0x46, 0x40]).contains("the kind 42"));
        assert!(refused(&[0x12, 0x14]).contains("960"));
        assert!(refused(&[0x12]).contains("ends early") && refused(&[]).contains("ends early"));
    }

    /// A frame of LC, 44,100 a second, of two channels.
    fn frame(bytes: usize) -> Vec<u8> {
        let length = bytes + 7;
        let head: u64 = 0x00ff_f150_8000_1ffc | u64::try_from(length << 13).unwrap();
        let mut frame = head.to_be_bytes()[1..].to_vec();
        frame.resize(length, 0x21);
        frame
    }

    #[test]
    fn frames_of_a_file_are_found_and_nothing_is_skipped() {
        let file = [frame(20), frame(300), frame(2000)].concat();
        let sound = adts(&file).unwrap();
        assert_eq!(sound.packets, [7..27, 34..334, 341..2341]);
        assert_eq!((sound.channels, sound.rate, sound.samples), (2, 44_100, 3072));
        let tagged = [b"ID3\x04\0\0\0\0\0\x03abc", &file[..], b"TAG", &[0; 125]].concat();
        assert_eq!(adts(&tagged).unwrap().samples, 3072);
        for length in 28..file.len() {
            let refused = adts(&file[..length]);
            assert!(refused.is_err() || [27, 334].contains(&length), "{length}");
        }
        let gap = [frame(20), vec![7; 9], frame(20)].concat();
        assert!(adts(&gap).unwrap_err().0.contains("no frame, at byte 27"));
        let mut other = frame(20);
        other[2] = 0x4c;
        let changed = [frame(20), other].concat();
        assert!(
            adts(&changed).unwrap_err().0.contains("changes its kind, rate or channels at byte 27")
        );
    }
}

//! Ogg: the packets of its sound, and hence how long that is.
//!
//! Of a file with several streams the first sound counts. The length is FFmpeg's: all packets' durations, from the first
//! one's time to that of the last page, without what Opus calls `pre-skip`. Nothing is decoded here.

use std::borrow::Cow;
use std::ops::Range;

use super::{SoundCoding, SoundHeader, cut, not_read, number};
use crate::Defect;

fn defect(reason: impl std::fmt::Display) -> Defect {
    Defect(format!("cannot read the Ogg file: {reason}"))
}

/// A page's header and where its bytes are.
struct Page<'f> {
    serial: u32,
    /// Whether its first bytes continue a packet.
    continues: bool,
    is_first: bool,
    is_last: bool,
    /// The time at its end.
    granule: i64,
    /// The length of each segment; one of 255 is continued by the next.
    segments: &'f [u8],
    /// Where its segments are in the file.
    data: Range<usize>,
}

impl<'f> Page<'f> {
    /// The page at a place; `None` at the end of the file.
    fn read(file: &'f [u8], at: usize) -> Result<Option<Self>, Defect> {
        let rest = file.get(at..).unwrap_or_default();
        // Some programs fill a file up with zeros.
        if rest.iter().take(4).all(|byte| *byte == 0) {
            return Ok(None);
        }
        let head = rest.first_chunk::<27>().ok_or_else(cut)?;
        if head[..5] != *b"OggS\0" {
            return Err(defect(format!("no page begins at byte {at}")));
        }
        let start = at + 27 + usize::from(head[26]);
        let segments = file.get(at + 27..start).ok_or_else(cut)?;
        let bytes: usize = segments.iter().map(|length| usize::from(*length)).sum();
        let data = start..start + bytes;
        if data.end > file.len() {
            return Err(cut());
        }
        if checksum(&file[at..data.end])
            != u32::from_le_bytes([head[22], head[23], head[24], head[25]])
        {
            return Err(defect(format!("the checksum of the page at byte {at} is another one")));
        }
        Ok(Some(Self {
            serial: u32::try_from(number(&head[14..18])).unwrap_or(0),
            continues: head[5] & 1 != 0,
            is_first: head[5] & 2 != 0,
            is_last: head[5] & 4 != 0,
            granule: number(&head[6..14]).cast_signed(),
            segments,
            data,
        }))
    }
}

/// The page's checksum, whose own four bytes count as zeros: the polynomial 0x04c11db7, highest bit first.
fn checksum(page: &[u8]) -> u32 {
    const TABLES: [[u32; 256]; 8] = tables();
    let update = |crc: u32, byte: u8| crc << 8 ^ TABLES[0][usize::from((crc >> 24) as u8 ^ byte)];
    let crc = page[..22].iter().chain(&[0; 4]).fold(0, |crc, byte| update(crc, *byte));
    let (eights, rest) = page[26..].as_chunks::<8>();
    let crc = eights.iter().fold(crc, |crc, bytes| {
        let [a, b, c, d] = crc.to_be_bytes();
        let mixed = [bytes[0] ^ a, bytes[1] ^ b, bytes[2] ^ c, bytes[3] ^ d];
        let first = mixed.iter().zip(&TABLES[4..]).map(|(byte, _)| *byte);
        let bytes = first.chain(bytes[4..].iter().copied());
        bytes.zip(TABLES.iter().rev()).fold(0, |crc, (byte, table)| crc ^ table[usize::from(byte)])
    });
    rest.iter().fold(crc, |crc, byte| update(crc, *byte))
}

/// Makes the checksums of a file right, for fuzzing: a fuzzer does not get past wrong ones.
pub fn set_checksums_right(file: &mut [u8]) {
    let mut at = 0;
    while let Some(count) = file.get(at + 26).map(|count| usize::from(*count)) {
        let Some(segments) = file.get(at + 27..at + 27 + count) else { return };
        let bytes: usize = segments.iter().map(|length| usize::from(*length)).sum();
        let end = at + 27 + count + bytes;
        let Some(page) = file.get_mut(at..end) else { return };
        let right = checksum(page);
        page[22..26].copy_from_slice(&right.to_le_bytes());
        at = end;
    }
}

/// The remainders of each byte, followed by none to seven zeros.
const fn tables() -> [[u32; 256]; 8] {
    let mut tables = [[0; 256]; 8];
    let (mut byte, mut number) = (0, 0_u32);
    while byte < 256 {
        let mut crc = number << 24;
        let mut zeros = 0;
        while zeros < 8 {
            let mut bit = 0;
            while bit < 8 {
                crc = crc << 1 ^ if crc >> 31 == 0 { 0 } else { 0x04c1_1db7 };
                bit += 1;
            }
            tables[zeros][byte] = crc;
            zeros += 1;
        }
        (byte, number) = (byte + 1, number + 1);
    }
    tables
}

/// A packet, and what its page says.
struct Packet<'f> {
    /// Borrowed if one page has all of it.
    bytes: Cow<'f, [u8]>,
    /// The time at the end of its page, if it is the last that ends there.
    granule: Option<i64>,
    /// Whether its page is the stream's last.
    is_last_page: bool,
}

/// The packets of one stream.
struct Packets<'f> {
    file: &'f [u8],
    at: usize,
    serial: u32,
    /// Where the packets end that are read now: the page, the next segment, and the next byte.
    page: Option<(Page<'f>, usize, usize)>,
}

impl<'f> Packets<'f> {
    fn new(file: &'f [u8], serial: u32) -> Self {
        Self { file, at: 0, serial, page: None }
    }

    /// The next page of the stream.
    fn turn(&mut self) -> Result<bool, Defect> {
        while let Some(page) = Page::read(self.file, self.at)? {
            self.at = page.data.end;
            if page.serial == self.serial {
                let start = page.data.start;
                self.page = Some((page, 0, start));
                return Ok(true);
            }
        }
        self.page = None;
        Ok(false)
    }

    fn next(&mut self) -> Result<Option<Packet<'f>>, Defect> {
        let file = self.file;
        let mut bytes: Option<Cow<'f, [u8]>> = None;
        loop {
            let is_at_end =
                self.page.as_ref().is_none_or(|(page, next, _)| *next >= page.segments.len());
            if is_at_end {
                if !self.turn()? {
                    return match bytes {
                        None => Ok(None),
                        Some(_) => Err(cut()),
                    };
                }
                let continues = self.page.as_ref().is_some_and(|(page, ..)| page.continues);
                if continues != bytes.is_some() {
                    return Err(defect("a page is missing"));
                }
                continue;
            }
            let Some((page, next, start)) = &mut self.page else { return Ok(None) };
            let segments = &page.segments[*next..];
            let whole = segments.iter().position(|length| *length < 255);
            let count = whole.map_or(segments.len(), |last| last + 1);
            let length: usize = segments[..count].iter().map(|length| usize::from(*length)).sum();
            let part = &file[*start..*start + length];
            (*next, *start) = (*next + count, *start + length);
            let joined = match bytes {
                None => Cow::Borrowed(part),
                Some(before) => {
                    let mut before = before.into_owned();
                    before.extend(part);
                    Cow::Owned(before)
                }
            };
            if whole.is_some() {
                let ends = page.segments[*next..].iter().all(|length| *length == 255);
                let granule = Some(page.granule).filter(|granule| ends && *granule >= 0);
                return Ok(Some(Packet { bytes: joined, granule, is_last_page: page.is_last }));
            }
            bytes = Some(joined);
        }
    }
}

/// What the first packet of a stream says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OggCodec {
    /// Vorbis.
    Vorbis {
        /// The first header.
        identification: Vec<u8>,
        /// The third one, with the codebooks.
        setup: Vec<u8>,
    },
    /// Opus.
    Opus {
        /// The number of streams, and how many of them have two channels.
        streams: (u8, u8),
        /// The decoded channel that each channel is; 255: silence.
        mapping: Vec<u8>,
        /// The change of loudness, in 256ths of a decibel.
        gain: i16,
    },
}

/// A sound in an Ogg file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ogg {
    /// What its packets are.
    pub codec: OggCodec,
    /// Its channels.
    pub channels: u16,
    /// Samples a second.
    pub rate: u32,
    /// Samples that are decoded before the sound.
    pub skipped: u64,
    /// Samples of the sound.
    pub samples: u64,
    serial: u32,
    /// Packets of headers.
    headers: usize,
}

/// How long packets are.
enum Durations {
    Vorbis { blocks: [u32; 2], modes: Vec<bool>, before: Option<u32> },
    Opus,
}

impl Durations {
    /// The samples that a packet's decoding gives.
    fn next(&mut self, packet: &[u8]) -> Result<u64, Defect> {
        match self {
            Self::Vorbis { blocks, modes, before } => {
                let first = packet.first().copied().unwrap_or(1);
                if first & 1 != 0 {
                    return Err(defect("a packet of Vorbis holds no sound"));
                }
                let bits = usize::BITS - (modes.len() - 1).leading_zeros();
                let mode = usize::from(first >> 1) & ((1 << bits) - 1);
                let is_long =
                    *modes.get(mode).ok_or_else(|| defect("a packet has an unknown mode"))?;
                let block = blocks[usize::from(is_long)];
                let samples = before.map_or(0, |before| (before + block) / 4);
                *before = Some(block);
                Ok(samples.into())
            }
            Self::Opus => {
                opus_samples(packet).ok_or_else(|| defect("a packet of Opus is malformed"))
            }
        }
    }
}

/// The samples of a packet of Opus at 48,000 a second.
fn opus_samples(packet: &[u8]) -> Option<u64> {
    let first = *packet.first()?;
    let each = match first >> 3 {
        kind @ 0..12 => [480, 960, 1920, 2880][usize::from(kind & 3)],
        kind @ 12..16 => 480 << (kind & 1),
        kind => 120 << (kind & 3),
    };
    let count = match first & 3 {
        0 => 1,
        1 | 2 => 2,
        _ => u64::from(packet.get(1)? & 63),
    };
    // At most 120 ms.
    Some(each * count).filter(|samples| (1..=5760).contains(samples))
}

/// Whether the mode at each place is of long blocks, read from the end of the setup header: modes are last there, and
/// what is before them cannot be skipped without being read.
fn modes(setup: &[u8]) -> Result<Vec<bool>, Defect> {
    let none = || defect("the modes of Vorbis are malformed");
    let bit = |at: usize| setup[at / 8] >> (at % 8) & 1;
    // The last bit that is set is that of framing.
    let mut at = (0..setup.len() * 8).rev().find(|at| bit(*at) == 1).ok_or_else(none)?;
    let value = |at: usize, bits: usize| {
        (0..bits).fold(0, |all, place| all | u64::from(bit(at + place)) << place)
    };
    let (mut found, mut best) = (Vec::new(), 0);
    // A mode: one bit, 32 zeros, 8 bits of a mapping below 64; their number is in the six bits before the first.
    while at >= 41 + 6 && found.len() < 64 {
        if value(at - 40, 32) != 0 || value(at - 8, 8) > 63 {
            break;
        }
        at -= 41;
        found.push(bit(at) == 1);
        if value(at - 6, 6) + 1 == found.len() as u64 {
            best = found.len();
        }
    }
    found.truncate(best);
    found.reverse();
    if found.is_empty() { Err(none()) } else { Ok(found) }
}

impl Ogg {
    /// Finds the sound of a file, and how long it is.
    ///
    /// # Errors
    /// There is none, or none of a coding that is read, or pages are missing.
    pub fn read(file: &[u8]) -> Result<Self, Defect> {
        let (mut at, mut other) = (0, None);
        while let Some(page) = Page::read(file, at)?.filter(|page| page.is_first) {
            let begin = &file[page.data.clone()];
            match begin {
                [b'O', b'p', b'u', b's', b'H', b'e', b'a', b'd', ..] => {
                    return Self::opus(file, page.serial);
                }
                [1, b'v', b'o', b'r', b'b', b'i', b's', ..] => {
                    return Self::vorbis(file, page.serial);
                }
                [0x7f, b'F', b'L', b'A', b'C', ..] => other = Some("FLAC in an Ogg file"),
                [b'S', b'p', b'e', b'e', b'x', ..] => other = Some("Speex in an Ogg file"),
                _ => {}
            }
            at = page.data.end;
        }
        Err(other.map_or_else(|| defect("it has no sound"), |name| Defect(not_read(name))))
    }

    fn opus(file: &[u8], serial: u32) -> Result<Self, Defect> {
        let mut packets = Packets::new(file, serial);
        let head = packets.next()?.ok_or_else(cut)?.bytes;
        let Some(fixed) = head.first_chunk::<19>().filter(|fixed| fixed[8] < 16) else {
            return Err(defect("the header of Opus is malformed"));
        };
        let channels = fixed[9];
        let (streams, mapping) = match (fixed[18], channels) {
            (0, 1) => ((1, 0), vec![0]),
            (0, 2) => ((1, 1), vec![0, 1]),
            (1, 1..=8) => {
                let (streams, mapping) = head[19..].split_at_checked(2).ok_or_else(cut)?;
                let mapping = mapping.get(..channels.into()).ok_or_else(cut)?;
                ((streams[0], streams[1]), mapping.to_vec())
            }
            _ => {
                return Err(Defect(not_read(
                    "Opus of more than 8 channels, or of an unknown order",
                )));
            }
        };
        let (all, coupled) = (u16::from(streams.0), u16::from(streams.1));
        let is_stream = |of: &u8| *of == 255 || u16::from(*of) < all + coupled;
        // Eight streams are what eight channels need; more would only take memory.
        if all == 0 || all > 8 || coupled > all || !mapping.iter().all(is_stream) {
            return Err(defect("the channels of Opus are malformed"));
        }
        packets.next()?.ok_or_else(cut)?;
        let codec =
            OggCodec::Opus { streams, mapping, gain: i16::from_le_bytes([fixed[16], fixed[17]]) };
        let skipped = u64::from(u16::from_le_bytes([fixed[10], fixed[11]]));
        let found = Self {
            codec,
            channels: channels.into(),
            rate: 48_000,
            skipped,
            samples: 0,
            serial,
            headers: 2,
        };
        found.measured(packets, Durations::Opus)
    }

    fn vorbis(file: &[u8], serial: u32) -> Result<Self, Defect> {
        let mut packets = Packets::new(file, serial);
        let head = packets.next()?.ok_or_else(cut)?.bytes;
        packets.next()?.ok_or_else(cut)?;
        let setup = packets.next()?.ok_or_else(cut)?.bytes;
        let Some(fixed) = head.first_chunk::<30>() else {
            return Err(defect("the header of Vorbis is malformed"));
        };
        let blocks = [u32::from(fixed[28] & 15), u32::from(fixed[28] >> 4)];
        if blocks[0] < 6 || blocks[0] > blocks[1] || blocks[1] > 13 {
            return Err(defect("the block lengths of Vorbis are malformed"));
        }
        if fixed[11] > 8 {
            return Err(Defect(not_read("Vorbis of more than 8 channels")));
        }
        let durations = Durations::Vorbis {
            blocks: blocks.map(|bits| 1 << bits),
            modes: modes(&setup)?,
            before: None,
        };
        let rate = u32::try_from(number(&fixed[12..16])).unwrap_or(0);
        let codec = OggCodec::Vorbis { identification: head.to_vec(), setup: setup.into_owned() };
        let found = Self {
            codec,
            channels: fixed[11].into(),
            rate,
            skipped: 0,
            samples: 0,
            serial,
            headers: 3,
        };
        found.measured(packets, durations)
    }

    /// Adds up the durations of packets, whose headers are read.
    fn measured(
        mut self,
        mut packets: Packets<'_>,
        mut durations: Durations,
    ) -> Result<Self, Defect> {
        let (mut samples, mut start, mut end, mut is_last) = (0_u64, None, None, false);
        while let Some(packet) = packets.next()? {
            samples += durations.next(&packet.bytes)?;
            is_last = packet.is_last_page;
            if let Some(granule) = packet.granule {
                // The first page says when the first sample is: a cut stream begins later than at 0.
                let begin = || granule.saturating_sub_unsigned(samples).max(0);
                start.get_or_insert_with(|| if is_last { 0 } else { begin() });
                end = Some(granule);
            }
        }
        while let Some(page) = Page::read(packets.file, packets.at)? {
            packets.at = page.data.end;
        }
        if let (Some(start), Some(end), true) = (start, end, is_last) {
            samples = samples.min(u64::try_from(end.saturating_sub(start)).unwrap_or(0));
        }
        self.samples = samples.saturating_sub(self.skipped);
        Ok(self)
    }

    /// As [`SoundHeader::read`].
    pub(super) fn header(file: &[u8]) -> Result<SoundHeader, Defect> {
        Self::read(file).map(|Self { codec, channels, rate, samples, .. }| SoundHeader {
            coding: match codec {
                OggCodec::Vorbis { .. } => SoundCoding::Vorbis,
                OggCodec::Opus { .. } => SoundCoding::Opus,
            },
            channels,
            rate,
            frames: Some(samples),
            data: 0..file.len(),
        })
    }

    /// Calls a function with each packet of sound, and the samples before and of it, until it returns false.
    ///
    /// # Errors
    /// Pages are missing, or those of the function.
    pub fn for_each(
        &self,
        file: &[u8],
        mut run: impl FnMut(&[u8], Range<u64>) -> Result<bool, Defect>,
    ) -> Result<(), Defect> {
        let mut packets = Packets::new(file, self.serial);
        for _ in 0..self.headers {
            packets.next()?;
        }
        let mut durations = match &self.codec {
            OggCodec::Opus { .. } => Durations::Opus,
            OggCodec::Vorbis { identification, setup } => {
                let bits = identification.get(28).copied().unwrap_or(0);
                let blocks = [1 << (bits & 15), 1 << (bits >> 4)];
                Durations::Vorbis { blocks, modes: modes(setup)?, before: None }
            }
        };
        let mut at = 0;
        while let Some(packet) = packets.next()? {
            let end = at + durations.next(&packet.bytes)?;
            if !run(&packet.bytes, at..end)? {
                break;
            }
            at = end;
        }
        Ok(())
    }
}

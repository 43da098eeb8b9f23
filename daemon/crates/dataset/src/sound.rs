//! The headers of sound files: what they hold, how long it is, and where its samples or packets are.
//!
//! A module a container: WAV and FLAC here, the others below. The plan decodes the samples, as it decodes images. Of
//! files whose header does not say how long they are, every frame's or packet's own header is read.

mod aac;
mod aiff;
mod au;
mod caf;
pub mod mp3;
pub mod ogg;
pub mod packets;

use std::ops::Range;

use crate::Defect;

/// The encoding of samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SoundCoding {
    /// FLAC frames, with the number of bits per sample.
    Flac(u8),
    /// Unsigned bytes.
    Unsigned8,
    /// Signed, little-endian, with the number of bytes: 2, 3 or 4.
    Signed(u8),
    /// Signed, big-endian, with the number of bytes: 1, 2, 3 or 4.
    SignedBig(u8),
    /// Little-endian.
    Float32,
    /// Little-endian.
    Float64,
    /// Floats, big-endian, with the number of bytes: 4 or 8.
    FloatBig(u8),
    /// G.711 A-law.
    ALaw,
    /// G.711 μ-law.
    MuLaw,
    /// Frames of MP3, which [`mp3::Mp3`] finds.
    Mp3,
    /// Packets of Vorbis, which [`ogg::Ogg`] finds.
    Vorbis,
    /// Packets of Opus, which [`ogg::Ogg`] finds.
    Opus,
    /// Packets of ALAC, which [`packets::PacketSound`] finds.
    Alac,
    /// Packets of AAC, likewise.
    Aac,
}

/// The contents of a file's header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SoundHeader {
    /// The encoding of samples.
    pub coding: SoundCoding,
    /// Samples per frame.
    pub channels: u16,
    /// Frames per second.
    pub rate: u32,
    /// The number of frames; optional in a FLAC file.
    pub frames: Option<u64>,
    /// The range of the samples in the file.
    pub data: Range<usize>,
}

fn cut() -> Defect {
    Defect("the sound file is truncated".to_owned())
}

/// Whether files with a name's extension, or in members and columns of such a name, may be AAC: all but those of other
/// codings.
pub fn may_be_aac(name: &str) -> bool {
    const OTHERS: [&str; 11] =
        ["wav", "flac", "mp3", "ogg", "oga", "opus", "aif", "aiff", "aifc", "au", "caf"];
    let extension = name.rsplit('.').next().unwrap_or(name);
    !OTHERS.iter().any(|other| extension.eq_ignore_ascii_case(other))
}

impl SoundHeader {
    /// Reads the header of a sound file.
    ///
    /// # Errors
    /// No sound file that is read, or an encoding that is not; the error names it.
    pub fn read(file: &[u8]) -> Result<Self, Defect> {
        match file {
            [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'A', b'V', b'E', ..]
            | [b'R', b'F', b'6', b'4', _, _, _, _, b'W', b'A', b'V', b'E', ..] => wav(file),
            [b'f', b'L', b'a', b'C', ..] => flac(file, 4),
            [b'O', b'g', b'g', b'S', ..] => ogg::Ogg::header(file),
            [_, _, _, _, b'f', b't', b'y', b'p', ..] => packets::PacketSound::header(file),
            [b'F', b'O', b'R', b'M', _, _, _, _, b'A', b'I', b'F', b'F' | b'C', ..] => {
                aiff::header(file)
            }
            [b'.', b's', b'n', b'd', ..] => au::header(file),
            [b'c', b'a', b'f', b'f', ..] => caf::header(file),
            _ => {
                // Some programs write an ID3 tag before the file.
                let after_tag = tag_bytes(file);
                match file.get(after_tag..) {
                    Some([b'f', b'L', b'a', b'C', ..]) => flac(file, after_tag + 4),
                    Some(frame) if aac::begins_adts(frame) => packets::PacketSound::header(file),
                    Some([0xff, 0xe2..=0xff, ..]) => mp3::Mp3::header(file),
                    // Between the tag and the first frame there may be zeros.
                    _ if after_tag > 0 => mp3::Mp3::header(file),
                    _ => Err(Defect(unknown(file))),
                }
            }
        }
        .and_then(|header| match header {
            Self { channels: 0, .. } | Self { rate: 0, .. } => {
                Err(Defect("the sound file has no channels, or no rate".to_owned()))
            }
            header => Ok(header),
        })
    }
}

/// The size of an ID3v2 tag with its header, in bytes; 0 without one.
fn tag_bytes(file: &[u8]) -> usize {
    match file {
        [b'I', b'D', b'3', _, _, _, a, b, c, d, ..] => {
            10 + [a, b, c, d].iter().fold(0, |all, byte| all << 7 | usize::from(**byte & 0x7f))
        }
        _ => 0,
    }
}

fn unknown(file: &[u8]) -> String {
    let name = match file {
        [] => return "the sound file is empty".to_owned(),
        [b'R', b'I', b'F', b'X', ..] => "RIFX",
        [0x1a, 0x45, 0xdf, 0xa3, ..] => "Matroska (WebM)",
        _ => {
            let first: String = file.iter().take(8).map(|byte| format!(" {byte:02x}")).collect();
            return format!(
                "not a WAV, FLAC, MP3, Ogg (Vorbis, Opus), M4A, AAC, AIFF, AU or CAF file: it begins with{first}"
            );
        }
    };
    not_read(name)
}

fn not_read(name: &str) -> String {
    format!(
        "{name} is not read: convert the file to WAV or FLAC, or read it `as = \"bytes\"` and decode it in a Python stage"
    )
}

/// A big-endian number of up to eight bytes.
fn big(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |all, byte| all << 8 | u64::from(*byte))
}

/// The big-endian number at an offset.
fn big_at(bytes: &[u8], start: usize, count: usize) -> Result<u64, Defect> {
    bytes.get(start..start + count).map(big).ok_or_else(cut)
}

/// The header of so many frames of samples, as they are stored from `start` to at most `end`.
fn stored(
    (coding, sample_bytes): (SoundCoding, u64),
    (channels, rate): (u64, u64),
    (frames, start, end): (Option<u64>, usize, usize),
) -> Result<SoundHeader, Defect> {
    let channels = u16::try_from(channels).unwrap_or(0);
    let rate = u32::try_from(rate).unwrap_or(0);
    let frame_bytes = sample_bytes * u64::from(channels);
    let room = end.checked_sub(start).ok_or_else(cut)? as u64;
    let frames = frames.or_else(|| room.checked_div(frame_bytes)).unwrap_or(0);
    let bytes = frames.checked_mul(frame_bytes).filter(|bytes| *bytes <= room).ok_or_else(cut)?;
    let end = start + usize::try_from(bytes).map_err(|_| cut())?;
    Ok(SoundHeader { coding, channels, rate, frames: Some(frames), data: start..end })
}

/// A little-endian number of up to eight bytes.
fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |all, byte| all << 8 | u64::from(*byte))
}

/// The length of data whose length was unknown when written: they extend to the end.
const UNKNOWN: u64 = 0xffff_ffff;

fn wav(file: &[u8]) -> Result<SoundHeader, Defect> {
    let (mut at, mut format, mut wide_length) = (12, None, None);
    while let Some(head) = file.get(at..).and_then(|rest| rest.first_chunk::<8>()) {
        let (name, length) = (&head[..4], number(&head[4..]));
        let start = at + 8;
        if name == b"data" {
            let Some((coding, channels, rate, frame_bytes)) = format else {
                return Err(Defect("the WAV file has data before its format".to_owned()));
            };
            let whole = (file.len() - start) as u64;
            let length = match (length, wide_length) {
                (UNKNOWN, Some(wide)) => wide,
                (UNKNOWN, None) => whole,
                // A writer that was ended before it could write the length.
                (0, None) if !are_chunks(&file[start..]) => whole,
                _ => length,
            };
            let frames = length / frame_bytes;
            let end = usize::try_from(frames * frame_bytes)
                .ok()
                .and_then(|bytes| start.checked_add(bytes));
            let end = end.filter(|_| length <= whole).ok_or_else(cut)?;
            let frames = Some(frames);
            return Ok(SoundHeader { coding, channels, rate, frames, data: start..end });
        }
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        let body =
            start.checked_add(length).and_then(|end| file.get(start..end)).ok_or_else(cut)?;
        match name {
            b"fmt " => format = Some(wav_format(body)?),
            b"ds64" => wide_length = body.get(8..16).map(number),
            _ => {}
        }
        at = start + length + length % 2;
    }
    Err(cut())
}

/// Whether bytes are whole chunks with names, as after the data of a sound without samples.
fn are_chunks(mut rest: &[u8]) -> bool {
    while let Some((head, body)) = rest.split_first_chunk::<8>() {
        let is_name = head[..4].iter().all(|byte| matches!(byte, b' '..=b'~'));
        let length = usize::try_from(number(&head[4..])).unwrap_or(usize::MAX);
        match body.get(length..) {
            Some(next) if is_name => rest = next.get(length % 2..).unwrap_or_default(),
            _ => return false,
        }
    }
    rest.is_empty()
}

/// The encoding, the channels, the rate, and the bytes per frame.
fn wav_format(body: &[u8]) -> Result<(SoundCoding, u16, u32, u64), Defect> {
    let at =
        |start: usize, bytes: usize| body.get(start..start + bytes).map(number).ok_or_else(cut);
    let short = |start| at(start, 2).map(|value| u16::try_from(value).unwrap_or(0));
    let (mut tag, channels, frame_bytes, bits) = (short(0)?, short(2)?, at(12, 2)?, short(14)?);
    let rate = u32::try_from(at(4, 4)?).unwrap_or(0);
    if tag == 0xfffe {
        // The tag is at the start of a GUID.
        tag = short(24)?;
    }
    let sample_bytes = frame_bytes.checked_div(channels.into()).unwrap_or(0);
    let coding = match (tag, sample_bytes, bits) {
        (1, 1, ..=8) => SoundCoding::Unsigned8,
        // Readers disagree on the position of bits that leave a whole byte unused.
        (1, 2, 9..=16) => SoundCoding::Signed(2),
        (1, 3, 17..=24) => SoundCoding::Signed(3),
        (1, 4, 25..=32) => SoundCoding::Signed(4),
        (3, 4, 32) => SoundCoding::Float32,
        (3, 8, 64) => SoundCoding::Float64,
        (6, 1, _) => SoundCoding::ALaw,
        (7, 1, _) => SoundCoding::MuLaw,
        (2, ..) => return Err(Defect(not_read("MS ADPCM in a WAV file"))),
        (0x11, ..) => return Err(Defect(not_read("IMA ADPCM in a WAV file"))),
        (0x31, ..) => return Err(Defect(not_read("GSM in a WAV file"))),
        (0x55, ..) => return Err(Defect(not_read("MP3 in a WAV file"))),
        (tag, bytes, bits) => {
            return Err(Defect(not_read(&format!(
                "a WAV file of coding {tag:#x} with {bits} bits in {bytes} bytes"
            ))));
        }
    };
    if frame_bytes != sample_bytes * u64::from(channels) {
        return Err(Defect(format!(
            "the WAV file has frames of {frame_bytes} bytes for {channels} channels"
        )));
    }
    Ok((coding, channels, rate, frame_bytes))
}

/// Parses the first metadata block and finds the start of the frames. `at`: the offset after the file's first word.
fn flac(file: &[u8], mut at: usize) -> Result<SoundHeader, Defect> {
    let mut info = None;
    loop {
        let head = file.get(at..).and_then(|rest| rest.first_chunk::<4>()).ok_or_else(cut)?;
        let length = usize::from(head[1]) << 16 | usize::from(head[2]) << 8 | usize::from(head[3]);
        let body = file.get(at + 4..).and_then(|rest| rest.get(..length)).ok_or_else(cut)?;
        if info.is_none() {
            if head[0] & 0x7f != 0 {
                return Err(Defect("the FLAC file does not begin with its description".to_owned()));
            }
            info = Some(*body.first_chunk::<34>().ok_or_else(cut)?);
        }
        at += 4 + length;
        if head[0] & 0x80 != 0 {
            break;
        }
    }
    let info = info.ok_or_else(cut)?;
    // 20 bits of rate, 3 of channels, 5 of bits, 36 of frames.
    let packed = info[10..18].iter().fold(0, |all: u64, byte| all << 8 | u64::from(*byte));
    let part = |shift: u32, bits: u32| packed >> shift & ((1 << bits) - 1);
    let bits = u8::try_from(part(36, 5) + 1).unwrap_or(32);
    if bits > 24 {
        return Err(Defect(not_read(&format!("FLAC of {bits} bits"))));
    }
    Ok(SoundHeader {
        coding: SoundCoding::Flac(bits),
        channels: u16::try_from(part(41, 3) + 1).unwrap_or(1),
        rate: u32::try_from(part(44, 20)).unwrap_or(0),
        frames: Some(part(0, 36)).filter(|frames| *frames > 0),
        data: at..file.len(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wave(tag: u16, bits: u16, data: &[u8]) -> Vec<u8> {
        let mut file = b"RIFF\0\0\0\0WAVEfmt \x10\0\0\0".to_vec();
        let frame = 2 * bits / 8;
        for short in [tag, 2, 8000, 0, 0, 0, frame, bits] {
            file.extend(short.to_le_bytes());
        }
        file.extend(b"LIST\x03\0\0\0abc\0data");
        file.extend(u32::try_from(data.len()).unwrap().to_le_bytes());
        file.extend(data);
        file
    }

    #[test]
    fn unknown_wav_chunks_are_skipped() {
        let file = wave(1, 16, &[7; 13]);
        let header = SoundHeader::read(&file).unwrap();
        assert_eq!((header.coding, header.channels), (SoundCoding::Signed(2), 2));
        assert_eq!((header.rate, header.frames, header.data), (8000, Some(3), 56..68));
        for length in 0..file.len() {
            assert!(SoundHeader::read(&file[..length]).is_err(), "{length}");
        }
    }

    /// As after a recorder that was killed: the samples are there, as libsndfile reads them.
    #[test]
    fn wav_data_of_length_zero_extend_to_the_end() {
        let mut file = wave(1, 16, &[]);
        assert_eq!(SoundHeader::read(&file).unwrap().frames, Some(0));
        file.extend([7; 13]);
        let header = SoundHeader::read(&file).unwrap();
        assert_eq!((header.frames, header.data), (Some(3), 56..68));
        // Chunks after the data are not samples.
        file.truncate(56);
        file.extend(b"LIST\x03\0\0\0abc\0");
        assert_eq!(SoundHeader::read(&file).unwrap().frames, Some(0));
    }

    #[test]
    fn padded_wav_samples_are_refused() {
        // 24 bits in 4 bytes: readers disagree on which 24.
        for (bits, bytes) in [(8, 2_u16), (16, 3), (24, 4)] {
            let mut file = wave(1, bits, &[0; 24]);
            file[32..34].copy_from_slice(&(2 * bytes).to_le_bytes());
            let refused = SoundHeader::read(&file).unwrap_err().0;
            assert!(refused.contains(&format!("{bits} bits in {bytes} bytes")), "{refused}");
        }
        // 20 bits use all three bytes, the last one partly.
        let mut file = wave(1, 24, &[0; 24]);
        file[34] = 20;
        assert_eq!(SoundHeader::read(&file).unwrap().coding, SoundCoding::Signed(3));
    }

    #[test]
    fn mp3_frames_behind_a_gap_or_a_tag_are_not_dropped() {
        let frames = |count: usize| {
            let mut frame = b"\xff\xfb\x90\x64".to_vec();
            frame.resize(417, 0);
            frame.repeat(count)
        };
        let id3 = [&b"TAG"[..], &[b'a'; 125]].concat();
        let inner = frames(2);
        let size = u32::try_from(inner.len()).unwrap().to_le_bytes();
        let ape = [&b"APETAGEX\xd0\x07\0\0"[..], &size, &[0; 16], &inner].concat();
        for tail in
            [vec![], vec![0; 100], id3.clone(), ape.clone(), [&[0; 9], &ape[..], &id3].concat()]
        {
            let file = [frames(4), tail].concat();
            assert_eq!(mp3::Mp3::read(&file).unwrap().count, 4);
        }
        for gap in [vec![0; 100], id3, ape] {
            let file = [frames(4), gap, frames(4)].concat();
            let refused = mp3::Mp3::read(&file).unwrap_err().0;
            assert!(refused.contains("that belong to no frame, at byte 1668"), "{refused}");
        }
    }

    #[test]
    fn unsupported_sounds_are_refused_by_name() {
        for (file, name) in [
            (&wave(0x11, 8, &[])[..], "IMA ADPCM in a WAV file is not read"),
            (&wave(1, 40, &[]), "coding 0x1 with 40 bits in 5 bytes"),
            (b"OggS\0\x02", "truncated"),
            (b"ID3\x04\0\0\0\0\0\x01a\xff\xfb", "the MP3 file has no frame"),
            (b"\xff\xfb\x90\x64", "the MP3 file has no frame"),
            (b"RIFF\0\0\0\0AVI LIST", "AU or CAF file: it begins with 52 49 46 46"),
            (b"", "the sound file is empty"),
        ] {
            let refused = SoundHeader::read(file).unwrap_err().0;
            assert!(refused.contains(name), "{refused}");
        }
    }
}

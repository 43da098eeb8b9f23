//! Samples as WAV, AIFF, AU and CAF store them: integers of 8 to 32 bits, floats, and the logarithmic bytes of G.711.

use super::channel_mixer::ChannelMixer;
use forebay_dataset::{Defect, SoundCoding};

/// 2³¹.
const WHOLE: f32 = 2_147_483_648.0;

/// Passes on all frames; `data` has no partial frame.
pub(super) fn decode(
    data: &[u8],
    coding: SoundCoding,
    channels: usize,
    kept: &mut ChannelMixer<'_>,
) -> Result<(), Defect> {
    match coding {
        SoundCoding::Unsigned8 => {
            frames::<1>(data, channels, kept, |[byte]| (f32::from(byte) - 128.0) / 128.0)
        }
        SoundCoding::Signed(2) => frames::<2>(data, channels, kept, |bytes| {
            f32::from(i16::from_le_bytes(bytes)) / 32_768.0
        }),
        SoundCoding::Signed(3) => frames::<3>(data, channels, kept, |[low, middle, high]| {
            part_of_whole(i32::from_le_bytes([0, low, middle, high]))
        }),
        SoundCoding::Signed(_) => {
            frames::<4>(data, channels, kept, |bytes| part_of_whole(i32::from_le_bytes(bytes)))
        }
        SoundCoding::SignedBig(1) => {
            frames::<1>(data, channels, kept, |bytes| f32::from(i8::from_be_bytes(bytes)) / 128.0)
        }
        SoundCoding::SignedBig(2) => frames::<2>(data, channels, kept, |bytes| {
            f32::from(i16::from_be_bytes(bytes)) / 32_768.0
        }),
        SoundCoding::SignedBig(3) => frames::<3>(data, channels, kept, |[high, middle, low]| {
            part_of_whole(i32::from_be_bytes([high, middle, low, 0]))
        }),
        SoundCoding::SignedBig(_) => {
            frames::<4>(data, channels, kept, |bytes| part_of_whole(i32::from_be_bytes(bytes)))
        }
        SoundCoding::Float32 => frames::<4>(data, channels, kept, f32::from_le_bytes),
        SoundCoding::Float64 => {
            frames::<8>(data, channels, kept, |bytes| rounded(f64::from_le_bytes(bytes)))
        }
        SoundCoding::FloatBig(4) => frames::<4>(data, channels, kept, f32::from_be_bytes),
        SoundCoding::FloatBig(_) => {
            frames::<8>(data, channels, kept, |bytes| rounded(f64::from_be_bytes(bytes)))
        }
        SoundCoding::ALaw => {
            frames::<1>(data, channels, kept, |[byte]| f32::from(a_law(byte)) / 32_768.0)
        }
        SoundCoding::MuLaw => {
            frames::<1>(data, channels, kept, |[byte]| f32::from(mu_law(byte)) / 32_768.0)
        }
        // `decode` has other decoders for them.
        SoundCoding::Flac(_)
        | SoundCoding::Mp3
        | SoundCoding::Vorbis
        | SoundCoding::Opus
        | SoundCoding::Alac
        | SoundCoding::Aac => Ok(()),
    }
}

/// The level of an integer of 32 bits, as libsndfile rounds it.
#[expect(clippy::cast_precision_loss, reason = "rounded to single precision")]
fn part_of_whole(value: i32) -> f32 {
    value as f32 / WHOLE
}

#[expect(clippy::cast_possible_truncation, reason = "rounded to single precision")]
fn rounded(value: f64) -> f32 {
    value as f32
}

fn frames<const N: usize>(
    data: &[u8],
    channels: usize,
    kept: &mut ChannelMixer<'_>,
    value: impl Fn([u8; N]) -> f32,
) -> Result<(), Defect> {
    let samples = data.as_chunks::<N>().0;
    let wanted = kept.take(samples.len() / channels);
    for frame in samples[wanted.start * channels..wanted.end * channels].chunks_exact(channels) {
        kept.push(frame.iter().map(|bytes| value(*bytes)))?;
    }
    Ok(())
}

/// G.711's A-law to 16 bits.
fn a_law(byte: u8) -> i16 {
    let byte = byte ^ 0x55;
    let (exponent, mantissa) = (byte >> 4 & 7, i16::from(byte & 15) << 4);
    let value = match exponent {
        0 => mantissa + 8,
        _ => (mantissa + 0x108) << (exponent - 1),
    };
    if byte & 0x80 == 0 { -value } else { value }
}

/// G.711's µ-law to 16 bits.
fn mu_law(byte: u8) -> i16 {
    let byte = !byte;
    let value = ((i16::from(byte & 15) << 3) + 0x84) << (byte >> 4 & 7);
    if byte & 0x80 == 0 { value - 0x84 } else { 0x84 - value }
}

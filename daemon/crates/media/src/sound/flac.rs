//! Decodes the frames of a FLAC file with claxon, which verifies their checksums; those that claxon lacks are decoded
//! here.
//!
//! `SoundHeader` reads the metadata, so claxon gets frames only.

mod bits;
mod frame;
mod input;

use claxon::Error;
use claxon::frame::FrameReader;

use super::channel_mixer::ChannelMixer;
use forebay_dataset::{Defect, SoundHeader};
use input::Input;

fn defect(reason: impl std::fmt::Display) -> Defect {
    Defect(format!("cannot decode the FLAC file: {reason}"))
}

/// Passes on all frames.
pub(super) fn decode(
    data: &[u8],
    header: &SoundHeader,
    bits: u8,
    kept: &mut ChannelMixer<'_>,
) -> Result<(), Defect> {
    let mut input = Input { data, at: 0 };
    let (mut levels, mut frames) = (Vec::new(), 0);
    while header.frames.is_none_or(|all| frames < all) && !kept.is_complete() {
        let start = input.at;
        let (channels, duration) =
            match FrameReader::new(&mut input).read_next_or_eof(std::mem::take(&mut levels)) {
                Ok(None) => break,
                Ok(Some(block)) => {
                    let (channels, duration) = (block.channels(), block.duration());
                    levels = block.into_buffer();
                    (channels as usize, duration as usize)
                }
                Err(Error::Unsupported(_)) => {
                    let frame = frame::decode(&data[start..], bits, &mut levels)?;
                    input.at = start + frame.bytes;
                    (frame.channels, frame.duration)
                }
                Err(reason) => return Err(defect(reason)),
            };
        if channels != usize::from(header.channels) {
            return Err(Defect(format!(
                "the FLAC file has {} channels, and a frame of it has {channels}",
                header.channels
            )));
        }
        push(&levels[..channels * duration], header.channels, duration, bits, kept)?;
        frames += duration as u64;
    }
    match header.frames {
        Some(all) if frames != all && !kept.is_complete() => {
            Err(Defect(format!("the sound file is truncated: {frames} of {all} frames of FLAC")))
        }
        _ => Ok(()),
    }
}

/// Passes on a frame's levels, which are stored channel by channel.
fn push(
    levels: &[i32],
    channels: u16,
    duration: usize,
    bits: u8,
    kept: &mut ChannelMixer<'_>,
) -> Result<(), Defect> {
    #[expect(clippy::cast_precision_loss, reason = "a power of two")]
    let whole = (1_u32 << (bits - 1)) as f32;
    for time in kept.take(duration) {
        kept.push((0..channels).map(|channel| {
            #[expect(clippy::cast_precision_loss, reason = "at most 24 bits")]
            let level = levels[usize::from(channel) * duration + time] as f32;
            level / whole
        }))?;
    }
    Ok(())
}

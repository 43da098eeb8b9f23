//! Sounds that are stored in packets: MP3, Vorbis, Opus and ALAC.
//!
//! The decoders are safe Rust and hold a bounded amount of memory, whatever a file says. They run in the work thread; a
//! panic of theirs is a defect of the file. `dataset` finds the packets and says which samples belong to the sound.

mod alac;
mod mp3;
mod opus;
mod vorbis;

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

use symphonia_core::audio::{Audio, GenericAudioBufferRef};
use symphonia_core::codecs::audio::AudioDecoder;
use symphonia_core::packet::PacketRef;
use symphonia_core::units::{Duration, Timestamp};

use super::channel_mixer::ChannelMixer;
use forebay_dataset::sound::ogg::{Ogg, OggCodec};
use forebay_dataset::{Defect, SoundCoding, SoundHeader};

/// Decodes the frames of `span`, counted from the first of the sound.
///
/// # Errors
/// The file is defective.
pub(super) fn decode(
    file: &[u8],
    header: &SoundHeader,
    span: Range<u64>,
    kept: &mut ChannelMixer<'_>,
) -> Result<(), Defect> {
    (kept.skip, kept.left) = (0, span.end - span.start);
    let run = catch_unwind(AssertUnwindSafe(|| match header.coding {
        SoundCoding::Mp3 => mp3::decode(file, header, span.start, kept),
        SoundCoding::Vorbis | SoundCoding::Opus => decode_ogg(file, span.start, kept),
        SoundCoding::Alac => alac::decode(file, span.start, kept),
        _ => Ok(()),
    }));
    run.unwrap_or_else(|_| Err(Defect("the sound's decoder panicked".to_owned())))?;
    match kept.left {
        0 => Ok(()),
        left => Err(Defect(format!("the sound file is truncated: {left} frames are missing"))),
    }
}

fn decode_ogg(file: &[u8], from: u64, kept: &mut ChannelMixer<'_>) -> Result<(), Defect> {
    let ogg = Ogg::read(file)?;
    match &ogg.codec {
        OggCodec::Vorbis { identification, setup } => {
            vorbis::decode(&ogg, (identification, setup), file, from, kept)
        }
        OggCodec::Opus { streams, mapping, gain } => {
            let form = opus::OpusForm { streams: *streams, mapping, gain: *gain };
            opus::decode(&ogg, &form, file, from, kept)
        }
    }
}

/// The most channels of a sound in packets.
const MOST_CHANNELS: usize = 8;

/// Decodes one packet and passes on its frames, whose number is returned; without `kept` they are dropped.
fn decode_packet(
    decoder: &mut impl AudioDecoder,
    packet: &[u8],
    channels: u16,
    kept: Option<&mut ChannelMixer<'_>>,
) -> Result<usize, Defect> {
    let packet = PacketRef::new(0, Timestamp::ZERO, Duration::ZERO, packet);
    let decoded = decoder.decode_ref(&packet).map_err(|reason| Defect(reason.to_string()))?;
    let GenericAudioBufferRef::F32(decoded) = decoded else {
        return Err(Defect("its decoder gives no floats".to_owned()));
    };
    let mut planes: [&[f32]; MOST_CHANNELS] = [&[]; MOST_CHANNELS];
    let count = decoded.num_planes();
    if count != usize::from(channels) || count > MOST_CHANNELS {
        return Err(Defect(format!("it has {channels} channels, and a packet of it has {count}")));
    }
    planes.iter_mut().zip(decoded.iter_planes()).for_each(|(plane, from)| *plane = from);
    let frames = decoded.frames();
    kept.map_or(Ok(()), |kept| kept.planes(&planes[..count]))?;
    Ok(frames)
}

#[cfg(test)]
mod tests;

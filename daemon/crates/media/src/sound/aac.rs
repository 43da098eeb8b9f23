//! AAC, decoded by a process with the host's libavcodec.
//!
//! All packets before the wanted part are decoded, too: where the encoder replaced noise by its strength, the decoder's
//! noise goes on from packet to packet, so that the floats of a part are those of the whole sound.

use std::ops::Range;

use super::SoundDecoder;
use super::channel_mixer::ChannelMixer;
use forebay_dataset::Defect;
use forebay_dataset::sound::packets::PacketSound;
use forebay_decoders::{MAX_SOUND_CHANNELS, SoundRequest};

/// Passes on the frames of `span`.
pub(super) fn decode(
    file: &[u8],
    span: Range<u64>,
    elsewhere: &mut dyn SoundDecoder,
    kept: &mut ChannelMixer<'_>,
) -> Result<(), Defect> {
    let sound = PacketSound::read(file)?;
    if sound.channels > MAX_SOUND_CHANNELS {
        return Err(Defect(format!("AAC of {} channels is not read", sound.channels)));
    }
    let (last, _) = sound.packet_of(sound.skipped + span.end.saturating_sub(1));
    let count = sound.packets.len().min(last + 1);
    let packets = &sound.packets[..count];
    let mut request = SoundRequest::new(sound.codec, &sound.configuration);
    (request.channels, request.rate) = (sound.channels, sound.rate);
    (request.skip, request.frames) = (sound.skipped + span.start, span.end - span.start);
    request.packets =
        packets.iter().map(|packet| u32::try_from(packet.len()).unwrap_or(u32::MAX)).collect();
    let data: Vec<&[u8]> = packets.iter().map(|packet| &file[packet.clone()]).collect();
    request.data = data.concat().into();
    (kept.skip, kept.left) = (0, request.frames);
    if request.frames == 0 {
        return Ok(());
    }
    let channels = usize::from(sound.channels);
    elsewhere.decode(&request, &mut |floats| kept.interleaved(floats, channels))
}

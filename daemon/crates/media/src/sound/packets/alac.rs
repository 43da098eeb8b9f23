//! ALAC, by `symphonia-codec-alac`.

use symphonia_codec_alac::AlacDecoder;
use symphonia_core::audio::{Audio, GenericAudioBufferRef};
use symphonia_core::codecs::audio::well_known::CODEC_ID_ALAC;
use symphonia_core::codecs::audio::{AudioCodecParameters, AudioDecoder, AudioDecoderOptions};
use symphonia_core::packet::PacketRef;
use symphonia_core::units::{Duration, Timestamp};

use super::super::channel_mixer::ChannelMixer;
use forebay_dataset::Defect;
use forebay_dataset::sound::packets::{ALAC_COOKIE, PacketSound};

fn defect(reason: impl std::fmt::Display) -> Defect {
    Defect(format!("cannot decode the ALAC file: {reason}"))
}

/// Passes on the sound from its frame `from`. Packets do not depend on each other.
pub(super) fn decode(file: &[u8], from: u64, kept: &mut ChannelMixer<'_>) -> Result<(), Defect> {
    let sound = PacketSound::read(file)?;
    let mut parameters = AudioCodecParameters::new();
    parameters.for_codec(CODEC_ID_ALAC).with_extra_data(sound.configuration[ALAC_COOKIE..].into());
    let mut decoder =
        AlacDecoder::try_new(&parameters, &AudioDecoderOptions::default()).map_err(defect)?;
    let place = sound.skipped + from;
    let (first, start) = sound.packet_of(place);
    kept.skip = place - start;
    for packet in sound.packets.get(first..).unwrap_or_default() {
        if kept.is_complete() {
            break;
        }
        let packet = PacketRef::new(0, Timestamp::ZERO, Duration::ZERO, &file[packet.clone()]);
        let GenericAudioBufferRef::S32(decoded) = decoder.decode_ref(&packet).map_err(defect)?
        else {
            return Err(defect("its decoder gives no whole numbers"));
        };
        if decoded.num_planes() != usize::from(sound.channels) {
            return Err(defect("a packet has another number of channels"));
        }
        for at in kept.take(decoded.frames()) {
            // Of 32 bits, whatever the file has.
            #[expect(clippy::cast_precision_loss, reason = "as libsndfile rounds it")]
            let value = |plane: usize| {
                decoded.plane(plane).map_or(0.0, |plane| plane[at] as f32 / 2_147_483_648.0)
            };
            kept.push((0..decoded.num_planes()).map(value))?;
        }
    }
    Ok(())
}

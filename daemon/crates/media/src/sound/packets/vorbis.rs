//! Vorbis, by `symphonia-codec-vorbis`.

mod codebooks;

use symphonia_codec_vorbis::VorbisDecoder;
use symphonia_core::codecs::audio::well_known::CODEC_ID_VORBIS;
use symphonia_core::codecs::audio::{AudioCodecParameters, AudioDecoderOptions};

use super::super::channel_mixer::ChannelMixer;
use super::decode_packet;
use forebay_dataset::Defect;
use forebay_dataset::sound::ogg::Ogg;

fn defect(reason: impl std::fmt::Display) -> Defect {
    Defect(format!("cannot decode the Vorbis file: {reason}"))
}

/// Passes on the sound from its frame `from`.
pub(super) fn decode(
    ogg: &Ogg,
    (identification, setup): (&[u8], &[u8]),
    file: &[u8],
    from: u64,
    kept: &mut ChannelMixer<'_>,
) -> Result<(), Defect> {
    codebooks::verify(setup).map_err(defect)?;
    let mut parameters = AudioCodecParameters::new();
    let headers = [identification, setup].concat();
    parameters.for_codec(CODEC_ID_VORBIS).with_extra_data(headers.into());
    let options = AudioDecoderOptions::default();
    let mut decoder = VorbisDecoder::try_new(&parameters, &options).map_err(defect)?;

    kept.skip = from;
    // A packet's samples depend on the packet before it alone.
    let mut before: Option<Vec<u8>> = None;
    let mut has_begun = false;
    ogg.for_each(file, |packet, samples| {
        if kept.is_complete() {
            return Ok(false);
        }
        if samples.end <= from {
            let last = before.get_or_insert_default();
            last.clear();
            last.extend(packet);
            return Ok(true);
        }
        if !has_begun {
            has_begun = true;
            kept.skip = from - samples.start;
            if let Some(before) = &before {
                decode_packet(&mut decoder, before, ogg.channels, None).map_err(defect)?;
            }
        }
        let count =
            decode_packet(&mut decoder, packet, ogg.channels, Some(kept)).map_err(defect)?;
        if count as u64 != samples.end - samples.start {
            return Err(defect("a packet has another length than it says"));
        }
        Ok(true)
    })
}

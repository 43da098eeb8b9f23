//! MP3, by `symphonia-bundle-mp3`.

use symphonia_bundle_mp3::MpaDecoder;
use symphonia_core::codecs::audio::well_known::CODEC_ID_MP3;
use symphonia_core::codecs::audio::{AudioCodecParameters, AudioDecoderOptions};

use super::super::channel_mixer::ChannelMixer;
use super::decode_packet;
use forebay_dataset::sound::mp3::Mp3;
use forebay_dataset::{Defect, SoundHeader};

fn defect(reason: impl std::fmt::Display) -> Defect {
    Defect(format!("cannot decode the MP3 file: {reason}"))
}

/// Passes on the sound from its frame `from`.
pub(super) fn decode(
    file: &[u8],
    header: &SoundHeader,
    from: u64,
    kept: &mut ChannelMixer<'_>,
) -> Result<(), Defect> {
    let mp3 = Mp3::read(file)?;
    let mut parameters = AudioCodecParameters::new();
    parameters.for_codec(CODEC_ID_MP3);
    let options = AudioDecoderOptions::default();
    let mut decoder = MpaDecoder::try_new(&parameters, &options).map_err(defect)?;

    let each = u64::from(mp3.first.frames);
    let place = mp3.skipped + from;
    let (wanted, before) = (place / each, mp3.first.frames_before());
    let start = wanted.saturating_sub(before);
    kept.skip = place - wanted * each;
    let mut frames = mp3.frames(file).skip(usize::try_from(start).unwrap_or(usize::MAX));
    // A frame may need data of frames before the first one that is read; what it gives is not used.
    for _ in start..wanted {
        let Some(frame) = frames.next() else { break };
        let decoded = decode_packet(&mut decoder, &file[frame], header.channels, None);
        if start == 0 {
            decoded.map_err(defect)?;
        }
    }
    for frame in frames {
        if kept.is_complete() {
            break;
        }
        decode_packet(&mut decoder, &file[frame], header.channels, Some(kept)).map_err(defect)?;
    }
    Ok(())
}

//! Decodes a sound file, or a part of it, to an array of single floats, −1 to 1: `[n]`, or `[n, channels]`.
//!
//! Integers are divided by 2 to the power of their bits minus one, as in libsndfile; nothing is clipped or dithered.

#[cfg(feature = "sound")]
mod aac;
mod channel_mixer;
#[cfg(feature = "sound")]
mod flac;
#[cfg(feature = "sound")]
mod packets;
mod pcm;
mod resample;

use std::ops::Range;

use forebay_protocol::tensor::DType;

use super::array::ArrayBuffer;
use channel_mixer::ChannelMixer;
use forebay_dataset::{Defect, Sound, SoundCoding, SoundForm, SoundHeader};
use forebay_decoders::{SOUND_WORKING_BYTES, SoundRequest};
use resample::{Filter, Ratio};

/// A work thread's scratch memory for sounds.
#[derive(Debug, Default)]
pub struct SoundTools {
    /// Floats that are to be resampled.
    floats: Vec<u8>,
    filter: Option<Filter>,
}

impl SoundTools {
    /// Memory that is kept between sounds.
    pub fn kept_bytes(&self) -> usize {
        self.floats.capacity() + self.filter.as_ref().map_or(0, Filter::bytes)
    }
}

/// Decodes sounds that this crate does not: a process with the host's libavcodec.
pub trait SoundDecoder {
    /// Passes on the floats of the frames that are asked for, in native order and parts of whole frames.
    ///
    /// # Errors
    /// The sound is defective, or nothing decodes it.
    fn decode(
        &mut self,
        request: &SoundRequest<'_>,
        floats: &mut dyn FnMut(&[u8]) -> Result<(), Defect>,
    ) -> Result<(), Defect>;
}

/// Where no process decodes sounds: in fuzzers and tests.
#[derive(Debug, Clone, Copy)]
pub struct NoSoundDecoder;

impl SoundDecoder for NoSoundDecoder {
    fn decode(
        &mut self,
        _: &SoundRequest<'_>,
        _: &mut dyn FnMut(&[u8]) -> Result<(), Defect>,
    ) -> Result<(), Defect> {
        Err(Defect("no process decodes AAC here".to_owned()))
    }
}

/// The result of [`decode`], planned from a file's header.
struct Planned {
    header: SoundHeader,
    /// Floats per frame.
    kept: usize,
    ratio: Ratio,
    /// The frames that are wanted.
    span: Range<u64>,
}

impl Planned {
    fn new(sound: &Sound<'_>, most_bytes: u64) -> Result<Self, Defect> {
        let header = SoundHeader::read(sound.file)?;
        let SoundForm { channels, rate, span } = sound.form;
        if let Some(channels) = channels.filter(|channels| *channels != header.channels) {
            return Err(Defect(format!(
                "the sound has {} channels, and `channels = {channels}` is requested",
                header.channels
            )));
        }
        let ratio = Ratio::new(header.rate, rate.unwrap_or(header.rate))?;
        // Without a number of frames the end is where the data end.
        let all = header.frames.unwrap_or(u64::MAX);
        let span = span.map_or(Ok(0..all), |span| span.frames(all, header.rate))?;
        let planned = Self { kept: channels.unwrap_or(1).into(), header, ratio, span };
        let frames = planned.frames().unwrap_or(0);
        let floats =
            frames.max(planned.ratio.result_frames(frames)).saturating_mul(planned.kept as u64);
        if floats.saturating_mul(4) > most_bytes {
            return Err(Defect(format!(
                "the sound has {frames} frames, which are more than limits.inflated_bytes ({most_bytes}) as floats"
            )));
        }
        Ok(planned)
    }

    /// The number of frames that are wanted, if it is known.
    fn frames(&self) -> Option<u64> {
        (self.span.end < u64::MAX).then(|| self.span.end - self.span.start)
    }
}

/// A frame's block, in all channels, while FLAC is decoded: at most 65,535 samples in 8 channels.
const FLAC_BYTES: u64 = 65_536 * 8 * 4;

/// A decoder of MP3, which holds one frame.
const MP3_BYTES: u64 = 64 << 10;

/// A decoder of Vorbis: codebooks, whose size is bounded, and blocks of 8,192 samples in 8 channels.
const VORBIS_BYTES: u64 = 12 << 20;

/// Decoders of Opus, for 8 streams.
const OPUS_BYTES: u64 = 2 << 20;

/// A decoder of ALAC: a packet of at most 65,536 samples in 8 channels, and its lowest bits. The list of packets is in
/// proportion to the file.
const ALAC_BYTES: u64 = 4 << 20;

/// The maximal memory for [`decode`], and the array's part of it.
pub fn decoding_bytes(sound: &Sound<'_>, most_bytes: u64) -> (u64, u64) {
    let Ok(planned) = Planned::new(sound, most_bytes) else { return (0, 0) };
    let bytes = |frames: u64| frames * planned.kept as u64 * 4;
    let (before, after) = match planned.frames() {
        Some(frames) => (bytes(frames), bytes(planned.ratio.result_frames(frames))),
        // The number of frames is unknown: at most the limit.
        None => (most_bytes, most_bytes),
    };
    let decoder = match planned.header.coding {
        SoundCoding::Flac(_) => FLAC_BYTES,
        SoundCoding::Mp3 => MP3_BYTES,
        SoundCoding::Vorbis => VORBIS_BYTES,
        SoundCoding::Opus => OPUS_BYTES,
        SoundCoding::Alac => ALAC_BYTES,
        // In another process, with the packets and the floats in memory that it shares.
        SoundCoding::Aac => {
            let floats =
                planned.header.frames.unwrap_or(0) * u64::from(planned.header.channels) * 4;
            SOUND_WORKING_BYTES + sound.file.len() as u64 * 2 + floats
        }
        _ => 0,
    };
    // Resampling takes one channel at a time, if there are more.
    let before = match planned.kept as u64 {
        _ if planned.ratio.is_one() => 0,
        1 => before,
        kept => before + before / kept,
    };
    let beside = planned.ratio.filter_bytes() + decoder;
    (before.saturating_add(after).saturating_add(beside), after)
}

/// Decodes a sound file into an array; AAC by `elsewhere`.
///
/// # Errors
/// The file is defective, has another number of channels than requested, or is larger than `most_bytes` when decoded.
pub fn decode(
    sound: &Sound<'_>,
    most_bytes: u64,
    tools: &mut SoundTools,
    elsewhere: &mut dyn SoundDecoder,
    array: &mut ArrayBuffer,
) -> Result<(), Defect> {
    let planned = Planned::new(sound, most_bytes)?;
    let Planned { header, kept, ratio, span } = &planned;
    let SoundTools { floats, filter } = tools;
    let bytes = if ratio.is_one() { &mut array.bytes } else { &mut *floats };
    bytes.clear();
    let frames = usize::try_from(planned.frames().unwrap_or(0)).unwrap_or(0);
    bytes.reserve_exact(frames * kept * 4);
    let mut sink = ChannelMixer {
        bytes,
        mixes: sound.form.channels.is_none(),
        most_bytes,
        skip: span.start,
        left: span.end - span.start,
    };
    let data = &sound.file[header.data.clone()];
    match header.coding {
        #[cfg(feature = "sound")]
        SoundCoding::Flac(bits) => flac::decode(data, header, bits, &mut sink)?,
        #[cfg(feature = "sound")]
        SoundCoding::Mp3 | SoundCoding::Vorbis | SoundCoding::Opus | SoundCoding::Alac => {
            packets::decode(sound.file, header, span.clone(), &mut sink)?;
        }
        #[cfg(feature = "sound")]
        SoundCoding::Aac => aac::decode(sound.file, span.clone(), elsewhere, &mut sink)?,
        #[cfg(not(feature = "sound"))]
        SoundCoding::Flac(_)
        | SoundCoding::Mp3
        | SoundCoding::Vorbis
        | SoundCoding::Opus
        | SoundCoding::Alac
        | SoundCoding::Aac => {
            let _ = elsewhere;
            return Err(Defect(
                "this program is built without `sound`, which reads sounds that are compressed"
                    .to_owned(),
            ));
        }
        coding => pcm::decode(data, coding, header.channels.into(), &mut sink)?,
    }
    array.dtype = DType::F32;
    if !ratio.is_one() {
        array.bytes.clear();
        let floats = floats.as_chunks().0;
        let frames = ratio.result_frames((floats.len() / kept) as u64);
        if frames.saturating_mul(*kept as u64 * 4) > most_bytes {
            return Err(Defect(
                "the sound has more frames than limits.inflated_bytes allows".to_owned(),
            ));
        }
        ratio.resample(Filter::kept(filter, *ratio), floats, *kept, &mut array.bytes);
    }
    array.shape.clear();
    array.shape.push((array.bytes.len() / (4 * kept)) as u64);
    array.shape.extend(sound.form.row_shape());
    Ok(())
}

#[cfg(test)]
mod tests;

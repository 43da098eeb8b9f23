//! Opus, by `opus-decoder`.

use opus_decoder::OpusMultistreamDecoder;

use super::super::channel_mixer::ChannelMixer;
use forebay_dataset::Defect;
use forebay_dataset::sound::ogg::Ogg;

fn defect(reason: impl std::fmt::Display) -> Defect {
    Defect(format!("cannot decode the Opus file: {reason}"))
}

/// The most samples of a packet, at 48,000 a second: 120 ms.
const MOST_SAMPLES: usize = 5760;

/// What the header says of the channels.
pub(super) struct OpusForm<'h> {
    pub(super) streams: (u8, u8),
    pub(super) mapping: &'h [u8],
    pub(super) gain: i16,
}

/// Passes on the sound from its frame `from`. All packets before it are decoded: each one depends on those before it
/// without an end.
pub(super) fn decode(
    ogg: &Ogg,
    form: &OpusForm<'_>,
    file: &[u8],
    from: u64,
    kept: &mut ChannelMixer<'_>,
) -> Result<(), Defect> {
    let channels = usize::from(ogg.channels);
    let (streams, coupled) = form.streams;
    let mut decoder = OpusMultistreamDecoder::new(
        ogg.rate,
        channels,
        streams.into(),
        coupled.into(),
        form.mapping,
    )
    .map_err(defect)?;
    // In 256ths of a decibel.
    #[expect(clippy::cast_possible_truncation, reason = "rounded to single precision")]
    let gain = libm::pow(10.0, f64::from(form.gain) / (20.0 * 256.0)) as f32;
    let mut floats = vec![0.0; MOST_SAMPLES * channels];
    kept.skip = ogg.skipped + from;
    ogg.for_each(file, |packet, samples| {
        if kept.is_complete() {
            return Ok(false);
        }
        let count = decoder.decode_float(packet, &mut floats, false).map_err(defect)?;
        if count as u64 != samples.end - samples.start {
            return Err(defect("a packet has another length than it says"));
        }
        for frame in kept.take(count) {
            let frame = &floats[frame * channels..(frame + 1) * channels];
            kept.push(frame.iter().map(|value| value * gain))?;
        }
        Ok(true)
    })
}

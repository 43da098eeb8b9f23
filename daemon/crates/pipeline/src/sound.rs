//! From a sound's file to an array of single floats, −1 to 1, as libsndfile gives them: `[n]`, or `[n, channels]`.
//!
//! Integers are divided by 2 to the power of their bits less one; nothing is clipped or dithered.

mod flac;
mod kept;
mod resample;
mod wav;

use forebay_protocol::tensor::DType;

use super::array::ArrayBuffer;
use forebay_source::dataset::{Defect, Sound, SoundCoding, SoundForm, SoundHeader};
use kept::Kept;
use resample::{Filter, Ratio};

/// A work thread's scratch memory for sounds.
#[derive(Debug, Default)]
pub(crate) struct SoundTools {
    floats: Vec<f32>,
    filter: Option<Filter>,
}

impl SoundTools {
    /// What it keeps from sound to sound.
    pub(crate) fn kept_bytes(&self) -> usize {
        self.floats.capacity() * size_of::<f32>() + self.filter.as_ref().map_or(0, Filter::bytes)
    }
}

/// What [`decode`] makes of a file, by its header.
struct Planned {
    header: SoundHeader,
    /// Floats of a frame.
    kept: usize,
    ratio: Ratio,
}

impl Planned {
    fn new(sound: &Sound<'_>, most_bytes: u64) -> Result<Self, Defect> {
        let header = SoundHeader::read(sound.file)?;
        let SoundForm { channels, rate } = sound.form;
        if let Some(channels) = channels.filter(|channels| *channels != header.channels) {
            return Err(Defect(format!(
                "the sound has {} channels, and `channels = {channels}` is asked for",
                header.channels
            )));
        }
        let ratio = Ratio::new(header.rate, rate.unwrap_or(header.rate))?;
        let planned = Self { kept: channels.unwrap_or(1).into(), header, ratio };
        let frames = planned.header.frames.unwrap_or(0);
        let floats =
            frames.max(planned.ratio.result_frames(frames)).saturating_mul(planned.kept as u64);
        if floats.saturating_mul(4) > most_bytes {
            return Err(Defect(format!(
                "the sound has {frames} frames, which are more than limits.inflated_bytes ({most_bytes}) as floats"
            )));
        }
        Ok(planned)
    }
}

/// A frame's block, in all channels, while FLAC is decoded: 65,535 samples in 8 channels are the most.
const FLAC_BYTES: u64 = 65_536 * 8 * 4;

/// The most that [`decode`] takes, and of that what the array has.
pub(crate) fn decoding_bytes(sound: &Sound<'_>, most_bytes: u64) -> (u64, u64) {
    let Ok(planned) = Planned::new(sound, most_bytes) else { return (0, 0) };
    let bytes = |frames: u64| frames * planned.kept as u64 * 4;
    let (before, after) = match planned.header.frames {
        Some(frames) => (bytes(frames), bytes(planned.ratio.result_frames(frames))),
        // It does not say how many it has: no more than are allowed.
        None => (most_bytes, most_bytes),
    };
    let is_flac = matches!(planned.header.coding, SoundCoding::Flac(_));
    let beside = planned.ratio.filter_bytes() + if is_flac { FLAC_BYTES } else { 0 };
    (before.saturating_add(after).saturating_add(beside), after)
}

/// Decodes a sound's file into an array.
///
/// # Errors
/// The file is defective, of another number of channels than asked for, or decoded larger than `most_bytes`.
pub(crate) fn decode(
    sound: &Sound<'_>,
    most_bytes: u64,
    tools: &mut SoundTools,
    array: &mut ArrayBuffer,
) -> Result<(), Defect> {
    let planned = Planned::new(sound, most_bytes)?;
    let Planned { header, kept, ratio } = &planned;
    let SoundTools { floats, filter } = tools;
    floats.clear();
    let frames = usize::try_from(header.frames.unwrap_or(0)).unwrap_or(0);
    floats.reserve_exact(frames * kept);
    let most = usize::try_from(most_bytes / 4).unwrap_or(usize::MAX);
    let mut sink = Kept { floats, mixes: sound.form.channels.is_none(), most };
    let data = &sound.file[header.data.clone()];
    match header.coding {
        SoundCoding::Flac(bits) => flac::decode(data, header, bits, &mut sink)?,
        coding => wav::decode(data, coding, header.channels.into(), &mut sink)?,
    }
    array.dtype = DType::F32;
    array.bytes.clear();
    if ratio.is_one() {
        array.bytes.reserve_exact(floats.len() * 4);
        array.bytes.extend(floats.iter().flat_map(|value| value.to_ne_bytes()));
    } else {
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

//! `spectrogram` and `mel-spectrogram`: a sound becomes the strengths of its frequencies over time, as torchaudio's
//! transforms of these names give them, but with time as the first dimension: `[frames, frequencies]`.
//!
//! [`Transform`] computes one frame at a time in double precision, by an FFT that does not depend on the processor;
//! [`mel`] has the filters.

mod mel;

use std::sync::Arc;

use realfft::num_complex::Complex;
use realfft::{RealFftPlanner, RealToComplex};

use self::mel::MelFilters;
use crate::arguments::PositiveNumber;
use crate::contract::{FieldType, FieldTypes, Operation, Sample, StoredSound};
use crate::field::FieldInProgress;
use crate::needs::Reckoning;
use forebay_dataset::{Defect, FieldKind};
use forebay_keys::{AtLeastOne, ConfigError, Keys, Section, kinds, words};
use forebay_order::Draws;
use forebay_protocol::tensor::DType;

/// The longest frame, and the most frequencies of a scale.
const MAX_FFT: u64 = 1 << 16;
/// What logarithms are taken of at least.
const FLOOR: f64 = 1e-10;

words! {
    /// The logarithm that is taken of each value.
    pub(crate) enum Logarithm {
        /// None.
        Off = "off",
        /// To the base e.
        Natural = "natural",
        /// To the base 10.
        Ten = "10",
    }
}

words! {
    /// How the scale of heights follows from frequencies.
    pub(crate) enum MelScale {
        /// 2595 · log₁₀(1 + f / 700).
        Htk = "htk",
        /// Linear below 1000, then logarithmic, as in Slaney's toolbox.
        Slaney = "slaney",
    }
}

words! {
    /// How filters are weighted.
    pub(crate) enum MelNorm {
        /// Each has the height 1.
        Off = "off",
        /// Each has the same area.
        Slaney = "slaney",
    }
}

kinds! {
    /// A frequency.
    [pub(crate)] Frequency as f64: "a number from 0";
    read(value) { f64::read(value).filter(|value| *value >= 0.0 && value.is_finite()) }
    write(out) { f64::write(out) }
    schema { "type": "number", "minimum": 0 }
}

forebay_keys::keys! {
    /// a sound of one channel becomes the strengths of its frequencies over time: float32, `[frames, n_fft / 2 + 1]`, the
    /// values of torchaudio's `Spectrogram` with a Hann window
    pub(crate) struct Plain = "spectrogram" {
        /// the field to work on
        pub field: String, "", absent("the only sound");
        /// the length of a frame
        pub n_fft: AtLeastOne, "samples", default(400_u64);
        /// the length of the window, in the middle of a frame
        pub win_length: AtLeastOne, "samples", absent("`n_fft`");
        /// the distance of frames
        pub hop_length: AtLeastOne, "samples", absent("half of `win_length`");
        /// the exponent of the magnitude: 1 for magnitude, 2 for power
        pub power: PositiveNumber, "", default(2.0);
        /// whether the first frame's middle is the first sample; the sound is then mirrored at its ends
        pub center: bool, "", default(true);
        /// the logarithm of each value, of 1e-10 at least: "off", "natural" or "10"
        pub log: Logarithm, "", default(Logarithm::Off);
    }
}

forebay_keys::keys! {
    /// a sound of one channel becomes the strengths of its heights over time: float32, `[frames, n_mels]`, the values of
    /// torchaudio's `MelSpectrogram` with a Hann window
    pub(crate) struct Mel = "mel-spectrogram" {
        /// the field to work on
        pub field: String, "", absent("the only sound");
        /// samples a second: the `rate` that the dataset sets for the sound
        pub sample_rate: AtLeastOne, "samples a second", default(16_000_u64);
        /// the length of a frame
        pub n_fft: AtLeastOne, "samples", default(400_u64);
        /// the length of the window, in the middle of a frame
        pub win_length: AtLeastOne, "samples", absent("`n_fft`");
        /// the distance of frames
        pub hop_length: AtLeastOne, "samples", absent("half of `win_length`");
        /// the exponent of the magnitude: 1 for magnitude, 2 for power
        pub power: PositiveNumber, "", default(2.0);
        /// whether the first frame's middle is the first sample; the sound is then mirrored at its ends
        pub center: bool, "", default(true);
        /// the number of heights
        pub n_mels: AtLeastOne, "", default(128_u64);
        /// the lowest frequency
        pub f_min: Frequency, "Hz", default(0.0);
        /// the highest frequency
        pub f_max: Frequency, "Hz", absent("half of `sample_rate`, rounded down");
        /// how filters are weighted: "off" or "slaney"
        pub norm: MelNorm, "", default(MelNorm::Off);
        /// the scale of heights: "htk" or "slaney"
        pub mel_scale: MelScale, "", default(MelScale::Htk);
        /// the logarithm of each value, of 1e-10 at least: "off", "natural" or "10"
        pub log: Logarithm, "", default(Logarithm::Off);
    }
}

/// The frames of a sound.
struct Transform {
    n_fft: usize,
    hop: usize,
    power: f64,
    center: bool,
    log: Logarithm,
    /// The most bytes of a spectrogram.
    most_bytes: u64,
    /// The window, as long as a frame.
    window: Vec<f64>,
    fft: Arc<dyn RealToComplex<f64>>,
    mel: Option<MelFilters>,
}

impl std::fmt::Debug for Transform {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Transform").field("n_fft", &self.n_fft).finish_non_exhaustive()
    }
}

impl Transform {
    /// The number of values of a frame.
    fn values(&self) -> usize {
        self.mel.as_ref().map_or(self.n_fft / 2 + 1, MelFilters::count)
    }

    /// Samples that are mirrored at each end.
    const fn pad(&self) -> usize {
        if self.center { self.n_fft / 2 } else { 0 }
    }

    /// The frames of so many samples; `None`: there are too few.
    fn frames(&self, samples: usize) -> Option<usize> {
        let padded = samples + 2 * self.pad();
        (padded >= self.n_fft && (!self.center || samples > self.pad()))
            .then(|| (padded - self.n_fft) / self.hop + 1)
    }

    /// The bytes of so many frames.
    fn bytes(&self, frames: usize) -> u64 {
        (frames as u64).saturating_mul(4 * self.values() as u64)
    }

    /// Writes all frames of a sound: a number in single precision for each sample, as bytes.
    fn run(&self, sound: &[[u8; 4]], out: &mut Vec<u8>) -> Result<usize, Defect> {
        let frames = self.frames(sound.len()).ok_or_else(|| {
            Defect(format!(
                "the sound has {} samples, too few for a frame of {}",
                sound.len(),
                self.n_fft
            ))
        })?;
        let bytes = self.bytes(frames);
        if bytes > self.most_bytes {
            return Err(Defect(format!(
                "the spectrogram of {frames} frames of {} values has {bytes} bytes, and dataset.limits.inflated_bytes is {}: \
                 raise it, or `hop_length`",
                self.values(),
                self.most_bytes
            )));
        }
        let pad = self.pad();
        // Mirrored at the first and the last sample, which are not repeated.
        let sample = |at: usize| {
            let at = at.abs_diff(pad);
            let last = sound.len() - 1;
            f64::from(f32::from_ne_bytes(sound[if at > last { 2 * last - at } else { at }]))
        };
        let mut frame = self.fft.make_input_vec();
        let mut spectrum = self.fft.make_output_vec();
        let mut scratch = self.fft.make_scratch_vec();
        let mut values = vec![0.0; spectrum.len()];
        out.clear();
        out.reserve_exact(frames * self.values() * 4);
        for start in (0..frames).map(|number| number * self.hop) {
            for (place, (value, window)) in frame.iter_mut().zip(&self.window).enumerate() {
                *value = if *window == 0.0 { 0.0 } else { window * sample(start + place) };
            }
            self.fft
                .process_with_scratch(&mut frame, &mut spectrum, &mut scratch)
                .map_err(|reason| Defect(reason.to_string()))?;
            values.iter_mut().zip(&spectrum).for_each(|(value, of)| *value = self.strength(*of));
            match &self.mel {
                None => values.iter().for_each(|value| self.write(*value, out)),
                Some(mel) => mel.for_each(&values, |value| self.write(value, out)),
            }
        }
        Ok(frames)
    }

    fn strength(&self, value: Complex<f64>) -> f64 {
        let square = value.re * value.re + value.im * value.im;
        if (self.power - 2.0).abs() < f64::EPSILON {
            square
        } else if (self.power - 1.0).abs() < f64::EPSILON {
            square.sqrt()
        } else {
            libm::pow(square, self.power / 2.0)
        }
    }

    fn write(&self, value: f64, out: &mut Vec<u8>) {
        let value = match self.log {
            Logarithm::Off => value,
            Logarithm::Natural => libm::log(value.max(FLOOR)),
            Logarithm::Ten => libm::log10(value.max(FLOOR)),
        };
        #[expect(clippy::cast_possible_truncation, reason = "rounded to single precision")]
        out.extend((value as f32).to_ne_bytes());
    }
}

/// The arguments that both operations have.
struct Common {
    field: Option<String>,
    n_fft: u64,
    win_length: Option<u64>,
    hop_length: Option<u64>,
    power: f64,
    center: bool,
    log: Logarithm,
}

#[derive(Debug)]
struct Spectrogram {
    field: usize,
    transform: Transform,
}

pub(crate) fn compile_plain(
    section: &mut Section,
    fields: &mut FieldTypes,
) -> Result<Box<dyn Operation>, ConfigError> {
    let Plain { field, n_fft, win_length, hop_length, power, center, log } = Plain::read(section)?;
    let common = Common { field, n_fft, win_length, hop_length, power, center, log };
    let compiled = compile("spectrogram", common, None, section, fields)?;
    Ok(Box::new(compiled))
}

pub(crate) fn compile_mel(
    section: &mut Section,
    fields: &mut FieldTypes,
) -> Result<Box<dyn Operation>, ConfigError> {
    let arguments = Mel::read(section)?;
    let Mel { sample_rate, n_fft, n_mels, f_min, f_max, norm, mel_scale, .. } = arguments;
    let common = Common {
        field: arguments.field,
        n_fft,
        win_length: arguments.win_length,
        hop_length: arguments.hop_length,
        power: arguments.power,
        center: arguments.center,
        log: arguments.log,
    };
    // As torchaudio's.
    #[expect(clippy::cast_precision_loss, reason = "a rate")]
    let f_max = f_max.unwrap_or((sample_rate / 2) as f64);
    if f_min >= f_max {
        let message =
            format!("`{}` is {f_min}, not below `f_max`, {f_max}", section.key_path("f_min"));
        return Err(section.error_at("f_min", message));
    }
    if n_mels > MAX_FFT || n_fft > MAX_FFT {
        let message = format!("`{}` and `n_fft` are at most {MAX_FFT}", section.key_path("n_mels"));
        return Err(section.error_at("n_mels", message));
    }
    let mel =
        MelFilters::new(&mel::Form { sample_rate, n_fft, n_mels, f_min, f_max, norm, mel_scale });
    let stored = fields.fields.iter().map(|field| field.sound.filter(|_| !field.is_returned));
    let stored: Vec<_> = stored.collect();
    let compiled = compile("mel-spectrogram", common, Some(mel), section, fields)?;
    // The filters are those of one rate. What a Python stage returned has the rate that it gives it.
    if let Some(sound) = stored[compiled.field] {
        check_rate(sample_rate, sound, &fields.fields[compiled.field].name, section)?;
    }
    Ok(Box::new(compiled))
}

/// Refuses sounds of another rate than `sample_rate`, or of a rate that is not set.
fn check_rate(
    sample_rate: u64,
    sound: StoredSound,
    field: &str,
    section: &Section,
) -> Result<(), ConfigError> {
    let place = format!(
        "`rate = {sample_rate}` for the sound: dataset.rate of audio-folder, dataset.fields.{field}.rate of other formats"
    );
    let message = match sound.rate {
        Some(rate) if u64::from(rate) == sample_rate => return Ok(()),
        Some(rate) => format!(
            "`{}` is {sample_rate}, and field `{field}` has {rate} samples a second; set `sample_rate = {rate}`, or {place}",
            section.key_path("sample_rate")
        ),
        None => format!(
            "`{}` is {sample_rate}, and the sounds of field `{field}` have the rates of their files; set {place}",
            section.key_path("sample_rate")
        ),
    };
    Err(section.error_at("sample_rate", message))
}

fn compile(
    name: &str,
    common: Common,
    mel: Option<MelFilters>,
    section: &Section,
    fields: &mut FieldTypes,
) -> Result<Spectrogram, ConfigError> {
    let field = fields.find(name, section, common.field, "sound of one channel", |kind| {
        matches!(kind, FieldType::Raw(FieldKind::RaggedArray { dtype: DType::F32, row_shape }) if row_shape.is_empty())
    })?;
    let win_length = common.win_length.unwrap_or(common.n_fft);
    if common.n_fft > MAX_FFT || win_length > common.n_fft {
        let message = format!(
            "`{}` is {}; it is at most {MAX_FFT}, and at least `win_length`, {win_length}",
            section.key_path("n_fft"),
            common.n_fft
        );
        return Err(section.error_at("n_fft", message));
    }
    let whole = |value: u64| usize::try_from(value).unwrap_or(usize::MAX);
    let n_fft = whole(common.n_fft);
    let hop = common.hop_length.unwrap_or_else(|| (win_length / 2).max(1));
    let transform = Transform {
        n_fft,
        hop: whole(hop),
        power: common.power,
        center: common.center,
        log: common.log,
        most_bytes: fields.limits.inflated_bytes,
        window: window(whole(win_length), n_fft),
        fft: RealFftPlanner::new().plan_fft_forward(n_fft),
        mel,
    };
    let plan = &mut fields.fields[field];
    let row_shape = vec![transform.values() as u64];
    plan.kind = FieldType::Raw(FieldKind::RaggedArray { dtype: DType::F32, row_shape });
    plan.max_row_bytes = None;
    Ok(Spectrogram { field, transform })
}

/// A periodic Hann window in the middle of a frame.
fn window(length: usize, n_fft: usize) -> Vec<f64> {
    let before = (n_fft - length) / 2;
    #[expect(clippy::cast_precision_loss, reason = "at most 65,536")]
    let value = |place: usize| {
        let turn = 2.0 * std::f64::consts::PI * place as f64 / length as f64;
        0.5 - 0.5 * libm::cos(turn)
    };
    let mut window = vec![0.0; n_fft];
    let inner = window[before..before + length].iter_mut().enumerate();
    inner.for_each(|(place, of)| *of = value(place));
    window
}

impl Operation for Spectrogram {
    fn reckon(&self, reckoning: &mut Reckoning<'_>) {
        let samples =
            usize::try_from(reckoning.held_bytes(self.field) / 4).unwrap_or(usize::MAX / 4);
        let frames = self.transform.frames(samples).unwrap_or(0);
        let bytes = self.transform.bytes(frames).min(self.transform.most_bytes);
        // The frame, its spectrum, the strengths, and the scratch of the FFT.
        let beside = 64 * self.transform.n_fft as u64;
        reckoning.scratch_bytes =
            reckoning.scratch_bytes.saturating_add(bytes).saturating_add(beside);
        reckoning.give(self.field, bytes);
    }

    fn run(&self, sample: &mut Sample<'_, '_>, _draws: &mut Draws) -> Result<(), Defect> {
        let mut made = sample.tools.spare_array();
        let sound = sample.fields[self.field].array(sample.tools)?;
        if sound.dtype != DType::F32 || sound.shape.len() != 1 {
            return Err(Defect("a spectrogram is made of one channel of float32".to_owned()));
        }
        let frames = self.transform.run(sound.bytes.as_chunks().0, &mut made.bytes)?;
        made.dtype = DType::F32;
        made.shape.clear();
        made.shape.extend([frames as u64, self.transform.values() as u64]);
        let before =
            std::mem::replace(&mut sample.fields[self.field], FieldInProgress::Buffer(made));
        before.recycle(sample.tools);
        Ok(())
    }
}

#[cfg(test)]
mod tests;

//! The triangular filters of `mel-spectrogram`, as torchaudio's `melscale_fbanks` makes them.

use super::{MelNorm, MelScale};

/// What the filters follow from.
pub(super) struct Form {
    pub(super) sample_rate: u64,
    pub(super) n_fft: u64,
    pub(super) n_mels: u64,
    pub(super) f_min: f64,
    pub(super) f_max: f64,
    pub(super) norm: MelNorm,
    pub(super) mel_scale: MelScale,
}

/// Each filter: the first frequency that it counts, and the weights from there on.
#[derive(Debug)]
pub(super) struct MelFilters(Vec<(usize, Vec<f64>)>);

/// Where Slaney's scale becomes logarithmic, in hertz, and how many hertz a height has below.
const LINEAR_END: f64 = 1000.0;
const LINEAR_STEP: f64 = 200.0 / 3.0;

fn log_step() -> f64 {
    libm::log(6.4) / 27.0
}

fn height(frequency: f64, scale: MelScale) -> f64 {
    match scale {
        MelScale::Htk => 2595.0 * libm::log10(1.0 + frequency / 700.0),
        MelScale::Slaney if frequency >= LINEAR_END => {
            LINEAR_END / LINEAR_STEP + libm::log(frequency / LINEAR_END) / log_step()
        }
        MelScale::Slaney => frequency / LINEAR_STEP,
    }
}

fn frequency(height: f64, scale: MelScale) -> f64 {
    match scale {
        MelScale::Htk => 700.0 * (libm::pow(10.0, height / 2595.0) - 1.0),
        MelScale::Slaney if height >= LINEAR_END / LINEAR_STEP => {
            LINEAR_END * libm::exp(log_step() * (height - LINEAR_END / LINEAR_STEP))
        }
        MelScale::Slaney => height * LINEAR_STEP,
    }
}

impl MelFilters {
    #[expect(clippy::cast_precision_loss, reason = "rates and numbers of frequencies")]
    pub(super) fn new(form: &Form) -> Self {
        let (low, high) = (height(form.f_min, form.mel_scale), height(form.f_max, form.mel_scale));
        let step = (high - low) / (form.n_mels + 1) as f64;
        let corner = |number: u64| frequency(low + step * number as f64, form.mel_scale);
        let last = form.n_fft / 2;
        // Half of an odd rate is rounded down, as torchaudio does.
        let top = (form.sample_rate / 2) as f64;
        let filter = |number: u64| {
            let [start, middle, end] = [number, number + 1, number + 2].map(corner);
            let scale = match form.norm {
                MelNorm::Off => 1.0,
                MelNorm::Slaney => 2.0 / (end - start),
            };
            let weight = |place: u64| {
                let at = top * place as f64 / last.max(1) as f64;
                let up = (at - start) / (middle - start);
                let down = (end - at) / (end - middle);
                up.min(down).max(0.0) * scale
            };
            let first = (0..=last).find(|place| weight(*place) > 0.0).unwrap_or(0);
            let weights = (first..=last).map(weight).take_while(|weight| *weight > 0.0);
            (usize::try_from(first).unwrap_or(0), weights.collect())
        };
        Self((0..form.n_mels).map(filter).collect())
    }

    /// The number of filters.
    pub(super) const fn count(&self) -> usize {
        self.0.len()
    }

    /// Calls a function with what each filter lets through.
    pub(super) fn for_each(&self, values: &[f64], mut run: impl FnMut(f64)) {
        for (first, weights) in &self.0 {
            run(weights.iter().zip(&values[*first..]).map(|(weight, value)| weight * value).sum());
        }
    }
}

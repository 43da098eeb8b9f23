//! Estimates the daemon's memory for calls of the user's function.

use std::sync::atomic::Ordering;

use super::output_size::OutputSize;
use super::{Output, PythonBody, Returned};
use crate::needs::Reckoning;
use forebay_media::size::Size;

impl PythonBody {
    /// Adds the memory of a call, and replaces the function's inputs by its results. Returns the memory that a sample
    /// holds from its preparation until its bundle has been called.
    pub(crate) fn reckon(&self, reckoning: &mut Reckoning<'_>) -> u64 {
        let held = self.inputs.iter().map(|(field, _)| reckoning.held_bytes(*field));
        // Inputs that are not held are within the sample's bytes.
        let called_bytes = held.fold(reckoning.sample_bytes, u64::saturating_add);
        // During the copy it exists twice.
        reckoning.scratch_bytes = reckoning.scratch_bytes.saturating_add(called_bytes);
        self.inputs.iter().for_each(|(field, _)| reckoning.take(*field));
        for Output { field, returned, size } in &self.outputs {
            let bytes = match size {
                OutputSize::Bytes(bytes) => *bytes,
                OutputSize::Pixels(_) => 0,
                OutputSize::Any(most) => match most.load(Ordering::Relaxed) {
                    0 => called_bytes,
                    most => most,
                },
            };
            let Returned::Image { channels } = returned else {
                reckoning.give(*field, bytes);
                continue;
            };
            let size = match size {
                OutputSize::Pixels(size) => *size,
                OutputSize::Bytes(_) | OutputSize::Any(_) => {
                    let side = (bytes / u64::from(*channels)).isqrt() + 1;
                    let side = u32::try_from(side).unwrap_or(u32::MAX);
                    Size { width: side, height: side }
                }
            };
            reckoning.give_image(*field, size, *channels);
        }
        called_bytes
    }
}

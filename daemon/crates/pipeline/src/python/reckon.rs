//! What calling the user's function takes of the daemon's memory.

use std::sync::atomic::Ordering;

use super::output_size::OutputSize;
use super::{Output, PythonBody, Returned};
use crate::needs::Reckoning;
use crate::size::Size;

impl PythonBody {
    /// Adds up what a call takes, and puts what the function returns in the place of its inputs. Gives what a sample takes
    /// from when it is prepared until its bundle has been called.
    pub(crate) fn reckon(&self, reckoning: &mut Reckoning<'_>) -> u64 {
        let held = self.inputs.iter().map(|(field, _)| reckoning.held_bytes(*field));
        // What is not held lies in the sample's bytes.
        let called_bytes = held.fold(reckoning.sample_bytes, u64::saturating_add);
        // While it is copied it is there twice.
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

//! An image between its file and its row: pending operations, their execution, and writing pixels.

mod pending;
mod pixels;
mod resample;
mod values;

pub(crate) use pending::{ImageTools, PLAIN, PendingImage, PlannedImage};
pub(crate) use values::{ImageFormat, Normalization, PixelValues, check_normalization};

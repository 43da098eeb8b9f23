//! An image between its file and its row: what is pending, how it is carried out, how pixels are written.

mod pending;
mod pixels;
mod resample;
mod values;

pub(crate) use pending::{ImageTools, PLAIN, PendingImage, PlannedImage};
pub(crate) use values::{ImageFormat, Normalization, PixelValues, check_normalization};

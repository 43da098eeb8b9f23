//! The form of an image in its row: layout, and what a byte becomes.

pub(crate) use forebay_protocol::pixel_values::{Normalization, PixelValues};

use forebay_config::ImageLayout;

/// The form of an image in its row.
#[derive(Debug)]
pub(crate) struct ImageFormat {
    pub layout: ImageLayout,
    pub values: PixelValues,
}

/// Checks that there is one mean and one positive deviation a channel; says what is wrong.
pub(crate) fn check_normalization(
    mean: Vec<f64>,
    std: Vec<f64>,
    channels: u8,
) -> Result<Normalization, String> {
    for (name, values) in [("mean", &mean), ("std", &std)] {
        if values.len() != usize::from(channels) {
            return Err(format!(
                "`{name}` must have one number for each of the {channels} channels, not {}",
                values.len()
            ));
        }
    }
    if let Some(zero) = std.iter().find(|value| **value <= 0.0) {
        return Err(format!("`std` must be above 0, not {zero}"));
    }
    Ok(Normalization { mean, std })
}

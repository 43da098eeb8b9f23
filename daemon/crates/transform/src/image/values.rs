//! The format of an image in its row: layout, and the conversion of bytes.

pub(crate) use forebay_protocol::pixel_values::{Normalization, PixelValues};

use forebay_config::ImageLayout;

/// The format of an image in its row.
#[derive(Debug)]
pub(crate) struct ImageFormat {
    pub layout: ImageLayout,
    pub values: PixelValues,
}

/// The maximal level of a channel, which the scale from 0 to 1 maps to 1.
const MAX_BYTE: f64 = 255.0;

/// Checks that there is one mean and one positive deviation per channel, on the scale from 0 to 1; the error states
/// what is wrong. A mean or a deviation above 1 is on the scale of bytes, or a mistake: no image from 0 to 1 has one.
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
    for (name, values) in [("mean", &mean), ("std", &std)] {
        if let Some(large) = values.iter().find(|value| **value > 1.0) {
            return Err(above_one(name, *large, &mean, &std));
        }
    }
    Ok(Normalization { mean, std })
}

/// The error for a mean or a deviation above 1, with a suggestion.
fn above_one(name: &str, large: f64, mean: &[f64], std: &[f64]) -> String {
    let refusal = format!("`{name}` is for values from 0 to 1, so {large} is too large");
    if mean.iter().chain(std).any(|value| *value > MAX_BYTE) {
        return refusal;
    }
    let scaled = |values: &[f64]| {
        let divisor = if values.iter().any(|value| *value > 1.0) { MAX_BYTE } else { 1.0 };
        let values: Vec<f64> =
            values.iter().map(|value| (value / divisor * 1000.0).round() / 1000.0).collect();
        format!("{values:?}")
    };
    format!(
        "{refusal}; did you mean {large}/255 = {:.3}? Write `mean = {}, std = {}`",
        large / MAX_BYTE,
        scaled(mean),
        scaled(std)
    )
}

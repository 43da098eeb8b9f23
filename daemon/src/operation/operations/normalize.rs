//! `normalize`: the image's values become floats, (value / 255 − mean) / std.
//!
//! `mean` and `std` (one number a channel, for values from 0 to 1), `field`. The type is `[output]`'s, float32 by
//! default. The values come from a table when the row is written; operations that compute pixels stand before it.

use crate::config::{ConfigError, Section};
use crate::dataset::Defect;
use crate::operation::contract::{FieldTypes, Operation, Sample};
use crate::operation::image::Normalization;
use crate::order::Draws;

#[derive(Debug)]
struct Normalize;

pub(in crate::operation) fn compile(
    arguments: &mut Section,
    fields: &mut FieldTypes,
) -> Result<Box<dyn Operation>, ConfigError> {
    let mean: Vec<f64> = arguments.require("mean")?;
    let std: Vec<f64> = arguments.require("std")?;
    let (field, image) = fields.decoded_image("normalize", arguments)?;
    if image.normalization.is_some() {
        return Err(
            arguments.error("the image is normalised already; leave the second `normalize` out")
        );
    }
    let channels = image.channels;
    let normalization = check_normalization(mean, std, channels)
        .map_err(|reason| arguments.error(format!("`normalize`: {reason}")))?;
    if let crate::operation::contract::FieldType::Image(image) = &mut fields.fields[field].1 {
        image.normalization = Some(normalization);
    }
    Ok(Box::new(Normalize))
}

/// Checks that there is one mean and one positive deviation a channel; says what is wrong.
pub(in crate::operation) fn check_normalization(
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

impl Operation for Normalize {
    fn run(&self, _sample: &mut Sample<'_, '_>, _draws: &mut Draws) -> Result<(), Defect> {
        Ok(())
    }
}

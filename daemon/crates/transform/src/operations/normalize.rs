//! `normalize`: the image's values become floats, (value / 255 − mean) / std.
//!
//! The type is `[output]`'s, float32 by default. The values come from a table when the row is written; operations that
//! compute pixels must come before it.

use crate::contract::{FieldTypes, Operation, Sample, wide_refusal};
use crate::image::check_normalization;
use forebay_dataset::Defect;
use forebay_keys::{ConfigError, Keys, Section};
use forebay_order::Draws;

#[derive(Debug)]
struct Normalize;

forebay_keys::keys! {
    /// values become floats: (value / 255 − mean) / std
    pub(crate) struct Arguments = "normalize" {
        /// one number a channel, for values from 0 to 1
        pub mean: Vec<f64>, "", required;
        /// one number a channel, above 0, for values from 0 to 1
        pub std: Vec<f64>, "", required;
        /// the field to work on
        pub field: String, "", absent("the only image");
    }
}

pub(crate) fn compile(
    section: &mut Section,
    fields: &mut FieldTypes,
) -> Result<Box<dyn Operation>, ConfigError> {
    let Arguments { mean, std, field } = Arguments::read(section)?;
    let (field, image) = fields.decoded_image("normalize", section, field)?;
    if image.is_wide {
        return Err(section.error(wide_refusal("normalize")));
    }
    if image.normalization.is_some() {
        return Err(
            section.error("the image is normalised already; leave the second `normalize` out")
        );
    }
    let channels = image.channels;
    let normalization = check_normalization(mean, std, channels)
        .map_err(|reason| section.error(format!("`normalize`: {reason}")))?;
    if let crate::contract::FieldType::Image(image) = &mut fields.fields[field].kind {
        image.normalization = Some(normalization);
    }
    Ok(Box::new(Normalize))
}

impl Operation for Normalize {
    fn run(&self, _sample: &mut Sample<'_, '_>, _draws: &mut Draws) -> Result<(), Defect> {
        Ok(())
    }
}

//! `random-horizontal-flip`: mirrors an image left to right, or not.

use crate::arguments::Probability;
use crate::contract::{FieldTypes, Operation, Sample};
use forebay_config::{ConfigError, Keys, Section};
use forebay_order::Draws;
use forebay_source::dataset::Defect;

#[derive(Debug)]
struct RandomHorizontalFlip {
    field: usize,
    probability: f64,
}

forebay_config::keys! {
    /// mirrored left to right, or not
    pub(crate) struct Arguments = "random-horizontal-flip" {
        /// how often
        pub probability: Probability, "", default(0.5);
        /// the field to work on
        pub field: String, "", absent("the only image");
    }
}

pub(crate) fn compile(
    section: &mut Section,
    fields: &mut FieldTypes,
) -> Result<Box<dyn Operation>, ConfigError> {
    let Arguments { probability, field } = Arguments::read(section)?;
    let (field, _) = fields.decoded_image("random-horizontal-flip", section, field)?;
    Ok(Box::new(RandomHorizontalFlip { field, probability }))
}

impl Operation for RandomHorizontalFlip {
    fn run(&self, sample: &mut Sample<'_, '_>, draws: &mut Draws) -> Result<(), Defect> {
        let (image, _) = sample.image(self.field)?;
        if draws.uniform() < self.probability {
            image.geometry.mirror_horizontally();
        }
        Ok(())
    }
}

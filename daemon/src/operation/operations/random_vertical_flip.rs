//! `random-vertical-flip`: mirrors an image top to bottom, or not.
//!
//! `probability` (0.5 by default), `field`.

use crate::config::{ConfigError, Section};
use crate::dataset::Defect;
use crate::operation::arguments::Probability;
use crate::operation::contract::{FieldTypes, Operation, Sample};
use crate::order::Draws;

#[derive(Debug)]
struct RandomVerticalFlip {
    field: usize,
    probability: f64,
}

pub(in crate::operation) fn compile(
    arguments: &mut Section,
    fields: &mut FieldTypes,
) -> Result<Box<dyn Operation>, ConfigError> {
    let Probability(probability) = arguments.take_or("probability", Probability(0.5))?;
    let (field, _) = fields.decoded_image("random-vertical-flip", arguments)?;
    Ok(Box::new(RandomVerticalFlip { field, probability }))
}

impl Operation for RandomVerticalFlip {
    fn run(&self, sample: &mut Sample<'_, '_>, draws: &mut Draws) -> Result<(), Defect> {
        let (image, _) = sample.image(self.field)?;
        if draws.uniform() < self.probability {
            image.geometry.mirror_vertically();
        }
        Ok(())
    }
}

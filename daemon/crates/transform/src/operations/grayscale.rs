//! `grayscale`: an image with one channel, or with three equal ones; `random-grayscale`: applied at random, the number
//! of channels stays.

use crate::arguments::{GreyChannels, Probability};
use crate::augment::grayscale;
use crate::contract::{FieldTypes, Operation, Sample};
use crate::distribution::happens;
use crate::needs::{Reckoning, Remade};
use forebay_dataset::Defect;
use forebay_keys::{ConfigError, Keys, Section};
use forebay_order::Draws;

#[derive(Debug)]
struct Grayscale {
    field: usize,
    /// Number of channels of the result.
    channels: u8,
    probability: Option<f64>,
}

forebay_keys::keys! {
    /// grey
    pub(crate) struct Always = "grayscale" {
        /// of the result
        pub channels: GreyChannels, "", default(1);
        /// the field to work on
        pub field: String, "", absent("the only image");
    }
}

forebay_keys::keys! {
    /// grey with as many channels as before, or not
    pub(crate) struct Random = "random-grayscale" {
        /// how often
        pub probability: Probability, "", default(0.1);
        /// the field to work on
        pub field: String, "", absent("the only image");
    }
}

pub(crate) fn compile_always(
    section: &mut Section,
    fields: &mut FieldTypes,
) -> Result<Box<dyn Operation>, ConfigError> {
    let Always { channels, field } = Always::read(section)?;
    let (field, image) = fields.opaque_image("grayscale", section, field)?;
    image.channels = channels;
    Ok(Box::new(Grayscale { field, channels, probability: None }))
}

pub(crate) fn compile_random(
    section: &mut Section,
    fields: &mut FieldTypes,
) -> Result<Box<dyn Operation>, ConfigError> {
    let Random { probability, field } = Random::read(section)?;
    let (field, image) = fields.opaque_image("random-grayscale", section, field)?;
    let channels = image.channels;
    Ok(Box::new(Grayscale { field, channels, probability: Some(probability) }))
}

impl Operation for Grayscale {
    fn reckon(&self, reckoning: &mut Reckoning<'_>) {
        reckoning.remake(self.field, |size| size, Remade::Bytes);
    }

    fn run(&self, sample: &mut Sample<'_, '_>, draws: &mut Draws) -> Result<(), Defect> {
        let (image, tools) = sample.image(self.field)?;
        if self.probability.is_some_and(|probability| !happens(draws, probability)) {
            return Ok(());
        }
        match (image.channels(), self.channels) {
            (1, 1) => Ok(()),
            (before, channels) => image.remake(image.size(), channels, tools, |from, to| {
                if before == 1 {
                    for (pixel, level) in to.as_chunks_mut::<3>().0.iter_mut().zip(from.bytes) {
                        *pixel = [*level; 3];
                    }
                } else {
                    grayscale(from.bytes, to, channels);
                }
            }),
        }
    }
}

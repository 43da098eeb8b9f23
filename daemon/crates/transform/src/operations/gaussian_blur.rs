//! `gaussian-blur`: with a deviation drawn for each sample.

use crate::arguments::{FilterSize, PositiveRange, Sigma};
use crate::augment::gaussian_blur;
use crate::contract::{FieldTypes, Operation, Sample};
use crate::distribution::between;
use crate::needs::{Reckoning, Remade};
use forebay_dataset::Defect;
use forebay_keys::{ConfigError, Keys, Section};
use forebay_order::Draws;

#[derive(Debug)]
struct GaussianBlur {
    field: usize,
    kernel_size: [u32; 2],
    sigma: PositiveRange,
}

forebay_keys::keys! {
    /// a Gaussian blur; the image is reflected at its edges
    pub(crate) struct Arguments = "gaussian-blur" {
        /// of the filter
        pub kernel_size: FilterSize, "pixels", required;
        /// the deviation in pixels, or its bounds
        pub sigma: Sigma, "pixels", default(PositiveRange { low: 0.1, high: 2.0 });
        /// the field to work on
        pub field: String, "", absent("the only image");
    }
}

pub(crate) fn compile(
    section: &mut Section,
    fields: &mut FieldTypes,
) -> Result<Box<dyn Operation>, ConfigError> {
    let Arguments { kernel_size, sigma, field } = Arguments::read(section)?;
    let (field, _) = fields.image_of_bytes("gaussian-blur", section, field)?;
    Ok(Box::new(GaussianBlur { field, kernel_size, sigma }))
}

impl Operation for GaussianBlur {
    fn reckon(&self, reckoning: &mut Reckoning<'_>) {
        reckoning.remake(self.field, |size| size, Remade::Floats);
    }

    fn run(&self, sample: &mut Sample<'_, '_>, draws: &mut Draws) -> Result<(), Defect> {
        let (image, tools) = sample.image(self.field)?;
        let sigma = between(draws, (self.sigma.low, self.sigma.high));
        let mut pixels = image.pixels(tools)?;
        gaussian_blur(&mut pixels, self.kernel_size, sigma, &mut tools.floats);
        Ok(())
    }
}

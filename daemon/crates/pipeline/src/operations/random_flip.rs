//! `random-horizontal-flip` and `random-vertical-flip`: mirror an image, or not.

use crate::arguments::Probability;
use crate::contract::{FieldTypes, Operation, Sample};
use crate::geometry::Geometry;
use forebay_config::{ConfigError, Keys, Section};
use forebay_order::Draws;
use forebay_source::dataset::Defect;

#[derive(Debug)]
struct RandomFlip {
    field: usize,
    probability: f64,
    mirror: fn(&mut Geometry),
}

macro_rules! flip {
    ($Arguments:ident, $words:literal, $name:literal, $compile:ident, $mirror:path) => {
        forebay_config::keys! {
            #[doc = $words]
            pub(crate) struct $Arguments = $name {
                /// how often
                pub probability: Probability, "", default(0.5);
                /// the field to work on
                pub field: String, "", absent("the only image");
            }
        }

        pub(crate) fn $compile(
            section: &mut Section,
            fields: &mut FieldTypes,
        ) -> Result<Box<dyn Operation>, ConfigError> {
            let $Arguments { probability, field } = $Arguments::read(section)?;
            let (field, _) = fields.decoded_image($name, section, field)?;
            Ok(Box::new(RandomFlip { field, probability, mirror: $mirror }))
        }
    };
}

flip!(
    Horizontal,
    "mirrored left to right, or not",
    "random-horizontal-flip",
    compile_horizontal,
    Geometry::mirror_horizontally
);
flip!(
    Vertical,
    "mirrored top to bottom, or not",
    "random-vertical-flip",
    compile_vertical,
    Geometry::mirror_vertically
);

impl Operation for RandomFlip {
    fn run(&self, sample: &mut Sample<'_, '_>, draws: &mut Draws) -> Result<(), Defect> {
        let (image, _) = sample.image(self.field)?;
        if draws.uniform() < self.probability {
            (self.mirror)(&mut image.geometry);
        }
        Ok(())
    }
}

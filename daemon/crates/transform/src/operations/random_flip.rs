//! `random-horizontal-flip` and `random-vertical-flip`: mirror an image at random.

use crate::arguments::{Pairs, Probability};
use crate::boxes::{Corners, mirrored_horizontally, mirrored_vertically};
use crate::contract::{FieldTypes, Operation, Sample};
use crate::geometry::Geometry;
use crate::keypoints::Place;
use crate::needs::Reckoning;
use crate::shared_fields::SharedFields;
use forebay_dataset::Defect;
use forebay_keys::{ConfigError, Keys, Section};
use forebay_media::size::Size;
use forebay_order::Draws;

#[derive(Debug)]
struct RandomFlip {
    fields: SharedFields,
    probability: f64,
    mirror: fn(&mut Geometry),
    mirror_box: fn(Corners, Size) -> Corners,
    pairs: Vec<[u32; 2]>,
}

macro_rules! flip {
    ($Arguments:ident, $words:literal, $name:literal, $compile:ident, $mirror:path, $mirror_box:path) => {
        forebay_keys::keys! {
            #[doc = $words]
            pub(crate) struct $Arguments = $name {
                /// how often
                pub probability: Probability, "", default(0.5);
                /// the field to work on
                pub field: String, "", absent("the only image");
                /// several fields that share one draw: an image, masks of it, boxes and what belongs to each; instead of `field`
                pub fields: Vec<String>, "", absent("`field` alone");
                /// keypoints in `fields`: which of an object's points, from 0, change places in a mirrored image, such as both eyes; `[]`: none
                pub keypoint_pairs: Pairs, "", absent("`fields` has no keypoints");
            }
        }

        pub(crate) fn $compile(
            section: &mut Section,
            types: &mut FieldTypes,
        ) -> Result<Box<dyn Operation>, ConfigError> {
            let $Arguments { probability, field, fields, keypoint_pairs } =
                $Arguments::read(section)?;
            let fields = SharedFields::of_decoded($name, section, types, (field, fields))?;
            let pairs = fields.mirrored_pairs($name, section, types, keypoint_pairs)?;
            let (mirror, mirror_box) = ($mirror, $mirror_box);
            Ok(Box::new(RandomFlip { fields, probability, mirror, mirror_box, pairs }))
        }
    };
}

flip!(
    Horizontal,
    "mirrored left to right, or not",
    "random-horizontal-flip",
    compile_horizontal,
    Geometry::mirror_horizontally,
    mirrored_horizontally
);
flip!(
    Vertical,
    "mirrored top to bottom, or not",
    "random-vertical-flip",
    compile_vertical,
    Geometry::mirror_vertically,
    mirrored_vertically
);

impl Operation for RandomFlip {
    fn reckon(&self, reckoning: &mut Reckoning<'_>) {
        self.fields.images().for_each(|image| reckoning.mirror(image));
    }

    fn run(&self, sample: &mut Sample<'_, '_>, draws: &mut Draws) -> Result<(), Defect> {
        let size = self.fields.size(sample)?;
        let is_mirrored = draws.uniform() < self.probability;
        if is_mirrored {
            self.fields.each_image(sample, |image, _, _| {
                (self.mirror)(&mut image.geometry);
                Ok(())
            })?;
        }
        // Boxes are clipped and dropped in either case: which ones are kept does not depend on the draw.
        if !is_mirrored {
            return self.fields.each_box(sample, size, |corners| corners);
        }
        let mirror = |corners| (self.mirror_box)(corners, size);
        let place = |[x, y]: Place| {
            let [x, y, ..] = mirror([x, y, x, y]);
            [x, y]
        };
        self.fields.each_box_and_point(sample, size, mirror, place, &self.pairs)
    }
}

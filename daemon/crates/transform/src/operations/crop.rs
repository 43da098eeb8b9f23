//! `center-crop` and `random-crop`: a part of the given size. A smaller image is surrounded by zeros, or by the margins
//! of `random-crop`.

use super::pad::Margin;
use crate::arguments::{Fill, ImageSize, Level};
use crate::augment::{Beyond, Margins};
use crate::boxes::moved;
use crate::contract::{FieldTypes, Operation, PlannedSize, Sample};
use crate::needs::{Reckoning, Remade};
use crate::shared_fields::SharedFields;
use forebay_dataset::Defect;
use forebay_keys::{ConfigError, Keys, Section};
use forebay_order::Draws;

forebay_keys::keys! {
    /// the middle of the image
    pub(crate) struct Center = "center-crop" {
        /// one number, `[height, width]`, or `"bucket"`: the shape of the sample's bucket; small images are zero-padded
        pub size: ImageSize, "pixels", required;
        /// the field to work on
        pub field: String, "", absent("the only image");
        /// several fields that share one draw: an image, masks of it, boxes and what belongs to each; instead of `field`
        pub fields: Vec<String>, "", absent("`field` alone");
    }
}

forebay_keys::keys! {
    /// a part of the image, anywhere
    pub(crate) struct Random = "random-crop" {
        /// one number, `[height, width]`, or `"bucket"`: the shape of the sample's bucket; small images are padded
        pub size: ImageSize, "pixels", required;
        /// margins before the crop: on all sides, `[left and right, top and bottom]`, or `[left, top, right, bottom]`
        pub padding: Margins, "pixels", default(Margins::default(), "none");
        /// the levels of `"constant"` margins
        pub fill: Fill, "", default(vec![0.0]);
        /// the level beyond masks
        pub mask_fill: Level, "", default(0.0);
        /// what margins show; `"reflect"` leaves the edge itself out, `"symmetric"` repeats it
        pub padding_mode: Beyond, "", default(Beyond::Constant);
        /// the field to work on
        pub field: String, "", absent("the only image");
        /// several fields that share one draw: an image, masks of it, boxes and what belongs to each; instead of `field`
        pub fields: Vec<String>, "", absent("`field` alone");
    }
}

#[derive(Debug)]
struct CenterCrop {
    fields: SharedFields,
    size: PlannedSize,
}

pub(crate) fn compile_center(
    section: &mut Section,
    types: &mut FieldTypes,
) -> Result<Box<dyn Operation>, ConfigError> {
    let Center { size, field, fields } = Center::read(section)?;
    let size = size.square_or_exact().check(section, types)?;
    let fields = SharedFields::of_pixels("center-crop", section, types, (field, fields))?;
    fields.set_size(types, |_| Some(size));
    Ok(Box::new(CenterCrop { fields, size }))
}

impl Operation for CenterCrop {
    fn is_planned(&self) -> bool {
        true
    }

    fn reckon(&self, reckoning: &mut Reckoning<'_>) {
        if let Ok(size) = self.size.of(reckoning.bucket) {
            self.fields.images().for_each(|image| reckoning.crop(image, size));
        }
    }

    fn run(&self, sample: &mut Sample<'_, '_>, _draws: &mut Draws) -> Result<(), Defect> {
        let (before, size) = (self.fields.size(sample)?, sample.planned(self.size)?);
        let top = center(before.height, size.height);
        let left = center(before.width, size.width);
        self.fields.each_image(sample, |image, _, _| {
            image.geometry.crop(left, top, size);
            Ok(())
        })?;
        self.fields.each_box(sample, size, |corners| moved(corners, -left, -top))
    }
}

#[derive(Debug)]
struct RandomCrop {
    fields: SharedFields,
    size: PlannedSize,
    padding: Margins,
    margin: Margin,
    most_pixels: u64,
}

pub(crate) fn compile_random(
    section: &mut Section,
    types: &mut FieldTypes,
) -> Result<Box<dyn Operation>, ConfigError> {
    let Random { size, padding, fill, mask_fill, padding_mode, field, fields } =
        Random::read(section)?;
    let size = size.square_or_exact().check(section, types)?;
    let most_pixels = types.limits.pixels;
    let fields = SharedFields::of_pixels("random-crop", section, types, (field, fields))?;
    let margin = Margin::compile(section, types, &fields, (padding_mode, fill, mask_fill))?;
    fields.set_size(types, |_| Some(size));
    Ok(Box::new(RandomCrop { fields, size, padding, margin, most_pixels }))
}

impl Operation for RandomCrop {
    fn reckon(&self, reckoning: &mut Reckoning<'_>) {
        let padded = |size| self.padding.around(size).unwrap_or(size);
        for image in self.fields.images() {
            reckoning.remake(image, padded, Remade::Bytes);
            if let Ok(size) = self.size.of(reckoning.bucket) {
                reckoning.crop(image, size);
            }
        }
    }

    fn run(&self, sample: &mut Sample<'_, '_>, draws: &mut Draws) -> Result<(), Defect> {
        let (before, size) = (self.fields.size(sample)?, sample.planned(self.size)?);
        let padded = self.padding.around(before).unwrap_or(before);
        // torchvision's `pad_if_needed`: the missing pixels of an axis are added on both sides of it.
        let (x, y) = (missing(padded.width, size.width), missing(padded.height, size.height));
        let margins = self.padding.widened(x, y);
        let top = random(draws, padded.height, size.height) + i64::from(y);
        let left = random(draws, padded.width, size.width) + i64::from(x);
        self.fields.each_image(sample, |image, part, tools| {
            self.margin.apply(image, part, margins, self.most_pixels, tools)?;
            image.geometry.crop(left, top, size);
            Ok(())
        })?;
        self.fields.each_box(sample, size, |corners| {
            let padded = moved(corners, margins.left.into(), margins.top.into());
            moved(padded, -left, -top)
        })
    }
}

fn missing(side: u32, crop: u32) -> u32 {
    crop.saturating_sub(side)
}

/// As torchvision's `CenterCrop`: int(round((side − crop) / 2)), half to even.
fn center(side: u32, crop: u32) -> i64 {
    let surplus = i64::from(side) - i64::from(crop);
    if surplus < 0 {
        // torchvision pads (crop − side) // 2 before and the rest after.
        return -(-surplus / 2);
    }
    let half = surplus / 2;
    // x.5 is rounded to the even neighbour.
    if surplus % 2 == 1 && half % 2 == 1 { half + 1 } else { half }
}

/// As torchvision's `RandomCrop(size, pad_if_needed=True)`: a smaller image is first padded with (crop − side) pixels
/// on *both* sides. Relative to the image's own edge.
fn random(draws: &mut Draws, side: u32, crop: u32) -> i64 {
    let padding = i64::from(missing(side, crop));
    let choices = u64::from(side.abs_diff(crop)) + 1;
    i64::try_from(draws.below(choices)).unwrap_or(0) - padding
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_media::test_images::draws;

    #[test]
    fn halves_are_rounded_to_even_and_a_small_image_is_padded_less_before_than_after() {
        let starts: Vec<i64> = (224..=230).map(|side| center(side, 224)).collect();
        assert_eq!(starts, [0, 0, 1, 2, 2, 2, 3]);
        assert_eq!((center(341, 224), center(256, 224)), (58, 16));
        assert_eq!((center(10, 15), center(10, 14), center(10, 11)), (-2, -2, 0));
    }

    #[test]
    fn every_start_is_drawn() {
        let mut draws = draws(0);
        for (side, crop, expected) in [(12, 10, 0..=2), (10, 12, -2..=0), (10, 10, 0..=0)] {
            let mut seen: Vec<i64> = (0..200).map(|_| random(&mut draws, side, crop)).collect();
            seen.sort_unstable();
            seen.dedup();
            assert_eq!(seen, expected.collect::<Vec<i64>>(), "{side} {crop}");
        }
    }
}

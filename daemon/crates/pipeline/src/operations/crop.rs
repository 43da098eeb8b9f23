//! `center-crop` and `random-crop`: a part of the given size. Where the image is smaller, zeros surround it.

use crate::arguments::ImageSize;
use crate::contract::{FieldTypes, Operation, Sample};
use crate::size::Size;
use forebay_config::{ConfigError, Keys, Section};
use forebay_order::Draws;
use forebay_source::dataset::Defect;

#[derive(Debug)]
struct Crop {
    field: usize,
    size: Size,
    /// Where the crop starts on one axis, from the image's side and the crop's; negative where zeros come first.
    start: fn(&mut Draws, u32, u32) -> i64,
}

macro_rules! crop {
    ($Arguments:ident, $words:literal, $name:literal, $compile:ident, $start:path) => {
        forebay_config::keys! {
            #[doc = $words]
            pub(crate) struct $Arguments = $name {
                /// one number or `[height, width]`; small images are zero-padded
                pub size: ImageSize, "pixels", required;
                /// the field to work on
                pub field: String, "", absent("the only image");
            }
        }

        pub(crate) fn $compile(
            section: &mut Section,
            fields: &mut FieldTypes,
        ) -> Result<Box<dyn Operation>, ConfigError> {
            let $Arguments { size, field } = $Arguments::read(section)?;
            let size = size.square_or_exact();
            let (field, image) = fields.image_of_bytes($name, section, field)?;
            image.size = Some(size);
            Ok(Box::new(Crop { field, size, start: $start }))
        }
    };
}

crop!(Center, "the middle of the image", "center-crop", compile_center, center);
crop!(Random, "a part of the image, anywhere", "random-crop", compile_random, random);

impl Operation for Crop {
    fn run(&self, sample: &mut Sample<'_, '_>, draws: &mut Draws) -> Result<(), Defect> {
        let (image, _) = sample.image(self.field)?;
        let before = image.size();
        let top = (self.start)(draws, before.height, self.size.height);
        let left = (self.start)(draws, before.width, self.size.width);
        image.geometry.crop(left, top, self.size);
        Ok(())
    }
}

/// As torchvision's `CenterCrop`: int(round((side − crop) / 2)), half to even.
fn center(_draws: &mut Draws, side: u32, crop: u32) -> i64 {
    let surplus = i64::from(side) - i64::from(crop);
    if surplus < 0 {
        // torchvision pads (crop − side) // 2 before and the rest after.
        return -(-surplus / 2);
    }
    let half = surplus / 2;
    // x.5 goes to the even neighbour.
    if surplus % 2 == 1 && half % 2 == 1 { half + 1 } else { half }
}

/// As torchvision's `RandomCrop(size, pad_if_needed=True)`: a smaller image is first padded with (crop − side) zeros on
/// *both* sides.
fn random(draws: &mut Draws, side: u32, crop: u32) -> i64 {
    let padding = i64::from(crop.saturating_sub(side));
    let choices = u64::from(side.abs_diff(crop)) + 1;
    i64::try_from(draws.below(choices)).unwrap_or(0) - padding
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_images::draws;

    #[test]
    fn halves_go_to_the_even_number_and_a_small_image_is_padded_less_before_than_after() {
        let start = |side, crop| center(&mut draws(0), side, crop);
        let starts: Vec<i64> = (224..=230).map(|side| start(side, 224)).collect();
        assert_eq!(starts, [0, 0, 1, 2, 2, 2, 3]);
        assert_eq!((start(341, 224), start(256, 224)), (58, 16));
        assert_eq!((start(10, 15), start(10, 14), start(10, 11)), (-2, -2, 0));
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

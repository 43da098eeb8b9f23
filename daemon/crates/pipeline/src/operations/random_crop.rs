//! `random-crop`: a part of the given size, anywhere in the image.
//!
//! As torchvision's `RandomCrop(size, pad_if_needed=True)`: where
//! the image is smaller, it is first padded with (crop − side) zeros on *both* sides.

use crate::arguments::ImageSize;
use crate::contract::{FieldTypes, Operation, Sample};
use crate::size::Size;
use forebay_config::{ConfigError, Keys, Section};
use forebay_order::Draws;
use forebay_source::dataset::Defect;

#[derive(Debug)]
struct RandomCrop {
    field: usize,
    size: Size,
}

/// Draws where the crop starts on one axis; negative where zeros come first.
fn draw_start(draws: &mut Draws, side: u32, crop: u32) -> i64 {
    let padding = i64::from(crop.saturating_sub(side));
    let choices = u64::from(side.abs_diff(crop)) + 1;
    i64::try_from(draws.below(choices)).unwrap_or(0) - padding
}

forebay_config::keys! {
    /// a part of the image, anywhere
    pub(crate) struct Arguments = "random-crop" {
        /// one number or `[height, width]`; small images are zero-padded
        pub size: ImageSize, "pixels", required;
        /// the field to work on
        pub field: String, "", absent("the only image");
    }
}

pub(crate) fn compile(
    section: &mut Section,
    fields: &mut FieldTypes,
) -> Result<Box<dyn Operation>, ConfigError> {
    let Arguments { size, field } = Arguments::read(section)?;
    let size = size.square_or_exact();
    let (field, image) = fields.image_of_bytes("random-crop", section, field)?;
    image.size = Some(size);
    Ok(Box::new(RandomCrop { field, size }))
}

impl Operation for RandomCrop {
    fn run(&self, sample: &mut Sample<'_, '_>, draws: &mut Draws) -> Result<(), Defect> {
        let (image, _) = sample.image(self.field)?;
        let before = image.size();
        let top = draw_start(draws, before.height, self.size.height);
        let left = draw_start(draws, before.width, self.size.width);
        image.geometry.crop(left, top, self.size);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_order::DrawKey;

    #[test]
    fn every_start_is_drawn() {
        let mut draws = Draws::new(DrawKey { seed: 0, epoch: 0, sample: 0 }, 0);
        for (side, crop, expected) in [(12, 10, 0..=2), (10, 12, -2..=0), (10, 10, 0..=0)] {
            let mut seen: Vec<i64> = (0..200).map(|_| draw_start(&mut draws, side, crop)).collect();
            seen.sort_unstable();
            seen.dedup();
            assert_eq!(seen, expected.collect::<Vec<i64>>(), "{side} {crop}");
        }
    }
}

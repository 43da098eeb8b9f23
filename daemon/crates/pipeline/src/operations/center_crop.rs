//! `center-crop`: the middle of an image.
//!
//! As torchvision's `CenterCrop`: the crop starts at
//! int(round((side − crop) / 2)), half to even; where the image is smaller, zeros surround it.

use crate::arguments::ImageSize;
use crate::contract::{FieldTypes, Operation, Sample};
use crate::size::Size;
use forebay_config::{ConfigError, Keys, Section};
use forebay_order::Draws;
use forebay_source::dataset::Defect;

#[derive(Debug)]
struct CenterCrop {
    field: usize,
    size: Size,
}

/// Where the crop starts on one axis; negative where zeros come first.
fn start(side: u32, crop: u32) -> i64 {
    let surplus = i64::from(side) - i64::from(crop);
    if surplus < 0 {
        // torchvision pads (crop − side) // 2 before and the rest after.
        return -(-surplus / 2);
    }
    let half = surplus / 2;
    // x.5 goes to the even neighbour.
    if surplus % 2 == 1 && half % 2 == 1 { half + 1 } else { half }
}

forebay_config::keys! {
    /// the middle of the image
    pub(crate) struct Arguments = "center-crop" {
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
    let (field, image) = fields.image_of_bytes("center-crop", section, field)?;
    image.size = Some(size);
    Ok(Box::new(CenterCrop { field, size }))
}

impl Operation for CenterCrop {
    fn run(&self, sample: &mut Sample<'_, '_>, _draws: &mut Draws) -> Result<(), Defect> {
        let (image, _) = sample.image(self.field)?;
        let before = image.size();
        let left = start(before.width, self.size.width);
        let top = start(before.height, self.size.height);
        image.geometry.crop(left, top, self.size);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::start;

    #[test]
    fn halves_go_to_the_even_number() {
        let starts: Vec<i64> = (224..=230).map(|side| start(side, 224)).collect();
        assert_eq!(starts, [0, 0, 1, 2, 2, 2, 3]);
        assert_eq!((start(341, 224), start(256, 224)), (58, 16));
    }

    #[test]
    fn a_small_image_is_padded_less_before_than_after() {
        assert_eq!((start(10, 15), start(10, 14), start(10, 11)), (-2, -2, 0));
    }
}

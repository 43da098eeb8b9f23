//! `resize`: to an exact size, or by the shorter side.
//!
//! With a shorter side, the longer side is int(size · long / short), as in torchvision's `Resize`.

use crate::arguments::{ImageSize, Interpolation};
use crate::boxes::scaled;
use crate::contract::{FieldTypes, Operation, Sample};
use crate::needs::Reckoning;
use crate::shared_fields::SharedFields;
use forebay_dataset::Defect;
use forebay_keys::{ConfigError, Keys, Section};
use forebay_media::size::Size;
use forebay_order::Draws;

#[derive(Debug)]
struct Resize {
    fields: SharedFields,
    size: ImageSize,
    interpolation: Interpolation,
    most_pixels: u64,
}

/// The size of the result; `None` if it would have more than `most_pixels`.
fn resized(wanted: ImageSize, image: Size, most_pixels: u64) -> Option<Size> {
    let side = match wanted {
        ImageSize::Exact(size) => return Some(size),
        ImageSize::Side(side) => side,
    };
    let (short, long) = (image.width.min(image.height), image.width.max(image.height));
    let new_long = u64::from(side) * u64::from(long) / u64::from(short.max(1));
    if new_long * u64::from(side) > most_pixels {
        return None;
    }
    let new_long = u32::try_from(new_long).ok()?;
    Some(if image.width <= image.height {
        Size { width: side, height: new_long }
    } else {
        Size { width: new_long, height: side }
    })
}

forebay_keys::keys! {
    /// to an exact size, or by the shorter side
    pub(crate) struct Arguments = "resize" {
        /// one number: the shorter side; or `[height, width]`
        pub size: ImageSize, "pixels", required;
        /// how pixels between pixels are computed; all but `"nearest"` are antialiased
        pub interpolation: Interpolation, "", default(Interpolation::Bilinear);
        /// the field to work on
        pub field: String, "", absent("the only image");
        /// several fields that share one draw: an image, masks of it, boxes and what belongs to each; instead of `field`
        pub fields: Vec<String>, "", absent("`field` alone");
    }
}

pub(crate) fn compile(
    section: &mut Section,
    types: &mut FieldTypes,
) -> Result<Box<dyn Operation>, ConfigError> {
    let Arguments { size, interpolation, field, fields } = Arguments::read(section)?;
    let most_pixels = types.limits.pixels;
    let fields = SharedFields::of_pixels("resize", section, types, (field, fields))?;
    fields.set_size(types, |before| match size {
        ImageSize::Exact(size) => Some(size),
        ImageSize::Side(_) => before.and_then(|before| resized(size, before, most_pixels)),
    });
    Ok(Box::new(Resize { fields, size, interpolation, most_pixels }))
}

impl Operation for Resize {
    fn is_planned(&self) -> bool {
        true
    }

    fn reckon(&self, reckoning: &mut Reckoning<'_>) {
        for image in self.fields.images() {
            reckoning.resample(image, |before| resized(self.size, before, self.most_pixels));
        }
    }

    fn run(&self, sample: &mut Sample<'_, '_>, _draws: &mut Draws) -> Result<(), Defect> {
        let before = self.fields.size(sample)?;
        let Some(size) = resized(self.size, before, self.most_pixels) else {
            return Err(Defect(format!(
                "resizing {}x{} by the shorter side exceeds limits.pixels ({})",
                before.width, before.height, self.most_pixels
            )));
        };
        self.fields.each_image(sample, |image, part, tools| {
            image.resize(size, part.sampling(self.interpolation), tools)
        })?;
        self.fields.each_box(sample, size, |corners| scaled(corners, before, size))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn longer_side_is_truncated_to_an_integer() {
        let by = |side, width, height| {
            resized(ImageSize::Side(side), Size { width, height }, 178_956_970)
        };
        assert_eq!(by(256, 500, 375), Some(Size { width: 341, height: 256 }));
        assert_eq!(by(256, 375, 500), Some(Size { width: 256, height: 341 }));
        assert_eq!(by(256, 20, 20), Some(Size { width: 256, height: 256 }));
        assert_eq!(by(65_535, 1, 60_000), None);
    }
}

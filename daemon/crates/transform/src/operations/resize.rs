//! `resize`: to an exact size, or by the shorter side.
//!
//! With a shorter side, the longer side is int(size · long / short), as in torchvision's `Resize`. With the shape of a bucket
//! the result covers it, and a crop cuts it to the shape.

use crate::arguments::{ImageSize, Interpolation};
use crate::boxes::scaled;
use crate::bucket::{Bucket, covering};
use crate::contract::{FieldTypes, Operation, PlannedSize, Sample};
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

/// The size of the result; `None` if it would have more than `most_pixels`, or the bucket is not known.
fn resized(
    wanted: ImageSize,
    image: Size,
    most_pixels: u64,
    bucket: Option<Bucket>,
) -> Option<Size> {
    let side = match wanted {
        ImageSize::Exact(size) => return Some(size),
        ImageSize::Bucket => {
            let size = covering(bucket?.size, image);
            let pixels = u64::from(size.width) * u64::from(size.height);
            return (pixels <= most_pixels).then_some(size);
        }
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
        /// one number: the shorter side; `[height, width]`; or `"bucket"`: as small as covers the shape of the sample's bucket, for
        /// a crop with the same size
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
    size.square_or_exact().check(section, types)?;
    let most_pixels = types.limits.pixels;
    let fields = SharedFields::of_pixels("resize", section, types, (field, fields))?;
    fields.set_size(types, |before| match size {
        ImageSize::Exact(size) => Some(PlannedSize::Fixed(size)),
        ImageSize::Side(_) => before
            .and_then(|before| resized(size, before, most_pixels, None))
            .map(PlannedSize::Fixed),
        ImageSize::Bucket => None,
    });
    Ok(Box::new(Resize { fields, size, interpolation, most_pixels }))
}

impl Operation for Resize {
    fn is_planned(&self) -> bool {
        true
    }

    fn reckon(&self, reckoning: &mut Reckoning<'_>) {
        let bucket = reckoning.bucket;
        for image in self.fields.images() {
            reckoning
                .resample(image, |before| resized(self.size, before, self.most_pixels, bucket));
        }
    }

    fn run(&self, sample: &mut Sample<'_, '_>, _draws: &mut Draws) -> Result<(), Defect> {
        let before = self.fields.size(sample)?;
        let bucket = sample.tools.bucket;
        let Some(size) = resized(self.size, before, self.most_pixels, bucket) else {
            let to = match self.size {
                ImageSize::Bucket => {
                    let Size { width, height } = sample.planned(PlannedSize::Bucket)?;
                    format!("to cover {width}x{height}")
                }
                _ => "by the shorter side".to_owned(),
            };
            return Err(Defect(format!(
                "resizing {}x{} {to} exceeds limits.pixels ({})",
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
            resized(ImageSize::Side(side), Size { width, height }, 178_956_970, None)
        };
        assert_eq!(by(256, 500, 375), Some(Size { width: 341, height: 256 }));
        assert_eq!(by(256, 375, 500), Some(Size { width: 256, height: 341 }));
        assert_eq!(by(256, 20, 20), Some(Size { width: 256, height: 256 }));
        assert_eq!(by(65_535, 1, 60_000), None);
    }
}

//! `random-resized-crop`: a part of random area and shape, resized to a fixed size.
//!
//! The distribution is that of torchvision's `RandomResizedCrop.get_params`: ten tries, the ratio log-uniform, then the
//! largest central part of a permitted ratio.

use crate::arguments::{ImageSize, Interpolation, PositiveRange};
use crate::boxes::{cut_out, moved, scaled};
use crate::contract::{FieldTypes, Operation, PlannedSize, Sample};
use crate::keypoints::Place;
use crate::needs::Reckoning;
use crate::shared_fields::SharedFields;
use forebay_dataset::Defect;
use forebay_keys::{ConfigError, Keys, Section};
use forebay_media::size::{Rectangle, Size};
use forebay_order::Draws;

/// Number of tries before the central part is used.
const TRIES: u32 = 10;

#[derive(Debug)]
struct RandomResizedCrop {
    fields: SharedFields,
    size: PlannedSize,
    interpolation: Interpolation,
    shape: CropShape,
}

/// The parameters of the distribution of parts.
#[derive(Debug)]
struct CropShape {
    area: PositiveRange,
    ratio: PositiveRange,
    /// The logarithms of the ratio's bounds.
    log_ratio: (f64, f64),
}

fn between(draws: &mut Draws, low: f64, high: f64) -> f64 {
    low + (high - low) * draws.uniform()
}

/// Python's `int(round(x))` for a non-negative number: half to even.
fn rounded(value: f64) -> u64 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "sides of images, never negative; a float beyond the range saturates"
    )]
    let rounded = value.round_ties_even() as u64;
    rounded
}

impl CropShape {
    fn new(area: PositiveRange, ratio: PositiveRange) -> Self {
        // libm, not the system's logarithm: machines must agree to the last bit.
        let log_ratio = (libm::log(ratio.low), libm::log(ratio.high));
        Self { area, ratio, log_ratio }
    }

    fn draw(&self, image: Size, draws: &mut Draws) -> Rectangle {
        let (width, height) = (u64::from(image.width), u64::from(image.height));
        #[expect(clippy::cast_precision_loss, reason = "at most 2⁵³ pixels by the decoder's limit")]
        let pixels = (width * height) as f64;
        for _ in 0..TRIES {
            let target = pixels * between(draws, self.area.low, self.area.high);
            let ratio = libm::exp(between(draws, self.log_ratio.0, self.log_ratio.1));
            let crop_width = rounded(libm::sqrt(target * ratio));
            let crop_height = rounded(libm::sqrt(target / ratio));
            if (1..=width).contains(&crop_width) && (1..=height).contains(&crop_height) {
                let top = draws.below(height - crop_height + 1);
                let left = draws.below(width - crop_width + 1);
                return rectangle(left, top, crop_width, crop_height);
            }
        }
        let image_ratio = f64::from(image.width) / f64::from(image.height);
        let (crop_width, crop_height) = if image_ratio < self.ratio.low {
            (width, rounded(f64::from(image.width) / self.ratio.low).clamp(1, height))
        } else if image_ratio > self.ratio.high {
            (rounded(f64::from(image.height) * self.ratio.high).clamp(1, width), height)
        } else {
            (width, height)
        };
        rectangle((width - crop_width) / 2, (height - crop_height) / 2, crop_width, crop_height)
    }
}

fn rectangle(left: u64, top: u64, width: u64, height: u64) -> Rectangle {
    // All four are at most a side of the image, which is a u32.
    let narrow = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
    Rectangle { left: narrow(left), top: narrow(top), width: narrow(width), height: narrow(height) }
}

forebay_keys::keys! {
    /// a part of random area and shape, resized
    pub(crate) struct Arguments = "random-resized-crop" {
        /// of the result: one number, `[height, width]`, or `"bucket"`: the shape of the sample's bucket
        pub size: ImageSize, "pixels", required;
        /// the share of the image that the part has
        pub area: PositiveRange, "", default(PositiveRange { low: 0.08, high: 1.0 });
        /// the part's width to its height
        pub ratio: PositiveRange, "", default(PositiveRange { low: 3.0 / 4.0, high: 4.0 / 3.0 }, "`[3/4, 4/3]`");
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
    let Arguments { size, area, ratio, interpolation, field, fields } = Arguments::read(section)?;
    let size = size.square_or_exact().check(section, types)?;
    if area.high > 1.0 {
        let path = section.key_path("area");
        let message = format!("`{path}` must not exceed 1.0 (all of the image), not {}", area.high);
        return Err(section.error_at("area", message));
    }
    let fields = SharedFields::of_pixels("random-resized-crop", section, types, (field, fields))?;
    fields.set_size(types, |_| Some(size));
    let shape = CropShape::new(area, ratio);
    Ok(Box::new(RandomResizedCrop { fields, size, interpolation, shape }))
}

impl Operation for RandomResizedCrop {
    fn is_planned(&self) -> bool {
        true
    }

    fn reckon(&self, reckoning: &mut Reckoning<'_>) {
        let size = self.size.of(reckoning.bucket).ok();
        for image in self.fields.images() {
            reckoning.resample(image, |_| size);
        }
    }

    fn run(&self, sample: &mut Sample<'_, '_>, draws: &mut Draws) -> Result<(), Defect> {
        let size = sample.planned(self.size)?;
        let part = self.shape.draw(self.fields.size(sample)?, draws);
        self.fields.each_image(sample, |image, role, tools| {
            image.geometry.crop(i64::from(part.left), i64::from(part.top), part.size());
            image.resize(size, role.sampling(self.interpolation), tools)
        })?;
        let change = |corners| scaled(cut_out(corners, part), part.size(), size);
        // Not clipped to the part: a point outside of it is dropped.
        let place = |[x, y]: Place| {
            let cut = moved([x, y, x, y], -i64::from(part.left), -i64::from(part.top));
            let [x, y, ..] = scaled(cut, part.size(), size);
            [x, y]
        };
        self.fields.each_box_and_point(sample, size, change, place, &[])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_order::DrawKey;

    fn parts(shape: &CropShape, image: Size, count: u64) -> Vec<Rectangle> {
        (0..count)
            .map(|sample| {
                shape.draw(image, &mut Draws::new(DrawKey { seed: 9, epoch: 0, sample }, 1))
            })
            .collect()
    }

    fn default_shape() -> CropShape {
        CropShape::new(
            PositiveRange { low: 0.08, high: 1.0 },
            PositiveRange { low: 0.75, high: 4.0 / 3.0 },
        )
    }

    #[test]
    fn parts_are_within_the_image_and_their_ranges() {
        let image = Size { width: 500, height: 375 };
        let drawn = parts(&default_shape(), image, 20_000);
        let (mut area_sum, mut log_sum) = (0.0, 0.0);
        for part in &drawn {
            assert!(part.left + part.width <= 500 && part.top + part.height <= 375);
            let area = f64::from(part.width * part.height) / (500.0 * 375.0);
            let ratio = f64::from(part.width) / f64::from(part.height);
            assert!((0.075..=1.0).contains(&area), "{area}");
            assert!((0.73..=1.37).contains(&ratio), "{ratio}");
            area_sum += area;
            log_sum += ratio.ln();
        }
        // 100,000 draws of torchvision 0.29's get_params for this image: a mean area of 0.4324 (deviation 0.216), a
        // mean log ratio of 0.0306 (deviation 0.164). Five standard errors.
        assert!((area_sum / 20_000.0 - 0.4324).abs() < 0.008, "{}", area_sum / 20_000.0);
        assert!((log_sum / 20_000.0 - 0.0306).abs() < 0.006, "{}", log_sum / 20_000.0);
    }

    #[test]
    fn long_strip_yields_its_middle() {
        let image = Size { width: 3000, height: 10 };
        let strict = CropShape::new(
            PositiveRange { low: 1.0, high: 1.0 },
            PositiveRange { low: 0.75, high: 4.0 / 3.0 },
        );
        for part in parts(&strict, image, 50) {
            assert_eq!(part, Rectangle { left: 1493, top: 0, width: 13, height: 10 });
        }
        let point = Size { width: 1, height: 1 };
        for part in parts(&default_shape(), point, 50) {
            assert_eq!(part, Rectangle::whole(point));
        }
    }
}

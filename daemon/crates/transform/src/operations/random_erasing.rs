//! `random-erasing`: fills a part of random area and shape with one colour, or noise.
//!
//! The distribution of parts is that of torchvision's `RandomErasing.make_params`: ten tries, the ratio of height to
//! width log-uniform; if no part fits, the image is unchanged.

use crate::arguments::{AreaShare, Erased, PositiveRange, Probability};
use crate::contract::{FieldTypes, Operation, Sample};
use crate::distribution::{between, happens};
use crate::needs::{Reckoning, Remade};
use forebay_dataset::Defect;
use forebay_keys::{ConfigError, Keys, Section};
use forebay_media::size::{Rectangle, Size};
use forebay_order::Draws;

/// Number of tries before the image is left unchanged.
const TRIES: u32 = 10;
/// Bits of a draw that select a level of noise; a draw has bits for five levels.
const NOISE_BITS: u32 = 12;
/// Mean and deviation of ImageNet's images, by channel, on the scale from 0 to 1; the last is for grey images.
const IMAGENET: [(f64, f64); 4] = [(0.485, 0.229), (0.456, 0.224), (0.406, 0.225), (0.449, 0.226)];

#[derive(Debug)]
struct RandomErasing {
    field: usize,
    probability: f64,
    area: (f64, f64),
    log_ratio: (f64, f64),
    value: Shown,
}

/// The contents of the erased part.
#[derive(Debug)]
enum Shown {
    /// A level for each channel.
    Levels(Vec<u8>),
    /// Tables of equally likely levels, one for each channel.
    Noise(Vec<Vec<u8>>),
}

forebay_keys::keys! {
    /// a part of random area and shape erased, or not
    pub(crate) struct Arguments = "random-erasing" {
        /// how often
        pub probability: Probability, "", default(0.5);
        /// the share of the image that the part has
        pub scale: AreaShare, "", default(PositiveRange { low: 0.02, high: 0.33 });
        /// the part's height to its width
        pub ratio: PositiveRange, "", default(PositiveRange { low: 0.3, high: 3.3 });
        /// what the part shows; `"random"`: noise, normal as ImageNet's pixels
        pub value: Erased, "", default(Erased::Levels(vec![0.0]));
        /// the field to work on
        pub field: String, "", absent("the only image");
    }
}

pub(crate) fn compile(
    section: &mut Section,
    fields: &mut FieldTypes,
) -> Result<Box<dyn Operation>, ConfigError> {
    let Arguments { probability, scale, ratio, value, field } = Arguments::read(section)?;
    let (field, image) = fields.opaque_image("random-erasing", section, field)?;
    let channels = usize::from(image.channels);
    let value = match value {
        Erased::Levels(levels) if levels.len() == 1 || levels.len() == channels => {
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "0 to 255; cut as by torch"
            )]
            let level = |channel: usize| levels[channel.min(levels.len() - 1)] as u8;
            Shown::Levels((0..channels).map(level).collect())
        }
        Erased::Levels(levels) => {
            let (path, found) = (section.key_path("value"), levels.len());
            let message = format!(
                "`{path}` must be one number, or one for each of the {channels} channels, not {found}"
            );
            return Err(section.error_at("value", message));
        }
        Erased::Noise => {
            let statistics = if channels == 1 { &IMAGENET[3..] } else { &IMAGENET[..3] };
            Shown::Noise(statistics.iter().map(|channel| noise_levels(*channel)).collect())
        }
    };
    Ok(Box::new(RandomErasing {
        field,
        probability,
        area: (scale.low, scale.high),
        // libm, not the system's logarithm: machines must agree to the last bit.
        log_ratio: (libm::log(ratio.low), libm::log(ratio.high)),
        value,
    }))
}

/// A table of equally likely levels that approximates a normal distribution, rounded and clamped.
fn noise_levels((mean, deviation): (f64, f64)) -> Vec<u8> {
    let (mean, deviation) = (mean * 255.0, deviation * 255.0);
    let share_up_to = |level: u8| {
        let beyond = f64::from(level) + 0.5 - mean;
        0.5 * (1.0 + libm::erf(beyond / (deviation * std::f64::consts::SQRT_2)))
    };
    let count = 1_u32 << NOISE_BITS;
    let mut level = 0;
    let at_share = |place: u32| {
        let share = (f64::from(place) + 0.5) / f64::from(count);
        while level < u8::MAX && share_up_to(level) < share {
            level += 1;
        }
        level
    };
    (0..count).map(at_share).collect()
}

impl RandomErasing {
    fn draw_part(&self, image: Size, draws: &mut Draws) -> Option<Rectangle> {
        let pixels = f64::from(image.width) * f64::from(image.height);
        (0..TRIES).find_map(|_| {
            let area = pixels * between(draws, self.area);
            let ratio = libm::exp(between(draws, self.log_ratio));
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "not negative; a float beyond the range saturates"
            )]
            let side = |square: f64| libm::sqrt(square).round_ties_even() as u32;
            let (height, width) = (side(area * ratio), side(area / ratio));
            if height >= image.height || width >= image.width {
                return None;
            }
            let mut start = |side: u32, part: u32| {
                u32::try_from(draws.below(u64::from(side - part) + 1)).unwrap_or(0)
            };
            let (top, left) = (start(image.height, height), start(image.width, width));
            Some(Rectangle { left, top, width, height })
        })
    }
}

impl Operation for RandomErasing {
    fn reckon(&self, reckoning: &mut Reckoning<'_>) {
        reckoning.remake(self.field, |size| size, Remade::Bytes);
    }

    fn run(&self, sample: &mut Sample<'_, '_>, draws: &mut Draws) -> Result<(), Defect> {
        let (image, tools) = sample.image(self.field)?;
        if !happens(draws, self.probability) {
            return Ok(());
        }
        let Some(part) = self.draw_part(image.size(), draws) else { return Ok(()) };
        let pixels = image.pixels(tools)?;
        let channels = usize::from(pixels.channels);
        let line_bytes = pixels.size.width as usize * channels;
        let lines = pixels.bytes.chunks_exact_mut(line_bytes);
        let mut noise = Noise { draws, bits: 0, left: 0 };
        for line in lines.skip(part.top as usize).take(part.height as usize) {
            let from = part.left as usize * channels;
            let line = &mut line[from..from + part.width as usize * channels];
            for pixel in line.chunks_exact_mut(channels) {
                match &self.value {
                    Shown::Levels(levels) => pixel.copy_from_slice(levels),
                    Shown::Noise(levels) => {
                        for (byte, levels) in pixel.iter_mut().zip(levels) {
                            *byte = levels[noise.next()];
                        }
                    }
                }
            }
        }
        Ok(())
    }
}

/// Draws indices in a table of levels.
struct Noise<'d> {
    draws: &'d mut Draws,
    bits: u64,
    /// Number of indices left in the bits.
    left: u32,
}

impl Noise<'_> {
    fn next(&mut self) -> usize {
        if self.left == 0 {
            (self.bits, self.left) = (self.draws.next_u64(), u64::BITS / NOISE_BITS);
        }
        let place = self.bits & ((1 << NOISE_BITS) - 1);
        self.bits >>= NOISE_BITS;
        self.left -= 1;
        usize::try_from(place).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_media::test_images::draws;

    fn erasing() -> RandomErasing {
        RandomErasing {
            field: 0,
            probability: 1.0,
            area: (0.02, 0.33),
            log_ratio: (libm::log(0.3), libm::log(3.3)),
            value: Shown::Levels(vec![0]),
        }
    }

    #[test]
    fn parts_are_distributed_as_in_torchvision() {
        let (image, count) = (Size { width: 160, height: 120 }, 40_000);
        let mut draws = draws(5);
        let (mut parts, mut areas, mut ratios, mut places) = (0.0, 0.0, 0.0, 0.0);
        for _ in 0..count {
            let Some(part) = erasing().draw_part(image, &mut draws) else { continue };
            assert!(part.left + part.width <= 160 && part.top + part.height <= 120);
            assert!(part.width < 160 && part.height < 120);
            parts += 1.0;
            areas += f64::from(part.width * part.height) / (160.0 * 120.0);
            ratios += libm::log(f64::from(part.height) / f64::from(part.width));
            places += f64::from(part.left) / f64::from(160 - part.width);
        }
        // Ten tries without a fitting part have a probability below one in a million here.
        assert_eq!(parts, f64::from(count));
        // 60,000 draws of torchvision 0.29's make_params for this image: a mean area of 0.1713 (deviation 0.088), a
        // mean log ratio of -0.0345 (deviation 0.68). Five standard errors of both.
        assert!((areas / parts - 0.1713).abs() < 0.003, "{}", areas / parts);
        assert!((ratios / parts + 0.0345).abs() < 0.022, "{}", ratios / parts);
        assert!((places / parts - 0.5).abs() < 0.008, "{}", places / parts);
    }

    #[test]
    fn noise_is_normal_except_where_it_is_clamped() {
        let levels = noise_levels((0.485, 0.229));
        assert_eq!(levels.len(), 4096);
        let mean = levels.iter().map(|level| f64::from(*level)).sum::<f64>() / 4096.0;
        let square = |level: &u8| (f64::from(*level) - mean).powi(2);
        let deviation = (levels.iter().map(square).sum::<f64>() / 4096.0).sqrt();
        // The normal distribution's 123.7 and 58.4, with 1.7 % of it clamped at 0 and 1.2 % at 255.
        assert!(
            (mean - 123.7).abs() < 0.6 && (56.0..58.4).contains(&deviation),
            "{mean} {deviation}"
        );
        assert!((60..=80).contains(&levels.iter().filter(|level| **level == 0).count()));
    }

    #[test]
    fn draw_yields_five_indices() {
        let mut draws = draws(1);
        let first = draws.clone().next_u64();
        let mut noise = Noise { draws: &mut draws, bits: 0, left: 0 };
        for part in 0..5 {
            assert_eq!(noise.next() as u64, first >> (12 * part) & 0xfff);
        }
    }
}

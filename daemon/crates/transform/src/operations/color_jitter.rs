//! `color-jitter`: brightness, contrast, saturation and hue, each by a separate factor, in random order.

use crate::arguments::{Factors, Hue};
use crate::augment::{adjust_brightness, adjust_contrast, adjust_hue, adjust_saturation};
use crate::contract::{FieldTypes, Operation, Sample};
use crate::distribution::{between, shuffle};
use crate::needs::{Reckoning, Remade};
use forebay_dataset::Defect;
use forebay_keys::{ConfigError, Keys, Section};
use forebay_order::Draws;

/// The neutral values of brightness, contrast, saturation and hue.
const NEUTRAL: [f64; 4] = [1.0, 1.0, 1.0, 0.0];
/// The minimal values.
const LOWEST: [f64; 4] = [0.0, 0.0, 0.0, -0.5];

#[derive(Debug)]
struct ColorJitter {
    field: usize,
    /// The bounds for brightness, contrast, saturation and hue; `None`: unchanged.
    bounds: [Option<(f64, f64)>; 4],
}

forebay_keys::keys! {
    /// brightness, contrast, saturation and hue, in random order
    pub(crate) struct Arguments = "color-jitter" {
        /// one number *b*: a factor from 1 − *b* (at least 0) to 1 + *b*; or the factor's bounds
        pub brightness: Factors, "", absent("unchanged");
        /// as `brightness`
        pub contrast: Factors, "", absent("unchanged");
        /// as `brightness`
        pub saturation: Factors, "", absent("unchanged");
        /// one number *h*: the hue turns by −*h* to *h* of the circle; or the bounds
        pub hue: Hue, "", absent("unchanged");
        /// the field to work on
        pub field: String, "", absent("the only image");
    }
}

pub(crate) fn compile(
    section: &mut Section,
    fields: &mut FieldTypes,
) -> Result<Box<dyn Operation>, ConfigError> {
    let Arguments { brightness, contrast, saturation, hue, field } = Arguments::read(section)?;
    let (field, _) = fields.opaque_image("color-jitter", section, field)?;
    let given = [brightness, contrast, saturation, hue];
    let bounds = std::array::from_fn(|which| {
        let bounds = given[which]?.around(NEUTRAL[which], LOWEST[which]);
        (bounds != (NEUTRAL[which], NEUTRAL[which])).then_some(bounds)
    });
    Ok(Box::new(ColorJitter { field, bounds }))
}

impl Operation for ColorJitter {
    fn reckon(&self, reckoning: &mut Reckoning<'_>) {
        reckoning.remake(self.field, |size| size, Remade::Floats);
    }

    fn run(&self, sample: &mut Sample<'_, '_>, draws: &mut Draws) -> Result<(), Defect> {
        let (image, tools) = sample.image(self.field)?;
        let mut order = [0, 1, 2, 3];
        shuffle(draws, &mut order);
        let amounts = self.bounds.map(|bounds| bounds.map(|bounds| between(draws, bounds)));
        if amounts == [None; 4] {
            return Ok(());
        }
        let mut pixels = image.pixels(tools)?;
        for which in order {
            match (which, amounts[which]) {
                (0, Some(factor)) => adjust_brightness(&mut pixels, factor),
                (1, Some(factor)) => adjust_contrast(&mut pixels, factor),
                (2, Some(factor)) => adjust_saturation(&mut pixels, factor),
                (3, Some(turn)) => adjust_hue(&mut pixels, turn),
                _ => {}
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_media::test_images::draws;

    #[test]
    fn orders_are_equally_frequent() {
        let mut draws = draws(3);
        let mut counts = std::collections::BTreeMap::<[usize; 4], u32>::new();
        for _ in 0..24_000 {
            let mut order = [0, 1, 2, 3];
            shuffle(&mut draws, &mut order);
            *counts.entry(order).or_default() += 1;
        }
        assert_eq!(counts.len(), 24);
        // A thousand each: five standard deviations are 155.
        assert!(counts.values().all(|count| count.abs_diff(1000) < 155), "{counts:?}");
    }
}

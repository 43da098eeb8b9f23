//! `invert`, `posterize`, `solarize`, `equalize`, `autocontrast` and `adjust-sharpness`, each applied at random, like
//! torchvision's `RandomInvert`.

use crate::arguments::{Bits, Factor, Level, Probability};
use crate::augment::{
    Pixels, adjust_sharpness, autocontrast, equalize, invert, posterize, solarize,
};
use crate::contract::{FieldTypes, Operation, Sample};
use crate::distribution::happens;
use crate::needs::{Reckoning, Remade};
use forebay_dataset::Defect;
use forebay_keys::{ConfigError, Keys, Section};
use forebay_order::Draws;

/// Changes the pixels; the last argument is scratch memory for rows.
type Change = dyn Fn(&mut Pixels<&mut [u8]>, &mut Vec<u8>) + Send + Sync;

struct RandomLevels {
    field: usize,
    probability: f64,
    change: Box<Change>,
}

impl std::fmt::Debug for RandomLevels {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("RandomLevels").field("field", &self.field).finish_non_exhaustive()
    }
}

impl Operation for RandomLevels {
    fn reckon(&self, reckoning: &mut Reckoning<'_>) {
        reckoning.remake(self.field, |size| size, Remade::Bytes);
    }

    fn run(&self, sample: &mut Sample<'_, '_>, draws: &mut Draws) -> Result<(), Defect> {
        let (image, tools) = sample.image(self.field)?;
        if happens(draws, self.probability) {
            let mut pixels = image.pixels(tools)?;
            (self.change)(&mut pixels, &mut tools.lines);
        }
        Ok(())
    }
}

/// Defines an operation by its name, its arguments, if any, and its change of the pixels.
macro_rules! random {
    (
        $Arguments:ident, $words:literal, $name:literal, $compile:ident,
        { $($(#[doc = $doc:literal])+ $key:ident: $kind:ty, $unit:literal;)? }, $change:expr
    ) => {
        forebay_keys::keys! {
            #[doc = $words]
            pub(crate) struct $Arguments = $name {
                $($(#[doc = $doc])+ pub $key: $kind, $unit, required;)?
                /// how often
                pub probability: Probability, "", default(0.5);
                /// the field to work on
                pub field: String, "", absent("the only image");
            }
        }

        pub(crate) fn $compile(
            section: &mut Section,
            fields: &mut FieldTypes,
        ) -> Result<Box<dyn Operation>, ConfigError> {
            let $Arguments { $($key,)? probability, field } = $Arguments::read(section)?;
            let (field, _) = fields.opaque_image($name, section, field)?;
            let change: Box<Change> = Box::new($change($($key)?));
            Ok(Box::new(RandomLevels { field, probability, change }))
        }
    };
}

random!(Invert, "the negative, or not", "invert", compile_invert, {}, || {
    |pixels: &mut Pixels<&mut [u8]>, _: &mut Vec<u8>| invert(pixels)
});
random!(
    Posterize,
    "fewer levels, or not: the low bits of each become 0",
    "posterize",
    compile_posterize,
    {
        /// how many bits of 8 are kept
        bits: Bits, "";
    },
    |bits: u32| move |pixels: &mut Pixels<&mut [u8]>, _: &mut Vec<u8>| posterize(pixels, bits)
);
random!(
    Solarize,
    "light levels inverted, or not",
    "solarize",
    compile_solarize,
    {
        /// levels from this upward are inverted
        threshold: Level, "";
    },
    |threshold: f64| move |pixels: &mut Pixels<&mut [u8]>, _: &mut Vec<u8>| solarize(pixels, threshold)
);
random!(
    Equalize,
    "each channel's levels made about equally frequent, or not",
    "equalize",
    compile_equalize,
    {},
    || |pixels: &mut Pixels<&mut [u8]>, _: &mut Vec<u8>| equalize(pixels)
);
random!(
    Autocontrast,
    "each channel stretched from 0 to 255, or not",
    "autocontrast",
    compile_autocontrast,
    {},
    || |pixels: &mut Pixels<&mut [u8]>, _: &mut Vec<u8>| autocontrast(pixels)
);
random!(
    AdjustSharpness,
    "sharper or softer, or not",
    "adjust-sharpness",
    compile_adjust_sharpness,
    {
        /// 0 smooths, 1 changes nothing, 2 sharpens
        sharpness_factor: Factor, "";
    },
    |factor: f64| move |pixels: &mut Pixels<&mut [u8]>, lines: &mut Vec<u8>| {
        adjust_sharpness(pixels, factor, lines)
    }
);

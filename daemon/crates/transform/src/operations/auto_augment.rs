//! `rand-augment`, `trivial-augment-wide`, `auto-augment` and `aug-mix`: transformations chosen for each sample.
//!
//! The transformations, their strengths and the choice are torchvision's.

mod policies;
mod transforms;

use self::policies::Policy;
use self::transforms::Transform::{
    AutoContrast, Brightness, Color, Contrast, Equalize, Identity, Posterize, Rotate, Sharpness,
    ShearX, ShearY, Solarize, TranslateX, TranslateY,
};
use self::transforms::{Reach, Strengths, Transform};
use super::warps::check_fill;
use crate::arguments::{Fill, PositiveNumber};
use crate::augment::Picked;
use crate::contract::{FieldTypes, Operation, Sample};
use crate::distribution::{dirichlet, fill_dirichlet, happens, place};
use crate::image::{ImageTools, PendingImage};
use crate::needs::{Reckoning, Remade};
use forebay_dataset::Defect;
use forebay_keys::{AtLeastOne, ConfigError, Keys, Section};
use forebay_order::Draws;

/// The transformations of `rand-augment` and `trivial-augment-wide`.
const ALL: [Transform; 14] = [
    Identity,
    ShearX,
    ShearY,
    TranslateX,
    TranslateY,
    Rotate,
    Brightness,
    Color,
    Contrast,
    Sharpness,
    Posterize,
    Solarize,
    AutoContrast,
    Equalize,
];
/// The transformations of `aug-mix`: first the ones that its benchmark does not test.
const MIXED: [Transform; 13] = [
    ShearX,
    ShearY,
    TranslateX,
    TranslateY,
    Rotate,
    Posterize,
    Solarize,
    AutoContrast,
    Equalize,
    Brightness,
    Color,
    Contrast,
    Sharpness,
];
/// Number of entries in [`MIXED`] before brightness, colour, contrast and sharpness.
const MIXED_BASE: usize = 9;
/// Number of strengths of `aug-mix`, of which the first `severity` are used.
const MIXED_BINS: u32 = 10;
/// Number of strengths of `auto-augment`.
const POLICY_BINS: u32 = 10;

/// The strengths of RandAugment and AutoAugment.
const fn usual(bins: u32) -> Strengths {
    Strengths {
        shear: 0.3,
        translate: Reach::Share(150.0 / 331.0),
        rotate: 30.0,
        factor: 0.9,
        posterize: (8.0, 4.0),
        bins,
    }
}

/// The common part of all four operations.
#[derive(Debug)]
struct Base {
    field: usize,
    picked: Picked,
    fill: Option<Vec<f64>>,
    strengths: Strengths,
}

impl Base {
    fn compile(
        name: &'static str,
        section: &Section,
        fields: &mut FieldTypes,
        (field, picked, fill): (Option<String>, Picked, Option<Vec<f64>>),
        strengths: Strengths,
    ) -> Result<Self, ConfigError> {
        let (field, image) = fields.opaque_image(name, section, field)?;
        if let Some(fill) = &fill {
            check_fill(fill, image, section)?;
        }
        Ok(Self { field, picked, fill, strengths })
    }

    /// Applies a transformation with the strength of a bin, in either direction.
    fn apply(
        &self,
        transform: Transform,
        bin: impl FnOnce(&mut Draws) -> u32,
        image: &mut PendingImage<'_>,
        draws: &mut Draws,
        tools: &mut ImageTools,
    ) -> Result<(), Defect> {
        let mut strength = 0.0;
        if transform.has_strength() {
            strength = transform.strength(&self.strengths, bin(draws), image.size());
            if transform.is_signed() && happens(draws, 0.5) {
                strength = -strength;
            }
        }
        transform.apply(image, strength, (self.picked, self.fill.as_deref()), tools)
    }
}

/// A count that fits in 32 bits.
fn count(
    section: &Section,
    key: &str,
    given: u64,
    bounds: std::ops::RangeInclusive<u32>,
) -> Result<u32, ConfigError> {
    u32::try_from(given).ok().filter(|count| bounds.contains(count)).ok_or_else(|| {
        let (path, from, to) = (section.key_path(key), bounds.start(), bounds.end());
        let message = format!("`{path}` must be a whole number from {from} to {to}, not {given}");
        section.error_at(key, message)
    })
}

/// Maximal number of transformations per image, and of strengths: far beyond any recipe.
const MOST: u32 = 1000;

forebay_keys::keys! {
    /// transformations of one strength, chosen at random
    pub(crate) struct RandAugment = "rand-augment" {
        /// how many, one after the other
        pub num_ops: u64, "", default(2);
        /// the strength: 0 is the weakest
        pub magnitude: u64, "", default(9);
        /// how many strengths there are
        pub num_magnitude_bins: u64, "", default(31);
        /// what is taken of the pixels around a place
        pub interpolation: Picked, "", default(Picked::Nearest);
        /// the levels beyond the image
        pub fill: Fill, "", absent("black, not mixed at the edge");
        /// the field to work on
        pub field: String, "", absent("the only image");
    }
}

#[derive(Debug)]
struct Rand {
    base: Base,
    num_ops: u32,
    magnitude: u32,
}

pub(crate) fn compile_rand(
    section: &mut Section,
    fields: &mut FieldTypes,
) -> Result<Box<dyn Operation>, ConfigError> {
    let RandAugment { num_ops, magnitude, num_magnitude_bins, interpolation, fill, field } =
        RandAugment::read(section)?;
    let num_ops = count(section, "num_ops", num_ops, 0..=MOST)?;
    let bins = count(section, "num_magnitude_bins", num_magnitude_bins, 2..=MOST)?;
    let magnitude = count(section, "magnitude", magnitude, 0..=bins - 1)?;
    let given = (field, interpolation, fill);
    let base = Base::compile("rand-augment", section, fields, given, usual(bins))?;
    Ok(Box::new(Rand { base, num_ops, magnitude }))
}

impl Operation for Rand {
    fn reckon(&self, reckoning: &mut Reckoning<'_>) {
        reckoning.remake(self.base.field, |size| size, Remade::Floats);
    }

    fn run(&self, sample: &mut Sample<'_, '_>, draws: &mut Draws) -> Result<(), Defect> {
        let (image, tools) = sample.image(self.base.field)?;
        (0..self.num_ops).try_for_each(|_| {
            let transform = ALL[place(draws, ALL.len())];
            self.base.apply(transform, |_| self.magnitude, image, draws, tools)
        })
    }
}

forebay_keys::keys! {
    /// one transformation of any strength
    pub(crate) struct TrivialAugmentWide = "trivial-augment-wide" {
        /// how many strengths there are
        pub num_magnitude_bins: u64, "", default(31);
        /// what is taken of the pixels around a place
        pub interpolation: Picked, "", default(Picked::Nearest);
        /// the levels beyond the image
        pub fill: Fill, "", absent("black, not mixed at the edge");
        /// the field to work on
        pub field: String, "", absent("the only image");
    }
}

#[derive(Debug)]
struct Trivial {
    base: Base,
}

pub(crate) fn compile_trivial(
    section: &mut Section,
    fields: &mut FieldTypes,
) -> Result<Box<dyn Operation>, ConfigError> {
    let TrivialAugmentWide { num_magnitude_bins, interpolation, fill, field } =
        TrivialAugmentWide::read(section)?;
    let bins = count(section, "num_magnitude_bins", num_magnitude_bins, 2..=MOST)?;
    let wide = Strengths {
        shear: 0.99,
        translate: Reach::Pixels(32.0),
        rotate: 135.0,
        factor: 0.99,
        posterize: (8.0, 6.0),
        bins,
    };
    let given = (field, interpolation, fill);
    let base = Base::compile("trivial-augment-wide", section, fields, given, wide)?;
    Ok(Box::new(Trivial { base }))
}

impl Operation for Trivial {
    fn reckon(&self, reckoning: &mut Reckoning<'_>) {
        reckoning.remake(self.base.field, |size| size, Remade::Floats);
    }

    fn run(&self, sample: &mut Sample<'_, '_>, draws: &mut Draws) -> Result<(), Defect> {
        let (image, tools) = sample.image(self.base.field)?;
        let transform = ALL[place(draws, ALL.len())];
        self.base.apply(
            transform,
            |draws| bin(draws, self.base.strengths.bins),
            image,
            draws,
            tools,
        )
    }
}

fn bin(draws: &mut Draws, bins: u32) -> u32 {
    u32::try_from(draws.below(bins.into())).unwrap_or(0)
}

forebay_keys::keys! {
    /// a pair of transformations of a learned policy
    pub(crate) struct AutoAugment = "auto-augment" {
        /// what the policy was learned on
        pub policy: Policy, "", default(Policy::Imagenet);
        /// what is taken of the pixels around a place
        pub interpolation: Picked, "", default(Picked::Nearest);
        /// the levels beyond the image
        pub fill: Fill, "", absent("black, not mixed at the edge");
        /// the field to work on
        pub field: String, "", absent("the only image");
    }
}

#[derive(Debug)]
struct Auto {
    base: Base,
    policy: Policy,
}

pub(crate) fn compile_auto(
    section: &mut Section,
    fields: &mut FieldTypes,
) -> Result<Box<dyn Operation>, ConfigError> {
    let AutoAugment { policy, interpolation, fill, field } = AutoAugment::read(section)?;
    let given = (field, interpolation, fill);
    let base = Base::compile("auto-augment", section, fields, given, usual(POLICY_BINS))?;
    Ok(Box::new(Auto { base, policy }))
}

impl Operation for Auto {
    fn reckon(&self, reckoning: &mut Reckoning<'_>) {
        reckoning.remake(self.base.field, |size| size, Remade::Floats);
    }

    fn run(&self, sample: &mut Sample<'_, '_>, draws: &mut Draws) -> Result<(), Defect> {
        let (image, tools) = sample.image(self.base.field)?;
        let pairs = self.policy.pairs();
        for (transform, probability, bin) in pairs[place(draws, pairs.len())] {
            if happens(draws, probability) {
                self.base.apply(transform, |_| bin, image, draws, tools)?;
            }
        }
        Ok(())
    }
}

forebay_keys::keys! {
    /// a mixture of the image and of several chains of transformations of it
    pub(crate) struct AugMix = "aug-mix" {
        /// the greatest strength that is drawn, of 10
        pub severity: u64, "", default(3);
        /// how many chains
        pub mixture_width: u64, "", default(3);
        /// transformations a chain
        pub chain_depth: AtLeastOne, "", absent("1 to 3, drawn for each");
        /// of the distributions of the shares; 1: all shares are as likely
        pub alpha: PositiveNumber, "", default(1.0);
        /// also brightness, colour, contrast and sharpness
        pub all_ops: bool, "", default(true);
        /// what is taken of the pixels around a place
        pub interpolation: Picked, "", default(Picked::Bilinear);
        /// the levels beyond the image
        pub fill: Fill, "", absent("black, not mixed at the edge");
        /// the field to work on
        pub field: String, "", absent("the only image");
    }
}

#[derive(Debug)]
struct Mix {
    base: Base,
    severity: u32,
    width: usize,
    depth: Option<u32>,
    alpha: f64,
    transforms: &'static [Transform],
}

pub(crate) fn compile_mix(
    section: &mut Section,
    fields: &mut FieldTypes,
) -> Result<Box<dyn Operation>, ConfigError> {
    let AugMix { severity, mixture_width, chain_depth, alpha, all_ops, interpolation, fill, field } =
        AugMix::read(section)?;
    let severity = count(section, "severity", severity, 1..=MIXED_BINS)?;
    let width = count(section, "mixture_width", mixture_width, 1..=MOST)?;
    let depth =
        chain_depth.map(|depth| count(section, "chain_depth", depth, 1..=MOST)).transpose()?;
    let strengths = Strengths {
        translate: Reach::Share(1.0 / 3.0),
        posterize: (4.0, 4.0),
        ..usual(MIXED_BINS)
    };
    let given = (field, interpolation, fill);
    let base = Base::compile("aug-mix", section, fields, given, strengths)?;
    let transforms = if all_ops { &MIXED[..] } else { &MIXED[..MIXED_BASE] };
    Ok(Box::new(Mix { base, severity, width: width as usize, depth, alpha, transforms }))
}

impl Mix {
    /// Adds the chains, each with its share, to `sum`.
    fn add_chains(
        &self,
        image: &PendingImage<'_>,
        shares: &[f64],
        sum: &mut [f32],
        draws: &mut Draws,
        tools: &mut ImageTools,
    ) -> Result<(), Defect> {
        for share in shares {
            let mut chain = image.clone();
            let depth = self.depth.unwrap_or_else(|| 1 + bin(draws, 3));
            for _ in 0..depth {
                let transform = self.transforms[place(draws, self.transforms.len())];
                let severity = |draws: &mut Draws| bin(draws, self.severity);
                self.base.apply(transform, severity, &mut chain, draws, tools)?;
            }
            add(sum, chain.pixels(tools)?.bytes, *share);
            chain.recycle(tools);
        }
        Ok(())
    }
}

/// Adds `share` times the levels.
fn add(sum: &mut [f32], levels: &[u8], share: f64) {
    #[expect(clippy::cast_possible_truncation, reason = "torch mixes in single precision")]
    let share = share as f32;
    for (sum, level) in sum.iter_mut().zip(levels) {
        *sum += f32::from(*level) * share;
    }
}

impl Operation for Mix {
    fn reckon(&self, reckoning: &mut Reckoning<'_>) {
        reckoning.remake(self.base.field, |size| size, Remade::Floats);
    }

    fn run(&self, sample: &mut Sample<'_, '_>, draws: &mut Draws) -> Result<(), Defect> {
        let (image, tools) = sample.image(self.base.field)?;
        let [of_image, of_chains] = dirichlet(draws, self.alpha);
        let mut shares = vec![0.0; self.width];
        fill_dirichlet(draws, self.alpha, &mut shares);
        shares.iter_mut().for_each(|share| *share *= of_chains);
        let mut sum = std::mem::take(&mut tools.floats);
        let original = image.pixels(tools)?;
        sum.clear();
        sum.resize(original.bytes.len(), 0.0);
        add(&mut sum, original.bytes, of_image);
        self.add_chains(image, &shares, &mut sum, draws, tools)?;
        for (level, sum) in image.pixels(tools)?.bytes.iter_mut().zip(&sum) {
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "cut as by torch; the cast saturates"
            )]
            let cut = *sum as u8;
            *level = cut;
        }
        tools.floats = sum;
        Ok(())
    }
}

//! The transformations of automatic augmentations, and their strengths.

use crate::augment::{
    AffineShape, Picked, Projection, adjust_brightness, adjust_contrast, adjust_saturation,
    adjust_sharpness, autocontrast, equalize, inverse_affine, invert, posterize, solarize, warp,
};
use crate::image::{ImageTools, PendingImage};
use forebay_dataset::Defect;
use forebay_media::size::Size;

/// A transformation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Transform {
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
    Invert,
}

/// How far a transformation moves an image at full strength.
#[derive(Debug, Clone, Copy)]
pub(super) enum Reach {
    /// A fraction of the image's side.
    Share(f64),
    Pixels(f64),
}

/// The strengths of transformations, from none to full.
#[derive(Debug)]
pub(super) struct Strengths {
    /// The tangent of the angle.
    pub shear: f64,
    pub translate: Reach,
    /// Degrees.
    pub rotate: f64,
    /// Maximal distance of a factor from 1.
    pub factor: f64,
    /// The bits kept at the lowest strength, and the decrease at full strength.
    pub posterize: (f32, f32),
    /// Number of strengths.
    pub bins: u32,
}

/// Element `bin` of `bins` between two numbers, as in torch's `linspace`: in single precision, from the nearer end,
/// each sum rounded once.
#[expect(clippy::cast_possible_truncation, reason = "torch rounds to single precision")]
fn linspace(start: f64, end: f64, bins: u32, bin: u32) -> f64 {
    let step = f64::from(((end as f32) - (start as f32)) / f64::from(bins - 1) as f32);
    let (start, end) = (f64::from(start as f32), f64::from(end as f32));
    let place = if bin < bins / 2 {
        start + step * f64::from(bin)
    } else {
        end - step * f64::from(bins - 1 - bin)
    };
    f64::from(place as f32)
}

impl Transform {
    /// Whether the strength may be negative.
    pub(super) const fn is_signed(self) -> bool {
        matches!(
            self,
            Self::ShearX
                | Self::ShearY
                | Self::TranslateX
                | Self::TranslateY
                | Self::Rotate
                | Self::Brightness
                | Self::Color
                | Self::Contrast
                | Self::Sharpness
        )
    }

    /// Whether it has a strength.
    pub(super) const fn has_strength(self) -> bool {
        self.is_signed() || matches!(self, Self::Posterize | Self::Solarize)
    }

    /// The strength of a bin for an image of this size.
    pub(super) fn strength(self, strengths: &Strengths, bin: u32, size: Size) -> f64 {
        let up_to = |end: f64| linspace(0.0, end, strengths.bins, bin);
        let reach = |side: u32| match strengths.translate {
            Reach::Share(share) => share * f64::from(side),
            Reach::Pixels(pixels) => pixels,
        };
        match self {
            Self::ShearX | Self::ShearY => up_to(strengths.shear),
            Self::TranslateX => up_to(reach(size.width)),
            Self::TranslateY => up_to(reach(size.height)),
            Self::Rotate => up_to(strengths.rotate),
            Self::Brightness | Self::Color | Self::Contrast | Self::Sharpness => {
                up_to(strengths.factor)
            }
            Self::Posterize => {
                let (weakest, fewer) = strengths.posterize;
                #[expect(clippy::cast_precision_loss, reason = "small counts")]
                let (bin, last) = (bin as f32, (strengths.bins - 1) as f32);
                f64::from((weakest - bin / (last / fewer)).round_ties_even())
            }
            Self::Solarize => linspace(1.0, 0.0, strengths.bins, bin),
            Self::Identity | Self::AutoContrast | Self::Equalize | Self::Invert => 0.0,
        }
    }

    /// Transforms an image. `fill` is the colour outside the image.
    pub(super) fn apply(
        self,
        image: &mut PendingImage<'_>,
        strength: f64,
        (picked, fill): (Picked, Option<&[f64]>),
        tools: &mut ImageTools,
    ) -> Result<(), Defect> {
        let size = image.size();
        let upright = AffineShape {
            angle: 0.0,
            translate: [0.0; 2],
            scale: 1.0,
            shear: [0.0; 2],
            center: [0.0; 2],
        };
        let half = [f64::from(size.width) * -0.5, f64::from(size.height) * -0.5];
        let degrees = || libm::atan(strength).to_degrees();
        let shape = match self {
            // About the upper left corner.
            Self::ShearX => AffineShape { shear: [degrees(), 0.0], center: half, ..upright },
            Self::ShearY => AffineShape { shear: [0.0, degrees()], center: half, ..upright },
            Self::TranslateX => AffineShape { translate: [strength.trunc(), 0.0], ..upright },
            Self::TranslateY => AffineShape { translate: [0.0, strength.trunc()], ..upright },
            Self::Rotate => AffineShape { angle: -strength, ..upright },
            _ => return self.apply_to_levels(image, strength, tools),
        };
        let projection = Projection::Affine(inverse_affine(&shape));
        image.remake(size, image.channels(), tools, |from, to| {
            warp(from, &projection, picked, fill, size, to);
        })
    }

    fn apply_to_levels(
        self,
        image: &mut PendingImage<'_>,
        strength: f64,
        tools: &mut ImageTools,
    ) -> Result<(), Defect> {
        if self == Self::Identity {
            return Ok(());
        }
        let mut pixels = image.pixels(tools)?;
        let factor = 1.0 + strength;
        match self {
            Self::Brightness => adjust_brightness(&mut pixels, factor),
            Self::Color => adjust_saturation(&mut pixels, factor),
            Self::Contrast => adjust_contrast(&mut pixels, factor),
            Self::Sharpness => adjust_sharpness(&mut pixels, factor, &mut tools.lines),
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "0 to 8, a whole number"
            )]
            Self::Posterize => posterize(&mut pixels, strength as u32),
            Self::Solarize => solarize(&mut pixels, 255.0 * strength),
            Self::AutoContrast => autocontrast(&mut pixels),
            Self::Equalize => equalize(&mut pixels),
            Self::Invert => invert(&mut pixels),
            _ => {}
        }
        Ok(())
    }
}

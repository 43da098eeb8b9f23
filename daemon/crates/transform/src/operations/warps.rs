//! `rotate`, `affine` and `perspective`: move the pixels of an image.
//!
//! The distributions are those of torchvision's `RandomRotation`, `RandomAffine` and `RandomPerspective`.

use crate::arguments::{Angles, Fill, Level, Place, PositiveRange, Probability, Shares, Shear};
use crate::augment::{
    AffineShape, Picked, Projection, expanded_size, forward_affine, forward_perspective,
    inverse_affine, perspective, warp,
};
use crate::boxes::{Corners, enclosing};
use crate::contract::{FieldTypes, ImageType, Operation, Sample};
use crate::distribution::{between, happens};
use crate::needs::{Reckoning, Remade};
use crate::shared_fields::{Part, SharedFields};
use forebay_dataset::Defect;
use forebay_keys::{ConfigError, Keys, Section};
use forebay_media::size::Size;
use forebay_order::Draws;

/// The common part of all three operations.
#[derive(Debug)]
struct Filling {
    fields: SharedFields,
    picked: Picked,
    fill: Vec<f64>,
    mask_fill: [f64; 1],
}

/// The arguments `field`, `fields`, `interpolation`, `fill` and `mask_fill`.
type FillingArguments = (Option<String>, Option<Vec<String>>, Picked, Vec<f64>, f64);

impl Filling {
    fn compile(
        name: &'static str,
        section: &Section,
        types: &mut FieldTypes,
        (field, fields, picked, fill, mask_fill): FillingArguments,
    ) -> Result<Self, ConfigError> {
        let fields = SharedFields::of_bytes(name, section, types, (field, fields))?;
        if let Some(image) = fields.image(types) {
            check_fill(&fill, image, section)?;
        }
        Ok(Self { fields, picked, fill, mask_fill: [mask_fill] })
    }

    fn reckon(&self, reckoning: &mut Reckoning<'_>, after: impl Fn(Size) -> Size) {
        self.fields.images().for_each(|image| reckoning.remake(image, &after, Remade::Bytes));
    }

    fn apply(
        &self,
        sample: &mut Sample<'_, '_>,
        size: Size,
        projection: &Projection,
        change: impl Fn(Corners) -> Corners,
    ) -> Result<(), Defect> {
        self.fields.each_image(sample, |image, part, tools| {
            let (picked, fill) = match part {
                Part::Picture => (self.picked, self.fill.as_slice()),
                Part::Mask => (Picked::Nearest, self.mask_fill.as_slice()),
            };
            image.remake(size, image.channels(), tools, |from, to| {
                warp(from, projection, picked, Some(fill), size, to);
            })
        })?;
        self.fields.each_box(sample, size, change)
    }
}

/// Refuses a colour whose number of channels differs from the image's.
pub(super) fn check_fill(
    fill: &[f64],
    image: &ImageType,
    section: &Section,
) -> Result<(), ConfigError> {
    if fill.len() == 1 || fill.len() == usize::from(image.channels) {
        return Ok(());
    }
    let (path, channels) = (section.key_path("fill"), image.channels);
    let message = format!(
        "`{path}` must be one number, or one for each of the {channels} channels, not {}",
        fill.len()
    );
    Err(section.error_at("fill", message))
}

/// Converts a position relative to the upper left corner into one relative to the centre of an image.
fn from_middle(center: Option<[f64; 2]>, size: Size) -> [f64; 2] {
    let half = [f64::from(size.width) * 0.5, f64::from(size.height) * 0.5];
    center.map_or([0.0; 2], |[x, y]| [x - half[0], y - half[1]])
}

forebay_keys::keys! {
    /// rotated
    pub(crate) struct Rotate = "rotate" {
        /// counter-clockwise: one number for both directions, or from and to
        pub degrees: Angles, "degrees", required;
        /// what is taken of the pixels around a place
        pub interpolation: Picked, "", default(Picked::Nearest);
        /// larger, so that the whole rotated image shows
        pub expand: bool, "", default(false);
        /// what it is rotated about, from the left upper corner
        pub center: Place, "pixels", absent("the middle");
        /// the levels beyond the image
        pub fill: Fill, "", default(vec![0.0]);
        /// the level beyond masks
        pub mask_fill: Level, "", default(0.0);
        /// the field to work on
        pub field: String, "", absent("the only image");
        /// several fields that share one draw: an image, masks of it, boxes and what belongs to each; instead of `field`
        pub fields: Vec<String>, "", absent("`field` alone");
    }
}

#[derive(Debug)]
struct Rotation {
    filling: Filling,
    degrees: (f64, f64),
    expand: bool,
    center: Option<[f64; 2]>,
    most_pixels: u64,
}

pub(crate) fn compile_rotate(
    section: &mut Section,
    types: &mut FieldTypes,
) -> Result<Box<dyn Operation>, ConfigError> {
    let Rotate { degrees, interpolation, expand, center, fill, mask_fill, field, fields } =
        Rotate::read(section)?;
    let most_pixels = types.limits.pixels;
    let arguments = (field, fields, interpolation, fill, mask_fill);
    let filling = Filling::compile("rotate", section, types, arguments)?;
    if expand {
        filling.fields.set_size(types, |_| None);
    }
    Ok(Box::new(Rotation { filling, degrees, expand, center, most_pixels }))
}

impl Operation for Rotation {
    fn reckon(&self, reckoning: &mut Reckoning<'_>) {
        // At most the diagonal on each side.
        let sum = |size: Size| size.width.saturating_add(size.height);
        let most = |size| Size { width: sum(size), height: sum(size) };
        let after = |size| if self.expand { most(size) } else { size };
        self.filling.reckon(reckoning, after);
    }

    fn run(&self, sample: &mut Sample<'_, '_>, draws: &mut Draws) -> Result<(), Defect> {
        let before = self.filling.fields.size(sample)?;
        let angle = between(draws, self.degrees);
        let matrix = inverse_affine(&AffineShape {
            angle: -angle,
            translate: [0.0; 2],
            scale: 1.0,
            shear: [0.0; 2],
            center: from_middle(self.center, before),
        });
        let size = match self.expand {
            true if self.center.is_none() => turned_size(angle, &matrix, before),
            true => expanded_size(&matrix, before),
            false => before,
        };
        if u64::from(size.width) * u64::from(size.height) > self.most_pixels {
            return Err(Defect(format!(
                "rotating {}x{} with `expand` exceeds limits.pixels ({})",
                before.width, before.height, self.most_pixels
            )));
        }
        let forward = forward_affine(&matrix, before, self.expand);
        self.filling.apply(sample, size, &Projection::Affine(matrix), |corners| {
            enclosing(corners, &forward)
        })
    }
}

/// The size of an image rotated about its centre. A quarter turn swaps the sides exactly.
fn turned_size(angle: f64, matrix: &[f64; 6], size: Size) -> Size {
    if angle.rem_euclid(180.0) == 90.0 {
        return Size { width: size.height, height: size.width };
    }
    expanded_size(matrix, size)
}

forebay_keys::keys! {
    /// rotated, moved, scaled and sheared
    pub(crate) struct Affine = "affine" {
        /// clockwise: one number for both directions, or from and to
        pub degrees: Angles, "degrees", required;
        /// the largest shares of the width and of the height that it moves by
        pub translate: Shares, "", absent("not moved");
        /// the factor's bounds
        pub scale: PositiveRange, "", absent("not scaled");
        /// along x; four numbers: along x and along y
        pub shear: Shear, "degrees", absent("not sheared");
        /// what is taken of the pixels around a place
        pub interpolation: Picked, "", default(Picked::Nearest);
        /// the levels beyond the image
        pub fill: Fill, "", default(vec![0.0]);
        /// the level beyond masks
        pub mask_fill: Level, "", default(0.0);
        /// what it is rotated about, from the left upper corner
        pub center: Place, "pixels", absent("the middle");
        /// the field to work on
        pub field: String, "", absent("the only image");
        /// several fields that share one draw: an image, masks of it, boxes and what belongs to each; instead of `field`
        pub fields: Vec<String>, "", absent("`field` alone");
    }
}

#[derive(Debug)]
struct RandomAffine {
    filling: Filling,
    degrees: (f64, f64),
    translate: Option<[f64; 2]>,
    scale: Option<PositiveRange>,
    shear: Option<Shear>,
    center: Option<[f64; 2]>,
}

pub(crate) fn compile_affine(
    section: &mut Section,
    types: &mut FieldTypes,
) -> Result<Box<dyn Operation>, ConfigError> {
    let arguments = Affine::read(section)?;
    let Affine { degrees, translate, scale, shear, center, .. } = arguments;
    let Affine { field, fields, interpolation, fill, mask_fill, .. } = arguments;
    let arguments = (field, fields, interpolation, fill, mask_fill);
    let filling = Filling::compile("affine", section, types, arguments)?;
    Ok(Box::new(RandomAffine { filling, degrees, translate, scale, shear, center }))
}

impl RandomAffine {
    fn draw(&self, size: Size, draws: &mut Draws) -> AffineShape {
        let angle = between(draws, self.degrees);
        let sides = [f64::from(size.width), f64::from(size.height)];
        let translate = self.translate.map_or([0.0; 2], |shares| {
            [0, 1].map(|axis| {
                let most = shares[axis] * sides[axis];
                between(draws, (-most, most)).round_ties_even()
            })
        });
        let scale = self.scale.map_or(1.0, |scale| between(draws, (scale.low, scale.high)));
        let shear = self.shear.map_or([0.0; 2], |shear| {
            let x = between(draws, shear.x);
            [x, shear.y.map_or(0.0, |y| between(draws, y))]
        });
        AffineShape { angle, translate, scale, shear, center: from_middle(self.center, size) }
    }
}

impl Operation for RandomAffine {
    fn reckon(&self, reckoning: &mut Reckoning<'_>) {
        self.filling.reckon(reckoning, |size| size);
    }

    fn run(&self, sample: &mut Sample<'_, '_>, draws: &mut Draws) -> Result<(), Defect> {
        let size = self.filling.fields.size(sample)?;
        let matrix = inverse_affine(&self.draw(size, draws));
        let forward = forward_affine(&matrix, size, false);
        self.filling.apply(sample, size, &Projection::Affine(matrix), |corners| {
            enclosing(corners, &forward)
        })
    }
}

forebay_keys::keys! {
    /// seen from aside, or not
    pub(crate) struct Perspective = "perspective" {
        /// how far the corners move inward, of half the image's sides
        pub distortion_scale: Probability, "", default(0.5);
        /// how often
        pub probability: Probability, "", default(0.5);
        /// what is taken of the pixels around a place
        pub interpolation: Picked, "", default(Picked::Bilinear);
        /// the levels beyond the image
        pub fill: Fill, "", default(vec![0.0]);
        /// the level beyond masks
        pub mask_fill: Level, "", default(0.0);
        /// the field to work on
        pub field: String, "", absent("the only image");
        /// several fields that share one draw: an image, masks of it, boxes and what belongs to each; instead of `field`
        pub fields: Vec<String>, "", absent("`field` alone");
    }
}

#[derive(Debug)]
struct RandomPerspective {
    filling: Filling,
    distortion_scale: f64,
    probability: f64,
}

pub(crate) fn compile_perspective(
    section: &mut Section,
    types: &mut FieldTypes,
) -> Result<Box<dyn Operation>, ConfigError> {
    let arguments = Perspective::read(section)?;
    let Perspective { distortion_scale, probability, .. } = arguments;
    let Perspective { field, fields, interpolation, fill, mask_fill, .. } = arguments;
    let arguments = (field, fields, interpolation, fill, mask_fill);
    let filling = Filling::compile("perspective", section, types, arguments)?;
    Ok(Box::new(RandomPerspective { filling, distortion_scale, probability }))
}

/// The new positions of the corners: upper left, upper right, lower right, lower left.
fn draw_corners(size: Size, distortion_scale: f64, draws: &mut Draws) -> [[f64; 2]; 4] {
    // As in torchvision: whole pixels, up to a bound inward.
    let bound = |side: u32| {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "at most half a side"
        )]
        let moved = (distortion_scale * f64::from(side / 2)) as u64;
        moved + 1
    };
    let (width, height) = (bound(size.width), bound(size.height));
    let inward = |draws: &mut Draws, bound: u64| {
        #[expect(clippy::cast_precision_loss, reason = "a side of an image")]
        let pixels = draws.below(bound) as f64;
        pixels
    };
    // The right and lower sides are drawn outward from the innermost position.
    let far = |draws: &mut Draws, side: u32, bound: u64| {
        #[expect(clippy::cast_precision_loss, reason = "a side of an image")]
        let innermost = (u64::from(side) - bound) as f64;
        innermost + inward(draws, bound)
    };
    let left_above = [inward(draws, width), inward(draws, height)];
    let right_above = [far(draws, size.width, width), inward(draws, height)];
    let right_below = [far(draws, size.width, width), far(draws, size.height, height)];
    let left_below = [inward(draws, width), far(draws, size.height, height)];
    [left_above, right_above, right_below, left_below]
}

impl Operation for RandomPerspective {
    fn reckon(&self, reckoning: &mut Reckoning<'_>) {
        self.filling.reckon(reckoning, |size| size);
    }

    fn run(&self, sample: &mut Sample<'_, '_>, draws: &mut Draws) -> Result<(), Defect> {
        let fields = &self.filling.fields;
        let size = fields.size(sample)?;
        if !happens(draws, self.probability) {
            return fields.each_box(sample, size, |corners| corners);
        }
        let to = draw_corners(size, self.distortion_scale, draws);
        let (right, below) = (f64::from(size.width) - 1.0, f64::from(size.height) - 1.0);
        let from = [[0.0, 0.0], [right, 0.0], [right, below], [0.0, below]];
        // If three corners are collinear there is no such projection: the image is unchanged.
        match perspective(from, to) {
            Some(coefficients) => {
                let forward = forward_perspective(&coefficients);
                let projection = Projection::Perspective(coefficients);
                self.filling
                    .apply(sample, size, &projection, |corners| enclosing(corners, &forward))
            }
            None => fields.each_box(sample, size, |corners| corners),
        }
    }
}

#[cfg(test)]
mod tests;

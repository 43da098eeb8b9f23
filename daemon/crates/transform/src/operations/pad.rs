//! `pad`: margins around an image.

use crate::arguments::{Fill, Level};
use crate::augment::{Beyond, Margins, pad};
use crate::boxes::moved;
use crate::contract::{FieldTypes, Operation, PlannedSize, Sample};
use crate::image::{ImageTools, PendingImage};
use crate::needs::{Reckoning, Remade};
use crate::operations::warps::check_fill;
use crate::shared_fields::{Part, SharedFields};
use forebay_dataset::Defect;
use forebay_keys::{ConfigError, Keys, Section};
use forebay_media::size::Size;
use forebay_order::Draws;

/// The contents of margins.
#[derive(Debug)]
pub(super) struct Margin {
    beyond: Beyond,
    fill: Vec<u8>,
    mask_fill: [u8; 1],
}

impl Margin {
    /// The margin described by the arguments `padding_mode`, `fill` and `mask_fill`.
    ///
    /// # Errors
    /// The colour's number of channels differs from the image's, or there are boxes and the image is repeated beyond
    /// its edge: as in torchvision, boxes are not repeated.
    pub(super) fn compile(
        section: &Section,
        types: &FieldTypes,
        fields: &SharedFields,
        (beyond, fill, mask_fill): (Beyond, Vec<f64>, f64),
    ) -> Result<Self, ConfigError> {
        if let Some(image) = fields.image(types) {
            check_fill(&fill, image, section)?;
        }
        let is_black = beyond == Beyond::Constant
            && fill.iter().chain(&[mask_fill]).all(|level| *level == 0.0);
        if fields.has_wide(types) && !is_black {
            let message = "margins of an image of 16 bits are black; leave `padding_mode`, `fill` and `mask_fill` out, or \
                           set `depth = 8` of `decode-image`";
            return Err(section.error(message.to_owned()));
        }
        if fields.has_boxes() && beyond != Beyond::Constant {
            let path = section.key_path("padding_mode");
            let message = format!(
                "`{path}` must be \"constant\" where `fields` names boxes: objects in repeated margins have none"
            );
            return Err(section.error_at("padding_mode", message));
        }
        let level = |level: f64| {
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "0 to 255; cut as by torch"
            )]
            let level = level as u8;
            level
        };
        let fill = fill.into_iter().map(level).collect();
        Ok(Self { beyond, fill, mask_fill: [level(mask_fill)] })
    }

    /// Adds margins to an image. Black ones cost nothing: they are part of its geometry.
    pub(super) fn apply(
        &self,
        image: &mut PendingImage<'_>,
        part: Part,
        margins: Margins,
        most_pixels: u64,
        tools: &mut ImageTools,
    ) -> Result<(), Defect> {
        let before = image.size();
        if margins == Margins::default() {
            return Ok(());
        }
        let fill = match part {
            Part::Picture => self.fill.as_slice(),
            Part::Mask => &self.mask_fill,
        };
        let is_black = self.beyond == Beyond::Constant && fill.iter().all(|level| *level == 0);
        let is_allowed =
            |size: &Size| is_black || u64::from(size.width) * u64::from(size.height) <= most_pixels;
        let Some(size) = margins.around(before).filter(is_allowed) else {
            return Err(Defect(format!(
                "{}x{} with its margins exceeds limits.pixels ({most_pixels})",
                before.width, before.height
            )));
        };
        if is_black {
            image.geometry.crop(-i64::from(margins.left), -i64::from(margins.top), size);
            return Ok(());
        }
        image.remake(size, image.channels(), tools, |from, to| {
            pad(from, margins, self.beyond, fill, to);
        })
    }
}

#[derive(Debug)]
struct Pad {
    fields: SharedFields,
    margins: Margins,
    margin: Margin,
    most_pixels: u64,
}

forebay_keys::keys! {
    /// margins around the image
    pub(crate) struct Arguments = "pad" {
        /// on all sides; `[left and right, top and bottom]`; or `[left, top, right, bottom]`
        pub padding: Margins, "pixels", required;
        /// the levels of `"constant"` margins
        pub fill: Fill, "", default(vec![0.0]);
        /// the level beyond masks
        pub mask_fill: Level, "", default(0.0);
        /// what margins show; `"reflect"` leaves the edge itself out, `"symmetric"` repeats it
        pub padding_mode: Beyond, "", default(Beyond::Constant);
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
    let Arguments { padding: margins, fill, mask_fill, padding_mode, field, fields } =
        Arguments::read(section)?;
    let most_pixels = types.limits.pixels;
    let fields = SharedFields::of_pixels("pad", section, types, (field, fields))?;
    let margin = Margin::compile(section, types, &fields, (padding_mode, fill, mask_fill))?;
    fields.set_size(types, |before| {
        before.and_then(|size| margins.around(size)).map(PlannedSize::Fixed)
    });
    Ok(Box::new(Pad { fields, margins, margin, most_pixels }))
}

impl Operation for Pad {
    fn reckon(&self, reckoning: &mut Reckoning<'_>) {
        let padded = |size| self.margins.around(size).unwrap_or(size);
        self.fields.images().for_each(|image| reckoning.remake(image, padded, Remade::Bytes));
    }

    fn run(&self, sample: &mut Sample<'_, '_>, _draws: &mut Draws) -> Result<(), Defect> {
        let before = self.fields.size(sample)?;
        self.fields.each_image(sample, |image, part, tools| {
            self.margin.apply(image, part, self.margins, self.most_pixels, tools)
        })?;
        let Margins { left, top, .. } = self.margins;
        let after = self.margins.around(before).unwrap_or(before);
        self.fields.each_box(sample, after, |corners| moved(corners, left.into(), top.into()))
    }
}

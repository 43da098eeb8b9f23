//! `pad`: margins around an image.

use crate::arguments::Fill;
use crate::augment::{Beyond, Margins, pad};
use crate::contract::{FieldTypes, Operation, Sample};
use crate::image::{ImageTools, PendingImage};
use crate::needs::{Reckoning, Remade};
use crate::operations::warps::check_fill;
use crate::size::Size;
use forebay_config::{ConfigError, Keys, Section};
use forebay_order::Draws;
use forebay_source::dataset::Defect;

/// What margins show.
#[derive(Debug)]
pub(super) struct Margin {
    beyond: Beyond,
    fill: Vec<u8>,
}

impl Margin {
    pub(super) fn new(beyond: Beyond, fill: &[f64]) -> Self {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "0 to 255; cut as by torch"
        )]
        let fill = fill.iter().map(|level| *level as u8).collect();
        Self { beyond, fill }
    }

    /// Puts margins around an image. Black ones cost nothing: they are part of its geometry.
    pub(super) fn apply(
        &self,
        image: &mut PendingImage<'_>,
        margins: Margins,
        most_pixels: u64,
        tools: &mut ImageTools,
    ) -> Result<(), Defect> {
        let before = image.size();
        if margins == Margins::default() {
            return Ok(());
        }
        let is_black = self.beyond == Beyond::Constant && self.fill.iter().all(|level| *level == 0);
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
            pad(from, margins, self.beyond, &self.fill, to);
        })
    }
}

#[derive(Debug)]
struct Pad {
    field: usize,
    margins: Margins,
    margin: Margin,
    most_pixels: u64,
}

forebay_config::keys! {
    /// margins around the image
    pub(crate) struct Arguments = "pad" {
        /// on all sides; `[left and right, top and bottom]`; or `[left, top, right, bottom]`
        pub padding: Margins, "pixels", required;
        /// the levels of `"constant"` margins
        pub fill: Fill, "", default(vec![0.0]);
        /// what margins show; `"reflect"` leaves the edge itself out, `"symmetric"` repeats it
        pub padding_mode: Beyond, "", default(Beyond::Constant);
        /// the field to work on
        pub field: String, "", absent("the only image");
    }
}

pub(crate) fn compile(
    section: &mut Section,
    fields: &mut FieldTypes,
) -> Result<Box<dyn Operation>, ConfigError> {
    let Arguments { padding: margins, fill, padding_mode, field } = Arguments::read(section)?;
    let most_pixels = fields.limits.pixels;
    let (field, image) = fields.image_of_bytes("pad", section, field)?;
    check_fill(&fill, image, section)?;
    image.size = image.size.and_then(|size| margins.around(size));
    let margin = Margin::new(padding_mode, &fill);
    Ok(Box::new(Pad { field, margins, margin, most_pixels }))
}

impl Operation for Pad {
    fn reckon(&self, reckoning: &mut Reckoning<'_>) {
        reckoning.remake(
            self.field,
            |size| self.margins.around(size).unwrap_or(size),
            Remade::Bytes,
        );
    }

    fn run(&self, sample: &mut Sample<'_, '_>, _draws: &mut Draws) -> Result<(), Defect> {
        let (image, tools) = sample.image(self.field)?;
        self.margin.apply(image, self.margins, self.most_pixels, tools)
    }
}

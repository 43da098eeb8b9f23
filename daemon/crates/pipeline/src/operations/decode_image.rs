//! `decode-image`: an image file becomes an image. The file's first bytes say its format, not its name.
//!
//! With `scaled = "auto"` a JPEG is decoded at 1/2, 1/4 or 1/8 where that is still no smaller than its first resampling
//! makes it. Only the header is read here; the pixels are decoded when the plan's geometry is known.

use crate::arguments::{Channels, Palette, ScaledDecoding};
use crate::contract::{FieldPlan, FieldType, FieldTypes, ImageType, Operation, Sample};
use crate::decode::{Decoders, ImageHeader};
use crate::field::FieldInProgress;
use crate::image::PendingImage;
use crate::needs::Reckoning;
use forebay_config::{ConfigError, Keys, Section};
use forebay_order::Draws;
use forebay_source::dataset::Defect;

#[derive(Debug)]
struct DecodeImage {
    field: usize,
    channels: u8,
    orientation: bool,
    most_pixels: u64,
    scaled: ScaledDecoding,
    palette: Palette,
}

forebay_config::keys! {
    /// an image file becomes an image
    pub(crate) struct Arguments = "decode-image" {
        /// 3 (red, green, blue), 1 (grey) or 4 (with alpha)
        pub channels: Channels, "", default(3);
        /// turn as the EXIF tag says
        pub orientation: bool, "", default(false);
        /// `"auto"`: decode smaller where the result is smaller still; see below
        pub scaled: ScaledDecoding, "", default(ScaledDecoding::Off);
        /// what a PNG with a palette gives: its `"colours"`, or their `"indices"`, as masks of classes have them
        pub palette: Palette, "", default(Palette::Colours);
        /// the field to work on
        pub field: String, "", absent("the only image");
    }
}

pub(crate) fn compile(
    section: &mut Section,
    fields: &mut FieldTypes,
) -> Result<Box<dyn Operation>, ConfigError> {
    let Arguments { channels, orientation, scaled, palette, field } = Arguments::read(section)?;
    if palette == Palette::Indices && channels != 1 {
        let message = "`palette = \"indices\"` gives one number a pixel; set `channels = 1`";
        return Err(section.error_at("palette", message.to_owned()));
    }
    let field = fields.image_field("decode-image", section, field)?;
    let FieldPlan { name, kind, .. } = &mut fields.fields[field];
    if let FieldType::Image(_) = kind {
        return Err(section
            .error(format!("`{name}` is decoded already; leave the second `decode-image` out")));
    }
    let location = section.location().clone();
    *kind = FieldType::Image(ImageType { channels, size: None, normalization: None, location });
    let most_pixels = fields.limits.pixels;
    Ok(Box::new(DecodeImage { field, channels, orientation, most_pixels, scaled, palette }))
}

impl DecodeImage {
    fn header(&self, decoders: &mut Decoders, file: &[u8]) -> Result<ImageHeader, Defect> {
        let header = decoders.read_header(file, self.orientation, self.most_pixels)?;
        Ok(match self.palette {
            Palette::Colours => header,
            Palette::Indices => header.with_indices(),
        })
    }
}

impl Operation for DecodeImage {
    fn reckon(&self, reckoning: &mut Reckoning<'_>) {
        let header = |decoders: &mut Decoders, file: &[u8]| self.header(decoders, file);
        reckoning.decode(self.field, self.channels, header);
    }

    fn run(&self, sample: &mut Sample<'_, '_>, _draws: &mut Draws) -> Result<(), Defect> {
        let field = &mut sample.fields[self.field];
        let FieldInProgress::File(file) = *field else {
            return Err(Defect("`decode-image` found no image file".to_owned()));
        };
        let decoders = &mut sample.tools.image.decoders;
        let header = self.header(decoders, file)?;
        let image = PendingImage::from_file(file, header, self.channels, self.scaled);
        *field = FieldInProgress::Image(image);
        Ok(())
    }
}

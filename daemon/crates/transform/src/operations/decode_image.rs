//! `decode-image`: decodes an image file. Its first bytes determine the format, not its name.
//!
//! With `scaled = "auto"` a JPEG is decoded at 1/2, 1/4 or 1/8 if that is not smaller than the result of its first
//! resampling. Only the header is read here; the pixels are decoded when the plan's geometry is known.

use crate::arguments::{Channels, Depth, Palette, ScaledDecoding};
use crate::contract::{FieldPlan, FieldType, FieldTypes, ImageType, Operation, Sample};
use crate::field::FieldInProgress;
use crate::image::PendingImage;
use crate::needs::Reckoning;
use forebay_dataset::Defect;
use forebay_keys::{ConfigError, Keys, Section};
use forebay_media::decode::{Content, Decoders, ImageHeader};
use forebay_order::Draws;

#[derive(Debug)]
struct DecodeImage {
    field: usize,
    pixel_bytes: u8,
    orientation: bool,
    most_pixels: u64,
    scaled: ScaledDecoding,
    content: Content,
}

forebay_keys::keys! {
    /// an image file becomes an image
    pub(crate) struct Arguments = "decode-image" {
        /// 3 (red, green, blue), 1 (grey) or 4 (with alpha)
        pub channels: Channels, "", default(3);
        /// turn as the EXIF tag says
        pub orientation: bool, "", default(false);
        /// `"auto"`: decode smaller where the result is smaller still; see below
        pub scaled: ScaledDecoding, "", default(ScaledDecoding::Off);
        /// what a file with a palette gives: its `"colours"`, or their `"indices"`, as masks of classes have them
        pub palette: Palette, "", default(Palette::Colours);
        /// bits of a channel: 8, or 16 for levels as PNG and TIFF files of 16 bits have them; see below
        pub depth: Depth, "bits", absent("16 where `[output]` asks for `uint16`, else 8");
        /// the field to work on
        pub field: String, "", absent("the only image");
    }
}

pub(crate) fn compile(
    section: &mut Section,
    fields: &mut FieldTypes,
) -> Result<Box<dyn Operation>, ConfigError> {
    let Arguments { channels, orientation, scaled, palette, depth, field } =
        Arguments::read(section)?;
    if palette == Palette::Indices && channels != 1 {
        let message = "`palette = \"indices\"` gives one number a pixel; set `channels = 1`";
        return Err(section.error_at("palette", message.to_owned()));
    }
    let field = fields.image_field("decode-image", section, field)?;
    let is_output_wide = fields.wide.contains(&fields.fields[field].name);
    let FieldPlan { name, kind, .. } = &mut fields.fields[field];
    if let FieldType::Image(_) = kind {
        return Err(section
            .error(format!("`{name}` is decoded already; leave the second `decode-image` out")));
    }
    let is_wide = depth.map_or(is_output_wide, |depth| depth == 16);
    let content = match (palette, is_wide) {
        (Palette::Colours, false) => Content::Colours,
        (Palette::Colours, true) => Content::Wide,
        (Palette::Indices, false) => Content::Indices,
        (Palette::Indices, true) => {
            let message = "`palette = \"indices\"` gives bytes, and `uint16` is asked for; set `depth = 8`, or leave \
                           `palette` out";
            return Err(section.error(message.to_owned()));
        }
    };
    let location = section.location().clone();
    let normalization = None;
    *kind = FieldType::Image(ImageType {
        channels,
        is_wide,
        size: None,
        video: None,
        normalization,
        location,
    });
    let most_pixels = fields.limits.pixels;
    let pixel_bytes = if is_wide { 2 * channels } else { channels };
    Ok(Box::new(DecodeImage { field, pixel_bytes, orientation, most_pixels, scaled, content }))
}

impl DecodeImage {
    fn header(&self, decoders: &mut Decoders, file: &[u8]) -> Result<ImageHeader, Defect> {
        let header = decoders.read_header(file, self.orientation, self.most_pixels)?;
        header.with_content(self.content)
    }
}

impl Operation for DecodeImage {
    fn reckon(&self, reckoning: &mut Reckoning<'_>) {
        let header = |decoders: &mut Decoders, file: &[u8]| self.header(decoders, file);
        reckoning.decode(self.field, self.pixel_bytes, header);
    }

    fn run(&self, sample: &mut Sample<'_, '_>, _draws: &mut Draws) -> Result<(), Defect> {
        let field = &mut sample.fields[self.field];
        let FieldInProgress::File(file) = *field else {
            return Err(Defect("`decode-image` found no image file".to_owned()));
        };
        let decoders = &mut sample.tools.image.decoders;
        let header = self.header(decoders, file)?;
        let image = PendingImage::from_file(file, header, self.pixel_bytes, self.scaled);
        *field = FieldInProgress::Image(image);
        Ok(())
    }
}

//! `decode-image`: an image file becomes an image. The file's first bytes say its format, not its name.
//!
//! `channels` (3 by default; 1 grey, 4 with alpha), `orientation` (false by default: apply the EXIF tag), `scaled`
//! (`off` by default; `auto`: a JPEG is decoded at 1/2, 1/4 or 1/8 where that is still no smaller than its first
//! resampling makes it), `field`.
//! Only the header is read here; the pixels are decoded when the plan's geometry is known.

use crate::config::{ConfigError, Section};
use crate::dataset::Defect;
use crate::operation::arguments::{Channels, ScaledDecoding};
use crate::operation::contract::{
    FieldInProgress, FieldType, FieldTypes, ImageType, Operation, Sample,
};
use crate::operation::image::PendingImage;
use crate::order::Draws;

#[derive(Debug)]
struct DecodeImage {
    field: usize,
    channels: u8,
    orientation: bool,
    most_pixels: u64,
    scaled: ScaledDecoding,
}

pub(in crate::operation) fn compile(
    arguments: &mut Section,
    fields: &mut FieldTypes,
) -> Result<Box<dyn Operation>, ConfigError> {
    let Channels(channels) = arguments.take_or("channels", Channels(3))?;
    let orientation = arguments.take_or("orientation", false)?;
    let scaled = arguments.take_or("scaled", ScaledDecoding::Off)?;
    let field = fields.image_field("decode-image", arguments)?;
    let (name, kind) = &mut fields.fields[field];
    if let FieldType::Image(_) = kind {
        return Err(arguments
            .error(format!("`{name}` is decoded already; leave the second `decode-image` out")));
    }
    let place = arguments.place().clone();
    *kind = FieldType::Image(ImageType { channels, size: None, normalization: None, place });
    let most_pixels = fields.limits.pixels;
    Ok(Box::new(DecodeImage { field, channels, orientation, most_pixels, scaled }))
}

impl Operation for DecodeImage {
    fn run(&self, sample: &mut Sample<'_, '_>, _draws: &mut Draws) -> Result<(), Defect> {
        let field = &mut sample.fields[self.field];
        let FieldInProgress::File(file) = *field else {
            return Err(Defect("`decode-image` found no image file".to_owned()));
        };
        let header = sample.tools.decoders.read_header(file, self.orientation, self.most_pixels)?;
        let image = PendingImage::from_file(file, header, self.channels, self.scaled);
        *field = FieldInProgress::Image(image);
        Ok(())
    }
}

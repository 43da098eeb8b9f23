//! `decode-video`: decodes the wanted pictures of a video.
//!
//! Motion JPEG is decoded here, as any JPEG file. Everything else is decoded by a helper process, of which the thread waits
//! for the planes; colours are converted here when the plan's geometry is known, so that only the visible part is.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use crate::arguments::ScaledDecoding;
use crate::contract::{FieldType, FieldTypes, ImageType, Operation, Sample, VideoShape};
use crate::field::{FieldInProgress, Tools};
use crate::image::PendingImage;
use crate::needs::Reckoning;
use crate::video::{self, Decoding};
use forebay_dataset::{Defect, FieldKind};
use forebay_keys::{ConfigError, Keys, Section};
use forebay_media::size::Size;
use forebay_media::video::turned;
use forebay_order::Draws;
use forebay_video::clip::Clip;
use forebay_video::codec::{Codec, Rotation};
use forebay_workers::ForeignPool;

/// Bytes of a pixel: red, green and blue.
const CHANNELS: u8 = 3;

#[derive(Debug)]
struct DecodeVideo {
    field: usize,
    shape: VideoShape,
    most_pixels: u64,
    helpers: Arc<ForeignPool>,
}

forebay_keys::keys! {
    /// a video becomes its pictures: operations on images work on each of them, with one draw for all
    pub(crate) struct Arguments = "decode-video" {
        /// the field to work on
        pub field: String, "", absent("the only video");
    }
}

pub(crate) fn compile(
    section: &mut Section,
    fields: &mut FieldTypes,
) -> Result<Box<dyn Operation>, ConfigError> {
    let Arguments { field } = Arguments::read(section)?;
    let field = fields.find("decode-video", section, field, "video", |kind| {
        matches!(kind, FieldType::Raw(FieldKind::Video { .. }))
    })?;
    let name = fields.fields[field].name.clone();
    let FieldType::Raw(FieldKind::Video { clips, frames }) = fields.fields[field].kind else {
        return Err(section.error(format!("`{name}` is decoded already")));
    };
    let Some(frames) = frames else {
        return Err(section.error(format!(
            "the pictures of `{name}` differ in number from sample to sample; give `{name}` a number of `frames`"
        )));
    };
    let shape = VideoShape { clips, frames };
    fields.fields[field].kind = FieldType::Image(ImageType {
        channels: CHANNELS,
        is_wide: false,
        size: None,
        video: Some(shape),
        normalization: None,
        location: section.location().clone(),
    });
    let most_pixels = video::most_pixels(&fields.limits);
    let helpers = fields.decoders.of_videos().map_err(|reason| section.error(reason))?;
    Ok(Box::new(DecodeVideo { field, shape, most_pixels, helpers }))
}

impl Operation for DecodeVideo {
    fn reckon(&self, reckoning: &mut Reckoning<'_>) {
        reckoning.decode_video(self.field);
    }

    fn run(&self, sample: &mut Sample<'_, '_>, _draws: &mut Draws) -> Result<(), Defect> {
        let field = &mut sample.fields[self.field];
        let FieldInProgress::Clip(clip) = std::mem::replace(field, FieldInProgress::Absent) else {
            return Err(Defect("`decode-video` found no video".to_owned()));
        };
        if clip.wanted.len() as u64 != self.shape.pictures() {
            return Err(Defect(format!(
                "it has {} pictures, and {} are expected",
                clip.wanted.len(),
                self.shape.pictures()
            )));
        }
        video::check_size(&clip, self.most_pixels)?;
        let pictures = if clip.codec == Codec::Mjpeg {
            self.of_jpeg_files(&clip, sample.tools)?
        } else {
            let Tools { ending, no_helpers, .. } = &mut *sample.tools;
            let (helpers, most_pixels) = (&self.helpers, self.most_pixels);
            let frames = Decoding { helpers, most_pixels, ending, no_helpers }.run(&clip)?;
            frames.into_iter().map(PendingImage::from_frame).collect()
        };
        sample.fields[self.field] = FieldInProgress::Video(pictures);
        Ok(())
    }
}

impl DecodeVideo {
    /// The pictures of Motion JPEG: each packet is a JPEG file.
    fn of_jpeg_files<'a>(
        &self,
        clip: &Clip<'a>,
        tools: &mut Tools,
    ) -> Result<Vec<PendingImage<'a>>, Defect> {
        let shown = clip.packets.iter().filter(|packet| !packet.discard);
        let packets: HashMap<i64, _> = shown.map(|packet| (packet.pts, packet)).collect();
        let mut pictures = Vec::with_capacity(clip.wanted.len());
        let mut size: Option<Size> = None;
        for wanted in &clip.wanted {
            let Some(packet) = packets.get(wanted) else {
                return Err(Defect("no packet has a wanted picture".to_owned()));
            };
            let file = clip.data.get(packet.range()).unwrap_or_default();
            let header = tools.image.decoders.read_header(file, false, self.most_pixels)?;
            if *size.get_or_insert(header.size()) != header.size() {
                return Err(Defect("its pictures differ in size".to_owned()));
            }
            pictures.push(match (&clip.data, clip.rotation) {
                (Cow::Borrowed(data), Rotation::None) => {
                    let file = data.get(packet.range()).unwrap_or_default();
                    PendingImage::from_file(file, header, CHANNELS, ScaledDecoding::Off)
                }
                _ => {
                    let image =
                        PendingImage::from_file(file, header, CHANNELS, ScaledDecoding::Off);
                    let mut image = image.detach(&mut tools.image)?;
                    let pixels = image.pixels(&mut tools.image)?;
                    let (pixels, size) = turned(pixels.bytes, pixels.size, clip.rotation);
                    PendingImage::from_pixels(pixels, size, CHANNELS)
                }
            });
        }
        Ok(pictures)
    }
}

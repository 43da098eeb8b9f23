//! An image whose decoding and geometry are planned but not yet executed, and the tools that execute them.
//!
//! Decoding is deferred until the result is written, so that only the region that the result depends on is decoded, and
//! crop and resize are one pass. Owns its pixels once they exist; borrows the file before.

use std::sync::Arc;

use super::pixels::{PixelView, write_canvas};
use super::resample::{Given, Resizers, resample, resample_onto_canvas};
use super::values::{ImageFormat, PixelValues};
use crate::arguments::ScaledDecoding;
use crate::augment::Pixels;
use crate::geometry::{Geometry, Sampling};
use forebay_config::ImageLayout;
use forebay_dataset::Defect;
use forebay_media::buffers::prepare;
use forebay_media::decode::{Decoders, ImageHeader};
use forebay_media::reduction::{Reduction, Wanted};
use forebay_media::size::{Rectangle, Size, is_wide};
use forebay_media::video::VideoFrame;

/// The format in which images are carried from stage to stage: unchanged pixels.
pub(crate) const PLAIN: ImageFormat =
    ImageFormat { layout: ImageLayout::Nhwc, values: PixelValues::Bytes };
/// The part that is decoded if no part of the image is visible: the result is all zeros, but a defective file must
/// still be refused.
const ONE_PIXEL: Rectangle = Rectangle { left: 0, top: 0, width: 1, height: 1 };
/// Maximal number of spare buffers of a work thread: enough for the views of an image.
const KEPT_BUFFERS: usize = 12;

/// A work thread's decoders, resizer and scratch memory.
#[derive(Debug, Default)]
pub(crate) struct ImageTools {
    /// Reads headers and decodes.
    pub decoders: Decoders,
    resizers: Resizers,
    decoded: Vec<u8>,
    resampled: Vec<u8>,
    /// For augmentations in single precision.
    pub floats: Vec<f32>,
    /// For rows of pixels that augmentations still need.
    pub lines: Vec<u8>,
    /// Buffers without other references.
    spare: Vec<Arc<Vec<u8>>>,
}

impl ImageTools {
    /// Bytes kept from image to image.
    pub(crate) fn kept_bytes(&self) -> usize {
        let spare: usize = self.spare.iter().map(|buffer| buffer.capacity()).sum();
        let floats = self.floats.capacity() * size_of::<f32>();
        let own = self.decoded.capacity() + self.resampled.capacity() + self.lines.capacity();
        own + floats + spare + self.resizers.kept_bytes() + self.decoders.kept_bytes()
    }

    /// Frees these bytes.
    pub(crate) fn give_back(&mut self) {
        (self.decoded, self.resampled) = (Vec::new(), Vec::new());
        (self.floats, self.lines) = (Vec::new(), Vec::new());
        self.spare.clear();
        self.resizers.give_back();
        self.decoders.give_back();
    }

    fn recycle(&mut self, mut buffer: Arc<Vec<u8>>) {
        let is_alone = Arc::get_mut(&mut buffer).is_some();
        if is_alone && self.spare.len() < KEPT_BUFFERS {
            self.spare.push(buffer);
        }
    }
}

const fn image_bytes(size: Size, channels: u8) -> usize {
    size.width as usize * size.height as usize * channels as usize
}

/// The location of an image's pixels.
#[derive(Debug, Clone)]
enum Source<'a> {
    /// In the file, not decoded.
    File { bytes: &'a [u8], header: ImageHeader, scaled: ScaledDecoding },
    /// A decoded picture of a video, whose colours are converted when they are needed.
    Frame(VideoFrame),
    /// In memory: height × width × channels. Copies of the image share them.
    Pixels(Arc<Vec<u8>>),
    /// The part of the image that its views need together, which they share.
    Part { pixels: Arc<Vec<u8>>, area: Rectangle, reduction: Reduction },
}

impl Source<'_> {
    /// The pixels, once they exist.
    fn pixels(self) -> Option<Arc<Vec<u8>>> {
        match self {
            Self::File { .. } | Self::Frame(_) => None,
            Self::Pixels(pixels) | Self::Part { pixels, .. } => Some(pixels),
        }
    }
}

/// The known properties of an image between two stages while its file is not decoded.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PlannedImage {
    header: ImageHeader,
    channels: u8,
    geometry: Geometry,
}

impl PlannedImage {
    /// The image with its file.
    pub(crate) fn with_file(self, bytes: &[u8]) -> PendingImage<'_> {
        let mut image =
            PendingImage::from_file(bytes, self.header, self.channels, ScaledDecoding::Auto);
        image.geometry = self.geometry;
        image
    }
}

/// An image with pending operations. A clone copies no pixels: several views of an image share its file or its pixels.
#[derive(Debug, Clone)]
pub(crate) struct PendingImage<'a> {
    source: Source<'a>,
    /// The size before the geometry.
    decoded: Size,
    /// Bytes per pixel: one per channel, or two if its levels have 16 bits.
    channels: u8,
    /// The pending geometric operations.
    pub geometry: Geometry,
}

impl<'a> PendingImage<'a> {
    /// An image in a file whose header has been read.
    pub(crate) const fn from_file(
        bytes: &'a [u8],
        header: ImageHeader,
        channels: u8,
        scaled: ScaledDecoding,
    ) -> Self {
        let decoded = header.size();
        Self {
            source: Source::File { bytes, header, scaled },
            decoded,
            channels,
            geometry: Geometry::identity(decoded),
        }
    }

    /// A picture of a video.
    pub(crate) const fn from_frame(frame: VideoFrame) -> Self {
        let decoded = frame.size();
        let geometry = Geometry::identity(decoded);
        Self { source: Source::Frame(frame), decoded, channels: 3, geometry }
    }

    /// An image whose pixels are in memory: height × width × channels.
    pub(crate) fn from_pixels(pixels: Vec<u8>, size: Size, channels: u8) -> Self {
        let source = Source::Pixels(Arc::new(pixels));
        Self { source, decoded: size, channels, geometry: Geometry::identity(size) }
    }

    /// Bytes per pixel: one per channel, or two if its levels have 16 bits.
    pub(crate) const fn channels(&self) -> u8 {
        self.channels
    }

    /// The pending operations and the file, if decoding must wait for the first resampling: the reduction of an image
    /// must not depend on how operations are split into stages.
    pub(crate) const fn planned(&self) -> Option<(PlannedImage, &'a [u8])> {
        match &self.source {
            Source::File { bytes, header, scaled: ScaledDecoding::Auto }
                if self.geometry.resampling.is_none() =>
            {
                let (header, channels, geometry) = (*header, self.channels, self.geometry);
                Some((PlannedImage { header, channels, geometry }, bytes))
            }
            _ => None,
        }
    }

    /// The size of its pixels in bytes, once they exist.
    pub(crate) fn held_bytes(&self) -> usize {
        match &self.source {
            Source::File { .. } => 0,
            Source::Frame(frame) => frame.held_bytes(),
            Source::Pixels(pixels) | Source::Part { pixels, .. } => pixels.len(),
        }
    }

    /// The size of the current result.
    pub(crate) const fn size(&self) -> Size {
        self.geometry.canvas
    }

    /// Plans a resampling; executes the pending operations first if the two cannot be combined.
    pub(crate) fn resize(
        &mut self,
        size: Size,
        sampling: impl Into<Sampling>,
        tools: &mut ImageTools,
    ) -> Result<(), Defect> {
        let sampling = sampling.into();
        if !self.geometry.resize(size, sampling) {
            self.materialise(tools)?;
            let composed = self.geometry.resize(size, sampling);
            debug_assert!(composed, "an image without pending geometry takes any");
        }
        Ok(())
    }

    /// Its pixels, to be changed in place: all pending operations are executed, and no copy of the image shares the
    /// pixels.
    pub(crate) fn pixels(&mut self, tools: &mut ImageTools) -> Result<Pixels<&mut [u8]>, Defect> {
        let is_own =
            matches!(&self.source, Source::Pixels(pixels) if Arc::strong_count(pixels) == 1);
        if !(is_own && self.geometry.is_identity(self.decoded)) {
            self.materialise(tools)?;
        }
        let (size, channels) = (self.decoded, self.channels);
        let bytes = image_bytes(size, channels);
        let Source::Pixels(pixels) = &mut self.source else {
            return Err(Defect("the image was not decoded".to_owned()));
        };
        Ok(Pixels { bytes: &mut Arc::make_mut(pixels)[..bytes], size, channels })
    }

    /// Replaces the image: all pending operations are executed, and `make` fills the pixels of an image of the given
    /// size and channels from the current ones.
    pub(crate) fn remake(
        &mut self,
        size: Size,
        channels: u8,
        tools: &mut ImageTools,
        make: impl FnOnce(&Pixels<&[u8]>, &mut [u8]),
    ) -> Result<(), Defect> {
        let mut result = tools.spare.pop().unwrap_or_default();
        let Pixels { bytes, size: before, channels: channels_before } = self.pixels(tools)?;
        let from = Pixels { bytes: &*bytes, size: before, channels: channels_before };
        make(&from, prepare(Arc::make_mut(&mut result), image_bytes(size, channels)));
        self.replace_source(Source::Pixels(result), tools);
        (self.decoded, self.channels) = (size, channels);
        self.geometry = Geometry::identity(size);
        Ok(())
    }

    /// Executes all pending operations.
    fn materialise(&mut self, tools: &mut ImageTools) -> Result<(), Defect> {
        let size = self.geometry.canvas;
        let mut result = tools.spare.pop().unwrap_or_default();
        let bytes = image_bytes(size, self.channels);
        self.write(&PLAIN, prepare(Arc::make_mut(&mut result), bytes), tools)?;
        self.replace_source(Source::Pixels(result), tools);
        self.decoded = size;
        self.geometry = Geometry::identity(size);
        Ok(())
    }

    fn replace_source(&mut self, source: Source<'a>, tools: &mut ImageTools) {
        if let Some(before) = std::mem::replace(&mut self.source, source).pixels() {
            tools.recycle(before);
        }
    }

    /// Executes the pending operations except for a crop, so that they run once for all views of the image.
    pub(crate) fn settle(&mut self, tools: &mut ImageTools) -> Result<(), Defect> {
        if self.geometry.is_part() { Ok(()) } else { self.materialise(tools) }
    }

    /// Decodes once the part that its planned views need together; does nothing if its pixels are in memory.
    pub(crate) fn decode_for(
        &mut self,
        views: impl Iterator<Item = Geometry> + Clone,
        tools: &mut ImageTools,
    ) -> Result<(), Defect> {
        let Source::File { bytes, header, scaled } = &self.source else { return Ok(()) };
        let allowed = views.clone().map(|view| view.reduction());
        let reduction = match scaled {
            ScaledDecoding::Off => Reduction::NONE,
            ScaledDecoding::Auto => {
                let allowed = allowed.reduce(Reduction::allowed_by_both);
                header.reducible(allowed.unwrap_or(Reduction::NONE))
            }
        };
        let parts = views.map(|view| view.needed_after(reduction)).filter(|part| !part.is_empty());
        let needed = parts.reduce(Rectangle::around).unwrap_or(ONE_PIXEL);
        let channels = self.channels;
        let wanted = Wanted { reduction, channels, needed, in_colour_rows: false };
        let mut pixels = tools.spare.pop().unwrap_or_default();
        let area = tools.decoders.decode(bytes, header, wanted, Arc::make_mut(&mut pixels))?.area;
        self.source = Source::Part { pixels, area, reduction };
        Ok(())
    }

    /// Shares the pixels of the image of which this is a view.
    pub(crate) fn share(&mut self, of: &Self) {
        self.source = of.source.clone();
    }

    /// Executes all pending operations, so that the image no longer needs its file.
    pub(crate) fn detach(
        mut self,
        tools: &mut ImageTools,
    ) -> Result<PendingImage<'static>, Defect> {
        let is_here = matches!(self.source, Source::Pixels(_));
        if !(is_here && self.geometry.is_identity(self.decoded)) {
            self.materialise(tools)?;
        }
        let Source::Pixels(pixels) = self.source else {
            return Err(Defect("the image was not decoded".to_owned()));
        };
        Ok(PendingImage {
            source: Source::Pixels(pixels),
            decoded: self.decoded,
            channels: self.channels,
            geometry: self.geometry,
        })
    }

    /// Executes all pending operations and writes the result.
    ///
    /// # Errors
    /// The file is defective.
    ///
    /// # Panics
    /// If the size of `row` differs from the result's.
    pub(crate) fn write(
        &self,
        format: &ImageFormat,
        row: &mut [u8],
        tools: &mut ImageTools,
    ) -> Result<(), Defect> {
        let geometry = &self.geometry;
        let ImageTools { decoders, resizers, decoded: buffer, resampled, .. } = tools;
        // Whether the bytes fill the row.
        let is_whole = matches!(format.values, PixelValues::Bytes) && !geometry.is_padded();
        let (pixels, decoded, reduction) = match &self.source {
            Source::Pixels(pixels) => {
                (pixels.as_slice(), Rectangle::whole(self.decoded).into(), Reduction::NONE)
            }
            Source::Part { pixels, area, reduction } => {
                (pixels.as_slice(), (*area).into(), *reduction)
            }
            Source::Frame(frame) => {
                let needed = geometry.needed_after(Reduction::NONE);
                let needed = if needed.is_empty() { ONE_PIXEL } else { needed };
                let bytes = image_bytes(needed.size(), self.channels);
                frame.write(needed, prepare(buffer, bytes));
                (buffer.as_slice(), needed.into(), Reduction::NONE)
            }
            Source::File { bytes, header, scaled } => {
                let reduction = match scaled {
                    ScaledDecoding::Off => Reduction::NONE,
                    ScaledDecoding::Auto => header.reducible(geometry.reduction()),
                };
                let mut needed = geometry.needed_after(reduction);
                if needed.is_empty() {
                    needed = ONE_PIXEL;
                }
                let channels = self.channels;
                let in_colour_rows =
                    is_whole && resizers.takes_colour_rows(geometry, reduction, channels);
                let wanted = Wanted { reduction, channels, needed, in_colour_rows };
                let decoded = decoders.decode(bytes, header, wanted, buffer)?;
                (buffer.as_slice(), decoded, reduction)
            }
        };
        if geometry.visible.is_empty() {
            let nothing = PixelView { bytes: &[], pitch_bytes: 0, channels: self.channels };
            write_canvas(nothing, geometry, format, row);
            return Ok(());
        }
        if geometry.resampling.is_none() {
            let area = decoded.area;
            let part = Rectangle {
                left: geometry.source.left + geometry.visible.left - area.left,
                top: geometry.source.top + geometry.visible.top - area.top,
                ..geometry.visible
            };
            let view = PixelView::part(pixels, area.width, part, self.channels);
            write_canvas(view, geometry, format, row);
            return Ok(());
        }
        let from = Given { pixels, decoded, reduction, channels: self.channels };
        let is_planar = format.layout == ImageLayout::Nchw;
        if is_whole && resample_onto_canvas(resizers, &from, geometry, is_planar, row) {
            return Ok(());
        }
        let into_row = is_whole
            && (!is_planar || self.channels == 1)
            && !geometry.flip_horizontally
            && !geometry.flip_vertically
            // With alpha the resizer reads its result again, and a row may only be written.
            && self.channels != 4
            // A row may not be aligned for elements of two bytes.
            && !is_wide(self.channels);
        if into_row {
            return resample(resizers, &from, geometry, row);
        }
        let visible = geometry.visible;
        let pitch_bytes = visible.width as usize * usize::from(self.channels);
        let bytes = prepare(resampled, pitch_bytes * visible.height as usize);
        resample(resizers, &from, geometry, bytes)?;
        let view = PixelView { bytes, pitch_bytes, channels: self.channels };
        write_canvas(view, geometry, format, row);
        Ok(())
    }

    /// Returns the memory to the thread's tools.
    pub(crate) fn recycle(self, tools: &mut ImageTools) {
        if let Some(pixels) = self.source.pixels() {
            tools.recycle(pixels);
        }
    }
}

//! From an image file to pixels: finds the format by the file's first bytes, reads the header, decodes.
//!
//! Pixels are 8-bit, height × width × channels, as Pillow's `open(…).convert("RGB")` (or `"L"`, `"RGBA"`) gives them, or
//! levels of 16 bits as they are stored. A format is one file here, and one line in [`FORMATS`].

mod bmp;
pub(crate) mod colour;
pub(crate) mod exif;
mod format;
mod gif;
mod names;
pub(crate) mod png;
mod tiff;
mod webp;

use std::sync::Arc;

use super::buffers::prepare;
use super::jpeg::{self, JpegDecoder, JpegHeader};
use super::reduction::{Decoded, Reduction, Wanted};
use super::size::{Rectangle, Size};
use exif::Orientation;
use forebay_jpeg_index::JpegIndex;
use forebay_source::dataset::Defect;
pub(crate) use format::Content;
use format::{Form, Format};

/// Beside JPEG, of which parts are decoded.
static FORMATS: [Format; 5] = [png::FORMAT, webp::FORMAT, tiff::FORMAT, bmp::FORMAT, gif::FORMAT];

/// The format, and what its decoder needs of the header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Coding {
    Jpeg(JpegHeader),
    /// By its place in [`FORMATS`].
    Whole(usize),
}

/// What is known of an image before its pixels are decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ImageHeader {
    coding: Coding,
    /// As stored.
    stored: Size,
    /// What turns the stored image into the one that is meant; `AS_STORED` when that was not asked for.
    orientation: Orientation,
    /// What is meant of it.
    content: Content,
}

impl ImageHeader {
    /// The same, of which that is decoded.
    ///
    /// # Errors
    /// It has no such thing.
    pub(crate) fn with_content(self, content: Content) -> Result<Self, Defect> {
        let may_be_wide = match self.coding {
            Coding::Jpeg(_) => false,
            Coding::Whole(format) => FORMATS[format].may_be_wide,
        };
        if content == Content::Wide && !may_be_wide {
            colour::check_wide(8, 1, 1)?;
        }
        Ok(Self { content, ..self })
    }

    /// What a pixel of so many bytes is.
    fn form(&self, pixel_bytes: u8) -> Form {
        let content = self.content;
        let channels = if content == Content::Wide { pixel_bytes / 2 } else { pixel_bytes };
        Form { channels, content }
    }

    /// The size of the decoded image, its orientation applied.
    pub(crate) const fn size(&self) -> Size {
        if self.orientation.swaps_sides() {
            Size { width: self.stored.height, height: self.stored.width }
        } else {
            self.stored
        }
    }

    /// The reduction, or none where the decoder has none or its pixels would no longer lie on the turned image's.
    pub(crate) fn reducible(&self, reduction: Reduction) -> Reduction {
        let can = matches!(self.coding, Coding::Jpeg(header) if header.block_width.is_some())
            && (self.orientation == Orientation::AS_STORED || reduction.divides(self.stored));
        if can { reduction } else { Reduction::NONE }
    }
}

/// The most that decoding to pixels of so many bytes takes: the pixels, and what a decoder holds beside them.
pub(crate) fn decoding_bytes(file: &[u8], header: &ImageHeader, pixel_bytes: u8) -> u64 {
    let area = u64::from(header.stored.width) * u64::from(header.stored.height);
    let pixels = area * u64::from(pixel_bytes);
    let turned = if header.orientation == Orientation::AS_STORED { 0 } else { pixels };
    let beside = match header.coding {
        Coding::Jpeg(jpeg) => jpeg::bytes_beside_pixels(file, &jpeg, pixel_bytes),
        Coding::Whole(format) => {
            (FORMATS[format].bytes_beside_pixels)(file, header.stored, header.form(pixel_bytes))
        }
    };
    pixels.saturating_add(turned).saturating_add(beside)
}

/// A work thread's decoders and their scratch memory.
#[derive(Debug, Default)]
pub(crate) struct Decoders {
    jpeg: JpegDecoder,
    /// What a file holds before its colours or its orientation are converted.
    unconverted: Vec<u8>,
    /// How many pictures were decoded.
    #[cfg(test)]
    pub(crate) count: usize,
}

impl Decoders {
    /// Where what is learned of JPEG files is kept from now on.
    pub(crate) fn use_jpeg_index(&mut self, index: Option<&Arc<JpegIndex>>) {
        self.jpeg.use_index(index);
    }

    /// What it keeps from image to image.
    pub(crate) fn kept_bytes(&self) -> usize {
        self.jpeg.kept_bytes() + self.unconverted.capacity()
    }

    /// Gives that back.
    pub(crate) fn give_back(&mut self) {
        self.jpeg.give_back();
        self.unconverted = Vec::new();
    }

    /// Reads the header of a file of any known format.
    ///
    /// # Errors
    /// The format is unknown, the header is defective, or the image has no pixels or more than `most_pixels`.
    pub(crate) fn read_header(
        &mut self,
        file: &[u8],
        apply_orientation: bool,
        most_pixels: u64,
    ) -> Result<ImageHeader, Defect> {
        let (coding, (stored, tag)) = if let [0xff, 0xd8, 0xff, ..] = file {
            let header = jpeg::read_header(file)?;
            (Coding::Jpeg(header), (header.size, header.orientation))
        } else if let Some(place) = FORMATS.iter().position(|format| (format.begins)(file)) {
            (Coding::Whole(place), (FORMATS[place].read_header)(file, apply_orientation)?)
        } else {
            return Err(Defect(names::unknown_format(file)));
        };
        let pixels = u64::from(stored.width) * u64::from(stored.height);
        if pixels == 0 {
            return Err(Defect(format!(
                "the image has no pixels ({}x{})",
                stored.width, stored.height
            )));
        }
        if pixels > most_pixels {
            return Err(Defect(format!(
                "the image has {pixels} pixels ({}x{}), more than limits.pixels ({most_pixels})",
                stored.width, stored.height
            )));
        }
        let orientation =
            if apply_orientation { Orientation::from_tag(tag) } else { Orientation::AS_STORED };
        Ok(ImageHeader { coding, stored, orientation, content: Content::Colours })
    }

    /// Decodes at least what is wanted of the image into `pixels` (rows without gaps) and returns the part decoded. The
    /// reduction must be one that [`ImageHeader::reducible`] gave.
    ///
    /// # Errors
    /// The file is defective, also where only a part not needed is.
    ///
    /// # Panics
    /// When `wanted.needed` is empty or does not lie in the image.
    pub(crate) fn decode(
        &mut self,
        file: &[u8],
        header: &ImageHeader,
        wanted: Wanted,
        pixels: &mut Vec<u8>,
    ) -> Result<Decoded, Defect> {
        #[cfg(test)]
        {
            self.count += 1;
        }
        if header.orientation != Orientation::AS_STORED {
            let mut stored = std::mem::take(&mut self.unconverted);
            let upright = ImageHeader { orientation: Orientation::AS_STORED, ..*header };
            let Wanted { reduction, channels, .. } = wanted;
            let size = reduction.size(header.stored);
            let whole = Wanted { needed: Rectangle::whole(size), in_colour_rows: false, ..wanted };
            let decoded = self.decode(file, &upright, whole, &mut stored);
            if decoded.is_ok() {
                let bytes = stored_bytes(size, channels);
                let turned = prepare(pixels, bytes);
                header.orientation.apply(&stored[..bytes], size, channels, turned);
            }
            self.unconverted = stored;
            return decoded.map(|_| Rectangle::whole(reduction.size(header.size())).into());
        }
        let format = match header.coding {
            Coding::Jpeg(jpeg) => return self.jpeg.decode(file, &jpeg, wanted, pixels),
            Coding::Whole(format) => &FORMATS[format],
        };
        let form = header.form(wanted.channels);
        (format.decode)(file, header.stored, form, &mut self.unconverted, pixels)?;
        Ok(Rectangle::whole(header.stored).into())
    }

    /// That both JPEG decoders say the same of a file, for the fuzzer.
    ///
    /// # Panics
    /// When they do not.
    pub(crate) fn assert_agreement(&mut self, file: &[u8], header: &ImageHeader, wanted: Wanted) {
        if let (Coding::Jpeg(jpeg), Orientation::AS_STORED) = (header.coding, header.orientation) {
            let _ = self.jpeg.decode_twice(file, &jpeg, wanted);
        }
    }
}

const fn stored_bytes(size: Size, channels: u8) -> usize {
    size.width as usize * size.height as usize * channels as usize
}

#[cfg(test)]
mod tests;

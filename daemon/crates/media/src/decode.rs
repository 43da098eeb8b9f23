//! Decodes image files to pixels: finds the format by the file's first bytes, reads the header, decodes.
//!
//! Pixels are 8-bit, height × width × channels, equal to Pillow's `open(…).convert("RGB")` (or `"L"`, `"RGBA"`), or
//! levels of 16 bits as stored. Each format is one file here, and one line in [`FORMATS`].

mod bmp;
pub mod colour;
pub mod exif;
mod format;
mod gif;
mod mask;
mod names;
pub mod png;
mod tiff;
mod webp;

use std::sync::Arc;

use super::buffers::prepare;
use super::jpeg::{self, JpegDecoder, JpegHeader};
use super::reduction::{Decoded, Reduction, Wanted};
use super::size::{Rectangle, Size};
use exif::Orientation;
use forebay_dataset::Defect;
use forebay_jpeg_index::JpegIndex;
pub use format::Content;
use format::{Form, Format};
pub use tiff::raster;

/// All formats except JPEG, which can be decoded in part.
static FORMATS: [Format; 6] =
    [png::FORMAT, webp::FORMAT, tiff::FORMAT, bmp::FORMAT, gif::FORMAT, mask::FORMAT];

/// The format, and the decoder's data from the header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Coding {
    Jpeg(JpegHeader),
    /// The index in [`FORMATS`].
    Whole(usize),
}

/// An image's properties, known before its pixels are decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImageHeader {
    coding: Coding,
    /// The size as stored.
    stored: Size,
    /// The transformation of the stored image; `AS_STORED` if it was not requested.
    orientation: Orientation,
    /// The requested content.
    content: Content,
}

impl ImageHeader {
    /// The header with another content.
    ///
    /// # Errors
    /// The image does not have such content.
    pub fn with_content(self, content: Content) -> Result<Self, Defect> {
        let may_be_wide = match self.coding {
            Coding::Jpeg(_) => false,
            Coding::Whole(format) => FORMATS[format].may_be_wide,
        };
        if content == Content::Wide && !may_be_wide {
            colour::check_wide(8, 1, 1)?;
        }
        Ok(Self { content, ..self })
    }

    /// The form of a pixel of this many bytes.
    fn form(&self, pixel_bytes: u8) -> Form {
        let content = self.content;
        let channels = if content == Content::Wide { pixel_bytes / 2 } else { pixel_bytes };
        Form { channels, content }
    }

    /// The size of the decoded image, after its orientation is applied.
    pub const fn size(&self) -> Size {
        if self.orientation.swaps_sides() {
            Size { width: self.stored.height, height: self.stored.width }
        } else {
            self.stored
        }
    }

    /// Whether pixels may have alpha: those of JPEG never have.
    pub const fn may_have_alpha(&self) -> bool {
        !matches!(self.coding, Coding::Jpeg(_))
    }

    /// The reduction, or none if the decoder does not support it or its pixels would not match the turned image's.
    pub fn reducible(&self, reduction: Reduction) -> Reduction {
        let can = matches!(self.coding, Coding::Jpeg(header) if header.block_width.is_some())
            && (self.orientation == Orientation::AS_STORED || reduction.divides(self.stored));
        if can { reduction } else { Reduction::NONE }
    }
}

/// The maximal memory for decoding to pixels of this many bytes: the pixels and the decoder's memory.
pub fn decoding_bytes(file: &[u8], header: &ImageHeader, pixel_bytes: u8) -> u64 {
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
pub struct Decoders {
    jpeg: JpegDecoder,
    /// A file's pixels before their colours or orientation are converted.
    unconverted: Vec<u8>,
    /// The number of decoded images.
    #[cfg(any(test, feature = "testing"))]
    pub count: usize,
}

impl Decoders {
    /// Sets the index of JPEG marks.
    pub fn use_jpeg_index(&mut self, index: Option<&Arc<JpegIndex>>) {
        self.jpeg.use_index(index);
    }

    /// Memory that is kept between images.
    pub fn kept_bytes(&self) -> usize {
        self.jpeg.kept_bytes() + self.unconverted.capacity()
    }

    /// Frees this memory.
    pub fn give_back(&mut self) {
        self.jpeg.give_back();
        self.unconverted = Vec::new();
    }

    /// Reads the header of a file of any known format.
    ///
    /// # Errors
    /// The format is unknown, the header is defective, or the image has no pixels or more than `most_pixels`.
    pub fn read_header(
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

    /// Decodes at least the wanted part of the image into `pixels` (rows without gaps) and returns the decoded part.
    /// The reduction must come from [`ImageHeader::reducible`].
    ///
    /// # Errors
    /// The file is defective, even if only outside of the needed part.
    ///
    /// # Panics
    /// `wanted.needed` is empty or outside the image.
    pub fn decode(
        &mut self,
        file: &[u8],
        header: &ImageHeader,
        wanted: Wanted,
        pixels: &mut Vec<u8>,
    ) -> Result<Decoded, Defect> {
        #[cfg(any(test, feature = "testing"))]
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

    /// Asserts that both JPEG decoders give the same result, for fuzzing.
    ///
    /// # Panics
    /// They differ.
    pub fn assert_agreement(&mut self, file: &[u8], header: &ImageHeader, wanted: Wanted) {
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

//! From an image file to pixels: finds the format by the file's first bytes, reads the header, decodes.
//!
//! Pixels are 8-bit, height × width × channels, as Pillow's `open(…).convert("RGB")` (or `"L"`, `"RGBA"`) gives them.
//! A format is one file here, and one arm in [`Decoders::read_header`] and in [`Decoders::decode`].

pub(crate) mod colour;
pub(crate) mod exif;
pub(crate) mod png;
mod webp;

use std::sync::Arc;

use super::buffers::prepare;
use super::jpeg::{self, JpegDecoder, JpegHeader};
use super::reduction::{Decoded, Reduction, Wanted};
use super::size::{Rectangle, Size};
use exif::Orientation;
use forebay_jpeg_index::JpegIndex;
use forebay_source::dataset::Defect;

/// The format, and what its decoder needs of the header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Coding {
    Jpeg(JpegHeader),
    Png,
    WebP,
}

/// What is known of an image before its pixels are decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ImageHeader {
    coding: Coding,
    /// As stored.
    stored: Size,
    /// What turns the stored image into the one that is meant; `AS_STORED` when that was not asked for.
    orientation: Orientation,
    /// Of a palette the indices are meant, and not the colours.
    indices: bool,
}

impl ImageHeader {
    /// The same, of whose palette the indices are decoded. A file without one has to be grey.
    pub(crate) const fn with_indices(self) -> Self {
        Self { indices: true, ..self }
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

/// The most that decoding takes: the pixels, and what a decoder holds beside them.
pub(crate) fn decoding_bytes(file: &[u8], header: &ImageHeader, channels: u8) -> u64 {
    let area = u64::from(header.stored.width) * u64::from(header.stored.height);
    let pixels = area * u64::from(channels);
    let turned = if header.orientation == Orientation::AS_STORED { 0 } else { pixels };
    let beside = match header.coding {
        Coding::Jpeg(jpeg) => jpeg::bytes_beside_pixels(file, &jpeg, channels),
        Coding::Png if header.indices => {
            png::bytes_beside_pixels(file, header.stored, channels) + png::bytes_of_indices(file)
        }
        Coding::Png => png::bytes_beside_pixels(file, header.stored, channels),
        Coding::WebP => webp::bytes_beside_pixels(file, header.stored, channels),
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
        let (coding, (stored, tag)) = match file {
            [0xff, 0xd8, 0xff, ..] => {
                let header = jpeg::read_header(file)?;
                (Coding::Jpeg(header), (header.size, header.orientation))
            }
            [0x89, b'P', b'N', b'G', b'\r', b'\n', 0x1a, b'\n', ..] => {
                (Coding::Png, png::read_header(file, apply_orientation)?)
            }
            [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => {
                (Coding::WebP, webp::read_header(file, apply_orientation)?)
            }
            _ => return Err(Defect(unknown_format(file))),
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
        Ok(ImageHeader { coding, stored, orientation, indices: false })
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
        let decode = match header.coding {
            Coding::Jpeg(jpeg) => {
                return self.jpeg.decode(file, &jpeg, wanted, pixels);
            }
            Coding::Png if header.indices => png::decode_indices,
            Coding::Png => png::decode,
            Coding::WebP => webp::decode,
        };
        decode(file, header.stored, wanted.channels, &mut self.unconverted, pixels)?;
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

/// Formats of pictures that are not read, by their first bytes.
fn named_format(file: &[u8]) -> Option<&'static str> {
    Some(match file {
        [_, _, _, _, b'f', b't', b'y', b'p', b'a', b'v', b'i', b'f' | b's', ..] => "AVIF",
        [_, _, _, _, b'f', b't', b'y', b'p', b'h', b'e', ..]
        | [_, _, _, _, b'f', b't', b'y', b'p', b'm', b'i' | b's', b'f', b'1', ..] => "HEIC",
        [b'I', b'I', 42, 0, ..] | [b'M', b'M', 0, 42, ..] => "TIFF",
        [b'G', b'I', b'F', b'8', b'7' | b'9', b'a', ..] => "GIF",
        [b'B', b'M', _, _, _, _, 0, 0, 0, 0, ..] => "BMP",
        [0xff, 0x0a, ..] | [0, 0, 0, 12, b'J', b'X', b'L', b' ', ..] => "JPEG XL",
        [0, 0, 0, 12, b'j', b'P', b' ', b' ', ..] => "JPEG 2000",
        _ => return None,
    })
}

fn unknown_format(file: &[u8]) -> String {
    if file.is_empty() {
        return "the image file is empty".to_owned();
    }
    if let Some(name) = named_format(file) {
        return format!("it is a {name} file, which is not read; convert it to JPEG, PNG or WebP");
    }
    let first: String = file.iter().take(8).map(|byte| format!(" {byte:02x}")).collect();
    format!("not a JPEG, PNG or WebP file: it begins with{first}")
}

#[cfg(test)]
mod tests;

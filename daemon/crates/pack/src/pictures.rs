//! Re-encodes pictures: decodes them, turns them upright, resizes them, and encodes them as JPEG.
//!
//! A new file has no EXIF data and no colour profile. A picture that needs no change keeps its file.

use forebay_media::decode::Decoders;
use forebay_media::reduction::{Reduction, Wanted};
use forebay_media::size::{Rectangle, Size};
use forebay_resample::{AnyResampler, Filter, Packed, Shown};
use jpeg_encoder::{ColorType, Encoder};

/// The quality of pictures that are resized, if none is given.
const QUALITY: u8 = 90;
/// RGB.
const CHANNELS: u8 = 3;

/// What becomes of pictures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Recoding {
    /// Pictures whose shorter side is longer than this are resized to it.
    pub shorter: Option<u32>,
    /// All pictures are encoded with this quality, from 1 to 100.
    pub quality: Option<u8>,
}

impl Recoding {
    /// Whether any picture may change.
    #[must_use]
    pub const fn changes(self) -> bool {
        self.shorter.is_some() || self.quality.is_some()
    }

    /// The size of a picture in the result.
    fn size(self, from: Size) -> Size {
        let shorter = from.width.min(from.height);
        let Some(side) = self.shorter.filter(|side| *side < shorter) else { return from };
        // As torchvision's and the operation `resize` have it. The other side becomes shorter, too: it fits.
        let other = |long: u32| {
            u32::try_from(u64::from(side) * u64::from(long) / u64::from(shorter)).unwrap_or(long)
        };
        match from.width <= from.height {
            true => Size { width: side, height: other(from.height) },
            false => Size { width: other(from.width), height: side },
        }
    }
}

/// A thread's decoders and memory.
#[derive(Debug, Default)]
pub(crate) struct Recoder {
    decoders: Decoders,
    resampler: AnyResampler,
    pixels: Vec<u8>,
    resized: Vec<u8>,
}

impl Recoder {
    /// The new file of a picture.
    ///
    /// # Errors
    /// The picture is defective, or larger than a JPEG can be.
    pub(crate) fn recode(
        &mut self,
        file: &[u8],
        recoding: Recoding,
        most_pixels: u64,
    ) -> Result<Vec<u8>, String> {
        let header = self.decoders.read_header(file, true, most_pixels);
        let header = header.map_err(|defect| defect.0)?;
        let from = header.size();
        let to = recoding.size(from);
        if to == from && recoding.quality.is_none() {
            return Ok(file.to_vec());
        }
        let wanted = Wanted {
            reduction: Reduction::NONE,
            channels: CHANNELS,
            needed: Rectangle::whole(from),
            in_colour_rows: false,
        };
        self.decoders.decode(file, &header, wanted, &mut self.pixels).map_err(|defect| defect.0)?;
        let bytes = |size: Size| size.width as usize * size.height as usize * usize::from(CHANNELS);
        let mut pixels = self
            .pixels
            .get(..bytes(from))
            .ok_or_else(|| "its decoder gave fewer pixels than its header says".to_owned())?;
        if to != from {
            let packed = Packed {
                pixels,
                channels: CHANNELS,
                size: (from.width, from.height),
                corner: (0, 0),
                view: (from.width, from.height),
            };
            let whole = |side: u32| Shown { start: 0.0, length: side.into() };
            self.resized.resize(bytes(to), 0);
            self.resampler.resample(
                &packed,
                whole(from.width),
                whole(from.height),
                Filter::Bilinear,
                (to.width, to.height),
                &mut self.resized,
            )?;
            pixels = &self.resized;
        }
        let side = |side: u32| {
            u16::try_from(side)
                .map_err(|_| format!("a side of {side} pixels is too long for a JPEG"))
        };
        let mut encoded = Vec::new();
        Encoder::new(&mut encoded, recoding.quality.unwrap_or(QUALITY))
            .encode(pixels, side(to.width)?, side(to.height)?, ColorType::Rgb)
            .map_err(|error| error.to_string())?;
        Ok(encoded)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn picture(width: u16, height: u16) -> Vec<u8> {
        let level = |place: usize| u8::try_from(place * 7 % 251).unwrap();
        let pixels: Vec<_> = (0..usize::from(width) * usize::from(height) * 3).map(level).collect();
        let mut file = Vec::new();
        Encoder::new(&mut file, 95).encode(&pixels, width, height, ColorType::Rgb).unwrap();
        file
    }

    fn size_of(file: &[u8]) -> (u32, u32) {
        let size = Decoders::default().read_header(file, true, u64::MAX).unwrap().size();
        (size.width, size.height)
    }

    #[test]
    fn larger_pictures_are_resized_and_others_keep_their_file() {
        let mut recoder = Recoder::default();
        let mut recode = |file: &[u8], recoding| recoder.recode(file, recoding, 1 << 20).unwrap();
        let recoding = Recoding { shorter: Some(20), quality: None };
        let large = picture(75, 50);
        let smaller = recode(&large, recoding);
        assert_eq!(size_of(&smaller), (30, 20));
        assert_eq!(recode(&large, recoding), smaller, "the same again");
        let small = picture(19, 40);
        assert_eq!(recode(&small, recoding), small);
        let anew = recode(&small, Recoding { quality: Some(40), ..recoding });
        assert!(anew != small && anew.len() < small.len());
        assert_eq!(size_of(&anew), (19, 40));
    }

    #[test]
    fn defective_and_too_large_pictures_are_refused() {
        let mut recoder = Recoder::default();
        let recoding = Recoding { shorter: None, quality: Some(90) };
        let file = picture(30, 30);
        assert!(recoder.recode(b"text", recoding, 1 << 20).is_err());
        assert!(recoder.recode(&file[..60], recoding, 1 << 20).is_err());
        assert!(recoder.recode(&file, recoding, 100).unwrap_err().contains("limits.pixels"));
    }
}

//! Decodes JPEG files, or a region of them, to grey, RGB or RGBA: the same pixels as Pillow's `open(…).convert(…)`.
//!
//! Files are refused as by Pillow: if they end before their image does, and if libjpeg gives up. Other warnings are
//! ignored. Usual files are decoded by `forebay-jpeg`; all others, and all in any doubt, by libjpeg-turbo, which gives
//! the same pixels more slowly; its unsafe part is in `turbo`. `stream` reads the markers.

mod stream;
mod turbo;

use std::sync::Arc;

use super::buffers::prepare;
use super::decode::colour;
use super::reduction::{Decoded, Reduction, Wanted};
use super::size::{Rectangle, Size};
use forebay_dataset::Defect;
use forebay_jpeg::{Index, Learned, Pixels, Region, Scale};
use forebay_jpeg_index::{JpegIndex, Key};
use stream::Ending;
pub use stream::{JpegHeader, ending, read_header};
use turbo::{OpenJpeg, PixelFormat, TurboDecoder, Verdict};

/// A work thread's JPEG decoder: the library's handle and scratch memory, used for successive files.
#[derive(Debug, Default)]
pub struct JpegDecoder {
    /// `Some(None)`: the processor does not have the required features.
    own: Option<Option<forebay_jpeg::Decoder>>,
    turbo: Option<TurboDecoder>,
    scratch: Vec<u8>,
    /// Marks of earlier decodings, if they are stored.
    index: Option<Arc<JpegIndex>>,
    /// A record of the index, and the marks learned from the present file.
    record: Vec<u8>,
    learned: Vec<u8>,
}

/// The region to decode so that `needed` has the pixels of a full decoding.
///
/// The library starts at a multiple of the block width. Smooth chroma upsampling looks one sample to each side, so the
/// first and the last decoded column may differ from a full decoding's: they must not be needed ones.
fn widen(needed: Rectangle, image: Size, block_width: u32) -> Rectangle {
    let left = needed.left.saturating_sub(2) / block_width * block_width;
    let right = (needed.left + needed.width + 2).min(image.width);
    Rectangle { left, top: needed.top, width: right - left, height: needed.height }
}

impl JpegDecoder {
    /// Sets the index of marks.
    pub fn use_index(&mut self, index: Option<&Arc<JpegIndex>>) {
        let is_same = match (&self.index, index) {
            (Some(own), Some(index)) => Arc::ptr_eq(own, index),
            (own, index) => own.is_none() && index.is_none(),
        };
        if !is_same {
            self.index = index.cloned();
        }
    }

    /// Decodes at least the wanted part into `pixels` (rows without gaps) and returns the decoded region.
    ///
    /// # Errors
    /// Pillow refuses the file, too.
    ///
    /// # Panics
    /// `wanted.needed` is empty or outside the image.
    pub fn decode(
        &mut self,
        file: &[u8],
        header: &JpegHeader,
        wanted: Wanted,
        pixels: &mut Vec<u8>,
    ) -> Result<Decoded, Defect> {
        if self.decode_usual(file, header, wanted, pixels) {
            let in_colour_rows = wanted.in_colour_rows && wanted.channels == 3;
            return Ok(Decoded { area: wanted.needed, in_colour_rows });
        }
        self.decode_any(file, header, wanted, pixels).map(Decoded::from)
    }

    /// Decodes exactly the wanted part of a file with the fast decoder. `false`: it is in doubt.
    fn decode_usual(
        &mut self,
        file: &[u8],
        header: &JpegHeader,
        wanted: Wanted,
        pixels: &mut Vec<u8>,
    ) -> bool {
        let Some(decoder) = self.own.get_or_insert_with(forebay_jpeg::Decoder::new) else {
            return false;
        };
        let Wanted { reduction, channels, needed, in_colour_rows } = wanted;
        let (kind, to_grey) = match (header.components, channels) {
            (1, 1) => (Pixels::Grey, false),
            (3, 1) => (Pixels::Rgb, true),
            (1 | 3, 3) if in_colour_rows => (Pixels::RgbRows, false),
            (1 | 3, 3) => (Pixels::Rgb, false),
            (1 | 3, 4) => (Pixels::Rgba, false),
            _ => return false,
        };
        let Some(scale) = Scale::of_factor(reduction.factor()) else { return false };
        let Rectangle { left, top, width, height } = needed;
        let region = Region { left, top, width, height };
        let count = width as usize * height as usize;
        let colours = if to_grey { &mut self.scratch } else { &mut *pixels };
        let out = prepare(colours, count * kind.bytes());
        // If the whole image is needed, nothing can be skipped.
        let is_part = needed != Rectangle::whole(reduction.size(header.size));
        let index = self.index.as_deref().filter(|_| is_part);
        let found = index.map(|index| index.find(file, &mut self.record)).unwrap_or_default();
        let marks = Index {
            known: found.marks.unwrap_or_default(),
            learned: found.to_learn.is_some().then_some(&mut self.learned),
            whole: false,
        };
        let Ok(learned) = decoder.decode(file, scale, region, kind, marks, out) else {
            return false;
        };
        if let (Some(key), Some(index)) = (found.to_learn, index) {
            offer(index, key, learned, &self.learned);
        }
        if to_grey {
            let colours = &self.scratch[..count * kind.bytes()];
            colour::rgb_to_grey(colours, prepare(pixels, count));
        }
        true
    }

    /// As [`Self::decode_usual`], by libjpeg-turbo, which decides about all files in doubt.
    pub fn decode_any(
        &mut self,
        file: &[u8],
        header: &JpegHeader,
        wanted: Wanted,
        pixels: &mut Vec<u8>,
    ) -> Result<Rectangle, Defect> {
        let Wanted { reduction, channels, needed, .. } = wanted;
        if self.turbo.is_none() {
            self.turbo = TurboDecoder::new();
        }
        let Some(turbo) = self.turbo.as_mut() else {
            return Err(Defect("out of memory for the JPEG decoder".to_owned()));
        };
        let mut image = turbo
            .open(file, library_bytes(header))
            .map_err(|reason| describe_failure(&reason, file))?;
        if image.size != header.size {
            return Err(Defect(format!(
                "the JPEG file holds frames of {}x{} and of {}x{} pixels",
                header.size.width, header.size.height, image.size.width, image.size.height
            )));
        }
        if image.is_lossless && reduction != Reduction::NONE {
            return Err(Defect("the JPEG file holds a lossless frame and another one".to_owned()));
        }
        let size = reduction.size(header.size);
        // The library names a subsampling by its smallest factors. A file may have larger ones, and its blocks follow
        // from these.
        let region = match (image.block_width, header.block_width) {
            (Some(named), Some(own)) => {
                widen(needed, size, (named.max(own) / reduction.factor()).max(1))
            }
            _ => Rectangle::whole(size),
        };
        // The library does not read the rows below the region, so the file's end is checked here.
        let skips_the_end = region.top + region.height < size.height;
        let file_ending = skips_the_end.then(|| ending(file));
        let region = match file_ending {
            Some(Ending::Missing) => return Err(truncated()),
            Some(Ending::AfterMoreSegments) => Rectangle::whole(size),
            Some(Ending::Clean) | None => region,
        };
        let verdict =
            decode_channels(&mut image, region, reduction, channels, pixels, &mut self.scratch);
        match verdict {
            Verdict::Fine => {}
            Verdict::Failed(reason) => return Err(describe_failure(&reason, file)),
            Verdict::Warned => {
                if file_ending.unwrap_or_else(|| ending(file)) == Ending::Missing {
                    return Err(truncated());
                }
            }
        }
        Ok(region)
    }

    /// Decodes with both decoders. Returns whether the fast one was sure, and the library's result.
    ///
    /// # Panics
    /// The fast decoder was sure of a different result. For tests and fuzzing.
    pub fn decode_twice(
        &mut self,
        file: &[u8],
        header: &JpegHeader,
        wanted: Wanted,
    ) -> (bool, Result<Vec<u8>, Defect>) {
        let (mut quick, mut pixels) = (Vec::new(), Vec::new());
        let is_sure = self.decode_usual(file, header, wanted, &mut quick);
        let judged = self.decode_any(file, header, wanted, &mut pixels);
        let Wanted { channels, needed, .. } = wanted;
        let bytes = |width: u32| width as usize * usize::from(channels);
        let judged = judged.map(|area| {
            let rows =
                pixels.chunks_exact(bytes(area.width)).skip((needed.top - area.top) as usize);
            let row = bytes(needed.left - area.left)..bytes(needed.left - area.left + needed.width);
            rows.take(needed.height as usize).flat_map(|all| &all[row.clone()]).copied().collect()
        });
        let is_same = judged.as_ref().is_ok_and(|pixels: &Vec<u8>| *pixels == quick);
        assert!(is_same || !is_sure, "{wanted:?}");
        if is_sure && channels == 3 {
            let wanted = Wanted { in_colour_rows: true, ..wanted };
            let mut rows = Vec::new();
            assert!(self.decode_usual(file, header, wanted, &mut rows), "{wanted:?}");
            let width = needed.width as usize;
            let is_same = |(row, pixels): (&[u8], &[u8])| {
                let pixel = |at: usize| &pixels[at % width * 3 + at / width];
                (0..row.len()).all(|at| row[at] == *pixel(at))
            };
            assert!(rows.chunks(width * 3).zip(quick.chunks(width * 3)).all(is_same), "{wanted:?}");
        }
        (is_sure, judged)
    }

    /// Memory that is kept between images, besides the library's handle.
    pub fn kept_bytes(&self) -> usize {
        let own = self.own.as_ref().and_then(Option::as_ref);
        let index = self.record.capacity() + self.learned.capacity();
        self.scratch.capacity() + index + own.map_or(0, forebay_jpeg::Decoder::scratch_bytes)
    }

    /// Frees this memory.
    pub fn give_back(&mut self) {
        (self.scratch, self.record, self.learned) = Default::default();
        if let Some(Some(decoder)) = &mut self.own {
            decoder.trim();
        }
    }
}

/// The library's memory for an image, besides what it buffers of the whole image.
const LIBRARY_BYTES: u64 = 1 << 20;
const LIBRARY_BYTES_PER_COLUMN: u64 = 256;

/// For an image of the smallest MCUs.
const PIXELS_PER_CHECKPOINT: u64 = 128 * 8;
/// Known marks are smaller than this part of the file.
const LEARNED_SHARE: u64 = 50;

/// The library's own memory.
fn library_bytes(header: &JpegHeader) -> u64 {
    header.buffered_bytes + LIBRARY_BYTES + LIBRARY_BYTES_PER_COLUMN * u64::from(header.size.width)
}

/// The maximal memory for decoding besides the pixels. It is the sum of the two decoders', since the second one
/// continues after the first.
pub fn bytes_beside_pixels(file: &[u8], header: &JpegHeader, channels: u8) -> u64 {
    let area = u64::from(header.size.width) * u64::from(header.size.height);
    let unconverted = match (header.components, channels) {
        (4, _) => 4,
        (3, 1) => 3,
        (1, 3..) if header.block_width.is_none() => 1,
        _ => 0,
    };
    let Size { width, height } = header.size;
    let own = forebay_jpeg::Decoder::most_scratch_bytes(file.len() as u64, width, height);
    // A packed checkpoint takes at most 25 bytes, with twice the needed capacity, until every second one is removed.
    let learned = area / PIXELS_PER_CHECKPOINT * 50 + file.len() as u64 / LEARNED_SHARE;
    own + library_bytes(header) + area * unconverted + learned
}

/// Offers the marks of a decoding. False: too many records wait.
fn offer(index: &JpegIndex, key: Key, learned: Learned, marks: &[u8]) -> bool {
    match learned {
        Learned::Nothing => true,
        Learned::Marks => index.offer(key, marks),
        Learned::Never => index.offer(key, &[]),
    }
}

/// Learns marks of files in advance: decodes one pixel of each and parses the rest to its end.
#[derive(Debug, Default)]
pub struct JpegLearner {
    /// None before the first file; `Some(None)`: the processor does not have the required features.
    decoder: Option<Option<forebay_jpeg::Decoder>>,
    record: Vec<u8>,
    learned: Vec<u8>,
}

impl JpegLearner {
    /// Offers a file's marks, if it is a JPEG whose marks are not complete. False: too many records wait; retry later.
    pub fn learn(&mut self, file: &[u8], index: &JpegIndex) -> bool {
        let Some(decoder) = self.decoder.get_or_insert_with(forebay_jpeg::Decoder::new) else {
            return true;
        };
        if !file.starts_with(&[0xff, 0xd8, 0xff]) {
            return true;
        }
        let found = index.find(file, &mut self.record);
        let Some(key) = found.to_learn else { return true };
        let region = Region { left: 0, top: 0, width: 1, height: 1 };
        let marks = Index {
            known: found.marks.unwrap_or_default(),
            learned: Some(&mut self.learned),
            whole: true,
        };
        match decoder.decode(file, Scale::Full, region, Pixels::Rgb, marks, &mut [0; 3]) {
            Ok(learned) => offer(index, key, learned, &self.learned),
            Err(_) => true,
        }
    }
}

fn truncated() -> Defect {
    Defect("image file is truncated: the JPEG data ends before the image does".to_owned())
}

fn describe_failure(reason: &str, file: &[u8]) -> Defect {
    if ending(file) == Ending::Missing {
        return truncated();
    }
    Defect(format!("cannot decode the JPEG file: {}", lowercase_start(reason)))
}

fn lowercase_start(message: &str) -> String {
    let mut letters = message.chars();
    match letters.next() {
        Some(first) => first.to_lowercase().chain(letters).collect(),
        None => "no reason given".to_owned(),
    }
}

fn decode_channels(
    image: &mut OpenJpeg<'_, '_>,
    region: Rectangle,
    reduction: Reduction,
    channels: u8,
    pixels: &mut Vec<u8>,
    scratch: &mut Vec<u8>,
) -> Verdict {
    let count = region.width as usize * region.height as usize;
    let out = prepare(pixels, count * usize::from(channels));
    if image.is_cmyk {
        let cmyk = prepare(scratch, count * PixelFormat::Cmyk.bytes());
        let verdict = image.decode(region, reduction, PixelFormat::Cmyk, cmyk);
        colour::inverted_cmyk_to(channels, cmyk, out);
        return verdict;
    }
    match channels {
        1 if !image.is_grey => {
            let rgb = prepare(scratch, count * PixelFormat::Rgb.bytes());
            let verdict = image.decode(region, reduction, PixelFormat::Rgb, rgb);
            colour::rgb_to_grey(rgb, out);
            verdict
        }
        1 => image.decode(region, reduction, PixelFormat::Grey, out),
        // Without blocks the library converts no colours, and it takes grey for one.
        3.. if image.is_grey && image.is_lossless => {
            let grey = prepare(scratch, count);
            let verdict = image.decode(region, reduction, PixelFormat::Grey, grey);
            colour::convert(1, grey, channels, out);
            verdict
        }
        3 => image.decode(region, reduction, PixelFormat::Rgb, out),
        _ => image.decode(region, reduction, PixelFormat::Rgba, out),
    }
}

#[cfg(test)]
mod index_tests;
#[cfg(test)]
mod mutation_tests;
#[cfg(test)]
mod tests;

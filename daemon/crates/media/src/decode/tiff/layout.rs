//! The content of a TIFF file's first directory: the layout and the meaning of its pixels.
//!
//! Everything that determines a decoder's memory and time is checked here, before anything is unpacked.

use super::chunks::{Packing, defect};
use super::directory::{Directory, Values};
use crate::decode::colour;
use crate::decode::format::{Content, Form};
use crate::size::Size;
use forebay_dataset::Defect;

/// The meaning of a pixel's first samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Meaning {
    Grey {
        is_inverted: bool,
    },
    Colours,
    Palette,
    /// Cyan, magenta, yellow and black; 0 means zero ink.
    Ink,
}

/// The meaning of the sample after them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Alpha {
    None,
    Straight,
    /// The colours are multiplied by it.
    Multiplied,
}

/// The layout of a TIFF file's pixels.
#[derive(Debug)]
pub(super) struct Layout<'f> {
    pub(super) size: Size,
    pub(super) is_big_endian: bool,
    /// Bits per sample: 1, 2, 4, 8 or 16.
    pub(super) bits: u8,
    /// Samples per pixel.
    pub(super) samples: usize,
    pub(super) meaning: Meaning,
    pub(super) alpha: Alpha,
    pub(super) packing: Packing,
    pub(super) has_predictor: bool,
    /// The bits of each byte in the file are in reverse order (`FillOrder` 2).
    pub(super) has_reversed_bits: bool,
    /// Each sample has separate strips or tiles.
    pub(super) is_planar: bool,
    /// Width and height of a strip or tile.
    pub(super) chunk: (usize, usize),
    offsets: Values<'f>,
    /// Omitted by some writers.
    lengths: Option<Values<'f>>,
    colours: Option<Values<'f>>,
}

/// How much wider than the image a tile may be: a row of it is in memory.
const MOST_TILE_WIDTH_BEYOND: u32 = 1 << 16;

/// The maximal number of samples per pixel.
const MOST_SAMPLES: usize = 16;

/// The tags of TIFF 6.0 that are read.
mod tag {
    pub(super) const WIDTH: u16 = 256;
    pub(super) const HEIGHT: u16 = 257;
    pub(super) const BITS: u16 = 258;
    pub(super) const COMPRESSION: u16 = 259;
    pub(super) const PHOTOMETRIC: u16 = 262;
    pub(super) const FILL_ORDER: u16 = 266;
    pub(super) const STRIP_OFFSETS: u16 = 273;
    pub(super) const SAMPLES: u16 = 277;
    pub(super) const ROWS_PER_STRIP: u16 = 278;
    pub(super) const STRIP_LENGTHS: u16 = 279;
    pub(super) const PLANAR: u16 = 284;
    pub(super) const PREDICTOR: u16 = 317;
    pub(super) const COLOUR_MAP: u16 = 320;
    pub(super) const TILE_WIDTH: u16 = 322;
    pub(super) const TILE_HEIGHT: u16 = 323;
    pub(super) const TILE_OFFSETS: u16 = 324;
    pub(super) const TILE_LENGTHS: u16 = 325;
    pub(super) const EXTRA_SAMPLES: u16 = 338;
    pub(super) const SAMPLE_FORMAT: u16 = 339;
}

impl<'f> Layout<'f> {
    pub(super) fn read(file: &'f [u8]) -> Result<Self, Defect> {
        let cut =
            || Defect("image file is truncated: the TIFF file's directory is not in it".to_owned());
        let directory = Directory::open(file).ok_or_else(cut)?;
        let or = |tag, absent| directory.value(tag).unwrap_or(absent);
        let needed = |tag, name: &str| {
            directory.value(tag).ok_or_else(|| defect(format!("its {name} is missing")))
        };
        let size =
            Size { width: needed(tag::WIDTH, "width")?, height: needed(tag::HEIGHT, "height")? };
        let packing = packing(or(tag::COMPRESSION, 1))?;
        let samples = or(tag::SAMPLES, 1) as usize;
        let bits = bits(&directory, samples)?;
        if let Some(formats) = directory.find(tag::SAMPLE_FORMAT)
            && let Some(format @ 2..) = formats.iter().find(|format| *format != 1)
        {
            let name = if format == 3 { "floats" } else { "not unsigned integers" };
            return Err(not_read(name, "its samples are"));
        }
        let (meaning, colours) = match needed(tag::PHOTOMETRIC, "colours")? {
            white @ 0..=1 => (Meaning::Grey { is_inverted: white == 0 }, 1),
            2 => (Meaning::Colours, 3),
            3 => (Meaning::Palette, 1),
            5 => (Meaning::Ink, 4),
            4 => return Err(not_read("a mask", "it is")),
            6 => return Err(not_read("YCbCr", "its colours are")),
            8..=10 => return Err(not_read("Lab", "its colours are")),
            other => return Err(not_read(&format!("of kind {other}"), "its colours are")),
        };
        let alpha = alpha(&directory, meaning, samples, colours)?;
        let is_known = match meaning {
            Meaning::Grey { .. } => bits >= 8 || samples == 1,
            Meaning::Colours => bits >= 8,
            Meaning::Palette => bits == 8 || (bits < 8 && samples == 1),
            Meaning::Ink => bits >= 8,
        };
        if !is_known {
            return Err(not_read(
                &format!("{samples} samples of {bits} bits"),
                "a pixel of it has",
            ));
        }
        let has_predictor = match or(tag::PREDICTOR, 1) {
            // A predictor has no meaning for other compressions.
            _ if !matches!(packing, Packing::Lzw | Packing::Deflate) => false,
            1 => false,
            2 if bits >= 8 => true,
            other => {
                return Err(not_read(
                    &format!("predictor {other} with {bits} bits"),
                    "its differences are of",
                ));
            }
        };
        let is_planar = samples > 1 && or(tag::PLANAR, 1) == 2;
        let (chunk, offsets, lengths) = chunks(&directory, size)?;
        let colours = directory.find(tag::COLOUR_MAP).filter(|_| meaning == Meaning::Palette);
        if meaning == Meaning::Palette && colours.is_none_or(|map| map.count() < 3 << bits) {
            return Err(defect("it has no palette, or one that is too short"));
        }
        let is_big_endian = directory.is_big_endian();
        Ok(Self {
            size,
            is_big_endian,
            bits,
            samples,
            meaning,
            alpha,
            packing,
            has_predictor,
            has_reversed_bits: or(tag::FILL_ORDER, 1) == 2,
            is_planar,
            chunk,
            offsets,
            lengths,
            colours,
        })
    }

    /// The number of used samples per pixel.
    pub(super) fn used(&self) -> usize {
        let colours = match self.meaning {
            Meaning::Grey { .. } | Meaning::Palette => 1,
            Meaning::Colours => 3,
            Meaning::Ink => 4,
        };
        colours + usize::from(self.alpha != Alpha::None)
    }

    /// Bytes of a sample after unpacking.
    pub(super) const fn element_bytes(&self) -> usize {
        if self.bits == 16 { 2 } else { 1 }
    }

    pub(super) const fn planes(&self) -> usize {
        if self.is_planar { self.samples } else { 1 }
    }

    pub(super) const fn samples_in_chunk(&self) -> usize {
        if self.is_planar { 1 } else { self.samples }
    }

    /// Bytes of a row of a strip or tile.
    pub(super) const fn chunk_row_bytes(&self) -> usize {
        (self.chunk.0 * self.samples_in_chunk() * self.bits as usize).div_ceil(8)
    }

    /// Whether pixels of the form are stored directly.
    pub(super) fn is_direct(&self, form: Form) -> bool {
        let is_plain = match self.meaning {
            Meaning::Grey { is_inverted } => !is_inverted || self.bits == 16,
            Meaning::Colours => true,
            Meaning::Palette | Meaning::Ink => false,
        };
        let bits = if form.content == Content::Wide { 16 } else { 8 };
        is_plain
            && self.alpha != Alpha::Multiplied
            && self.bits == bits
            && self.used() == usize::from(form.channels)
    }

    /// Checks that it can be decoded to the form.
    ///
    /// # Errors
    /// The reason.
    pub(super) fn check(&self, form: Form) -> Result<(), Defect> {
        let is_grey = matches!(self.meaning, Meaning::Grey { .. });
        let reason = match form.content {
            Content::Colours => return Ok(()),
            Content::Indices if self.meaning == Meaning::Palette => return Ok(()),
            Content::Indices if !is_grey => "it has colours and no palette",
            Content::Indices if self.bits == 16 => "its levels have 16 bits, and 8 are read",
            Content::Indices => return Ok(()),
            Content::Wide if self.meaning == Meaning::Ink && self.bits == 16 => {
                return Err(not_read("CMYK", "16-bit levels are requested, and its colours are"));
            }
            Content::Wide => return colour::check_wide(self.bits, self.used(), form.channels),
        };
        Err(Defect(format!("the TIFF file is not an image of indices: {reason}")))
    }

    /// The packed bytes of a strip or tile.
    pub(super) fn chunk_bytes<'a>(&self, file: &'a [u8], chunk: usize) -> Result<&'a [u8], Defect> {
        let cut = || {
            Defect(
                "image file is truncated: a strip or tile of the TIFF file is not in it".to_owned(),
            )
        };
        let start = self.offsets.get(chunk).ok_or_else(cut)?;
        let rest = file.get(usize::try_from(start).unwrap_or(usize::MAX)..).ok_or_else(cut)?;
        match &self.lengths {
            Some(lengths) => {
                let length = lengths.get(chunk).ok_or_else(cut)?;
                rest.get(..usize::try_from(length).unwrap_or(usize::MAX)).ok_or_else(cut)
            }
            None => Ok(rest),
        }
    }

    /// The colours of a palette's indices, followed by alpha.
    pub(super) fn look_up(
        &self,
        stored: &[u8],
        channels: u8,
        out: &mut [u8],
    ) -> Result<(), Defect> {
        let map = self.colours.as_ref().ok_or_else(|| defect("it has no palette"))?;
        let mut colours = [[0, 0, 0, 255]; 256];
        let entries = 1_usize << self.bits;
        for (index, colour) in colours.iter_mut().take(entries).enumerate() {
            for (channel, level) in colour.iter_mut().take(3).enumerate() {
                // The high byte, as in Pillow.
                let wide = map.get(channel * entries + index).unwrap_or(0);
                *level = u8::try_from(wide >> 8).unwrap_or(u8::MAX);
            }
        }
        let pixels = stored.chunks_exact(self.used());
        for (from, out) in pixels.zip(out.chunks_exact_mut(usize::from(channels))) {
            let mut colour = colours[usize::from(from[0])];
            colour[3] = from.get(1).copied().unwrap_or(255);
            colour::convert(4, &colour, channels, out);
        }
        Ok(())
    }
}

fn not_read(what: &str, is: &str) -> Defect {
    defect(format!(
        "{is} {what}, which is not read; convert it, or read it `as = \"bytes\"` and decode it in a Python stage"
    ))
}

fn packing(compression: u32) -> Result<Packing, Defect> {
    let name = match compression {
        1 => return Ok(Packing::Plain),
        5 => return Ok(Packing::Lzw),
        8 | 32_946 => return Ok(Packing::Deflate),
        32_773 => return Ok(Packing::PackBits),
        2..=4 => "a fax code",
        6 | 7 => "JPEG",
        33_003 | 33_005 | 34_712 => "JPEG 2000",
        34_887 => "LERC",
        34_925 => "LZMA",
        50_000 => "Zstandard",
        50_001 => "WebP",
        50_002 => "JPEG XL",
        other => return Err(not_read(&format!("code {other}"), "it is packed by")),
    };
    Err(not_read(name, "it is packed by"))
}

/// The bits of a sample, which are equal for all.
fn bits(directory: &Directory<'_>, samples: usize) -> Result<u8, Defect> {
    if !(1..=MOST_SAMPLES).contains(&samples) {
        return Err(not_read(&format!("{samples} samples"), "a pixel of it has"));
    }
    let Some(all) = directory.find(tag::BITS) else { return Ok(1) };
    let first = all.get(0).unwrap_or(0);
    if all.iter().take(samples).any(|bits| bits != first) {
        return Err(not_read("of different bits", "its samples are"));
    }
    match first {
        1 | 2 | 4 | 8 | 16 => Ok(u8::try_from(first).unwrap_or(8)),
        other => Err(not_read(&format!("of {other} bits"), "its samples are")),
    }
}

fn alpha(
    directory: &Directory<'_>,
    meaning: Meaning,
    samples: usize,
    colours: usize,
) -> Result<Alpha, Defect> {
    let Some(beyond) = samples.checked_sub(colours) else {
        return Err(defect(format!("{samples} samples a pixel, too few for its colours")));
    };
    let said = directory.find(tag::EXTRA_SAMPLES).and_then(|extra| extra.get(0));
    Ok(match (beyond, said, meaning) {
        (0, ..) | (_, _, Meaning::Ink) => Alpha::None,
        (_, Some(1), Meaning::Palette) => {
            return Err(not_read("multiplied by alpha", "the colours of its palette are"));
        }
        (_, Some(1), _) => Alpha::Multiplied,
        // Corel Draw marks alpha as 999.
        (_, Some(2 | 999), _) | (1, None, Meaning::Colours) => Alpha::Straight,
        _ => Alpha::None,
    })
}

/// The result of [`chunks`].
type Chunks<'f> = ((usize, usize), Values<'f>, Option<Values<'f>>);

/// The size of strips or tiles, their offsets, and their lengths.
fn chunks<'f>(directory: &Directory<'f>, size: Size) -> Result<Chunks<'f>, Defect> {
    // Some writers list tiles as strips; libtiff reads them.
    let tiles = directory.find(tag::TILE_WIDTH).and_then(|_| {
        let of_tiles = directory.find(tag::TILE_OFFSETS);
        of_tiles.or_else(|| directory.find(tag::STRIP_OFFSETS))
    });
    let (chunk, offsets, lengths) = match tiles {
        Some(offsets) => {
            let side = |tag| directory.value(tag).unwrap_or(0);
            let (width, height) = (side(tag::TILE_WIDTH), side(tag::TILE_HEIGHT));
            if width > size.width.saturating_add(MOST_TILE_WIDTH_BEYOND) {
                return Err(defect(format!(
                    "its tiles have {width} columns, and it has {}",
                    size.width
                )));
            }
            let lengths = directory.find(tag::TILE_LENGTHS);
            let lengths = lengths.or_else(|| directory.find(tag::STRIP_LENGTHS));
            ((width, height), offsets, lengths)
        }
        None => {
            let offsets = directory
                .find(tag::STRIP_OFFSETS)
                .ok_or_else(|| defect("the offsets of its pixels are missing"))?;
            let rows = directory.value(tag::ROWS_PER_STRIP).unwrap_or(u32::MAX);
            ((size.width, rows.min(size.height)), offsets, directory.find(tag::STRIP_LENGTHS))
        }
    };
    // An image without pixels is refused later, like all of them.
    if (chunk.0 == 0 || chunk.1 == 0) && size.width > 0 && size.height > 0 {
        return Err(defect("its strips or tiles have no pixels"));
    }
    Ok(((chunk.0 as usize, chunk.1 as usize), offsets, lengths))
}

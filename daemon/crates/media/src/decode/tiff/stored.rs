//! How a TIFF file's first directory stores samples: their type, their compression, and the strips or tiles.
//!
//! Everything that determines a decoder's memory and time is checked here, before anything is unpacked. The meaning of
//! the samples is in [`layout`](super::layout).

use super::chunks::{Packing, Predictor, defect};
use super::directory::{Directory, Values};
use crate::size::Size;
use forebay_dataset::Defect;
use forebay_protocol::tensor::DType;

/// The type of a sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Unsigned,
    Signed,
    Float,
}

/// How a TIFF file's samples are stored.
#[derive(Debug)]
pub(super) struct Stored<'f> {
    pub(super) directory: Directory<'f>,
    pub(super) size: Size,
    pub(super) kind: Kind,
    /// Bits per sample: 1, 2, 4, 8, 16, 32 or 64.
    pub(super) bits: u8,
    /// Samples per pixel.
    pub(super) samples: usize,
    pub(super) packing: Packing,
    pub(super) predictor: Predictor,
    /// The bits of each byte in the file are in reverse order (`FillOrder` 2).
    pub(super) has_reversed_bits: bool,
    /// Each sample has separate strips or tiles.
    pub(super) is_planar: bool,
    /// Width and height of a strip or tile.
    pub(super) chunk: (usize, usize),
    offsets: Values<'f>,
    /// Omitted by some writers.
    lengths: Option<Values<'f>>,
}

/// How much wider than the image a tile may be: a row of it is in memory.
const MOST_TILE_WIDTH_BEYOND: u32 = 1 << 16;

/// The maximal number of samples per pixel: more than any instrument has.
const MOST_SAMPLES: usize = 4096;

/// The tags of TIFF 6.0 that are read.
pub(super) mod tag {
    pub(in crate::decode::tiff) const WIDTH: u16 = 256;
    pub(in crate::decode::tiff) const HEIGHT: u16 = 257;
    pub(in crate::decode::tiff) const BITS: u16 = 258;
    pub(in crate::decode::tiff) const COMPRESSION: u16 = 259;
    pub(in crate::decode::tiff) const PHOTOMETRIC: u16 = 262;
    pub(in crate::decode::tiff) const FILL_ORDER: u16 = 266;
    pub(in crate::decode::tiff) const STRIP_OFFSETS: u16 = 273;
    pub(in crate::decode::tiff) const SAMPLES: u16 = 277;
    pub(in crate::decode::tiff) const ROWS_PER_STRIP: u16 = 278;
    pub(in crate::decode::tiff) const STRIP_LENGTHS: u16 = 279;
    pub(in crate::decode::tiff) const PLANAR: u16 = 284;
    pub(in crate::decode::tiff) const PREDICTOR: u16 = 317;
    pub(in crate::decode::tiff) const COLOUR_MAP: u16 = 320;
    pub(in crate::decode::tiff) const TILE_WIDTH: u16 = 322;
    pub(in crate::decode::tiff) const TILE_HEIGHT: u16 = 323;
    pub(in crate::decode::tiff) const TILE_OFFSETS: u16 = 324;
    pub(in crate::decode::tiff) const TILE_LENGTHS: u16 = 325;
    pub(in crate::decode::tiff) const EXTRA_SAMPLES: u16 = 338;
    pub(in crate::decode::tiff) const SAMPLE_FORMAT: u16 = 339;
}

impl<'f> Stored<'f> {
    pub(super) fn read(file: &'f [u8]) -> Result<Self, Defect> {
        let cut =
            || Defect("image file is truncated: the TIFF file's directory is not in it".to_owned());
        let directory = Directory::open(file).ok_or_else(cut)?;
        let or = |tag, absent| directory.value(tag).unwrap_or(absent);
        let side = |tag, name: &str| {
            directory.value(tag).ok_or_else(|| defect(format!("its {name} is missing")))
        };
        let size = Size { width: side(tag::WIDTH, "width")?, height: side(tag::HEIGHT, "height")? };
        let packing = packing(or(tag::COMPRESSION, 1))?;
        let samples = or(tag::SAMPLES, 1) as usize;
        let bits = bits(&directory, samples)?;
        let kind = kind(&directory, samples)?;
        let predictor = match or(tag::PREDICTOR, 1) {
            // A predictor has no meaning for other compressions.
            _ if !matches!(packing, Packing::Lzw | Packing::Deflate) => Predictor::None,
            1 => Predictor::None,
            2 if bits >= 8 => Predictor::Differences,
            3 if bits >= 16 && kind == Kind::Float => Predictor::Floats,
            other => {
                return Err(not_read(
                    &format!("predictor {other} with {bits} bits"),
                    "its differences are of",
                ));
            }
        };
        let is_planar = samples > 1 && or(tag::PLANAR, 1) == 2;
        let (chunk, offsets, lengths) = chunks(&directory, size)?;
        let has_reversed_bits = or(tag::FILL_ORDER, 1) == 2;
        Ok(Self {
            directory,
            size,
            kind,
            bits,
            samples,
            packing,
            predictor,
            has_reversed_bits,
            is_planar,
            chunk,
            offsets,
            lengths,
        })
    }

    /// The type of the samples in an array, if they have whole bytes.
    pub(super) const fn dtype(&self) -> Option<DType> {
        Some(match (self.kind, self.bits) {
            (Kind::Unsigned, 8) => DType::U8,
            (Kind::Unsigned, 16) => DType::U16,
            (Kind::Unsigned, 32) => DType::U32,
            (Kind::Unsigned, 64) => DType::U64,
            (Kind::Signed, 8) => DType::I8,
            (Kind::Signed, 16) => DType::I16,
            (Kind::Signed, 32) => DType::I32,
            (Kind::Signed, 64) => DType::I64,
            (Kind::Float, 16) => DType::F16,
            (Kind::Float, 32) => DType::F32,
            (Kind::Float, 64) => DType::F64,
            _ => return None,
        })
    }

    /// Bytes of a sample after unpacking.
    pub(super) const fn element_bytes(&self) -> usize {
        self.bits.div_ceil(8) as usize
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
}

pub(super) fn not_read(what: &str, is: &str) -> Defect {
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
        1 | 2 | 4 | 8 | 16 | 32 | 64 => Ok(u8::try_from(first).unwrap_or(8)),
        other => Err(not_read(&format!("of {other} bits"), "its samples are")),
    }
}

/// The type of the samples, which are equal for all.
fn kind(directory: &Directory<'_>, samples: usize) -> Result<Kind, Defect> {
    let Some(all) = directory.find(tag::SAMPLE_FORMAT) else { return Ok(Kind::Unsigned) };
    let first = all.get(0).unwrap_or(1);
    if all.iter().take(samples).any(|kind| kind != first) {
        return Err(not_read("of different types", "its samples are"));
    }
    match first {
        // 4: undefined, which libtiff reads as unsigned.
        0 | 1 | 4 => Ok(Kind::Unsigned),
        2 => Ok(Kind::Signed),
        3 => Ok(Kind::Float),
        _ => Err(not_read("complex numbers", "its samples are")),
    }
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

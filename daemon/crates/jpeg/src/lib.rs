//! Decodes regions of baseline JPEG files, bit for bit as libjpeg-turbo's accurate path does, at up to twice its speed.
//!
//! The gain is in the blocks outside of the region: of those only the Huffman codes are followed, several at a look-up,
//! and no coefficient is made. Files that are rare, damaged or in any doubt are not decoded at all: [`Unsure`] says so, and
//! the caller gives them to libjpeg-turbo, which stays the judge of what a file contains. So a result of this crate is
//! always the one that libjpeg-turbo gives.
//!
//! The way of a file: `markers` reads its headers, `scan` takes the stuffing out of its entropy-coded data, `huffman` makes
//! or finds the tables, `entropy` decodes or skips blocks, `simd` transforms, smooths and converts, and `rows` drives them
//! one row of MCUs after the other. References: ITU-T T.81 for the format, libjpeg-turbo 3.1 for every rounding.
//!
//! Needs AVX2; elsewhere [`Decoder::new`] gives `None`.

// `simd` is the only module that allows it.
#![deny(unsafe_code)]

mod bits;
mod entropy;
mod huffman;
mod layout;
mod markers;
mod quantization;
mod reduced;
mod rows;
mod scan;
#[cfg(target_arch = "x86_64")]
mod simd;

use huffman::Tables;

/// Part of an image, in pixels of the image as it is decoded (made smaller by a [`Scale`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Region {
    pub left: u32,
    pub top: u32,
    pub width: u32,
    pub height: u32,
}

/// By how much an image is decoded smaller than it is, in both directions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scale {
    /// As it is.
    Full,
    /// One pixel for each square of 2x2.
    Half,
    /// Of 4x4.
    Quarter,
    /// Of 8x8.
    Eighth,
}

impl Scale {
    /// The one with this factor, if there is one.
    #[must_use]
    pub const fn of_factor(factor: u32) -> Option<Self> {
        Some(match factor {
            1 => Self::Full,
            2 => Self::Half,
            4 => Self::Quarter,
            8 => Self::Eighth,
            _ => return None,
        })
    }

    /// 1, 2, 4 or 8.
    #[must_use]
    pub const fn factor(self) -> u32 {
        1 << self as u32
    }
}

/// What the pixels are to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pixels {
    /// One byte a pixel, of grey files only.
    Grey,
    /// Red, green, blue.
    Rgb,
    /// Red, green, blue and 255.
    Rgba,
}

impl Pixels {
    /// Bytes a pixel.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Self::Grey => 1,
            Self::Rgb => 3,
            Self::Rgba => 4,
        }
    }
}

/// Why a file is not decoded here. It says nothing against the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unsure(pub &'static str);

/// One thread's decoder: tables of the files before and scratch memory.
#[derive(Debug)]
pub struct Decoder {
    tables: Tables,
    scan: scan::Scan,
    rows: rows::Rows,
    #[cfg(target_arch = "x86_64")]
    simd: simd::Simd,
}

impl Decoder {
    /// `None`: this processor lacks what the decoder needs.
    #[must_use]
    pub fn new() -> Option<Self> {
        #[cfg(target_arch = "x86_64")]
        {
            let simd = simd::Simd::detect()?;
            let (tables, scan, rows) = Default::default();
            Some(Self { tables, scan, rows, simd })
        }
        #[cfg(not(target_arch = "x86_64"))]
        None
    }

    /// Decodes a region of a file into `pixels`: its rows from top to bottom without gaps.
    ///
    /// # Errors
    /// When the file may be one that this decoder and libjpeg-turbo read differently. `pixels` then holds nothing of use.
    ///
    /// # Panics
    /// When `pixels` has another length than the region.
    #[cfg(target_arch = "x86_64")]
    pub fn decode(
        &mut self,
        file: &[u8],
        scale: Scale,
        region: Region,
        kind: Pixels,
        pixels: &mut [u8],
    ) -> Result<(), Unsure> {
        assert_eq!(
            pixels.len(),
            region.width as usize * region.height as usize * kind.bytes(),
            "the buffer's length"
        );
        let frame = markers::read(file)?;
        let layout = layout::Layout::new(&frame, scale, region, kind)?;
        self.scan.read(file, frame.scan)?;
        let tables = self.tables.of(&frame)?;
        self.rows.decode(&frame, &layout, &tables, &self.scan, self.simd, pixels)
    }

    /// As above, where there is never one.
    ///
    /// # Errors
    /// Always.
    #[cfg(not(target_arch = "x86_64"))]
    pub fn decode(
        &mut self,
        _: &[u8],
        _: Scale,
        _: Region,
        _: Pixels,
        _: &mut [u8],
    ) -> Result<(), Unsure> {
        Err(Unsure("another processor"))
    }

    /// Bytes of scratch memory that it holds.
    #[must_use]
    pub fn scratch_bytes(&self) -> usize {
        self.scan.bytes() + self.rows.bytes()
    }

    /// Gives scratch memory back.
    pub fn trim(&mut self) {
        (self.scan, self.rows) = Default::default();
    }
}

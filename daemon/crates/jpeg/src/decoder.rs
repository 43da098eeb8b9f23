//! One thread's decoder: the way of a file from its markers to its pixels.

use crate::huffman::Tables;
use crate::layout::Layout;
use crate::markers;
use crate::request::{Pixels, Region, Scale, Unsure};
use crate::rows::Rows;
use crate::scan::Scan;
use crate::simd::Simd;

/// One thread's decoder: tables of the files before and scratch memory.
#[derive(Debug)]
pub struct Decoder {
    tables: Tables,
    scan: Scan,
    rows: Rows,
    simd: Simd,
}

impl Decoder {
    /// `None`: this processor lacks what the decoder needs.
    #[must_use]
    pub fn new() -> Option<Self> {
        let simd = Simd::detect()?;
        let (tables, scan, rows) = Default::default();
        Some(Self { tables, scan, rows, simd })
    }

    /// Decodes a region of a file into `pixels`: its rows from top to bottom without gaps.
    ///
    /// # Errors
    /// When the file may be one that this decoder and libjpeg-turbo read differently. `pixels` then holds nothing of use.
    ///
    /// # Panics
    /// When `pixels` has another length than the region.
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
        let layout = Layout::new(&frame, scale, region, kind)?;
        self.scan.read(file, frame.scan)?;
        let tables = self.tables.of(&frame)?;
        self.rows.decode(&frame, &layout, &tables, &self.scan, self.simd, pixels)
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

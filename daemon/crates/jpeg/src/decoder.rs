//! One thread's decoder: the way of a file from its markers to its pixels.

use crate::huffman::Tables;
use crate::layout::Layout;
use crate::markers;
use crate::request::{Pixels, Region, Scale, Unsure};
use crate::rows::Rows;
use crate::scan::Scan;
use crate::simd::Simd;

/// Of two rows of MCUs at most 48 bytes a column, of what smooths chroma four, all with room for twice that.
const BYTES_PER_COLUMN: u64 = 128;
/// What is padded, and lists that are never shorter.
const FIXED_BYTES: u64 = 16 << 10;

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
        self.scan.read(file, frame.scan, layout.intervals(frame.restart_interval))?;
        let tables = self.tables.of(&frame)?;
        self.rows.decode(&frame, &layout, &tables, &self.scan, self.simd, pixels)
    }

    /// The most scratch memory that decoding a file of this length and size takes.
    #[must_use]
    pub fn most_scratch_bytes(file_bytes: u64, width: u32, height: u32) -> u64 {
        let blocks = u64::from(width).div_ceil(8) * u64::from(height).div_ceil(8);
        // A list of restart markers, of two bytes each in the file, has room for twice what it holds.
        let restarts = blocks.min(file_bytes / 2) * 16;
        file_bytes + restarts + FIXED_BYTES + BYTES_PER_COLUMN * u64::from(width)
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

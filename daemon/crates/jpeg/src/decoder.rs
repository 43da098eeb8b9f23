//! One thread's decoder: from a file's markers to its pixels.

use crate::checkpoints::Checkpoints;
use crate::huffman::Tables;
use crate::layout::Layout;
use crate::markers;
use crate::request::{Index, Learned, Pixels, Region, Scale, Unsure};
use crate::rows::{Marks, Rows, Source};
use crate::scan::Scan;
use crate::simd::Simd;

/// Two rows of MCUs take at most 48 bytes per column, smoothing of chroma four; doubled for growth.
const BYTES_PER_COLUMN: u64 = 128;
/// Padding, and lists of minimal size.
const FIXED_BYTES: u64 = 16 << 10;

/// One thread's decoder: tables of earlier files and scratch memory.
#[derive(Debug)]
pub struct Decoder {
    tables: Tables,
    scan: Scan,
    rows: Rows,
    checkpoints: Checkpoints,
    simd: Simd,
}

impl Decoder {
    /// `None`: the processor does not have the required features.
    #[must_use]
    pub fn new() -> Option<Self> {
        let simd = Simd::detect()?;
        let (tables, scan, rows, checkpoints) = Default::default();
        Some(Self { tables, scan, rows, checkpoints, simd })
    }

    /// Decodes a region of a file into `pixels`: its rows from top to bottom without gaps. Returns what it learned.
    ///
    /// # Errors
    /// This decoder and libjpeg-turbo may read the file differently. The contents of `pixels` are undefined then.
    ///
    /// # Panics
    /// `pixels` differs from the region in length.
    pub fn decode(
        &mut self,
        file: &[u8],
        scale: Scale,
        region: Region,
        kind: Pixels,
        index: Index<'_>,
        pixels: &mut [u8],
    ) -> Result<Learned, Unsure> {
        assert_eq!(
            pixels.len(),
            region.width as usize * region.height as usize * kind.bytes(),
            "the buffer's length"
        );
        let Index { known, learned, whole } = index;
        let frame = markers::read(file)?;
        let layout = Layout::new(&frame, scale, region, kind)?;
        self.scan.read(file, frame.scan, layout.intervals(frame.restart_interval))?;
        let tables = self.tables.of(&frame)?;
        let Self { scan, rows, checkpoints, simd, .. } = self;
        let source = Source { frame: &frame, layout: &layout, tables: &tables, scan };
        let mut decode =
            |marks: Marks<'_>, pixels: &mut [u8]| rows.decode(source, marks, *simd, pixels);
        let data_bytes = scan.data_bytes();
        if known.is_empty() && learned.is_none() {
            decode(Marks::None, pixels)?;
            return Ok(Learned::Nothing);
        }
        if frame.restart_interval > 0 || u32::try_from(data_bytes * 8).is_err() {
            decode(Marks::None, pixels)?;
            return Ok(Learned::Never);
        }
        checkpoints.begin(&layout);
        if !known.is_empty() {
            let last = if whole { layout.mcus_down } else { layout.mcu_rows.end };
            let unpacked =
                checkpoints.unpack(known, &layout, data_bytes, last * layout.mcus_across);
            if unpacked.is_err() {
                decode(Marks::None, pixels)?;
                return Ok(Learned::Nothing);
            }
        }
        let marks = match (&learned, whole) {
            (None, _) => Marks::Known(checkpoints),
            (Some(_), false) => Marks::Learn(checkpoints),
            (Some(_), true) => Marks::LearnAll(checkpoints),
        };
        match decode(marks, pixels) {
            Ok(()) => {}
            // The index may be wrong.
            Err(_) if !known.is_empty() => {
                decode(Marks::None, pixels)?;
                return Ok(Learned::Nothing);
            }
            Err(unsure) => return Err(unsure),
        }
        let Some(packed) = learned else { return Ok(Learned::Nothing) };
        let is_doubted = whole && checkpoints.places.is_empty();
        if !is_doubted && !checkpoints.has_grown(&layout, whole) {
            return Ok(Learned::Nothing);
        }
        checkpoints.pack(&layout, data_bytes, file.len(), packed);
        Ok(if packed.is_empty() { Learned::Never } else { Learned::Marks })
    }

    /// The maximal scratch memory for decoding a file of this length and size.
    #[must_use]
    pub fn most_scratch_bytes(file_bytes: u64, width: u32, height: u32) -> u64 {
        let blocks = u64::from(width).div_ceil(8) * u64::from(height).div_ceil(8);
        // A list of restart markers, of two bytes each in the file, may have twice the needed capacity.
        let restarts = blocks.min(file_bytes / 2) * 16;
        // At most one checkpoint of 16 bytes per 128 pixels, with twice the needed capacity.
        let checkpoints = blocks * 2;
        file_bytes + restarts + checkpoints + FIXED_BYTES + BYTES_PER_COLUMN * u64::from(width)
    }

    /// Bytes of scratch memory.
    #[must_use]
    pub fn scratch_bytes(&self) -> usize {
        self.scan.bytes() + self.rows.bytes() + self.checkpoints.bytes()
    }

    /// Frees scratch memory.
    pub fn trim(&mut self) {
        (self.scan, self.rows, self.checkpoints) = Default::default();
    }
}

//! Reads a scan, decodes the MCUs that a region needs and skips the others, and writes the region's pixels row by row.
//!
//! Two rows of MCUs of each plane are kept, in turn: smoothing needs the rows of samples above and below, so the last
//! row of an MCU waits for the next MCU.

use std::ops::Range;

use crate::bits::Bits;
use crate::checkpoints::{Checkpoint, Checkpoints};
use crate::entropy;
use crate::huffman::Pair;
use crate::layout::{Layout, Plane};
use crate::markers::Frame;
use crate::quantization::Quantization;
use crate::reduced;
use crate::request::{Pixels, Unsure};
use crate::scan::Scan;
use crate::simd::{Simd, Work};

/// Blocks of the largest MCU: four of luma and two of chroma.
const MOST_BLOCKS: usize = 6;

/// Scratch memory, reused across files.
#[derive(Debug, Default)]
pub(crate) struct Rows {
    planes: [Vec<u8>; 3],
    /// A row of chroma of the image's width, and sums of two rows of samples.
    smooth: [Vec<u8>; 2],
    sums: Vec<u16>,
}

/// A file that is being decoded.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Source<'f> {
    pub frame: &'f Frame<'f>,
    pub layout: &'f Layout,
    pub tables: &'f [Pair<'f>; 3],
    pub scan: &'f Scan,
}

/// How checkpoints are used.
#[derive(Debug)]
pub(crate) enum Marks<'m> {
    None,
    /// MCUs before a checkpoint are skipped at once.
    Known(&'m Checkpoints),
    /// As `Known`, and new checkpoints are added.
    Learn(&'m mut Checkpoints),
    /// As `Learn`, and the scan is read to its end. None are kept if anything is in doubt.
    LearnAll(&'m mut Checkpoints),
}

impl Marks<'_> {
    fn places(&self) -> Option<&Checkpoints> {
        match self {
            Self::None => None,
            Self::Known(checkpoints) => Some(checkpoints),
            Self::Learn(checkpoints) | Self::LearnAll(checkpoints) => Some(checkpoints),
        }
    }
}

/// The position in a scan.
struct Cursor<'d, 'm> {
    scan: &'d Scan,
    bits: Bits<'d>,
    /// The end of this restart interval.
    end: usize,
    /// The last first coefficient of each component.
    before: [i32; 3],
    mcu: usize,
    restart_interval: usize,
    /// The first MCU after this interval.
    next_restart: usize,
    marks: Marks<'m>,
    /// The next MCU with a checkpoint.
    next_mark: usize,
}

impl<'d, 'm> Cursor<'d, 'm> {
    fn new(scan: &'d Scan, restart_interval: usize, marks: Marks<'m>) -> Result<Self, Unsure> {
        let bits = Bits::new(scan.data(), 0);
        let next_mark = marks.places().map_or(usize::MAX, |checkpoints| checkpoints.spacing);
        let (end, before, mcu, next_restart) = (0, [0; 3], 0, 0);
        let mut cursor =
            Self { scan, bits, end, before, mcu, restart_interval, next_restart, marks, next_mark };
        cursor.enter(0)?;
        Ok(cursor)
    }

    /// Moves to the start of a restart interval.
    fn enter(&mut self, interval: usize) -> Result<(), Unsure> {
        let (begin, end) = self.scan.interval(interval).ok_or(Unsure("too few restart markers"))?;
        self.bits = Bits::new(self.scan.data(), begin);
        (self.end, self.before) = (end, [0; 3]);
        (self.mcu, self.next_restart) = (interval * self.restart_interval, usize::MAX);
        if self.restart_interval > 0 {
            self.next_restart = self.mcu + self.restart_interval;
        }
        Ok(())
    }

    /// Counts an MCU that was read. The bits after an interval's last ones do not belong to it.
    #[inline(always)]
    fn count(&mut self) -> Result<(), Unsure> {
        self.mcu += 1;
        if self.bits.position() > self.end * 8 {
            return Err(Unsure("data that end too early"));
        }
        Ok(())
    }

    /// Moves to the next interval, after checking that this one was read to its end.
    #[inline(always)]
    fn restart(&mut self) -> Result<(), Unsure> {
        if self.mcu != self.next_restart {
            return Ok(());
        }
        if self.bits.position().div_ceil(8) != self.end {
            return Err(Unsure("data between an interval and its end"));
        }
        self.enter(self.mcu / self.restart_interval)
    }

    /// Handles the checkpoint of the next MCU.
    #[inline(never)]
    fn mark(&mut self) -> Result<(), Unsure> {
        // `Learn` is used only if positions fit.
        let position = self.bits.position() as u32;
        let here = Checkpoint { position, before: self.before };
        let Some(checkpoints) = self.marks.places() else { return Ok(()) };
        let number = self.mcu / checkpoints.spacing;
        self.next_mark = self.mcu + checkpoints.spacing;
        match checkpoints.places.get(number.wrapping_sub(1)) {
            Some(known) if *known == here => {}
            Some(_) => return Err(Unsure("checkpoints of another file")),
            None => {
                if let Marks::Learn(checkpoints) | Marks::LearnAll(checkpoints) = &mut self.marks {
                    checkpoints.places.push(here);
                }
            }
        }
        Ok(())
    }

    /// Moves to the last checkpoint before an MCU, if it is ahead.
    #[inline(always)]
    fn jump(&mut self, target: usize) {
        if let Some(checkpoints) = self.marks.places()
            && let Some((mcu, place)) = checkpoints.before(target)
            && mcu > self.mcu
        {
            self.bits = Bits::from_bit(self.scan.data(), place.position as usize);
            (self.mcu, self.before) = (mcu, place.before);
            self.next_mark = mcu + checkpoints.spacing;
        }
    }

    /// Whether the scan was read to its end, without remaining data.
    fn is_at_end(&self, mcus: usize) -> bool {
        self.mcu == mcus && self.bits.position().div_ceil(8) == self.end
    }

    /// Skips MCUs, up to `target`.
    #[inline(always)]
    fn skip_to(
        &mut self,
        target: usize,
        planes: &[Plane],
        tables: &[Pair<'_>; 3],
    ) -> Result<(), Unsure> {
        if let Some(interval) = target.checked_div(self.restart_interval)
            && self.next_restart <= target
        {
            self.enter(interval)?;
        }
        self.jump(target);
        // A local stays in registers.
        let mut bits = self.bits;
        while self.mcu < target {
            if self.mcu == self.next_mark {
                self.mark()?;
            }
            for (component, plane) in planes.iter().enumerate() {
                for _ in 0..plane.across * plane.down {
                    entropy::skip(&mut bits, tables[component], &mut self.before[component])?;
                }
            }
            self.bits = bits;
            self.count()?;
        }
        Ok(())
    }
}

/// The position of a row of samples among the kept ones.
fn kept_row(plane: &Plane, row: usize) -> usize {
    row % (2 * plane.down * plane.block)
}

/// A row of MCUs of which some are needed.
struct McuRow<'a, 'd, 'm> {
    planes: &'a mut [Vec<u8>; 3],
    cursor: &'a mut Cursor<'d, 'm>,
    /// The first needed MCU, counted from the image's first.
    start: usize,
    mcu_row: usize,
    layout: &'a Layout,
    tables: &'a [Pair<'a>; 3],
    quantization: &'a [Quantization; 3],
    simd: Simd,
}

impl Work for McuRow<'_, '_, '_> {
    /// Skips the preceding MCUs and decodes the needed ones.
    #[inline(always)]
    fn work(self) -> Result<(), Unsure> {
        let Self { planes, cursor, start, mcu_row, layout, tables, quantization, simd } = self;
        cursor.skip_to(start, layout.planes(), tables)?;
        let mut blocks = [([0; 64], 0); MOST_BLOCKS];
        for mcu in 0..layout.mcu_columns.len() {
            cursor.restart()?;
            if cursor.mcu == cursor.next_mark {
                cursor.mark()?;
            }
            // All are decoded before the first is transformed: a load of recently written parts would stall.
            let (mut bits, mut left) = (cursor.bits, &mut blocks[..]);
            for (component, plane) in layout.planes().iter().enumerate() {
                let (own, later) = left.split_at_mut((plane.across * plane.down).min(left.len()));
                for (block, last) in own {
                    let before = &mut cursor.before[component];
                    *last = entropy::decode(&mut bits, tables[component], before, block)?;
                }
                left = later;
            }
            cursor.bits = bits;
            cursor.count()?;
            let mut rest = &blocks[..];
            for ((plane, samples), factors) in
                layout.planes().iter().zip(&mut *planes).zip(quantization)
            {
                let stride = stride(layout, plane);
                let row = kept_row(plane, mcu_row * plane.down * plane.block);
                let first = row * stride + mcu * plane.across * plane.block;
                let (own, later) = rest.split_at((plane.across * plane.down).min(rest.len()));
                for (place, (block, last)) in own.iter().enumerate() {
                    let (down, across) = (place / plane.across, place % plane.across);
                    let samples = &mut samples[first + (down * stride + across) * plane.block..];
                    let is_certain = match plane.block {
                        2.. if *last == 0 => {
                            simd.flat(factors.first(block[0]), plane.block, samples, stride)
                        }
                        8 => simd.transform(block, factors, *last, samples, stride),
                        size => reduced::transform(block, factors, size, samples, stride),
                    };
                    if !is_certain {
                        return Err(Unsure("coefficients beyond every picture's"));
                    }
                }
                rest = later;
            }
        }
        Ok(())
    }
}

/// The MCUs after the last needed one.
struct Rest<'a, 'd, 'm> {
    cursor: &'a mut Cursor<'d, 'm>,
    mcus: usize,
    planes: &'a [Plane],
    tables: &'a [Pair<'a>; 3],
}

impl Work for Rest<'_, '_, '_> {
    #[inline(always)]
    fn work(self) -> Result<(), Unsure> {
        self.cursor.skip_to(self.mcus, self.planes, self.tables)
    }
}

impl Rows {
    pub(crate) fn bytes(&self) -> usize {
        let bytes = self.planes.iter().chain(&self.smooth).map(Vec::capacity).sum::<usize>();
        bytes + self.sums.capacity() * 2
    }

    /// Decodes a region.
    ///
    /// # Errors
    /// Anything is in doubt.
    pub(crate) fn decode(
        &mut self,
        source: Source<'_>,
        marks: Marks<'_>,
        simd: Simd,
        pixels: &mut [u8],
    ) -> Result<(), Unsure> {
        let Source { frame, layout, tables, scan } = source;
        let mut quantization = [Quantization([0; 64]); 3];
        for (component, table) in frame.components().iter().zip(&mut quantization) {
            let missing = Unsure("a quantization table that is missing");
            let found = frame.quantization[component.quantization].ok_or(missing)?;
            *table = Quantization::new(found);
        }
        for (plane, kept) in layout.planes().iter().zip(&mut self.planes) {
            kept.resize(stride(layout, plane) * 2 * plane.down * plane.block, 0);
        }
        for row in &mut self.smooth {
            row.resize(layout.columns.len() + 4, 0);
        }
        self.sums.resize(layout.columns.len() / 2 + 4, 0);
        let mcus = layout.mcus_across * layout.mcus_down;
        let mut cursor = Cursor::new(scan, frame.restart_interval, marks)?;
        let (mut first, mut rest) = (layout.rows.start, pixels);
        for mcu_row in layout.mcu_rows.clone() {
            let start = mcu_row * layout.mcus_across + layout.mcu_columns.start;
            simd.run(McuRow {
                planes: &mut self.planes,
                cursor: &mut cursor,
                start,
                mcu_row,
                layout,
                tables,
                quantization: &quantization,
                simd,
            })?;
            let is_last = mcu_row + 1 == layout.mcu_rows.end;
            // The last row needs the samples below it.
            let known = (mcu_row + 1) * layout.mcu_height - usize::from(layout.looks_down());
            let end = if is_last { layout.rows.end } else { known.min(layout.rows.end) };
            if first < end {
                let bytes = (end - first) * layout.columns.len() * layout.kind.bytes();
                let (these, later) = rest.split_at_mut(bytes);
                self.give_rows(first..end, layout, simd, these);
                (first, rest) = (end, later);
            }
        }
        if matches!(cursor.marks, Marks::LearnAll(_)) {
            let read =
                simd.run(Rest { cursor: &mut cursor, mcus, planes: layout.planes(), tables });
            let is_whole = read.is_ok() && cursor.is_at_end(mcus);
            if let (Marks::LearnAll(checkpoints), false) = (cursor.marks, is_whole) {
                checkpoints.places.clear();
            }
        }
        Ok(())
    }

    /// Writes the pixels of some rows of the region.
    fn give_rows(&mut self, rows: Range<usize>, layout: &Layout, simd: Simd, pixels: &mut [u8]) {
        let width = layout.columns.len();
        for (row, out) in rows.zip(pixels.chunks_exact_mut(width * layout.kind.bytes())) {
            let [luma, chroma @ ..] = layout.planes() else { return };
            let luma_row = samples(&self.planes[0], layout, luma, row, layout.columns.clone());
            if chroma.is_empty() {
                match layout.kind {
                    Pixels::Grey => out.copy_from_slice(luma_row),
                    Pixels::Rgb => simd.grey_to_rgb::<3>(luma_row, out),
                    Pixels::RgbRows => {
                        out.chunks_exact_mut(width).for_each(|row| row.copy_from_slice(luma_row));
                    }
                    Pixels::Rgba => simd.grey_to_rgb::<4>(luma_row, out),
                }
                continue;
            }
            let mut chroma_rows: [&[u8]; 2] = [&[]; 2];
            let parts =
                chroma.iter().zip(&self.planes[1..]).zip(&mut self.smooth).zip(&mut chroma_rows);
            for (((plane, kept), smooth), chroma_row) in parts {
                *chroma_row = smoothed(kept, layout, plane, row, simd, &mut self.sums, smooth);
            }
            let [blue, red] = chroma_rows;
            match layout.kind {
                Pixels::Rgba => simd.to_rgb::<4>(luma_row, blue, red, out),
                Pixels::RgbRows => simd.to_rgb_rows(luma_row, blue, red, out),
                _ => simd.to_rgb::<3>(luma_row, blue, red, out),
            }
        }
    }
}

/// Samples in a kept row of a plane.
fn stride(layout: &Layout, plane: &Plane) -> usize {
    layout.mcu_columns.len() * plane.across * plane.block
}

/// Some samples of a kept row.
fn samples<'k>(
    kept: &'k [u8],
    layout: &Layout,
    plane: &Plane,
    row: usize,
    columns: Range<usize>,
) -> &'k [u8] {
    let first = layout.mcu_columns.start * plane.across * plane.block;
    let start = kept_row(plane, row) * stride(layout, plane) + columns.start - first;
    &kept[start..start + columns.len()]
}

/// A row of chroma as wide as the region.
fn smoothed<'k>(
    kept: &'k [u8],
    layout: &Layout,
    plane: &Plane,
    row: usize,
    simd: Simd,
    sums: &mut [u16],
    smooth: &'k mut [u8],
) -> &'k [u8] {
    let columns = layout.sample_columns(plane);
    let near = samples(kept, layout, plane, row / plane.high, columns.clone());
    if (plane.wide, plane.high) == (1, 1) {
        return near;
    }
    let far_row = match (plane.high, row % 2) {
        (1, _) => row,
        (_, 0) => (row / 2).saturating_sub(1),
        _ => (row / 2 + 1).min(plane.height - 1),
    };
    let far = samples(kept, layout, plane, far_row, columns.clone());
    if plane.wide == 1 {
        simd.smooth_down(near, far, row.is_multiple_of(2), smooth);
        return &smooth[..layout.columns.len()];
    }
    // One more sample to the left and to the right; at the borders the first and the last are repeated.
    let core = layout.columns.start / 2..(layout.columns.end - 1) / 2 + 1;
    let left = usize::from(columns.start == core.start);
    let count = core.len() + 2;
    let sums = &mut sums[..count];
    {
        let sums = &mut sums[left..][..columns.len()];
        if plane.high == 2 {
            simd.sum_rows(near, far, sums);
        } else {
            simd.widen(near, sums);
        }
    }
    if left == 1 {
        sums[0] = sums[1];
    }
    if columns.end == core.end {
        sums[count - 1] = sums[count - 2];
    }
    simd.smooth_across(sums, plane.high == 2, smooth);
    &smooth[layout.columns.start % 2..][..layout.columns.len()]
}

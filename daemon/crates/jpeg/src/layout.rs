//! The samples and MCUs that a region needs, and the components' relative positions.

use std::ops::Range;

use crate::markers::Frame;
use crate::request::{Pixels, Region, Scale, Unsure};

/// The layout of one component's samples.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Plane {
    /// Blocks per MCU.
    pub across: usize,
    pub down: usize,
    /// Samples of a block in both directions.
    pub block: usize,
    /// Pixels of the image per sample: 1 or 2.
    pub wide: usize,
    pub high: usize,
    /// Valid samples of the whole plane; libjpeg's `downsampled_width` and `_height`.
    pub width: usize,
    pub height: usize,
}

/// The decoded part of a file.
#[derive(Debug)]
pub(crate) struct Layout {
    planes: [Plane; 3],
    count: usize,
    pub kind: Pixels,
    /// Pixels of the image.
    pub columns: Range<usize>,
    pub rows: Range<usize>,
    /// MCUs of the image.
    pub mcus_across: usize,
    pub mcus_down: usize,
    /// Decoded MCUs.
    pub mcu_columns: Range<usize>,
    pub mcu_rows: Range<usize>,
    /// Height of an MCU as decoded, in pixels; and its width at the image's full size.
    pub mcu_height: usize,
    pub mcu_width: usize,
}

/// The samples that a range of pixels needs: for subsampled planes also their neighbours, for interpolation.
fn needed(pixels: &Range<usize>, per_sample: usize, samples: usize) -> Range<usize> {
    if per_sample == 1 {
        return pixels.clone();
    }
    (pixels.start / 2).saturating_sub(1)..((pixels.end - 1) / 2 + 2).min(samples)
}

impl Layout {
    /// # Errors
    /// Forms that libjpeg treats specially, and regions outside the image.
    pub(crate) fn new(
        frame: &Frame<'_>,
        scale: Scale,
        region: Region,
        kind: Pixels,
    ) -> Result<Self, Unsure> {
        let components = frame.components();
        if (kind == Pixels::Grey) && components.len() != 1 {
            return Err(Unsure("grey of a colour file"));
        }
        // The block size for the component with the most samples, and the largest factors.
        let smallest = 8 / scale.factor();
        let most_across = components.iter().map(|component| component.across).max().unwrap_or(1);
        let most_down = components.iter().map(|component| component.down).max().unwrap_or(1);
        let mut planes = [Plane::default(); 3];
        for (component, plane) in components.iter().zip(&mut planes) {
            // The blocks of a component with fewer samples are reduced less (libjpeg: jdmaster.c).
            let mut block = smallest;
            while block < 8
                && (most_across * smallest).is_multiple_of(component.across * block * 2)
                && (most_down * smallest).is_multiple_of(component.down * block * 2)
            {
                block *= 2;
            }
            let samples = |side: u32, factor: u32, most: u32| {
                (side * factor * block).div_ceil(most * 8) as usize
            };
            *plane = Plane {
                across: component.across as usize,
                down: component.down as usize,
                block: block as usize,
                wide: (most_across * smallest / (component.across * block)) as usize,
                high: (most_down * smallest / (component.down * block)) as usize,
                width: samples(frame.width, component.across, most_across),
                height: samples(frame.height, component.down, most_down),
            };
            // Libjpeg does not smooth such narrow planes, nor blocks of one sample.
            if (plane.wide, plane.high) != (1, 1) && (plane.width <= 2 || smallest == 1) {
                return Err(Unsure("chroma that is not smoothed"));
            }
        }
        let planes_used = &planes[..components.len()];
        let (width, height) =
            (frame.width.div_ceil(scale.factor()), frame.height.div_ceil(scale.factor()));
        let range = |start: u32, length: u32, limit: u32| {
            let end = start.checked_add(length).filter(|end| length > 0 && *end <= limit);
            end.map(|end| start as usize..end as usize).ok_or(Unsure("a region outside the image"))
        };
        let columns = range(region.left, region.width, width)?;
        let rows = range(region.top, region.height, height)?;
        let union = |ranges: &mut dyn Iterator<Item = Range<usize>>| {
            ranges.reduce(|all, one| all.start.min(one.start)..all.end.max(one.end)).unwrap_or(0..0)
        };
        let mcu_columns = union(&mut planes_used.iter().map(|plane| {
            let samples = needed(&columns, plane.wide, plane.width);
            let mcu = plane.across * plane.block;
            samples.start / mcu..samples.end.div_ceil(mcu)
        }));
        let mcu_rows = union(&mut planes_used.iter().map(|plane| {
            let samples = needed(&rows, plane.high, plane.height);
            let mcu = plane.down * plane.block;
            samples.start / mcu..samples.end.div_ceil(mcu)
        }));
        Ok(Self {
            planes,
            count: components.len(),
            kind,
            columns,
            rows,
            mcus_across: frame.width.div_ceil(most_across * 8) as usize,
            mcus_down: frame.height.div_ceil(most_down * 8) as usize,
            mcu_columns,
            mcu_rows,
            mcu_height: (most_down * smallest) as usize,
            mcu_width: (most_across * 8) as usize,
        })
    }

    pub(crate) fn planes(&self) -> &[Plane] {
        &self.planes[..self.count]
    }

    /// The number of restart intervals, for this number of MCUs between two markers (0: no markers).
    pub(crate) fn intervals(&self, restart_interval: usize) -> usize {
        let mcus = self.mcus_across * self.mcus_down;
        if restart_interval == 0 { 1 } else { mcus.div_ceil(restart_interval) }
    }

    /// Whether some rows are interpolated from two rows of samples.
    pub(crate) fn looks_down(&self) -> bool {
        self.planes().iter().any(|plane| plane.high == 2)
    }

    /// The samples of a plane that the region's columns need.
    pub(crate) fn sample_columns(&self, plane: &Plane) -> Range<usize> {
        needed(&self.columns, plane.wide, plane.width)
    }
}

//! One resampling: only the visible part, from only the pixels that it needs.
//!
//! RGB is resampled by `forebay-resample`'s fast pass; everything else, and images that the fast pass does not support,
//! by its general resampler, which gives the same pixels more slowly.
//!
//! A hard crop ends the image: no pixels beyond its edge are used, as after torchvision's crop-then-resize. The visible
//! part of the resampled image is a crop box in fractions of a pixel: pixels outside that box, but within the hard
//! crop, are used, as with the `box` of Pillow's `resize`. (Both resizers bound their filters by the source view, not
//! by the box.)

use crate::arguments::Interpolation;
use crate::geometry::{Geometry, Sampling};
use forebay_dataset::Defect;
use forebay_media::reduction::{Decoded, Reduction};
use forebay_media::size::{Rectangle, Size};
use forebay_resample::{AnyResampler, Filter, Form, Packed, Resampler, Shown, Source, Target};

/// A work thread's resizers and their memory.
#[derive(Debug, Default)]
pub(super) struct Resizers {
    /// `None` before the first image; `Some(None)`: this processor lacks the required instructions.
    quick: Option<Option<Resampler>>,
    any: AnyResampler,
}

impl Resizers {
    /// Bytes kept from image to image.
    pub(super) fn kept_bytes(&self) -> usize {
        let quick = self.quick.as_ref().and_then(Option::as_ref).map_or(0, Resampler::held_bytes);
        quick + self.any.held_bytes()
    }

    /// Frees these bytes.
    pub(super) fn give_back(&mut self) {
        if let Some(Some(quick)) = &mut self.quick {
            quick.trim();
        }
        self.any.trim();
    }

    /// The fast resampler, if it supports this resampling. Its weights are computed, and reused when the pixels exist.
    fn quick(&mut self, way: &Way, channels: u8, mirror: bool) -> Option<&mut Resampler> {
        let quick = self.quick.get_or_insert_with(Resampler::new).as_mut()?;
        let from = (way.view.width, way.view.height);
        let to = (way.to.width, way.to.height);
        let is_done =
            channels == 3 && quick.prepare(from, way.columns, way.rows, way.filter, to, mirror);
        is_done.then_some(quick)
    }

    /// Whether rows of colours may be decoded for a geometry.
    pub(super) fn takes_colour_rows(
        &mut self,
        geometry: &Geometry,
        reduction: Reduction,
        channels: u8,
    ) -> bool {
        // Weights are cached only for the direction of the row.
        let mirror = geometry.flip_horizontally;
        Way::of(geometry, reduction).is_some_and(|way| self.quick(&way, channels, mirror).is_some())
    }
}

/// The pixels to resample, of an image reduced by `reduction`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Given<'p> {
    pub pixels: &'p [u8],
    /// Covers the geometry's needs. An edge of its crop may be within a pixel; that pixel counts fully.
    pub decoded: Decoded,
    pub reduction: Reduction,
    pub channels: u8,
}

/// The parameters of a resampling with a filter.
#[derive(Debug)]
struct Way {
    filter: Filter,
    /// The pixels of the decoded image that are used.
    view: Rectangle,
    /// The shown part of them.
    columns: Shown,
    rows: Shown,
    to: Size,
}

impl Way {
    /// `None` if single pixels are picked, without a filter.
    fn of(geometry: &Geometry, reduction: Reduction) -> Option<Self> {
        let (target, Sampling::Interpolated(interpolation)) = geometry.resampling? else {
            return None;
        };
        let filter = match interpolation {
            Interpolation::Bilinear => Filter::Bilinear,
            Interpolation::Bicubic => Filter::CatmullRom,
            Interpolation::Lanczos => Filter::Lanczos3,
            Interpolation::Nearest => return None,
        };
        let view = geometry.needed_after(reduction);
        let factor = f64::from(reduction.factor());
        let Geometry { source, visible, .. } = *geometry;
        let span = |start: u32, count: u32, target: u32, source: (u32, u32), needed: (u32, u32)| {
            // Exact: a division by a power of two.
            let shift = f64::from(needed.0) - f64::from(source.0) / factor;
            let first = edge(start, target, source.1) / factor - shift;
            let last = edge(start + count, target, source.1) / factor - shift;
            Shown { start: first, length: (last - first).min(f64::from(needed.1) - first) }
        };
        let (x, y) = ((source.left, source.width), (source.top, source.height));
        let columns = span(visible.left, visible.width, target.width, x, (view.left, view.width));
        let rows = span(visible.top, visible.height, target.height, y, (view.top, view.height));
        Some(Self { filter, view, columns, rows, to: visible.size() })
    }

    /// The pixels for the fast resampler.
    fn source<'p>(&self, from: &Given<'p>) -> Source<'p> {
        let area = from.decoded.area;
        let pitch_bytes = area.width as usize * 3;
        let above = (self.view.top - area.top) as usize * pitch_bytes;
        let left = (self.view.left - area.left) as usize * 3;
        let form = if from.decoded.in_colour_rows { Form::Planar } else { Form::Interleaved };
        let Rectangle { width, height, .. } = self.view;
        Source { pixels: &from.pixels[above + left..], pitch_bytes, width, height, form }
    }
}

/// The start of the `index`-th of `target` pixels on a side of `length` pixels; exact at both ends.
fn edge(index: u32, target: u32, length: u32) -> f64 {
    if index == target {
        return f64::from(length);
    }
    f64::from(index) * f64::from(length) / f64::from(target)
}

/// Resamples the visible part of a geometry directly into a canvas that it fills, in either layout, flips included.
/// `false`: nothing is written, since the fast resampler does not support it.
pub(super) fn resample_onto_canvas(
    resizers: &mut Resizers,
    from: &Given<'_>,
    geometry: &Geometry,
    is_planar: bool,
    canvas: &mut [u8],
) -> bool {
    let Some(way) = Way::of(geometry, from.reduction) else { return false };
    let mirror = geometry.flip_horizontally;
    let Some(quick) = resizers.quick(&way, from.channels, mirror) else { return false };
    let mut target = Target {
        pixels: canvas,
        width: way.to.width,
        height: way.to.height,
        form: if is_planar { Form::Planar } else { Form::Interleaved },
        mirror,
        upend: geometry.flip_vertically,
    };
    quick.resample(&way.source(from), way.columns, way.rows, way.filter, &mut target)
}

/// Resamples the visible part of a geometry into `to` (contiguous rows, exactly the visible part's pixels).
pub(super) fn resample(
    resizers: &mut Resizers,
    from: &Given<'_>,
    geometry: &Geometry,
    to: &mut [u8],
) -> Result<(), Defect> {
    let Given { pixels, decoded: Decoded { area, .. }, channels, .. } = *from;
    let Some((target, sampling)) = geometry.resampling else {
        return Ok(());
    };
    let Some(way) = Way::of(geometry, from.reduction) else {
        match sampling {
            Sampling::Mask => pick(pixels, area, channels, geometry, target, mask_positions, to),
            Sampling::Interpolated(_) => {
                pick(pixels, area, channels, geometry, target, nearest_positions, to);
            }
        }
        return Ok(());
    };
    let upright = Geometry { flip_horizontally: false, flip_vertically: false, ..*geometry };
    if resample_onto_canvas(resizers, from, &upright, false, to) {
        return Ok(());
    }
    let Way { view, columns, rows, .. } = way;
    let from = Packed {
        pixels,
        channels,
        size: (area.width, area.height),
        corner: (view.left - area.left, view.top - area.top),
        view: (view.width, view.height),
    };
    let size = (way.to.width, way.to.height);
    resizers
        .any
        .resample(&from, columns, rows, way.filter, size, to)
        .map_err(|reason| Defect(format!("resampling to {target:?} failed: {reason}")))
}

/// The source position of each visible pixel on one axis. Positions are accumulated as in Pillow's
/// `ImagingScaleAffine`, so that the same pixels are picked.
fn nearest_positions(
    start: u32,
    count: u32,
    target: u32,
    length: u32,
) -> impl Iterator<Item = usize> {
    let step = f64::from(length) / f64::from(target);
    let last = length.saturating_sub(1) as usize;
    std::iter::successors(Some(step * 0.5), move |position| Some(position + step))
        .skip(start as usize)
        .take(count as usize)
        .map(move |position| {
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "not negative, and cut to the side"
            )]
            let whole = position as usize;
            whole.min(last)
        })
}

/// The same for a mask, in single precision as in torch's `interpolate(mode="nearest")`.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "as torch rounds them; not negative, and cut to the side"
)]
fn mask_positions(start: u32, count: u32, target: u32, length: u32) -> impl Iterator<Item = usize> {
    let step = length as f32 / target as f32;
    let last = length.saturating_sub(1) as usize;
    (start..start + count).map(move |index| ((index as f32 * step) as usize).min(last))
}

/// Picks single pixels: `positions` returns their positions for a start, a count, and the lengths of the resampled
/// image and the source.
fn pick<P: Iterator<Item = usize>>(
    pixels: &[u8],
    area: Rectangle,
    channels: u8,
    geometry: &Geometry,
    target: Size,
    positions: impl Fn(u32, u32, u32, u32) -> P,
    to: &mut [u8],
) {
    let Geometry { source, visible, .. } = *geometry;
    let channels = usize::from(channels);
    let columns: Vec<usize> = positions(visible.left, visible.width, target.width, source.width)
        .map(|column| (source.left as usize + column - area.left as usize) * channels)
        .collect();
    let rows = positions(visible.top, visible.height, target.height, source.height);
    let line_bytes = visible.width as usize * channels;
    for (row, line) in rows.zip(to.chunks_exact_mut(line_bytes)) {
        // `area` contains all needed pixels, and may begin below the source's first row.
        let row = source.top as usize + row - area.top as usize;
        let from = &pixels[row * area.width as usize * channels..];
        for (column, pixel) in columns.iter().zip(line.chunks_exact_mut(channels)) {
            pixel.copy_from_slice(&from[*column..*column + channels]);
        }
    }
}

//! One resampling through fast_image_resize: only the visible part, from only the pixels that it needs.
//!
//! A hard crop ends the image: beyond its edge nothing is seen, as after torchvision's crop-then-resize. The visible part of the
//! resampled image is a crop box in fractions of a pixel: pixels beyond that box, but within the hard crop, count, as
//! with the `box` of Pillow's `resize`. (fast_image_resize bounds its filters by the source view, not by the box.)

use fast_image_resize as fir;
use fir::images::{CroppedImage, Image, ImageRef};
use fir::{FilterType, PixelType, ResizeAlg, ResizeOptions, Resizer};

use crate::arguments::Interpolation;
use crate::geometry::Geometry;
use crate::reduction::Reduction;
use crate::size::{Rectangle, Size};
use forebay_source::dataset::Defect;

/// The filter; `None` for `nearest`, which has none.
const fn filter(interpolation: Interpolation) -> Option<FilterType> {
    match interpolation {
        Interpolation::Bilinear => Some(FilterType::Bilinear),
        Interpolation::Bicubic => Some(FilterType::CatmullRom),
        Interpolation::Lanczos => Some(FilterType::Lanczos3),
        Interpolation::Nearest => None,
    }
}

const fn pixel_type(channels: u8) -> PixelType {
    match channels {
        1 => PixelType::U8,
        3 => PixelType::U8x3,
        _ => PixelType::U8x4,
    }
}

/// Where the `index`-th of `target` pixels begins on a side of `length` pixels; exact at both ends.
fn edge(index: u32, target: u32, length: u32) -> f64 {
    if index == target {
        return f64::from(length);
    }
    f64::from(index) * f64::from(length) / f64::from(target)
}

/// Resamples the visible part of a geometry into `to` (rows without gaps, exactly the visible part's pixels).
///
/// `pixels` holds the part `area` of the decoded image, made smaller by `reduction`, which covers what the geometry
/// needs. An edge of the crop may then lie within a pixel; that pixel counts in full.
pub(super) fn resample(
    resizer: &mut Resizer,
    pixels: &[u8],
    area: Rectangle,
    reduction: Reduction,
    channels: u8,
    geometry: &Geometry,
    to: &mut [u8],
) -> Result<(), Defect> {
    let Some((target, interpolation)) = geometry.resampling else {
        return Ok(());
    };
    let Some(filter) = filter(interpolation) else {
        pick_nearest(pixels, area, channels, geometry, target, to);
        return Ok(());
    };
    let failed = |reason: &dyn std::fmt::Display| {
        Defect(format!("resampling to {target:?} failed: {reason}"))
    };
    let needed = reduction.needed(geometry);
    let factor = f64::from(reduction.factor());
    let Geometry { source, visible, .. } = *geometry;
    let decoded = ImageRef::new(area.width, area.height, pixels, pixel_type(channels))
        .map_err(|reason| failed(&reason))?;
    let view = CroppedImage::new(
        &decoded,
        needed.left - area.left,
        needed.top - area.top,
        needed.width,
        needed.height,
    )
    .map_err(|reason| failed(&reason))?;
    let span = |start: u32, count: u32, target: u32, source: (u32, u32), needed: (u32, u32)| {
        // Exact: a division by a power of two.
        let shift = f64::from(needed.0) - f64::from(source.0) / factor;
        let first = edge(start, target, source.1) / factor - shift;
        let last = edge(start + count, target, source.1) / factor - shift;
        (first, (last - first).min(f64::from(needed.1) - first))
    };
    let (x, y) = ((source.left, source.width), (source.top, source.height));
    let (left, width) =
        span(visible.left, visible.width, target.width, x, (needed.left, needed.width));
    let (top, height) =
        span(visible.top, visible.height, target.height, y, (needed.top, needed.height));
    let mut result = Image::from_slice_u8(visible.width, visible.height, to, pixel_type(channels))
        .map_err(|reason| failed(&reason))?;
    let options = ResizeOptions::new()
        .resize_alg(ResizeAlg::Convolution(filter))
        .crop(left, top, width, height)
        .use_alpha(channels == 4);
    resizer.resize(&view, &mut result, &options).map_err(|reason| failed(&reason))
}

/// The source position of each visible place on one axis. Positions are summed up as in Pillow's `ImagingScaleAffine`,
/// so that the same pixels are picked.
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

fn pick_nearest(
    pixels: &[u8],
    area: Rectangle,
    channels: u8,
    geometry: &Geometry,
    target: Size,
    to: &mut [u8],
) {
    let Geometry { source, visible, .. } = *geometry;
    let channels = usize::from(channels);
    let columns: Vec<usize> =
        nearest_positions(visible.left, visible.width, target.width, source.width)
            .map(|column| (source.left as usize + column - area.left as usize) * channels)
            .collect();
    let rows = nearest_positions(visible.top, visible.height, target.height, source.height);
    let line_bytes = visible.width as usize * channels;
    for (row, line) in rows.zip(to.chunks_exact_mut(line_bytes)) {
        // `area` holds all that is needed, and may begin below the source's first row.
        let row = source.top as usize + row - area.top as usize;
        let from = &pixels[row * area.width as usize * channels..];
        for (column, pixel) in columns.iter().zip(line.chunks_exact_mut(channels)) {
            pixel.copy_from_slice(&from[*column..*column + channels]);
        }
    }
}

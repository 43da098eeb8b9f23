//! One resampling through fast_image_resize: only the visible part, from only the pixels that it needs.
//!
//! A hard crop ends the image: beyond its edge nothing is seen, as after torchvision's crop-then-resize. The visible part of the
//! resampled image is a crop box in fractions of a pixel: pixels beyond that box, but within the hard crop, count, as
//! with the `box` of Pillow's `resize`. (fast_image_resize bounds its filters by the source view, not by the box.)

use fast_image_resize as fir;
use fir::images::{CroppedImage, Image, ImageRef};
use fir::{FilterType, PixelType, ResizeAlg, ResizeOptions, Resizer};

use super::super::arguments::Interpolation;
use super::super::geometry::{Geometry, Rectangle};
use crate::dataset::Defect;

const fn algorithm(interpolation: Interpolation) -> ResizeAlg {
    match interpolation {
        Interpolation::Bilinear => ResizeAlg::Convolution(FilterType::Bilinear),
        Interpolation::Bicubic => ResizeAlg::Convolution(FilterType::CatmullRom),
        Interpolation::Lanczos => ResizeAlg::Convolution(FilterType::Lanczos3),
        Interpolation::Nearest => ResizeAlg::Nearest,
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
/// `pixels` holds the part `area` of the decoded image, which covers what the geometry needs.
pub(super) fn resample(
    resizer: &mut Resizer,
    pixels: &[u8],
    area: Rectangle,
    channels: u8,
    geometry: &Geometry,
    to: &mut [u8],
) -> Result<(), Defect> {
    let Some((target, interpolation)) = geometry.resampling else {
        return Ok(());
    };
    let failed = |reason: String| Defect(format!("resampling to {target:?} failed: {reason}"));
    let needed = geometry.needed();
    let visible = geometry.visible;
    let decoded = ImageRef::new(area.width, area.height, pixels, pixel_type(channels))
        .map_err(|reason| failed(reason.to_string()))?;
    let view = CroppedImage::new(
        &decoded,
        needed.left - area.left,
        needed.top - area.top,
        needed.width,
        needed.height,
    )
    .map_err(|reason| failed(reason.to_string()))?;
    let span = |start: u32, count: u32, target: u32, source: (u32, u32), needed: (u32, u32)| {
        let shift = f64::from(needed.0 - source.0);
        let first = edge(start, target, source.1) - shift;
        let last = edge(start + count, target, source.1) - shift;
        (first, (last - first).min(f64::from(needed.1) - first))
    };
    let (left, width) = span(
        visible.left,
        visible.width,
        target.width,
        (geometry.source.left, geometry.source.width),
        (needed.left, needed.width),
    );
    let (top, height) = span(
        visible.top,
        visible.height,
        target.height,
        (geometry.source.top, geometry.source.height),
        (needed.top, needed.height),
    );
    let mut result = Image::from_slice_u8(visible.width, visible.height, to, pixel_type(channels))
        .map_err(|reason| failed(reason.to_string()))?;
    let options = ResizeOptions::new()
        .resize_alg(algorithm(interpolation))
        .crop(left, top, width, height)
        .use_alpha(channels == 4);
    resizer
        .resize(&view, &mut result, &options)
        .map_err(|reason| failed(reason.to_string()))
}

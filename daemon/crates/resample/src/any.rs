//! The cases that [`Resampler`](crate::Resampler) does not support: any processor, any factor, grey images and images
//! with alpha.
//!
//! One call per pixel type, instead of one call for all types of fast_image_resize: its kernels are compiled for each
//! type in the calling crate, and take longer to compile than the rest of it.

use fast_image_resize::images::{TypedCroppedImage, TypedImage, TypedImageRef};
use fast_image_resize::pixels::{U8, U8x3, U8x4, U16, U16x3, U16x4};
use fast_image_resize::{FilterType, PixelTrait, ResizeAlg, ResizeOptions, Resizer};

use crate::request::{Filter, Shown};

/// An image without gaps between pixels, and the part of it that is used.
#[derive(Debug, Clone, Copy)]
pub struct Packed<'p> {
    /// Exactly the image's pixels.
    pub pixels: &'p [u8],
    /// Bytes per pixel: 1 (grey), 3 (RGB) or 4 (RGBA); 2, 6 or 8 if levels have 16 bits, in native order. Such pixels
    /// must begin at an even address.
    pub channels: u8,
    /// Width and height in pixels.
    pub size: (u32, u32),
    /// The used part's left and top edge.
    pub corner: (u32, u32),
    /// The used part's width and height in pixels.
    pub view: (u32, u32),
}

/// A work thread's state, kept between images.
#[derive(Debug, Default)]
pub struct AnyResampler(Resizer);

impl AnyResampler {
    /// Writes the shown part of the view to `to`, which has `size` pixels, interleaved.
    ///
    /// # Errors
    /// Sizes and pixels contradict each other; the reason.
    pub fn resample(
        &mut self,
        from: &Packed<'_>,
        columns: Shown,
        rows: Shown,
        filter: Filter,
        size: (u32, u32),
        to: &mut [u8],
    ) -> Result<(), String> {
        let filter = match filter {
            Filter::Bilinear => FilterType::Bilinear,
            Filter::CatmullRom => FilterType::CatmullRom,
            Filter::Lanczos3 => FilterType::Lanczos3,
        };
        let options = ResizeOptions::new()
            .resize_alg(ResizeAlg::Convolution(filter))
            .crop(columns.start, rows.start, columns.length, rows.length)
            .use_alpha(matches!(from.channels, 4 | 8));
        match from.channels {
            1 => self.typed::<U8>(from, &options, size, to),
            3 => self.typed::<U8x3>(from, &options, size, to),
            4 => self.typed::<U8x4>(from, &options, size, to),
            2 => self.typed::<U16>(from, &options, size, to),
            6 => self.typed::<U16x3>(from, &options, size, to),
            8 => self.typed::<U16x4>(from, &options, size, to),
            other => Err(format!("no image has {other} bytes a pixel")),
        }
    }

    fn typed<P: PixelTrait>(
        &mut self,
        from: &Packed<'_>,
        options: &ResizeOptions,
        size: (u32, u32),
        to: &mut [u8],
    ) -> Result<(), String> {
        let image = TypedImageRef::<P>::from_buffer(from.size.0, from.size.1, from.pixels)
            .map_err(|reason| reason.to_string())?;
        let (left, top) = from.corner;
        let view = TypedCroppedImage::from_ref(&image, left, top, from.view.0, from.view.1)
            .map_err(|reason| reason.to_string())?;
        let mut to = TypedImage::<P>::from_buffer(size.0, size.1, to)
            .map_err(|reason| reason.to_string())?;
        self.0.resize_typed(&view, &mut to, options).map_err(|reason| reason.to_string())
    }

    /// Bytes of memory.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        self.0.size_of_internal_buffers()
    }

    /// Frees memory.
    pub fn trim(&mut self) {
        self.0.reset_internal_buffers();
    }
}

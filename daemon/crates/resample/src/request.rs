//! Parameters of resampling.

/// The filter of a resampling; a wider filter uses more pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Filter {
    /// Linear interpolation; a triangle over all pixels if the image is reduced.
    Bilinear,
    /// Bicubic after Catmull and Rom.
    CatmullRom,
    /// A windowed sinc of three lobes.
    Lanczos3,
}

/// The layout of pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// Pixel after pixel, three bytes each.
    Interleaved,
    /// A source: in each row all reds, then all greens, then all blues. A target: three planes.
    Planar,
}

/// The part of a side that is mapped to the target's, in fractional pixels of the source.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Shown {
    /// Its start.
    pub start: f64,
    /// Its length.
    pub length: f64,
}

/// The used pixels.
#[derive(Debug, Clone, Copy)]
pub struct Source<'p> {
    /// At least from the first pixel of the first row to the last one of the last row.
    pub pixels: &'p [u8],
    /// The distance of rows in bytes.
    pub pitch_bytes: usize,
    /// Pixels per row.
    pub width: u32,
    /// Rows.
    pub height: u32,
    /// The layout of a row.
    pub form: Form,
}

/// The destination.
#[derive(Debug)]
pub struct Target<'p> {
    /// Exactly its pixels.
    pub pixels: &'p mut [u8],
    /// Pixels per row.
    pub width: u32,
    /// Rows.
    pub height: u32,
    /// The layout.
    pub form: Form,
    /// Swaps left and right.
    pub mirror: bool,
    /// Swaps top and bottom.
    pub upend: bool,
}

//! What is to be resampled, and how.

/// The filter of a resampling; the wider it reaches, the more pixels count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Filter {
    /// Linear interpolation; a triangle over all pixels where the image becomes smaller.
    Bilinear,
    /// Bicubic after Catmull and Rom.
    CatmullRom,
    /// A windowed sinc of three lobes.
    Lanczos3,
}

/// How the bytes of pixels lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// Pixel after pixel, three bytes each.
    Interleaved,
    /// A source: in each row all reds, then all greens, then all blues. A target: three planes.
    Planar,
}

/// The part of a side that becomes the target's, in pixels of the source and fractions of them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Shown {
    /// Where it begins.
    pub start: f64,
    /// How long it is.
    pub length: f64,
}

/// The pixels that count.
#[derive(Debug, Clone, Copy)]
pub struct Source<'p> {
    /// From the first pixel of the first row at least to the last of the last.
    pub pixels: &'p [u8],
    /// From one row's start to the next one's.
    pub pitch_bytes: usize,
    /// Pixels of a row.
    pub width: u32,
    /// Rows.
    pub height: u32,
    /// How a row's bytes lie.
    pub form: Form,
}

/// Where the result goes.
#[derive(Debug)]
pub struct Target<'p> {
    /// Exactly its pixels.
    pub pixels: &'p mut [u8],
    /// Pixels of a row.
    pub width: u32,
    /// Rows.
    pub height: u32,
    /// How the bytes lie.
    pub form: Form,
    /// Left becomes right.
    pub mirror: bool,
    /// Top becomes bottom.
    pub upend: bool,
}

//! What is asked of the decoder, and its way to decline.

/// Part of an image, in pixels of the image as it is decoded (made smaller by a [`Scale`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Region {
    pub left: u32,
    pub top: u32,
    pub width: u32,
    pub height: u32,
}

/// By how much an image is decoded smaller than it is, in both directions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scale {
    /// As it is.
    Full,
    /// One pixel for each square of 2x2.
    Half,
    /// Of 4x4.
    Quarter,
    /// Of 8x8.
    Eighth,
}

impl Scale {
    /// The one with this factor, if there is one.
    #[must_use]
    pub const fn of_factor(factor: u32) -> Option<Self> {
        Some(match factor {
            1 => Self::Full,
            2 => Self::Half,
            4 => Self::Quarter,
            8 => Self::Eighth,
            _ => return None,
        })
    }

    /// 1, 2, 4 or 8.
    #[must_use]
    pub const fn factor(self) -> u32 {
        1 << self as u32
    }
}

/// What the pixels are to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pixels {
    /// One byte a pixel, of grey files only.
    Grey,
    /// Red, green, blue.
    Rgb,
    /// In each row all reds, then all greens, then all blues.
    RgbRows,
    /// Red, green, blue and 255.
    Rgba,
}

impl Pixels {
    /// Bytes a pixel.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Self::Grey => 1,
            Self::Rgb | Self::RgbRows => 3,
            Self::Rgba => 4,
        }
    }
}

/// What is known of a file's inside from decoding it before: places in its data at which decoding can begin.
#[derive(Debug)]
pub enum Index<'i> {
    /// Nothing; nor is anything to be learned.
    None,
    /// What [`Self::Learn`] gave. That of another file, or a damaged one, costs time alone in most cases; to be sure of
    /// the pixels, the caller makes sure of file and index.
    Known(&'i [u8]),
    /// To be learned: the file is read to its end. Takes at most a hundredth of the file's bytes. Left empty where the file
    /// is too small, has restart markers (which serve as well), or is in any doubt behind the region.
    Learn(&'i mut Vec<u8>),
}

/// Why a file is not decoded here. It says nothing against the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unsure(pub &'static str);

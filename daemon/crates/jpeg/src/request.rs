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
    /// Red, green, blue and 255.
    Rgba,
}

impl Pixels {
    /// Bytes a pixel.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Self::Grey => 1,
            Self::Rgb => 3,
            Self::Rgba => 4,
        }
    }
}

/// Why a file is not decoded here. It says nothing against the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unsure(pub &'static str);

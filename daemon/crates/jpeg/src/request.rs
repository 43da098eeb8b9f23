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

/// What is known of a file's inside from decoding it before, its *marks*: places in its data at which decoding can begin.
#[derive(Debug, Default)]
pub struct Index<'i> {
    /// What an earlier decoding left in `learned`; empty: nothing. Those of another file, or damaged ones, cost time alone in
    /// most cases; to be sure of the pixels, the caller makes sure of file and marks.
    pub known: &'i [u8],
    /// Where the known marks go together with those that this decoding adds; at most a hundredth of the file's bytes.
    /// `None`: nothing is to be learned.
    pub learned: Option<&'i mut Vec<u8>>,
    /// Whether the file is read to its end for that, and not only as far as the region needs it.
    pub whole: bool,
}

/// What a decoding has learned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Learned {
    /// Nothing, or too little to be kept.
    Nothing,
    /// The marks that it left are to be kept in place of those that were known.
    Marks,
    /// Nothing, and there is nothing to learn: the file is too small, has restart markers, which serve as well, or is in
    /// doubt behind the region, where it was read to its end.
    Never,
}

/// Why a file is not decoded here. It says nothing against the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unsure(pub &'static str);

//! Parameters of the decoder, and its refusal.

/// Part of an image, in pixels of the decoded image (reduced by a [`Scale`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are clear")]
pub struct Region {
    pub left: u32,
    pub top: u32,
    pub width: u32,
    pub height: u32,
}

/// The factor by which an image is reduced in both directions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scale {
    /// Full size.
    Full,
    /// One pixel for each square of 2x2.
    Half,
    /// One pixel for each square of 4x4.
    Quarter,
    /// One pixel for each square of 8x8.
    Eighth,
}

impl Scale {
    /// The scale with this factor, if there is one.
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

/// The format of the pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pixels {
    /// One byte per pixel, for grey files only.
    Grey,
    /// Red, green, blue.
    Rgb,
    /// In each row all reds, then all greens, then all blues.
    RgbRows,
    /// Red, green, blue and 255.
    Rgba,
}

impl Pixels {
    /// Bytes per pixel.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Self::Grey => 1,
            Self::Rgb | Self::RgbRows => 3,
            Self::Rgba => 4,
        }
    }
}

/// Known *marks* of a file, from an earlier decoding: positions in its data at which decoding can begin.
#[derive(Debug, Default)]
pub struct Index<'i> {
    /// The content of `learned` from an earlier decoding; empty: none. Damaged marks or those of another file usually
    /// cost time only; to be sure of the pixels, the caller ensures that file and marks match.
    pub known: &'i [u8],
    /// Receives the known marks together with new ones; at most a hundredth of the file's bytes. `None`: nothing is
    /// learned.
    pub learned: Option<&'i mut Vec<u8>>,
    /// Whether the file is read to its end to learn marks, instead of only as far as the region needs.
    pub whole: bool,
}

/// What a decoding has learned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Learned {
    /// Nothing, or too little to be stored.
    Nothing,
    /// The new marks should replace the known ones.
    Marks,
    /// Nothing, and nothing can be learned: the file is too small, has restart markers, which serve as well, or is in
    /// doubt after the region, when it was read to its end.
    Never,
}

/// Why a file is not decoded here. It does not mean that the file is defective.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unsure(pub &'static str);

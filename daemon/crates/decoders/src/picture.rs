//! A decoded picture's format, colours and planes.

use serde::{Deserialize, Serialize};

/// What the planes of a picture are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Family {
    /// One plane of luma.
    Gray,
    /// Luma, Cb, Cr.
    Yuv,
    /// Green, blue, red.
    Gbr,
}

/// How a picture's samples are stored: planes, each sample in one byte, or in two (little-endian) above 8 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Format {
    /// What the planes are.
    pub family: Family,
    /// The bits of a sample, 8 to 12.
    pub bits: u8,
    /// Log2 of the pixels that a sample of chroma covers across.
    pub shift_x: u8,
    /// Log2 of the pixels that a sample of chroma covers downwards.
    pub shift_y: u8,
}

impl Format {
    /// The format of a name of libavutil, and whether the name says that numbers have their full range. `None`: a format
    /// that is not supported.
    #[must_use]
    pub fn of_name(name: &str) -> Option<(Self, bool)> {
        let (name, is_full) = match name.strip_prefix("yuvj") {
            Some(rest) => (format!("yuv{rest}"), true),
            None => (name.to_owned(), false),
        };
        let (base, bits) = split_bits(&name)?;
        let (family, shift_x, shift_y) = match base {
            "gray" => (Family::Gray, 0, 0),
            "gbrp" => (Family::Gbr, 0, 0),
            "yuv420p" => (Family::Yuv, 1, 1),
            "yuv422p" => (Family::Yuv, 1, 0),
            "yuv444p" => (Family::Yuv, 0, 0),
            "yuv440p" => (Family::Yuv, 0, 1),
            "yuv411p" => (Family::Yuv, 2, 0),
            _ => return None,
        };
        Some((Self { family, bits, shift_x, shift_y }, is_full))
    }

    /// The bytes of a sample.
    #[must_use]
    pub const fn sample_bytes(self) -> usize {
        if self.bits > 8 { 2 } else { 1 }
    }

    /// The number of planes.
    #[must_use]
    pub const fn planes(self) -> usize {
        match self.family {
            Family::Gray => 1,
            Family::Yuv | Family::Gbr => 3,
        }
    }

    /// Width and height of a plane of a picture, in samples.
    #[must_use]
    pub fn plane_size(self, plane: usize, (width, height): (u32, u32)) -> (usize, usize) {
        let (shift_x, shift_y) = match self.family {
            Family::Yuv if plane > 0 => (self.shift_x, self.shift_y),
            _ => (0, 0),
        };
        let shifted =
            |side: u32, shift: u8| usize::try_from(side.div_ceil(1 << shift)).unwrap_or(usize::MAX);
        (shifted(width, shift_x), shifted(height, shift_y))
    }

    /// The bytes of all planes of a picture, without gaps.
    #[must_use]
    pub fn picture_bytes(self, size: (u32, u32)) -> usize {
        let plane = |plane| {
            let (width, height) = self.plane_size(plane, size);
            width.saturating_mul(height).saturating_mul(self.sample_bytes())
        };
        (0..self.planes()).map(plane).fold(0, usize::saturating_add)
    }
}

/// Splits `yuv420p10le` into `yuv420p` and 10.
fn split_bits(name: &str) -> Option<(&str, u8)> {
    let Some(name) = name.strip_suffix("le") else {
        return (!name.ends_with("be")).then_some((if name == "gray8" { "gray" } else { name }, 8));
    };
    let digits = name.len() - name.bytes().rev().take_while(u8::is_ascii_digit).count();
    let (base, bits) = name.split_at(digits);
    let bits = bits.parse().ok().filter(|bits| (9..=12).contains(bits))?;
    Some((base, bits))
}

/// How a picture's numbers are colours, numbered as in ITU-T H.273; 2: not said.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Colors {
    /// The matrix coefficients.
    pub matrix: u8,
    /// The primaries.
    pub primaries: u8,
    /// The transfer characteristics.
    pub transfer: u8,
    /// Whether numbers use their full range; `None`: not said.
    pub full_range: Option<bool>,
    /// Where samples of chroma are: 0 not said, 1 left, 2 centre, 3 top left, 4 top, 5 bottom left, 6 bottom.
    pub chroma_location: u8,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_of_names() {
        let format = |name| {
            Format::of_name(name).map(|(format, is_full)| {
                (format.family, format.bits, (format.shift_x, format.shift_y), is_full)
            })
        };
        assert_eq!(format("yuv420p"), Some((Family::Yuv, 8, (1, 1), false)));
        assert_eq!(format("yuvj422p"), Some((Family::Yuv, 8, (1, 0), true)));
        assert_eq!(format("yuv444p10le"), Some((Family::Yuv, 10, (0, 0), false)));
        assert_eq!(format("gbrp12le"), Some((Family::Gbr, 12, (0, 0), false)));
        assert_eq!(format("gray"), Some((Family::Gray, 8, (0, 0), false)));
        assert_eq!(format("gray8"), format("gray"));
        for name in ["yuv420p10be", "yuv420p16le", "nv12", "pal8", "yuva420p", "", "le"] {
            assert_eq!(format(name), None, "{name}");
        }
    }

    #[test]
    fn odd_sides_have_a_whole_sample_of_chroma_at_the_edge() {
        let (format, _) = Format::of_name("yuv420p10le").unwrap();
        assert_eq!(format.plane_size(1, (5, 3)), (3, 2));
        assert_eq!(format.picture_bytes((5, 3)), 2 * (15 + 6 + 6));
    }
}

//! Types that the operations' arguments are read as.

use crate::config::{FromValue, Value};

use super::geometry::Size;

/// A size that an operation gives an image: one number for a square, or `[height, width]`. Pixels, at least 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ImageSize {
    /// One number. `resize` takes it for the shorter side, the crops for both.
    Side(u32),
    /// Height and width.
    Exact(Size),
}

/// The longest side that an argument may ask for.
const MAX_SIDE_PIXELS: i64 = 65_535;

fn side(value: &Value) -> Option<u32> {
    match value {
        Value::Integer(side) if (1..=MAX_SIDE_PIXELS).contains(side) => u32::try_from(*side).ok(),
        _ => None,
    }
}

impl FromValue for ImageSize {
    const EXPECTED: &'static str =
        "a size in pixels (one whole number or `[height, width]`, each from 1 to 65535)";

    fn from_value(value: &Value) -> Option<Self> {
        match value {
            Value::Array(items) => match items.as_slice() {
                [height, width] => Some(Self::Exact(Size {
                    width: side(&width.value)?,
                    height: side(&height.value)?,
                })),
                _ => None,
            },
            other => side(other).map(Self::Side),
        }
    }
}

impl ImageSize {
    /// Both sides, one number standing for a square.
    pub(crate) const fn square_or_exact(self) -> Size {
        match self {
            Self::Side(side) => Size { width: side, height: side },
            Self::Exact(size) => size,
        }
    }
}

/// How pixels between pixels are computed. All but `nearest` are antialiased: the filter widens with the scale.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Interpolation {
    /// A triangle; the default.
    Bilinear,
    /// Catmull and Rom's cubic (a = −0.5), as Pillow's.
    Bicubic,
    /// Lanczos' window over three lobes.
    Lanczos,
    /// The pixel that holds the centre.
    Nearest,
}

impl Interpolation {
    /// How far the filter reaches on each side, in pixels of the larger of the two images.
    pub(crate) const fn reach(self) -> f64 {
        match self {
            Self::Bilinear | Self::Nearest => 1.0,
            Self::Bicubic => 2.0,
            Self::Lanczos => 3.0,
        }
    }
}

impl FromValue for Interpolation {
    const EXPECTED: &'static str = "`bilinear`, `bicubic`, `lanczos` or `nearest`";

    fn from_value(value: &Value) -> Option<Self> {
        let Value::String(name) = value else {
            return None;
        };
        match name.as_str() {
            "bilinear" => Some(Self::Bilinear),
            "bicubic" => Some(Self::Bicubic),
            "lanczos" => Some(Self::Lanczos),
            "nearest" => Some(Self::Nearest),
            _ => None,
        }
    }
}

/// Whether an image may be decoded smaller than it is where the result is smaller still.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ScaledDecoding {
    /// Never: the pixels do not depend on it.
    Off,
    /// Wherever the format and the geometry allow it.
    Auto,
}

impl FromValue for ScaledDecoding {
    const EXPECTED: &'static str = "`off` or `auto`";

    fn from_value(value: &Value) -> Option<Self> {
        match value {
            Value::String(word) if word == "off" => Some(Self::Off),
            Value::String(word) if word == "auto" => Some(Self::Auto),
            _ => None,
        }
    }
}

/// A chance between 0 and 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Probability(pub(crate) f64);

impl FromValue for Probability {
    const EXPECTED: &'static str = "a number from 0 to 1";

    fn from_value(value: &Value) -> Option<Self> {
        f64::from_value(value).filter(|value| (0.0..=1.0).contains(value)).map(Self)
    }
}

/// Two positive numbers, the smaller one first.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct PositiveRange {
    pub(crate) low: f64,
    pub(crate) high: f64,
}

impl FromValue for PositiveRange {
    const EXPECTED: &'static str =
        "two numbers above 0, the smaller one first, such as `[0.08, 1.0]`";

    fn from_value(value: &Value) -> Option<Self> {
        let Value::Array(items) = value else {
            return None;
        };
        let [low, high] = items.as_slice() else {
            return None;
        };
        let range = Self { low: f64::from_value(&low.value)?, high: f64::from_value(&high.value)? };
        (range.low > 0.0 && range.low <= range.high).then_some(range)
    }
}

/// How many channels a decoded image has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Channels(pub(crate) u8);

impl FromValue for Channels {
    const EXPECTED: &'static str = "3 (red, green, blue), 1 (grey) or 4 (with alpha)";

    fn from_value(value: &Value) -> Option<Self> {
        match value {
            Value::Integer(1) => Some(Self(1)),
            Value::Integer(3) => Some(Self(3)),
            Value::Integer(4) => Some(Self(4)),
            _ => None,
        }
    }
}

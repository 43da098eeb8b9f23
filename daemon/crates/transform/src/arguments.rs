//! The types of operations' arguments.

mod augmentation;

pub(crate) use augmentation::{
    Angles, AreaShare, Bits, Erased, Factor, Factors, Fill, FilterSize, GreyChannels, Hue, Level,
    Place, PositiveNumber, Shares, Shear, Sigma,
};

use forebay_keys::{Json, Located, Value, json, kinds, words};

use forebay_media::size::Size;

use crate::contract::PlannedSize;

/// An image size as argument: one number for a square, `[height, width]`, or the shape of the sample's bucket. Pixels, at
/// least 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ImageSize {
    /// One number. `resize` uses it for the shorter side, the crops for both.
    Side(u32),
    /// Height and width.
    Exact(Size),
    /// The shape of the sample's bucket, `"bucket"`; `resize` covers it.
    Bucket,
}

/// The word for the shape of a sample's bucket.
const BUCKET: &str = "bucket";

/// Maximal side length in arguments.
const MAX_SIDE_PIXELS: i64 = 65_535;

fn side(value: &Value) -> Option<u32> {
    match value {
        Value::Integer(side) if (1..=MAX_SIDE_PIXELS).contains(side) => u32::try_from(*side).ok(),
        _ => None,
    }
}

/// Both values of an array of two.
fn pair(value: &Value) -> Option<[&Value; 2]> {
    match value {
        Value::Array(items) => match items.as_slice() {
            [first, second] => Some([&first.value, &second.value]),
            _ => None,
        },
        _ => None,
    }
}

fn write_pair(first: Value, second: Value) -> Value {
    Value::Array([first, second].map(Located::from).to_vec())
}

fn side_schema() -> Json {
    json!({ "type": "integer", "minimum": 1, "maximum": MAX_SIDE_PIXELS })
}

fn pair_schema(item: &Json) -> Json {
    json!({ "type": "array", "items": item, "minItems": 2, "maxItems": 2 })
}

impl ImageSize {
    /// Both sides; one number means a square.
    pub(crate) const fn square_or_exact(self) -> PlannedSize {
        match self {
            Self::Side(side) => PlannedSize::Fixed(Size { width: side, height: side }),
            Self::Exact(size) => PlannedSize::Fixed(size),
            Self::Bucket => PlannedSize::Bucket,
        }
    }
}

words! {
    /// How values between pixels are computed. All except `nearest` are antialiased: the filter widens with the scale.
    pub(crate) enum Interpolation {
        /// A triangle filter; the default.
        Bilinear = "bilinear",
        /// Catmull-Rom cubic (a = −0.5), as in Pillow.
        Bicubic = "bicubic",
        /// Lanczos window with three lobes.
        Lanczos = "lanczos",
        /// The pixel that contains the centre.
        Nearest = "nearest",
    }
}

impl Interpolation {
    /// The filter's radius, in pixels of the larger of the two images.
    pub(crate) const fn reach(self) -> f64 {
        match self {
            Self::Bilinear | Self::Nearest => 1.0,
            Self::Bicubic => 2.0,
            Self::Lanczos => 3.0,
        }
    }
}

words! {
    /// Whether an image may be decoded at a reduced size if the result is smaller still.
    pub(crate) enum ScaledDecoding {
        /// Never: the pixels do not depend on the size of the result.
        Off = "off",
        /// If the format and the geometry permit it.
        Auto = "auto",
    }
}

words! {
    /// What an image with a palette is decoded to.
    pub(crate) enum Palette {
        /// The colours of its pixels.
        Colours = "colours",
        /// The palette indices of its pixels.
        Indices = "indices",
    }
}

words! {
    /// The place of a raster's samples among the dimensions of an array.
    pub(crate) enum RasterLayout {
        /// `[samples, height, width]`.
        SamplesFirst = "chw",
        /// `[height, width, samples]`.
        SamplesLast = "hwc",
    }
}

/// Two positive numbers, the smaller one first.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct PositiveRange {
    pub(crate) low: f64,
    pub(crate) high: f64,
}

kinds! {
    ImageSize as ImageSize: "a size in pixels (one whole number or `[height, width]`, each from 1 to 65535), or \"bucket\"", type "a whole number, `[height, width]` or `\"bucket\"`";
    read(value) {
        if value.as_text() == Some(BUCKET) {
            return Some(ImageSize::Bucket);
        }
        match pair(value) {
            Some([height, width]) => {
                Some(ImageSize::Exact(Size { width: side(width)?, height: side(height)? }))
            }
            None => side(value).map(ImageSize::Side),
        }
    }
    write(out) {
        match out {
            ImageSize::Side(side) => u32::write(side),
            ImageSize::Exact(size) => write_pair(u32::write(&size.height), u32::write(&size.width)),
            ImageSize::Bucket => Value::String(BUCKET.to_owned()),
        }
    }
    schema { "anyOf": [(side_schema()), (pair_schema(&side_schema())), { "const": BUCKET }] }

    /// A probability from 0 to 1.
    [pub(crate)] Probability as f64: "a number from 0 to 1";
    read(value) { f64::read(value).filter(|value| (0.0..=1.0).contains(value)) }
    write(out) { f64::write(out) }
    schema { "type": "number", "minimum": 0, "maximum": 1 }

    PositiveRange as PositiveRange: "two numbers above 0, the smaller one first, such as `[0.08, 1.0]`", type "two numbers above 0, the smaller one first";
    read(value) {
        let [low, high] = pair(value)?;
        let range = PositiveRange { low: f64::read(low)?, high: f64::read(high)? };
        (range.low > 0.0 && range.low <= range.high).then_some(range)
    }
    write(out) { write_pair(f64::write(&out.low), f64::write(&out.high)) }
    schema (pair_schema(&f64::schema()))

    /// Pairs of numbers of keypoints.
    [pub(crate)] Pairs as Vec<[u32; 2]>: "a list of pairs of whole numbers from 0, such as `[[1, 2], [3, 4]]`", type "a list of pairs of whole numbers";
    read(value) {
        let Value::Array(items) = value else { return None };
        let number = |value: &Value| match value {
            Value::Integer(number) => u32::try_from(*number).ok(),
            _ => None,
        };
        let pairs = items.iter().map(|item| {
            let [first, second] = pair(&item.value)?;
            Some([number(first)?, number(second)?])
        });
        pairs.collect()
    }
    write(out) {
        let pairs = out.iter().map(|[first, second]| write_pair(u32::write(first), u32::write(second)));
        Value::Array(pairs.map(Located::from).collect())
    }
    schema { "type": "array", "items": (pair_schema(&json!({ "type": "integer", "minimum": 0 }))) }

    /// Bits per channel of a decoded image.
    [pub(crate)] Depth as u8: "8 or 16";
    read(value) {
        match value {
            Value::Integer(8) => Some(8),
            Value::Integer(16) => Some(16),
            _ => None,
        }
    }
    write(out) { Value::Integer((*out).into()) }
    schema { "enum": [8, 16] }

    /// Number of channels of a decoded image.
    [pub(crate)] Channels as u8: "3 (red, green, blue), 1 (grey) or 4 (with alpha)";
    read(value) {
        match value {
            Value::Integer(1) => Some(1),
            Value::Integer(3) => Some(3),
            Value::Integer(4) => Some(4),
            _ => None,
        }
    }
    write(out) { Value::Integer((*out).into()) }
    schema { "enum": [1, 3, 4] }
}

//! The types of augmentations' arguments, each in the forms that torchvision accepts.

use forebay_keys::{Json, Kind, Located, Value, json, kinds};

use super::PositiveRange;
use crate::augment::Margins;

/// Maximal margin in arguments.
const MAX_MARGIN_PIXELS: i64 = 65_535;
/// Maximal filter size: the blur's cost grows with it.
const MAX_FILTER_PIXELS: i64 = 255;

/// The range of a property's change: at most this amount in either direction, or a factor in a range.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Spread {
    By(f64),
    Between(f64, f64),
}

impl Spread {
    /// The two bounds around the neutral value; `lowest` is the smallest valid value.
    pub(crate) fn around(self, neutral: f64, lowest: f64) -> (f64, f64) {
        match self {
            Self::By(amount) => ((neutral - amount).max(lowest), neutral + amount),
            Self::Between(low, high) => (low, high),
        }
    }
}

/// Angles of a shear along the rows, and optionally across them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Shear {
    pub(crate) x: (f64, f64),
    pub(crate) y: Option<(f64, f64)>,
}

/// The contents of an erased part.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Erased {
    /// Normal noise with the mean and the deviation of ImageNet's images.
    Noise,
    /// A level for each channel, or one for all.
    Levels(Vec<f64>),
}

/// The numbers of an array.
fn numbers(value: &Value) -> Option<Vec<f64>> {
    <Vec<f64>>::read(value)
}

/// Two numbers in ascending order.
fn increasing(value: &Value) -> Option<(f64, f64)> {
    match numbers(value)?.as_slice() {
        [low, high] if low <= high => Some((*low, *high)),
        _ => None,
    }
}

fn array(values: impl IntoIterator<Item = f64>) -> Value {
    Value::Array(values.into_iter().map(|value| Located::from(Value::Float(value))).collect())
}

/// One number, which means the range from its negative to it, or two numbers.
fn both_sides(value: &Value) -> Option<(f64, f64)> {
    match f64::read(value) {
        Some(limit) => (limit >= 0.0).then_some((-limit, limit)),
        None => increasing(value),
    }
}

fn whole(value: &Value, from: i64, to: i64) -> Option<u32> {
    match value {
        Value::Integer(value) if (from..=to).contains(value) => u32::try_from(*value).ok(),
        _ => None,
    }
}

fn whole_numbers(value: &Value, from: i64, to: i64) -> Option<Vec<u32>> {
    match value {
        Value::Array(items) => items.iter().map(|item| whole(&item.value, from, to)).collect(),
        _ => whole(value, from, to).map(|value| vec![value]),
    }
}

fn whole_array(values: &[u32]) -> Value {
    Value::Array(
        values.iter().map(|value| Located::from(Value::Integer((*value).into()))).collect(),
    )
}

fn one_or(others: &[usize], item: &Json) -> Json {
    let arrays = others.iter().map(
        |count| json!({ "type": "array", "items": item, "minItems": count, "maxItems": count }),
    );
    json!({ "anyOf": std::iter::once(item.clone()).chain(arrays).collect::<Vec<_>>() })
}

fn number_schema() -> Json {
    f64::schema()
}

fn level(value: &Value) -> Option<f64> {
    f64::read(value).filter(|level| (0.0..=255.0).contains(level))
}

fn levels(value: &Value) -> Option<Vec<f64>> {
    match value {
        Value::Array(items) if !items.is_empty() => {
            items.iter().map(|item| level(&item.value)).collect()
        }
        _ => level(value).map(|level| vec![level]),
    }
}

fn write_levels(levels: &[f64]) -> Value {
    match levels {
        [level] => Value::Float(*level),
        _ => array(levels.iter().copied()),
    }
}

fn level_schema() -> Json {
    json!({ "type": "number", "minimum": 0, "maximum": 255 })
}

fn levels_schema() -> Json {
    json!({ "anyOf": [level_schema(), { "type": "array", "items": level_schema(), "minItems": 1 }] })
}

kinds! {
    /// See [`Spread`].
    [pub(crate)] Factors as Spread: "a number from 0, or two, the smaller one first";
    read(value) {
        match f64::read(value) {
            Some(amount) => (amount >= 0.0).then_some(Spread::By(amount)),
            None => increasing(value)
                .filter(|(low, _)| *low >= 0.0)
                .map(|(low, high)| Spread::Between(low, high)),
        }
    }
    write(out) {
        match out {
            Spread::By(amount) => Value::Float(*amount),
            Spread::Between(low, high) => array([*low, *high]),
        }
    }
    schema (one_or(&[2], &number_schema()))

    /// A fraction of the hue circle in either direction, or a range.
    [pub(crate)] Hue as Spread: "a number from 0 to 0.5, or two from -0.5 to 0.5, the smaller one first";
    read(value) {
        match f64::read(value) {
            Some(amount) => (0.0..=0.5).contains(&amount).then_some(Spread::By(amount)),
            None => increasing(value)
                .filter(|(low, high)| *low >= -0.5 && *high <= 0.5)
                .map(|(low, high)| Spread::Between(low, high)),
        }
    }
    write(out) { Factors::write(out) }
    schema (one_or(&[2], &number_schema()))

    /// Degrees: a range.
    [pub(crate)] Angles as (f64, f64): "a number of degrees from 0 (to either side), or two, the smaller one first";
    read(value) { both_sides(value) }
    write(out) { array([out.0, out.1]) }
    schema (one_or(&[2], &number_schema()))

    Shear as Shear: "a number of degrees from 0 (to either side), two, or four: along x from and to, along y from and to";
    read(value) {
        if let Some(x) = both_sides(value) {
            return Some(Shear { x, y: None });
        }
        match numbers(value)?.as_slice() {
            [from_x, to_x, from_y, to_y] if from_x <= to_x && from_y <= to_y => {
                Some(Shear { x: (*from_x, *to_x), y: Some((*from_y, *to_y)) })
            }
            _ => None,
        }
    }
    write(out) {
        array([out.x.0, out.x.1].into_iter().chain(out.y.into_iter().flat_map(|y| [y.0, y.1])))
    }
    schema (one_or(&[2, 4], &number_schema()))

    /// Fractions of the width and of the height.
    [pub(crate)] Shares as [f64; 2]: "two numbers from 0 to 1";
    read(value) {
        let shares: [f64; 2] = numbers(value)?.try_into().ok()?;
        shares.iter().all(|share| (0.0..=1.0).contains(share)).then_some(shares)
    }
    write(out) { array(*out) }
    schema { "type": "array", "items": { "type": "number", "minimum": 0, "maximum": 1 }, "minItems": 2, "maxItems": 2 }

    /// A position in an image.
    [pub(crate)] Place as [f64; 2]: "two numbers of pixels, `[x, y]`";
    read(value) { numbers(value)?.try_into().ok() }
    write(out) { array(*out) }
    schema { "type": "array", "items": (number_schema()), "minItems": 2, "maxItems": 2 }

    /// A fraction of an image's area.
    [pub(crate)] AreaShare as PositiveRange: "two numbers above 0 and at most 1, the smaller one first";
    read(value) { PositiveRange::read(value).filter(|range| range.high <= 1.0) }
    write(out) { PositiveRange::write(out) }
    schema (PositiveRange::schema())

    /// One positive number, or a range.
    [pub(crate)] Sigma as PositiveRange: "a number above 0, or two, the smaller one first";
    read(value) {
        match f64::read(value) {
            Some(sigma) => (sigma > 0.0).then_some(PositiveRange { low: sigma, high: sigma }),
            None => PositiveRange::read(value),
        }
    }
    write(out) { PositiveRange::write(out) }
    schema (one_or(&[2], &number_schema()))

    /// The width and height of a filter, in pixels.
    [pub(crate)] FilterSize as [u32; 2]: "an odd whole number from 1 to 255, or two, `[width, height]`", type "an odd whole number or `[width, height]`";
    read(value) {
        let sides = whole_numbers(value, 1, MAX_FILTER_PIXELS)?;
        let sides = match sides.as_slice() {
            [side] => [*side, *side],
            [width, height] => [*width, *height],
            _ => return None,
        };
        sides.iter().all(|side| side % 2 == 1).then_some(sides)
    }
    write(out) { whole_array(out) }
    schema (one_or(&[2], &json!({ "type": "integer", "minimum": 1, "maximum": MAX_FILTER_PIXELS })))

    Margins as Margins: "a whole number of pixels from 0 to 65535 for all sides, two, `[left and right, top and bottom]`, or four, `[left, top, right, bottom]`", type "one, two or four whole numbers";
    read(value) {
        match whole_numbers(value, 0, MAX_MARGIN_PIXELS)?.as_slice() {
            [all] => Some(Margins { left: *all, top: *all, right: *all, bottom: *all }),
            [x, y] => Some(Margins { left: *x, top: *y, right: *x, bottom: *y }),
            [left, top, right, bottom] => {
                Some(Margins { left: *left, top: *top, right: *right, bottom: *bottom })
            }
            _ => None,
        }
    }
    write(out) { whole_array(&[out.left, out.top, out.right, out.bottom]) }
    schema (one_or(&[2, 4], &json!({ "type": "integer", "minimum": 0, "maximum": MAX_MARGIN_PIXELS })))

    /// Levels that fill the area outside an image.
    [pub(crate)] Fill as Vec<f64>: "a number from 0 to 255, or one for each channel";
    read(value) { levels(value) }
    write(out) { write_levels(out) }
    schema (levels_schema())

    Erased as Erased: "a number from 0 to 255, one for each channel, or \"random\"";
    read(value) {
        match value.as_text() {
            Some("random") => Some(Erased::Noise),
            _ => levels(value).map(Erased::Levels),
        }
    }
    write(out) {
        match out {
            Erased::Noise => Value::String("random".to_owned()),
            Erased::Levels(levels) => write_levels(levels),
        }
    }
    schema { "anyOf": [{ "const": "random" }, (levels_schema())] }

    /// A level.
    [pub(crate)] Level as f64: "a number from 0 to 255";
    read(value) { level(value) }
    write(out) { f64::write(out) }
    schema (level_schema())

    /// A number from 0.
    [pub(crate)] Factor as f64: "a number from 0";
    read(value) { f64::read(value).filter(|factor| *factor >= 0.0) }
    write(out) { f64::write(out) }
    schema { "type": "number", "minimum": 0 }

    /// A number above 0.
    [pub(crate)] PositiveNumber as f64: "a number above 0";
    read(value) { f64::read(value).filter(|value| *value > 0.0) }
    write(out) { f64::write(out) }
    schema { "type": "number", "minimum": 0 }

    /// Number of bits of a level that are kept.
    [pub(crate)] Bits as u32: "a whole number from 0 to 8";
    read(value) { whole(value, 0, 8) }
    write(out) { Value::Integer((*out).into()) }
    schema { "type": "integer", "minimum": 0, "maximum": 8 }

    /// Number of channels of a grey image.
    [pub(crate)] GreyChannels as u8: "1 or 3 (the same level three times)";
    read(value) {
        match value {
            Value::Integer(1) => Some(1),
            Value::Integer(3) => Some(3),
            _ => None,
        }
    }
    write(out) { Value::Integer((*out).into()) }
    schema { "enum": [1, 3] }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_number_is_a_spread_around_the_neutral_value() {
        assert_eq!(Spread::By(0.4).around(1.0, 0.0), (0.6, 1.4));
        assert_eq!(Spread::By(1.5).around(1.0, 0.0), (0.0, 2.5));
        assert_eq!(Spread::By(0.1).around(0.0, -0.5), (-0.1, 0.1));
        assert_eq!(Spread::Between(0.9, 1.0).around(1.0, 0.0), (0.9, 1.0));
    }
}

//! The small types that single values become: counts, byte sizes and times.
//!
//! Each says what it expects, so that [`Section::take`](super::Section::take) can say it in a message. Nothing here
//! knows a key.

use std::num::NonZeroU32;
use std::time::Duration;

use super::section::FromValue;
use super::value::Value;

impl FromValue for NonZeroU32 {
    const EXPECTED: &'static str = "a whole number from 1 to 4294967295";
    fn from_value(value: &Value) -> Option<Self> {
        u32::from_value(value).and_then(Self::new)
    }
}

impl FromValue for u16 {
    const EXPECTED: &'static str = "a whole number from 0 to 65535";
    fn from_value(value: &Value) -> Option<Self> {
        u64::from_value(value).and_then(|value| Self::try_from(value).ok())
    }
}

/// A number of bytes: `"4GiB"`, `"64KiB"`, `"1500MB"`, `"1.5GiB"`, or a plain whole number of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByteSize(pub u64);

const BYTE_UNITS: [(&str, u64); 10] = [
    ("B", 1),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("kB", 1_000),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
];

impl FromValue for ByteSize {
    const EXPECTED: &'static str =
        "a size such as \"2GiB\", \"64KiB\" or \"1500MB\", or a number of bytes";
    fn from_value(value: &Value) -> Option<Self> {
        match value {
            Value::Integer(bytes) => u64::try_from(*bytes).ok().map(Self),
            Value::String(text) => {
                let (amount, unit) = split_unit(text)?;
                let (_, factor) = BYTE_UNITS.iter().find(|(name, _)| *name == unit)?;
                decimal_times(amount, *factor).map(Self)
            }
            _ => None,
        }
    }
}

/// A time: `"500ms"`, `"30s"`, `"2m"`, `"1.5h"`; above zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct TimeSpan(pub(super) Duration);

const TIME_UNITS: [(&str, u64); 4] =
    [("ms", 1_000_000), ("s", 1_000_000_000), ("m", 60_000_000_000), ("h", 3_600_000_000_000)];

impl FromValue for TimeSpan {
    const EXPECTED: &'static str = "a time with its unit, such as \"500ms\", \"30s\" or \"2m\"";
    fn from_value(value: &Value) -> Option<Self> {
        let Value::String(text) = value else {
            return None;
        };
        let (amount, unit) = split_unit(text)?;
        let (_, factor) = TIME_UNITS.iter().find(|(name, _)| *name == unit)?;
        let nanoseconds = decimal_times(amount, *factor).filter(|time| *time > 0)?;
        Some(Self(Duration::from_nanos(nanoseconds)))
    }
}

/// Splits `"1.5 GiB"` into its amount and its unit.
fn split_unit(text: &str) -> Option<(&str, &str)> {
    let text = text.trim();
    let unit_start = text.find(|c: char| !c.is_ascii_digit() && c != '.' && c != '_')?;
    let (amount, unit) = text.split_at(unit_start);
    Some((amount, unit.trim_start()))
}

/// A decimal number times a factor, in integers, rounded down; `None` when it is no number or does not fit.
fn decimal_times(amount: &str, factor: u64) -> Option<u64> {
    let amount = amount.replace('_', "");
    let (whole, fraction) = amount.split_once('.').unwrap_or((&amount, ""));
    if whole.is_empty() || fraction.len() > 9 || (fraction.is_empty() && amount.contains('.')) {
        return None;
    }
    let mut total = u128::from(whole.parse::<u64>().ok()?) * u128::from(factor);
    if !fraction.is_empty() {
        let scale = 10u128.pow(u32::try_from(fraction.len()).ok()?);
        total += u128::from(fraction.parse::<u64>().ok()?) * u128::from(factor) / scale;
    }
    u64::try_from(total).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Value {
        Value::String(text.to_owned())
    }

    #[test]
    fn times_carry_their_unit() {
        let time = |value: &str| TimeSpan::from_value(&text(value)).map(|time| time.0);
        assert_eq!(time("500ms"), Some(Duration::from_millis(500)));
        assert_eq!(time("1.5 h"), Some(Duration::from_secs(5400)));
        assert_eq!(time("2m"), Some(Duration::from_secs(120)));
        for wrong in ["", "30", "0s", "-1s", "1 day", "s", "99999999999h"] {
            assert_eq!(time(wrong), None, "{wrong}");
        }
        assert_eq!(TimeSpan::from_value(&Value::Integer(30)), None, "without a unit");
    }

    #[test]
    fn byte_sizes_carry_their_unit() {
        let bytes = |value: &Value| ByteSize::from_value(value).map(|size| size.0);
        assert_eq!(bytes(&text("4GiB")), Some(4 << 30));
        assert_eq!(bytes(&text("64 KiB")), Some(65_536));
        assert_eq!(bytes(&text("1500MB")), Some(1_500_000_000));
        assert_eq!(bytes(&text("1.5GiB")), Some(3 << 29));
        assert_eq!(bytes(&text("7B")), Some(7));
        assert_eq!(bytes(&Value::Integer(1024)), Some(1024));
        for wrong in ["", "GiB", "4", "4 gib", "4GiBs", "-1MB", "1.2.3MB", ".5GiB", "5.GiB"] {
            assert_eq!(bytes(&text(wrong)), None, "{wrong}");
        }
        assert_eq!(bytes(&text("99999999999TiB")), None);
        assert_eq!(bytes(&Value::Integer(-1)), None);
    }
}

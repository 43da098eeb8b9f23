//! Times in the writer's units. Parquet has no unit of seconds: Arrow's writer stores seconds as milliseconds and days
//! in milliseconds as days, and records the original units in the file's metadata.

use super::thrift::{Broken, Reader};
use crate::arrow::TimeUnit;

/// The metadata key of the Arrow schema, which is in base64.
pub(super) const ARROW_SCHEMA: &[u8] = b"ARROW:schema";

/// The factor and the divisor of a number in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Scale {
    factor: i64,
    divisor: i64,
    /// Whether a 4-byte value becomes an 8-byte value.
    pub(super) widens: bool,
}

impl Scale {
    /// The conversion from a unit of the file to the writer's; `None`: no conversion is needed.
    pub(super) fn between(stored: TimeUnit, meant: TimeUnit) -> Option<Self> {
        let (factor, divisor, widens) = match (stored, meant) {
            (TimeUnit::Days, TimeUnit::DaysInMilliseconds) => (86_400_000, 1, true),
            (TimeUnit::PerSecond(from), TimeUnit::PerSecond(to)) if from > to => {
                (1, from / to, false)
            }
            (TimeUnit::PerSecond(from), TimeUnit::PerSecond(to)) if from < to => {
                (to / from, 1, false)
            }
            _ => return None,
        };
        Some(Self { factor, divisor, widens })
    }

    /// Converts a number of 4 or 8 bytes; `None`: the result overflows.
    pub(super) fn apply(self, bytes: [u8; 8], length: u8) -> Option<([u8; 8], u8)> {
        let [a, b, c, d, ..] = bytes;
        let value = match length {
            4 => i64::from(i32::from_le_bytes([a, b, c, d])),
            _ => i64::from_le_bytes(bytes),
        };
        let value = value.checked_mul(self.factor)?.div_euclid(self.divisor);
        if length != 4 || self.widens {
            return Some((value.to_le_bytes(), 8));
        }
        let [a, b, c, d] = i32::try_from(value).ok()?.to_le_bytes();
        Some(([a, b, c, d, 0, 0, 0, 0], 4))
    }
}

/// The unit of a logical type with this number: `TIME` and `TIMESTAMP` have one.
pub(super) fn logical_unit(
    number: i64,
    reader: &mut Reader<'_>,
) -> Result<Option<TimeUnit>, Broken> {
    let mut unit = None;
    reader.fields(|field, _, reader| {
        if field != 2 || !matches!(number, 7 | 8) {
            return Ok(false);
        }
        reader.fields(|field, _, _| {
            unit = match field {
                1 => Some(TimeUnit::PerSecond(1000)),
                2 => Some(TimeUnit::PerSecond(1_000_000)),
                3 => Some(TimeUnit::PerSecond(1_000_000_000)),
                _ => None,
            };
            Ok(false)
        })?;
        Ok(true)
    })?;
    Ok(unit)
}

/// The unit of a converted type, as in Parquet's first version.
pub(super) const fn converted_unit(number: i64) -> Option<TimeUnit> {
    match number {
        6 => Some(TimeUnit::Days),
        7 | 9 => Some(TimeUnit::PerSecond(1000)),
        8 | 10 => Some(TimeUnit::PerSecond(1_000_000)),
        _ => None,
    }
}

/// Decodes base64 as Arrow's writers encode it. Builds for local files do not depend on the crate `base64`.
pub(super) fn decode_base64(text: &[u8]) -> Option<Vec<u8>> {
    let text = text.trim_ascii();
    let padding = text.iter().rev().take_while(|byte| **byte == b'=').count();
    let text = text.get(..text.len() - padding.min(2))?;
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3 + 3);
    for four in text.chunks(4) {
        let mut number = 0_u32;
        for byte in four {
            let digit = match byte {
                b'A'..=b'Z' => byte - b'A',
                b'a'..=b'z' => byte - b'a' + 26,
                b'0'..=b'9' => byte - b'0' + 52,
                b'+' => 62,
                b'/' => 63,
                _ => return None,
            };
            number = number << 6 | u32::from(digit);
        }
        let missing = 4 - four.len();
        let [_, three @ ..] = (number << (6 * missing)).to_be_bytes();
        bytes.extend_from_slice(three.get(..3_usize.checked_sub(missing)?)?);
    }
    Some(bytes)
}

#[test]
fn base64_is_decoded_with_and_without_padding() {
    for (text, bytes) in [
        ("", Some(&b""[..])),
        ("Zg==", Some(b"f")),
        ("Zm8=", Some(b"fo")),
        ("Zm9v", Some(b"foo")),
        ("Zm9vYg", Some(b"foob")),
        ("/+8=", Some(b"\xff\xef")),
        ("====", None),
        ("Zm9-", None),
    ] {
        assert_eq!(decode_base64(text.as_bytes()).as_deref(), bytes, "{text}");
    }
}

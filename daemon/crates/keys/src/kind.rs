//! Kinds of values: how they are read and written, and how messages, the reference and the schema describe them.
//!
//! A kind does not depend on a key. Values of a single key are defined next to its table, from these kinds.

use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::time::Duration;

use forebay_protocol::tensor::DType;
use serde_json::{Value as Json, json};

use crate::value::{Located, Value};

/// A kind of values.
pub trait Kind {
    /// The type of a value that was read.
    type Out;
    /// The expected values in messages, such as `a whole number from 1`.
    const EXPECTED: &'static str;
    /// The expected values in messages, for an array.
    const EXPECTED_ARRAY: &'static str = "an array";
    /// The type in the reference.
    const TYPE: &'static str = Self::EXPECTED;
    /// The value, or `None` if it is not of this kind.
    fn read(value: &Value) -> Option<Self::Out>;
    /// The value in the resolved configuration; reading it returns the same.
    fn write(out: &Self::Out) -> Value;
    /// The JSON schema.
    fn schema() -> Json;
    /// Resolves a value that depends on the configuration's folder, such as a path.
    fn resolve(out: Self::Out, folder: &Path) -> Self::Out {
        let _ = folder;
        out
    }
    /// Replaces `must be EXPECTED` after the key in messages.
    fn refusal(value: &Value) -> Option<String> {
        let _ = value;
        None
    }
}

/// Declares kinds: their types, expected values, reading, writing, and JSON schema.
///
/// `type` is a shorter form for the reference; `array` describes an array of them in messages. A kind with a visibility
/// in brackets is declared here; otherwise the type exists already.
#[macro_export]
macro_rules! kinds {
    ($(
        $(#[doc = $doc:literal])* $([$($vis:tt)+])? $Kind:ident as $Out:ty: $expected:expr
        $(, type $type:expr)? $(, array $array:expr)?;
        read($value:pat) $read:block
        write($out:pat) $write:block
        $(resolve($found:pat, $folder:pat) $resolve:block)?
        $(refusal($refused:pat) $refusal:block)?
        schema $schema:tt
    )+) => {$(
        $crate::kinds!(@declare $(#[doc = $doc])* $([$($vis)+])? $Kind);

        impl $crate::Kind for $Kind {
            type Out = $Out;
            const EXPECTED: &'static str = $expected;
            $(const TYPE: &'static str = $type;)?
            $(const EXPECTED_ARRAY: &'static str = $array;)?
            fn read($value: &$crate::Value) -> Option<$Out> $read
            fn write($out: &$Out) -> $crate::Value $write
            fn schema() -> $crate::Json {
                $crate::json!($schema)
            }
            $(fn resolve($found: $Out, $folder: &::std::path::Path) -> $Out $resolve)?
            $(fn refusal($refused: &$crate::Value) -> Option<String> $refusal)?
        }
    )+};
    (@declare $(#[doc = $doc:literal])* [$($vis:tt)+] $Kind:ident) => {
        $(#[doc = $doc])*
        #[derive(Debug)]
        $($vis)+ enum $Kind {}
    };
    (@declare $(#[doc = $doc:literal])* $Kind:ident) => {};
}

/// Whole numbers within bounds.
macro_rules! whole_numbers {
    ($($(#[doc = $doc:literal])* $([$($vis:tt)+])? $Kind:ident as $Out:ty: $from:literal to $to:expr, $expected:literal;)+) => {
        kinds! {$(
            $(#[doc = $doc])* $([$($vis)+])? $Kind as $Out: $expected, array "an array of whole numbers from 0";
            read(value) {
                match value {
                    Value::Integer(value) if ($from..=$to).contains(value) => <$Out>::try_from(*value).ok(),
                    _ => None,
                }
            }
            write(out) { integer(*out) }
            schema { "type": "integer", "minimum": $from, "maximum": $to }
        )+}
    };
}

fn integer(out: impl TryInto<i64>) -> Value {
    Value::Integer(out.try_into().unwrap_or(i64::MAX))
}

whole_numbers! {
    u64 as u64: 0 to i64::MAX, "a whole number, 0 or more";
    u32 as u32: 0 to i64::from(u32::MAX), "a whole number from 0 to 4294967295";
    /// A whole number from 1.
    [pub] AtLeastOne as u64: 1 to i64::MAX, "a whole number from 1";
    /// A number of sessions.
    [pub] Sessions as u32: 1 to i64::from(u32::MAX), "a whole number from 1";
    /// The number of slots of a ring: one being filled, one ready, one with the user.
    [pub] Slots as u16: 3 to i64::from(u16::MAX), "a whole number from 3 to 65535";
    /// The number of slots that a user holds; 0 is refused where the number of slots is known.
    [pub] HeldSlots as u16: 0 to i64::from(u16::MAX), "a whole number from 1 to slots − 1";
    /// `nice` values that need no privilege.
    [pub] Niceness as u8: 0 to 19, "a whole number from 0 to 19";
}

const BYTE_UNITS: [(&str, u64); 10] = [
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("B", 1),
    ("kB", 1_000),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
];

const TIME_UNITS: [(&str, u64); 4] =
    [("ms", 1_000_000), ("s", 1_000_000_000), ("m", 60_000_000_000), ("h", 3_600_000_000_000)];

/// A token of a vocabulary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TokenName {
    /// By its name, such as `<pad>`.
    Name(String),
    /// By its number.
    Id(u32),
}

impl TokenName {
    /// Its id in a vocabulary with a largest id, and ids of some names.
    ///
    /// # Errors
    /// The vocabulary has no such token.
    pub fn id(&self, largest: u32, of_name: impl Fn(&str) -> Option<u32>) -> Result<u32, String> {
        match self {
            Self::Id(id) if *id <= largest => Ok(*id),
            Self::Id(id) => Err(format!("the tokenizer's largest token is {largest}, not {id}")),
            Self::Name(name) => of_name(name).ok_or_else(|| {
                format!("the tokenizer has no added token {name:?}; give its number")
            }),
        }
    }
}

kinds! {
    TokenName as TokenName: "a token's name or number, such as \"<pad>\" or 0", type "a text or a whole number";
    read(value) {
        match value {
            Value::String(name) => Some(TokenName::Name(name.clone())),
            Value::Integer(id) => u32::try_from(*id).ok().map(TokenName::Id),
            _ => None,
        }
    }
    write(out) {
        match out {
            TokenName::Name(name) => String::write(name),
            TokenName::Id(id) => integer(*id),
        }
    }
    schema { "type": ["string", "integer"], "minimum": 0 }
}

kinds! {
    bool as bool: "true or false";
    read(value) {
        match value {
            Value::Bool(value) => Some(*value),
            _ => None,
        }
    }
    write(out) { Value::Bool(*out) }
    schema { "type": "boolean" }

    NonZeroU32 as NonZeroU32: "a whole number from 1 to 4294967295", type AtLeastOne::EXPECTED;
    read(value) { u32::read(value).and_then(NonZeroU32::new) }
    write(out) { integer(out.get()) }
    schema { "type": "integer", "minimum": 1, "maximum": u32::MAX }

    f64 as f64: "a number", array "an array of numbers";
    read(value) {
        match value {
            #[expect(clippy::cast_precision_loss, reason = "a user's number, not a count")]
            Value::Integer(value) => Some(*value as f64),
            Value::Float(value) if value.is_finite() => Some(*value),
            _ => None,
        }
    }
    write(out) { Value::Float(*out) }
    schema { "type": "number" }

    String as String: "a string", array "an array of strings";
    read(value) { value.as_text().map(str::to_owned) }
    write(out) { Value::String(out.clone()) }
    schema { "type": "string" }

    DType as DType: "a type: uint8, int8, uint16, int16, int32, int64, uint32, uint64, float16, bfloat16, float32, float64 or bool";
    read(value) { value.as_text().and_then(DType::from_name) }
    write(out) { Value::String(out.name().to_owned()) }
    schema { "enum": (DType::ALL.map(DType::name)) }

    /// A number of bytes: `"4GiB"`, `"64KiB"`, `"1500MB"`, `"1.5GiB"`, or a plain whole number of bytes. Written in the
    /// largest binary unit that divides it.
    [pub] ByteSize as u64: "a size such as \"2GiB\", \"64KiB\" or \"1500MB\", or a number of bytes", type "a size";
    read(value) {
        match value {
            Value::Integer(bytes) => u64::try_from(*bytes).ok(),
            Value::String(text) => with_unit(text, &BYTE_UNITS),
            _ => None,
        }
    }
    write(out) {
        let divides = |(_, factor): &&(&str, u64)| *out > 0 && out.is_multiple_of(*factor);
        let (unit, factor) = BYTE_UNITS.iter().find(divides).unwrap_or(&("B", 1));
        Value::String(format!("{}{unit}", out / factor))
    }
    schema { "anyOf": [
        { "type": "integer", "minimum": 0 },
        { "type": "string", "pattern": r"^[0-9_]+(\.[0-9]+)? *([KMGT]i?B|kB|B)$" },
    ] }

    /// A number of bytes above 0.
    [pub] SomeBytes as u64: ByteSize::EXPECTED, type ByteSize::TYPE;
    read(value) { ByteSize::read(value).filter(|bytes| *bytes > 0) }
    write(out) { ByteSize::write(out) }
    refusal(value) { ByteSize::read(value).map(|_| " must be above 0".to_owned()) }
    schema (ByteSize::schema())

    /// A time: `"500ms"`, `"30s"`, `"2m"`, `"1.5h"`; above zero. Written exactly in the largest possible unit: seconds,
    /// milliseconds, or a fraction of seconds.
    [pub] TimeSpan as Duration: "a time with its unit, such as \"500ms\", \"30s\" or \"2m\"", type "a time";
    read(value) {
        let nanoseconds = with_unit(value.as_text()?, &TIME_UNITS).filter(|time| *time > 0)?;
        Some(Duration::from_nanos(nanoseconds))
    }
    write(out) {
        Value::String(match (out.subsec_nanos(), out.as_millis()) {
            (0, _) if out.as_secs() >= 600 && out.as_secs().is_multiple_of(60) => {
                format!("{}m", out.as_secs() / 60)
            }
            (0, _) => format!("{}s", out.as_secs()),
            (nanos, millis) if nanos % 1_000_000 == 0 => format!("{millis}ms"),
            (nanos, _) => format!("{}.{nanos:09}s", out.as_secs()),
        })
    }
    schema { "type": "string", "pattern": r"^[0-9_]+(\.[0-9]+)? *(ms|s|m|h)$" }

    /// A path on this machine: not empty, no URL, no `~`. Relative paths start at the configuration's folder.
    [pub] LocalPath as PathBuf: "a local path (no URL; ~ is not expanded, write ${HOME} instead)", type "a path";
    read(value) {
        let path = value.as_text()?;
        let is_home = path == "~" || path.starts_with("~/");
        let is_local = !path.is_empty() && !path.contains("://") && !is_home && !path.contains('\0');
        is_local.then(|| path.into())
    }
    write(out) { Value::String(out.to_string_lossy().into_owned()) }
    resolve(out, folder) {
        let joined = folder.join(out);
        // Removes `.` and doubled slashes; links and `..` are unchanged.
        std::path::absolute(&joined).unwrap_or(joined)
    }
    schema { "type": "string" }
}

impl<K: Kind> Kind for Vec<K> {
    type Out = Vec<K::Out>;
    const EXPECTED: &'static str = K::EXPECTED_ARRAY;
    fn read(value: &Value) -> Option<Self::Out> {
        match value {
            Value::Array(items) => items.iter().map(|item| K::read(&item.value)).collect(),
            _ => None,
        }
    }
    fn write(out: &Self::Out) -> Value {
        Value::Array(out.iter().map(|item| Located::from(K::write(item))).collect())
    }
    fn schema() -> Json {
        json!({ "type": "array", "items": K::schema() })
    }
}

/// Reads `"1.5 GiB"` in integers, rounded down; `None` if it is not a number, has an unknown unit or does not fit.
fn with_unit(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let text = text.trim();
    let unit_start = text.find(|c: char| !c.is_ascii_digit() && c != '.' && c != '_')?;
    let (amount, unit) = text.split_at(unit_start);
    let (_, factor) = units.iter().find(|(name, _)| *name == unit.trim_start())?;
    let amount = amount.replace('_', "");
    let (whole, fraction) = amount.split_once('.').unwrap_or((&amount, ""));
    if whole.is_empty() || fraction.len() > 9 || (fraction.is_empty() && amount.contains('.')) {
        return None;
    }
    let mut total = u128::from(whole.parse::<u64>().ok()?) * u128::from(*factor);
    if !fraction.is_empty() {
        let scale = 10u128.pow(u32::try_from(fraction.len()).ok()?);
        total += u128::from(fraction.parse::<u64>().ok()?) * u128::from(*factor) / scale;
    }
    u64::try_from(total).ok()
}

/// A percentage in quotes as a share from 0 to 1.
pub fn read_percent(value: &Value) -> Option<f64> {
    let percent: f64 = value.as_text()?.trim().strip_suffix('%')?.trim_end().parse().ok()?;
    (0.0..=100.0).contains(&percent).then_some(percent / 100.0)
}

/// A share as a percentage, rounded where the multiplication's error would be visible.
pub fn write_percent(share: f64) -> Value {
    Value::String(format!("{}%", (share * 1e11).round() / 1e9))
}

/// Declares an enum with one word in the configuration per value.
#[macro_export]
macro_rules! words {
    (
        $(#[$meta:meta])*
        $vis:vis enum $Type:ident { $($(#[$doc:meta])* $Variant:ident = $word:literal,)+ }
    ) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        $vis enum $Type { $($(#[$doc])* $Variant,)+ }

        impl $Type {
            /// The value's word in the configuration.
            #[allow(dead_code, reason = "not every crate prints its words")]
            $vis const fn word(self) -> &'static str {
                match self {
                    $(Self::$Variant => $word,)+
                }
            }
        }

        impl $crate::Kind for $Type {
            type Out = Self;
            const EXPECTED: &'static str = $crate::words!(@list $($word),+);
            fn read(value: &$crate::Value) -> Option<Self> {
                match value.as_text()? {
                    $($word => Some(Self::$Variant),)+
                    _ => None,
                }
            }
            fn write(out: &Self) -> $crate::Value {
                $crate::Value::String(out.word().to_owned())
            }
            fn schema() -> $crate::Json {
                $crate::json!({ "enum": [$($word),+] })
            }
        }
    };
    (@list $word:literal) => { concat!("\"", $word, "\"") };
    (@list $word:literal, $last:literal) => { concat!("\"", $word, "\" or \"", $last, "\"") };
    (@list $word:literal, $($rest:literal),+) => {
        concat!("\"", $word, "\", ", $crate::words!(@list $($rest),+))
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Value {
        Value::String(text.to_owned())
    }

    #[test]
    fn times_carry_their_unit() {
        let time = |value: &str| TimeSpan::read(&text(value));
        assert_eq!(time("500ms"), Some(Duration::from_millis(500)));
        assert_eq!(time("1.5 h"), Some(Duration::from_secs(5400)));
        assert_eq!(time("2m"), Some(Duration::from_secs(120)));
        for wrong in ["", "30", "0s", "-1s", "1 day", "s", "99999999999h"] {
            assert_eq!(time(wrong), None, "{wrong}");
        }
        assert_eq!(TimeSpan::read(&Value::Integer(30)), None, "without a unit");
    }

    #[test]
    fn byte_sizes_carry_their_unit() {
        assert_eq!(ByteSize::read(&text("4GiB")), Some(4 << 30));
        assert_eq!(ByteSize::read(&text("64 KiB")), Some(65_536));
        assert_eq!(ByteSize::read(&text("1500MB")), Some(1_500_000_000));
        assert_eq!(ByteSize::read(&text("1.5GiB")), Some(3 << 29));
        assert_eq!(ByteSize::read(&text("7B")), Some(7));
        assert_eq!(ByteSize::read(&Value::Integer(1024)), Some(1024));
        for wrong in ["", "GiB", "4", "4 gib", "4GiBs", "-1MB", "1.2.3MB", ".5GiB", "5.GiB"] {
            assert_eq!(ByteSize::read(&text(wrong)), None, "{wrong}");
        }
        assert_eq!(ByteSize::read(&text("99999999999TiB")), None);
        assert_eq!(ByteSize::read(&Value::Integer(-1)), None);
    }

    #[test]
    fn types_are_all_named() {
        for dtype in DType::ALL {
            assert!(DType::EXPECTED.contains(dtype.name()), "{}", dtype.name());
        }
    }
}

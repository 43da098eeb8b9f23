//! The words of `[dataset.fields]`: the type that a member is read as, the treatment of a sample without it, and the
//! kinds of its keys' values.

use forebay_keys::{Located, Value, kinds};
use serde::{Deserialize, Serialize};

/// The type that a member is read as.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Form {
    Image,
    /// A list of images.
    Images,
    Text,
    Bytes,
    Integer,
    Float,
    Bool,
    Array,
    Audio,
    /// The sample rate of a sound, in frames per second.
    #[serde(rename = "sample-rate")]
    SampleRate,
    /// A video file, of which clips are made above the format.
    Video,
}

impl Form {
    /// Whether it is decoded from a file's bytes, which are not text.
    pub(crate) const fn is_of_bytes(self) -> bool {
        match self {
            Self::Image
            | Self::Images
            | Self::Array
            | Self::Audio
            | Self::SampleRate
            | Self::Video => true,
            Self::Text | Self::Bytes | Self::Integer | Self::Float | Self::Bool => false,
        }
    }

    /// Whether a missing value can be one of 0 bytes, or a list of no images.
    pub(crate) const fn may_be_empty(self) -> bool {
        matches!(self, Self::Text | Self::Bytes | Self::Images)
    }
}

pub(super) const FORMS: [(&str, Form); 11] = [
    ("image", Form::Image),
    ("images", Form::Images),
    ("text", Form::Text),
    ("bytes", Form::Bytes),
    ("integer", Form::Integer),
    ("float", Form::Float),
    ("bool", Form::Bool),
    ("array", Form::Array),
    ("audio", Form::Audio),
    ("sample-rate", Form::SampleRate),
    ("video", Form::Video),
];

/// The treatment of a sample without the member.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Missing {
    /// The sample is defective.
    Error,
    /// The field has 0 bytes.
    Empty,
    /// The sample is removed from the dataset.
    Skip,
}

pub(super) const MISSING: [(&str, Missing); 3] =
    [("error", Missing::Error), ("empty", Missing::Empty), ("skip", Missing::Skip)];

pub(super) fn word_of<T: Copy + PartialEq>(words: &[(&'static str, T)], wanted: T) -> &'static str {
    words.iter().find(|(_, value)| *value == wanted).map_or("", |(word, _)| word)
}

fn value_of<T: Copy>(words: &[(&str, T)], value: &Value) -> Option<T> {
    let text = value.as_text()?;
    words.iter().find(|(word, _)| *word == text).map(|(_, value)| *value)
}

kinds! {
    /// The key `as`.
    [pub(crate)] FormWord as Form: "\"image\", \"images\", \"text\", \"bytes\", \"integer\", \"float\", \"bool\", \"array\", \"audio\", \"sample-rate\" or \"video\"";
    read(value) { value_of(&FORMS, value) }
    write(out) { Value::String(word_of(&FORMS, *out).to_owned()) }
    schema { "enum": ["image", "images", "text", "bytes", "integer", "float", "bool", "array", "audio", "sample-rate", "video"] }

    /// The key `channels` of a sound.
    [pub(crate)] SoundChannels as Option<u16>: "\"mix\" or a whole number from 1 to 64";
    read(value) {
        match value {
            Value::String(word) if word == "mix" => Some(None),
            Value::Integer(count) if (1..=64).contains(count) => Some(u16::try_from(*count).ok()),
            _ => None,
        }
    }
    write(out) {
        out.map_or_else(|| Value::String("mix".to_owned()), |count| Value::Integer(count.into()))
    }
    schema { "type": ["string", "integer"] }

    /// The key `rate` of a sound.
    [pub(crate)] SoundRate as u32: "a whole number from 1 to 768000 (samples a second)";
    read(value) {
        match value {
            Value::Integer(rate) if (1..=768_000).contains(rate) => u32::try_from(*rate).ok(),
            _ => None,
        }
    }
    write(out) { Value::Integer((*out).into()) }
    schema { "type": "integer", "minimum": 1, "maximum": 768_000 }

    /// The keys `start` and `seconds` of a sound, in nanoseconds.
    [pub(crate)] SoundTime as u64: "a number of seconds from 0 to 1000000";
    read(value) {
        let seconds = match value {
            #[expect(clippy::cast_precision_loss, reason = "refused if it is large")]
            Value::Integer(seconds) => *seconds as f64,
            Value::Float(seconds) => *seconds,
            _ => return None,
        };
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "at most 10¹⁵")]
        (0.0..=1e6).contains(&seconds).then(|| (seconds * 1e9).round() as u64)
    }
    write(out) {
        #[expect(clippy::cast_precision_loss, reason = "at most 10¹⁵")]
        Value::Float(*out as f64 / 1e9)
    }
    schema { "type": "number", "minimum": 0, "maximum": 1_000_000 }

    /// The key `missing`.
    [pub(crate)] MissingWord as Missing: "\"error\", \"empty\" or \"skip\"";
    read(value) { value_of(&MISSING, value) }
    write(out) { Value::String(word_of(&MISSING, *out).to_owned()) }
    schema { "enum": ["error", "empty", "skip"] }

    /// The key `from`: a name, or several names, of which a sample has one.
    [pub(crate)] Names as Vec<String>: "a name, or an array of names";
    read(value) {
        let names: Option<Vec<String>> = match value {
            Value::String(name) => Some(vec![name.clone()]),
            Value::Array(names) => {
                names.iter().map(|name| name.value.as_text().map(str::to_owned)).collect()
            }
            _ => None,
        };
        names.filter(|names| !names.is_empty() && names.iter().all(|name| !name.is_empty()))
    }
    write(out) { Value::Array(out.iter().map(|name| Value::String(name.clone()).into()).collect()) }
    schema { "type": ["string", "array"] }

    /// The unparsed table; [`read_rules`](crate::columns::read_rules) parses it.
    [pub(crate)] FieldsTable as Vec<(String, Located)>: "a table of fields, each `{ from = \"…\", as = \"…\" }`", type "table";
    read(value) {
        match value {
            Value::Table(entries) if !entries.is_empty() => Some(entries.clone()),
            _ => None,
        }
    }
    write(out) { Value::Table(out.clone()) }
    schema { "type": "object" }
}

//! The words of `[dataset.fields]`: what a member is read as, what becomes of a sample without it, and the kinds of values
//! that its keys take.

use forebay_config::{Located, Value, kinds};
use serde::{Deserialize, Serialize};

/// What a member is read as.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(in crate::dataset) enum Form {
    Image,
    Text,
    Bytes,
    Integer,
    Float,
    Array,
    Audio,
    /// Of a sound the frames a second.
    #[serde(rename = "sample-rate")]
    SampleRate,
}

impl Form {
    /// Whether it is made of the bytes of a file, which no text holds.
    pub(in crate::dataset) const fn is_of_bytes(self) -> bool {
        matches!(self, Self::Image | Self::Array | Self::Audio | Self::SampleRate)
    }
}

pub(super) const FORMS: [(&str, Form); 8] = [
    ("image", Form::Image),
    ("text", Form::Text),
    ("bytes", Form::Bytes),
    ("integer", Form::Integer),
    ("float", Form::Float),
    ("array", Form::Array),
    ("audio", Form::Audio),
    ("sample-rate", Form::SampleRate),
];

/// What becomes of a sample that has no such member.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(in crate::dataset) enum Missing {
    /// It is a bad sample.
    Error,
    /// The field has no bytes.
    Empty,
    /// It leaves the dataset.
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
    /// `as`.
    [pub(in crate::dataset)] FormWord as Form: "\"image\", \"text\", \"bytes\", \"integer\", \"float\", \"array\", \"audio\" or \"sample-rate\"";
    read(value) { value_of(&FORMS, value) }
    write(out) { Value::String(word_of(&FORMS, *out).to_owned()) }
    schema { "enum": ["image", "text", "bytes", "integer", "float", "array", "audio", "sample-rate"] }

    /// `channels` of a sound.
    [pub(in crate::dataset)] SoundChannels as Option<u16>: "\"mix\" or a whole number from 1 to 64";
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

    /// `rate` of a sound.
    [pub(in crate::dataset)] SoundRate as u32: "a whole number from 1 to 768000 (samples a second)";
    read(value) {
        match value {
            Value::Integer(rate) if (1..=768_000).contains(rate) => u32::try_from(*rate).ok(),
            _ => None,
        }
    }
    write(out) { Value::Integer((*out).into()) }
    schema { "type": "integer", "minimum": 1, "maximum": 768_000 }

    /// `missing`.
    [pub(in crate::dataset)] MissingWord as Missing: "\"error\", \"empty\" or \"skip\"";
    read(value) { value_of(&MISSING, value) }
    write(out) { Value::String(word_of(&MISSING, *out).to_owned()) }
    schema { "enum": ["error", "empty", "skip"] }

    /// `from`: a name, or several of which a sample has one.
    [pub(in crate::dataset)] Names as Vec<String>: "a name, or an array of names";
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

    /// The table as it stands; [`read_rules`] reads it.
    [pub(in crate::dataset)] FieldsTable as Vec<(String, Located)>: "a table of fields, each `{ from = \"…\", as = \"…\" }`", type "table";
    read(value) {
        match value {
            Value::Table(entries) if !entries.is_empty() => Some(entries.clone()),
            _ => None,
        }
    }
    write(out) { Value::Table(out.clone()) }
    schema { "type": "object" }
}

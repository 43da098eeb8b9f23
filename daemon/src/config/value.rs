//! A configuration as a tree in which every key and value knows its line, whatever it came from.

use super::error::Place;

/// A value and where it stands.
#[derive(Debug, Clone, PartialEq)]
pub struct Located {
    /// What it is.
    pub value: Value,
    /// Where it stands.
    pub place: Place,
}

/// One value of a configuration.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// `true` or `false`.
    Bool(bool),
    /// A whole number.
    Integer(i64),
    /// A number with a fraction.
    Float(f64),
    /// Text, `${NAME}` already expanded.
    String(String),
    /// `[ … ]`.
    Array(Vec<Located>),
    /// `[table]`, `{ inline = "table" }` or an element of `[[tables]]`, in the order written.
    Table(Vec<(String, Located)>),
}

impl Value {
    /// The same value as JSON.
    #[must_use]
    pub fn to_json(&self) -> serde_json::Value {
        match self {
            Self::Bool(value) => (*value).into(),
            Self::Integer(value) => (*value).into(),
            Self::Float(value) => (*value).into(),
            Self::String(value) => value.as_str().into(),
            Self::Array(items) => items.iter().map(|item| item.value.to_json()).collect(),
            Self::Table(entries) => {
                entries.iter().map(|(key, item)| (key.clone(), item.value.to_json())).collect()
            }
        }
    }

    /// What a message calls this kind of value.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Bool(_) => "a boolean",
            Self::Integer(_) => "a whole number",
            Self::Float(_) => "a number",
            Self::String(_) => "a string",
            Self::Array(_) => "an array",
            Self::Table(_) => "a table",
        }
    }
}

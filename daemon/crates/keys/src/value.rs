//! A configuration as a tree in which every key and value has its line, regardless of its source.

use crate::error::SourceLocation;

/// A value and its location.
#[derive(Debug, Clone, PartialEq)]
pub struct Located {
    /// The value.
    pub value: Value,
    /// The location.
    pub location: SourceLocation,
}

impl From<Value> for Located {
    /// A value without a location.
    fn from(value: Value) -> Self {
        Self { value, location: SourceLocation::default() }
    }
}

impl Located {
    /// A value at a location.
    pub fn new(value: Value, location: &SourceLocation) -> Self {
        Self { value, location: location.clone() }
    }

    /// The value of a table's key.
    pub fn get(&self, key: &str) -> Option<&Self> {
        match &self.value {
            Value::Table(entries) => {
                entries.iter().find(|(name, _)| name == key).map(|(_, value)| value)
            }
            _ => None,
        }
    }
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

    /// The text of a string.
    pub fn as_text(&self) -> Option<&str> {
        match self {
            Self::String(text) => Some(text),
            _ => None,
        }
    }

    /// The kind's name in messages.
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

    /// The value in messages; long arrays and tables only by their kind.
    pub fn describe(&self) -> String {
        match self {
            Self::Bool(value) => format!("{value}"),
            Self::Integer(value) => format!("{value}"),
            // The debug form writes large numbers with an exponent.
            Self::Float(value) => format!("{value:?}"),
            Self::String(value) => format!("{value:?}"),
            Self::Array(items) if items.len() <= 4 => {
                let items: Vec<String> = items.iter().map(|item| item.value.describe()).collect();
                format!("[{}]", items.join(", "))
            }
            Self::Array(_) | Self::Table(_) => self.kind().to_owned(),
        }
    }

    /// The value as TOML on one line.
    pub fn to_toml(&self) -> String {
        match self {
            Self::Bool(value) => value.to_string(),
            Self::Integer(value) => value.to_string(),
            // Rust's debug form always has a point or an exponent, as TOML requires, except for NaN.
            Self::Float(value) => format!("{value:?}").to_lowercase(),
            Self::String(text) => quoted(text),
            Self::Array(items) => {
                let items: Vec<String> = items.iter().map(|item| item.value.to_toml()).collect();
                format!("[{}]", items.join(", "))
            }
            Self::Table(entries) if entries.is_empty() => "{}".to_owned(),
            Self::Table(entries) => {
                let pair = |(name, item): &(String, Located)| {
                    format!("{} = {}", toml_key(name), item.value.to_toml())
                };
                let pairs: Vec<String> = entries.iter().map(pair).collect();
                format!("{{ {} }}", pairs.join(", "))
            }
        }
    }
}

/// A string in TOML's quotes, with `${` escaped so that it is not expanded when read again.
fn quoted(text: &str) -> String {
    toml::Value::String(text.replace("${", "$${")).to_string()
}

/// A key, in quotes if needed.
pub fn toml_key(text: &str) -> String {
    let bare =
        !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_');
    if bare { text.to_owned() } else { quoted(text) }
}

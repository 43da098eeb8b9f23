//! Reads one table of a configuration: keys are taken one by one, and what is left over is unknown.

use super::error::{ConfigError, Place};
use super::value::{Located, Value};

/// One table. Each key is taken at most once; [`Section::finish`] reports the first key that nobody took.
#[derive(Debug)]
pub struct Section {
    path: String,
    place: Place,
    entries: Vec<(String, Located)>,
    asked: Vec<&'static str>,
}

/// A type that a configuration value can become.
pub trait FromValue: Sized {
    /// What a message says was expected, such as `a whole number from 1`.
    const EXPECTED: &'static str;
    /// What a message says of an array of them.
    const EXPECTED_ARRAY: &'static str = "an array";
    /// The value, or `None` when it is not of this type.
    fn from_value(value: &Value) -> Option<Self>;
}

impl Section {
    /// The table at `path` (empty for the root). Fails when the value is no table.
    ///
    /// # Errors
    /// Says what stands there instead of a table.
    pub fn new(path: impl Into<String>, located: Located) -> Result<Self, ConfigError> {
        let path = path.into();
        match located.value {
            Value::Table(entries) => {
                Ok(Self { path, place: located.place, entries, asked: Vec::new() })
            }
            other => Err(ConfigError::new(
                &located.place,
                format!("`{path}` must be a table, not {}", other.kind()),
            )),
        }
    }

    /// A table without entries.
    #[must_use]
    pub fn empty(path: impl Into<String>, place: Place) -> Self {
        Self { path: path.into(), place, entries: Vec::new(), asked: Vec::new() }
    }

    /// Where the table stands.
    #[must_use]
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// The full path of a key, such as `batch.size`.
    #[must_use]
    pub fn key_path(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }

    /// Takes a key's value as it stands.
    pub fn take_located(&mut self, key: &'static str) -> Option<Located> {
        #[cfg(test)]
        super::asked_keys::record(self.key_path(key));
        self.asked.push(key);
        let index = self.entries.iter().position(|(name, _)| name == key)?;
        Some(self.entries.remove(index).1)
    }

    /// Takes a key's value as a `T`; `None` when the key is left out.
    ///
    /// # Errors
    /// When the value is not a `T`: names the key, what was expected and what stands there.
    pub fn take<T: FromValue>(&mut self, key: &'static str) -> Result<Option<T>, ConfigError> {
        Ok(self.take_placed(key)?.map(|(value, _)| value))
    }

    /// Like [`take`](Self::take), with the value's place for a later message.
    ///
    /// # Errors
    /// As [`take`](Self::take).
    pub fn take_placed<T: FromValue>(
        &mut self,
        key: &'static str,
    ) -> Result<Option<(T, Place)>, ConfigError> {
        let Some(located) = self.take_located(key) else {
            return Ok(None);
        };
        match T::from_value(&located.value) {
            Some(value) => Ok(Some((value, located.place))),
            None => Err(ConfigError::new(
                &located.place,
                format!(
                    "`{}` must be {}, not {}",
                    self.key_path(key),
                    T::EXPECTED,
                    describe(&located.value)
                ),
            )),
        }
    }

    /// Takes a key's value, or the default when it is left out.
    ///
    /// # Errors
    /// As [`take`](Self::take).
    pub fn take_or<T: FromValue>(
        &mut self,
        key: &'static str,
        default: T,
    ) -> Result<T, ConfigError> {
        Ok(self.take(key)?.unwrap_or(default))
    }

    /// Takes a key that must be there.
    ///
    /// # Errors
    /// As [`take`](Self::take), and when the key is left out.
    pub fn require<T: FromValue>(&mut self, key: &'static str) -> Result<T, ConfigError> {
        if let Some(value) = self.take(key)? {
            return Ok(value);
        }
        // A key nearly of this name is the likelier mistake, and has a line.
        match self.entries.iter().find(|(name, _)| nearest(name, [key].into_iter()).is_some()) {
            Some((name, located)) => Err(self.unknown_key(name, located)),
            None => {
                Err(self.error(format!("`{}` is required: {}", self.key_path(key), T::EXPECTED)))
            }
        }
    }

    /// Takes a sub-table; an absent one reads as empty.
    ///
    /// # Errors
    /// When the value is no table.
    pub fn take_section(&mut self, key: &'static str) -> Result<Self, ConfigError> {
        let path = self.key_path(key);
        match self.take_located(key) {
            Some(located) => Self::new(path, located),
            None => Ok(Self::empty(path, self.place.clone())),
        }
    }

    /// An error at the table's own place.
    pub fn error(&self, message: impl Into<String>) -> ConfigError {
        ConfigError::new(&self.place, message)
    }

    /// Ends the reading.
    ///
    /// # Errors
    /// When a key is left that nobody took: names it, its line and the nearest valid key, or all of them.
    pub fn finish(self) -> Result<(), ConfigError> {
        match self.entries.first() {
            Some((key, located)) => Err(self.unknown_key(key, located)),
            None => Ok(()),
        }
    }

    fn unknown_key(&self, key: &str, located: &Located) -> ConfigError {
        let hint = match nearest(key, self.asked.iter().copied()) {
            Some(valid) => format!("did you mean `{}`?", self.key_path(valid)),
            None => format!("valid keys: {}", self.asked.join(", ")),
        };
        let path = self.key_path(key);
        ConfigError::new(&located.place, format!("unknown key `{path}`; {hint}"))
    }
}

fn describe(value: &Value) -> String {
    match value {
        Value::Bool(value) => format!("{value}"),
        Value::Integer(value) => format!("{value}"),
        // The debug form writes large numbers with an exponent.
        Value::Float(value) => format!("{value:?}"),
        Value::String(value) => format!("{value:?}"),
        Value::Array(items) if items.len() <= 4 => {
            let items: Vec<String> = items.iter().map(|item| describe(&item.value)).collect();
            format!("[{}]", items.join(", "))
        }
        Value::Array(_) | Value::Table(_) => value.kind().to_owned(),
    }
}

/// The candidate nearest to a misspelt word, if one is near enough to be meant.
pub fn nearest<'a>(word: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    candidates
        .map(|candidate| (edit_distance(word, candidate), candidate))
        .min_by_key(|(distance, _)| *distance)
        .filter(|(distance, candidate)| *distance <= 1 + candidate.len().min(word.len()) / 3)
        .map(|(_, candidate)| candidate)
}

/// Levenshtein's distance over bytes.
fn edit_distance(left: &str, right: &str) -> usize {
    let mut row: Vec<usize> = (0..=right.len()).collect();
    for (i, a) in left.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, b) in right.bytes().enumerate() {
            let substituted = diagonal + usize::from(a != b);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[right.len()]
}

impl FromValue for bool {
    const EXPECTED: &'static str = "true or false";
    fn from_value(value: &Value) -> Option<Self> {
        match value {
            Value::Bool(value) => Some(*value),
            _ => None,
        }
    }
}

impl FromValue for u64 {
    const EXPECTED: &'static str = "a whole number, 0 or more";
    fn from_value(value: &Value) -> Option<Self> {
        match value {
            Value::Integer(value) => Self::try_from(*value).ok(),
            _ => None,
        }
    }
}

impl FromValue for u32 {
    const EXPECTED: &'static str = "a whole number from 0 to 4294967295";
    const EXPECTED_ARRAY: &'static str = "an array of whole numbers from 0";
    fn from_value(value: &Value) -> Option<Self> {
        u64::from_value(value).and_then(|value| Self::try_from(value).ok())
    }
}

impl FromValue for f64 {
    const EXPECTED: &'static str = "a number";
    const EXPECTED_ARRAY: &'static str = "an array of numbers";
    #[expect(clippy::cast_precision_loss, reason = "a user's number, not a count")]
    fn from_value(value: &Value) -> Option<Self> {
        match value {
            Value::Integer(value) => Some(*value as Self),
            Value::Float(value) if value.is_finite() => Some(*value),
            _ => None,
        }
    }
}

impl FromValue for String {
    const EXPECTED: &'static str = "a string";
    const EXPECTED_ARRAY: &'static str = "an array of strings";
    fn from_value(value: &Value) -> Option<Self> {
        match value {
            Value::String(value) => Some(value.clone()),
            _ => None,
        }
    }
}

impl<T: FromValue> FromValue for Vec<T> {
    const EXPECTED: &'static str = T::EXPECTED_ARRAY;
    fn from_value(value: &Value) -> Option<Self> {
        match value {
            Value::Array(items) => items.iter().map(|item| T::from_value(&item.value)).collect(),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_word_is_one_that_may_be_meant() {
        let keys = ["size", "last", "concurrency", "operations"];
        let near = |word| nearest(word, keys.into_iter());
        assert_eq!(near("sise"), Some("size"));
        assert_eq!(near("concurency"), Some("concurrency"));
        assert_eq!(near("operation"), Some("operations"));
        assert_eq!(near("shuffle"), None);
        assert_eq!(near(""), None);
    }

    #[test]
    fn distances_count_edits() {
        for (left, right, edits) in [
            ("", "abc", 3),
            ("abc", "abc", 0),
            ("abc", "abd", 1),
            ("kitten", "sitting", 3),
            ("ab", "ba", 2),
        ] {
            assert_eq!(edit_distance(left, right), edits, "{left} {right}");
            assert_eq!(edit_distance(right, left), edits, "{right} {left}");
        }
    }
}

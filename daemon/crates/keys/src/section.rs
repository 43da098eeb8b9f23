//! Reads one table of a configuration: keys are taken one by one, and remaining keys are unknown.

use std::path::{Path, PathBuf};

use crate::error::{ConfigError, SourceLocation};
use crate::kind::Kind;
use crate::value::{Located, Value};

/// One table. Each key is taken at most once; keys that are not taken are unknown.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Section {
    path: String,
    location: SourceLocation,
    /// The folder of relative paths.
    folder: PathBuf,
    entries: Vec<(String, Located)>,
    /// The requested keys, with their locations if they are present.
    asked: Vec<(&'static str, Option<SourceLocation>)>,
}

impl Section {
    /// The table at `path` (empty for the root); relative paths start at `folder`.
    ///
    /// # Errors
    /// The value is not a table; describes the value.
    pub fn new(
        path: impl Into<String>,
        located: Located,
        folder: &Path,
    ) -> Result<Self, ConfigError> {
        let path = path.into();
        let Value::Table(entries) = located.value else {
            let kind = located.value.kind();
            let message = format!("`{path}` must be a table, not {kind}");
            return Err(ConfigError::new(&located.location, message));
        };
        let folder = folder.to_owned();
        Ok(Self { path, location: located.location, folder, entries, asked: Vec::new() })
    }

    /// A table with the same folder, at another path.
    pub fn nested(&self, path: impl Into<String>, located: Located) -> Result<Self, ConfigError> {
        Self::new(path, located, &self.folder)
    }

    /// The table's path, such as `ring`.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The table's location.
    pub fn location(&self) -> &SourceLocation {
        &self.location
    }

    /// The location of a key that was taken; `None` if it is missing.
    pub fn location_of(&self, key: &str) -> Option<&SourceLocation> {
        self.asked.iter().find(|(name, _)| *name == key)?.1.as_ref()
    }

    /// The keys that were not taken yet.
    pub fn entries(&self) -> &[(String, Located)] {
        &self.entries
    }

    /// The full path of a key, such as `batch.size`.
    pub fn key_path(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }

    /// Takes a key's value with its location.
    pub fn take_located(&mut self, key: &'static str) -> Option<Located> {
        let index = self.entries.iter().position(|(name, _)| name == key);
        let located = index.map(|index| self.entries.remove(index).1);
        self.asked.push((key, located.as_ref().map(|located| located.location.clone())));
        located
    }

    /// Takes a key's value; `None` if the key is missing.
    ///
    /// # Errors
    /// The value is not of the kind: names the key, the expected and the actual value.
    pub fn take<K: Kind>(&mut self, key: &'static str) -> Result<Option<K::Out>, ConfigError> {
        let Some(Located { value, location }) = self.take_located(key) else {
            return Ok(None);
        };
        match K::read(&value) {
            Some(out) => Ok(Some(K::resolve(out, &self.folder))),
            None => {
                let why = K::refusal(&value).unwrap_or_else(|| {
                    format!(" must be {}, not {}", K::EXPECTED, value.describe())
                });
                Err(ConfigError::new(&location, format!("`{}`{why}", self.key_path(key))))
            }
        }
    }

    /// Takes a required key.
    ///
    /// # Errors
    /// As [`take`](Self::take), or the key is missing.
    pub fn require<K: Kind>(&mut self, key: &'static str) -> Result<K::Out, ConfigError> {
        if let Some(value) = self.take::<K>(key)? {
            return Ok(value);
        }
        // A similar key is the more probable mistake, and has a line.
        match self.entries.iter().find(|(name, _)| nearest(name, [key].into_iter()).is_some()) {
            Some((name, located)) => Err(self.unknown_key(name, located)),
            None => {
                Err(self.error(format!("`{}` is required: {}", self.key_path(key), K::EXPECTED)))
            }
        }
    }

    /// Takes a sub-table; a missing one is empty.
    ///
    /// # Errors
    /// The value is not a table.
    pub fn take_section(&mut self, key: &'static str) -> Result<Self, ConfigError> {
        let empty = Located::new(Value::Table(Vec::new()), &self.location);
        let located = self.take_located(key).unwrap_or(empty);
        self.nested(self.key_path(key), located)
    }

    /// Removes a key that was not taken.
    pub fn remove(&mut self, key: &str) {
        self.entries.retain(|(name, _)| name != key);
    }

    /// Adds a key.
    pub fn put(&mut self, key: &str, value: Value) {
        self.entries.push((key.to_owned(), Located::new(value, &self.location)));
    }

    /// Replaces the keys that were not taken by resolved ones.
    pub fn replace_entries(&mut self, entries: Vec<(&'static str, Value)>) {
        let located =
            |(key, value): (&str, _)| (key.to_owned(), Located::new(value, &self.location));
        self.entries = entries.into_iter().map(located).collect();
    }

    /// An error at the table's location.
    pub fn error(&self, message: impl Into<String>) -> ConfigError {
        ConfigError::new(&self.location, message)
    }

    /// An error at a key that was taken, or at the table if the key is missing.
    pub fn error_at(&self, key: &str, message: impl Into<String>) -> ConfigError {
        ConfigError::new(self.location_of(key).unwrap_or(&self.location), message)
    }

    /// Ends the reading.
    ///
    /// # Errors
    /// A key was not taken: names it, its line and the nearest valid key, or all of them.
    pub fn finish(&self) -> Result<(), ConfigError> {
        match self.entries.first() {
            Some((key, located)) => Err(self.unknown_key(key, located)),
            None => Ok(()),
        }
    }

    fn unknown_key(&self, key: &str, located: &Located) -> ConfigError {
        let asked = || self.asked.iter().map(|(name, _)| *name);
        unknown_key(&self.key_path(key), key, &located.location, asked(), |key| self.key_path(key))
    }
}

/// Torchvision's names of arguments, and the keys here.
const TORCHVISION: [(&str, &str); 3] =
    [("p", "probability"), ("scale", "area"), ("num_output_channels", "channels")];

/// The error for an unknown key, with the nearest valid key or all of them.
pub fn unknown_key<'a>(
    path: &str,
    key: &str,
    location: &SourceLocation,
    valid: impl Iterator<Item = &'a str> + Clone,
    path_of: impl Fn(&str) -> String,
) -> ConfigError {
    let elsewhere = TORCHVISION.iter().find(|(theirs, own)| {
        *theirs == key && path.contains("operations") && valid.clone().any(|valid| valid == *own)
    });
    if let Some((theirs, own)) = elsewhere {
        let message = format!("unknown key `{path}`; `{theirs}` of torchvision is `{own}` here");
        return ConfigError::new(location, message);
    }
    let hint = match nearest(key, valid.clone()) {
        Some(valid) => format!("did you mean `{}`?", path_of(valid)),
        None if path == "operations" => {
            "operations on samples belong to a stage, `[[stage]]` with `name` and `operations = [{ op = \"decode-image\" }]`, and \
             those on complete batches under `[[batch.operations]]`"
                .to_owned()
        }
        None => format!("valid keys: {}", valid.collect::<Vec<_>>().join(", ")),
    };
    ConfigError::new(location, format!("unknown key `{path}`; {hint}"))
}

/// The candidate nearest to a misspelt word, if one is near enough.
pub fn nearest<'a>(word: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    candidates
        .map(|candidate| (strsim::levenshtein(word, candidate), candidate))
        .min_by_key(|(distance, _)| *distance)
        .filter(|(distance, candidate)| *distance <= 1 + candidate.len().min(word.len()) / 3)
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_word_is_close_enough_to_be_meant() {
        let keys = ["size", "last", "concurrency", "operations"];
        let near = |word| nearest(word, keys.into_iter());
        assert_eq!(near("sise"), Some("size"));
        assert_eq!(near("concurency"), Some("concurrency"));
        assert_eq!(near("operation"), Some("operations"));
        assert_eq!(near("shuffle"), None);
        assert_eq!(near(""), None);
    }
}

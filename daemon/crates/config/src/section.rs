//! Reads one table of a configuration: keys are taken one by one, and what is left over is unknown.

use std::path::{Path, PathBuf};

use crate::error::{ConfigError, SourceLocation};
use crate::kind::Kind;
use crate::value::{Located, Value};

/// One table. Each key is taken at most once; what nobody takes is unknown.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Section {
    path: String,
    location: SourceLocation,
    /// Where relative paths start.
    folder: PathBuf,
    entries: Vec<(String, Located)>,
    /// The keys that were asked for, and where those stand that were there.
    asked: Vec<(&'static str, Option<SourceLocation>)>,
}

impl Section {
    /// The table at `path` (empty for the root), in which relative paths start at `folder`.
    ///
    /// # Errors
    /// Says what stands there instead of a table.
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

    /// A table below this one's folder, at a path of its own.
    pub(crate) fn nested(
        &self,
        path: impl Into<String>,
        located: Located,
    ) -> Result<Self, ConfigError> {
        Self::new(path, located, &self.folder)
    }

    /// The table's path, such as `ring`.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Where the table stands.
    pub fn location(&self) -> &SourceLocation {
        &self.location
    }

    /// Where a key stands that was taken; `None` when it is left out.
    pub fn location_of(&self, key: &str) -> Option<&SourceLocation> {
        self.asked.iter().find(|(name, _)| *name == key)?.1.as_ref()
    }

    /// The keys that nobody took yet.
    pub fn entries(&self) -> &[(String, Located)] {
        &self.entries
    }

    /// The full path of a key, such as `batch.size`.
    pub fn key_path(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }

    /// Takes a key's value as it stands.
    pub fn take_located(&mut self, key: &'static str) -> Option<Located> {
        let index = self.entries.iter().position(|(name, _)| name == key);
        let located = index.map(|index| self.entries.remove(index).1);
        self.asked.push((key, located.as_ref().map(|located| located.location.clone())));
        located
    }

    /// Takes a key's value; `None` when the key is left out.
    ///
    /// # Errors
    /// When the value is not of the kind: names the key, what was expected and what stands there.
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

    /// Takes a key that must be there.
    ///
    /// # Errors
    /// As [`take`](Self::take), and when the key is left out.
    pub fn require<K: Kind>(&mut self, key: &'static str) -> Result<K::Out, ConfigError> {
        if let Some(value) = self.take::<K>(key)? {
            return Ok(value);
        }
        // A key nearly of this name is the likelier mistake, and has a line.
        match self.entries.iter().find(|(name, _)| nearest(name, [key].into_iter()).is_some()) {
            Some((name, located)) => Err(self.unknown_key(name, located)),
            None => {
                Err(self.error(format!("`{}` is required: {}", self.key_path(key), K::EXPECTED)))
            }
        }
    }

    /// Takes a sub-table; an absent one is empty.
    ///
    /// # Errors
    /// When the value is no table.
    pub fn take_section(&mut self, key: &'static str) -> Result<Self, ConfigError> {
        let empty = Located::new(Value::Table(Vec::new()), &self.location);
        let located = self.take_located(key).unwrap_or(empty);
        self.nested(self.key_path(key), located)
    }

    /// Replaces the keys that nobody took by resolved ones.
    pub(crate) fn replace_entries(&mut self, entries: Vec<(&'static str, Value)>) {
        let located =
            |(key, value): (&str, _)| (key.to_owned(), Located::new(value, &self.location));
        self.entries = entries.into_iter().map(located).collect();
    }

    /// An error at the table's own location.
    pub fn error(&self, message: impl Into<String>) -> ConfigError {
        ConfigError::new(&self.location, message)
    }

    /// An error at a key that was taken, or at the table when it is left out.
    pub fn error_at(&self, key: &str, message: impl Into<String>) -> ConfigError {
        ConfigError::new(self.location_of(key).unwrap_or(&self.location), message)
    }

    /// Ends the reading.
    ///
    /// # Errors
    /// When a key is left that nobody took: names it, its line and the nearest valid key, or all of them.
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

/// An unknown key, and the nearest of the valid ones or all of them.
pub(crate) fn unknown_key<'a>(
    path: &str,
    key: &str,
    location: &SourceLocation,
    valid: impl Iterator<Item = &'a str> + Clone,
    path_of: impl Fn(&str) -> String,
) -> ConfigError {
    let hint = match nearest(key, valid.clone()) {
        Some(valid) => format!("did you mean `{}`?", path_of(valid)),
        None if path == "operations" => {
            "operations on samples stand in a stage, `[[stage]]` with `name` and `operations = [{ op = \"decode-image\" }]`, and \
             those on complete batches under `[[batch.operations]]`"
                .to_owned()
        }
        None => format!("valid keys: {}", valid.collect::<Vec<_>>().join(", ")),
    };
    ConfigError::new(location, format!("unknown key `{path}`; {hint}"))
}

/// The candidate nearest to a misspelt word, if one is near enough to be meant.
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
    fn the_nearest_word_is_one_that_may_be_meant() {
        let keys = ["size", "last", "concurrency", "operations"];
        let near = |word| nearest(word, keys.into_iter());
        assert_eq!(near("sise"), Some("size"));
        assert_eq!(near("concurency"), Some("concurrency"));
        assert_eq!(near("operation"), Some("operations"));
        assert_eq!(near("shuffle"), None);
        assert_eq!(near(""), None);
    }
}

//! Keys set from outside the file: `--set batch.size=128`, `Loader(…, overrides={"batch.size": 128})`.
//!
//! A key is a path with dots. An array's element is selected by its index, or by its `name` or `op`:
//! `stage.preprocess.concurrency`, `stage.preprocess.operations.random-resized-crop.size`. A part that contains dots is
//! quoted: `output."a.b".dtype`.

use super::presets::merge_values;
use forebay_keys::{ConfigError, SourceLocation};
use forebay_keys::{Located, Value, toml_key};
use forebay_keys::{from_json, parse_toml_value};

/// Sources of overrides in messages: a command's arguments, and a loader's (a dict with dotted keys, or keyword
/// arguments).
const ARGUMENT: &str = "--set";
const LOADER: &str = "the loader's arguments";

/// Whether a value was set from outside the file.
pub(crate) fn is_override(value: &Located) -> bool {
    matches!(&*value.location.source, ARGUMENT | LOADER)
}

/// One key and its new value.
#[derive(Debug, Clone, PartialEq)]
pub struct Override {
    path: Vec<String>,
    /// `None` removes the key, so that its default applies.
    value: Option<Located>,
    location: SourceLocation,
}

impl Override {
    /// Reads the argument of `--set`: `KEY=VALUE` with a TOML value, or a bare word as a string.
    ///
    /// # Errors
    /// There is no `=`, the key has an empty part, or the value starts like TOML but is invalid.
    pub fn from_argument(argument: &str) -> Result<Self, ConfigError> {
        let location = SourceLocation { source: ARGUMENT.into(), line: 0 };
        match argument.split_once('=') {
            Some((key, text)) => Self::from_toml(key, text),
            None => {
                let message = format!("`{argument}` must be KEY=VALUE, such as batch.size=128");
                Err(ConfigError::new(&location, message))
            }
        }
    }

    /// A key with dots and the text of a TOML value, as given to `--set`.
    ///
    /// # Errors
    /// The key has an empty part, or the value starts like TOML but is invalid.
    pub fn from_toml(key: &str, text: &str) -> Result<Self, ConfigError> {
        let location = SourceLocation { source: ARGUMENT.into(), line: 0 };
        let (path, value) = (split_key(&location, key)?, parse_toml_value(&location, text)?);
        Ok(Self { path, value: Some(value), location })
    }

    /// The dotted key and the value as JSON text, for a control frame; `None` for a removed key.
    pub fn as_json(&self) -> Option<(String, String)> {
        let value = self.value.as_ref()?;
        let key: Vec<String> = self
            .path
            .iter()
            .map(|part| if part.contains('.') { format!("{part:?}") } else { part.clone() })
            .collect();
        Some((key.join("."), value.value.to_json().to_string()))
    }

    /// The line of TOML that sets the key in its first table. `None` for a key outside of tables and for a removed one.
    pub fn toml_line(&self) -> Option<String> {
        let (_, path) = self.path.split_first()?;
        let path: Vec<_> = path.iter().map(|part| toml_key(part)).collect();
        let value = self.value.as_ref().filter(|_| !path.is_empty())?;
        Some(format!("{} = {}", path.join("."), value.value.to_toml()))
    }

    /// Reads a dict of overrides: dotted keys, or nested dicts. `None` (null) removes a key.
    ///
    /// # Errors
    /// It is not a dict, a key has an empty part, or a number does not fit.
    pub fn from_json(overrides: &serde_json::Value) -> Result<Vec<Self>, ConfigError> {
        let location = SourceLocation { source: LOADER.into(), line: 0 };
        let serde_json::Value::Object(entries) = overrides else {
            return Err(ConfigError::new(
                &location,
                "must be a dict such as {\"batch.size\": 128}",
            ));
        };
        let mut all = Vec::new();
        for (key, value) in entries {
            let path = split_key(&location, key)?;
            collect_leaves(&location, path, value, &mut all)?;
        }
        Ok(all)
    }

    /// Sets the key in a tree, creating missing tables.
    ///
    /// # Errors
    /// A part of the path is neither a table nor an array, or does not select an element of an array.
    pub(super) fn apply(&self, root: &mut Located) -> Result<(), ConfigError> {
        self.apply_from(root, 0)
    }

    /// The value for `preset`, which is needed before the others are applied.
    pub(super) fn preset(&self) -> Option<Option<&Located>> {
        (self.path == ["preset"]).then_some(self.value.as_ref())
    }

    fn error(&self, message: &str) -> ConfigError {
        ConfigError::new(&self.location, format!("`{}`: {message}", self.path.join(".")))
    }

    fn apply_from(&self, located: &mut Located, depth: usize) -> Result<(), ConfigError> {
        let step = &self.path[depth];
        let is_last = depth + 1 == self.path.len();
        let parent = self.path[..depth].join(".");
        match &mut located.value {
            Value::Table(entries) => {
                let index = entries.iter().position(|(name, _)| name == step);
                match (index, &self.value, is_last) {
                    (Some(index), None, true) => {
                        entries.remove(index);
                    }
                    (None, None, _) => {}
                    (Some(index), Some(value), true) => {
                        merge_values(&mut entries[index].1, value.clone(), false);
                    }
                    (None, Some(value), true) => entries.push((step.clone(), value.clone())),
                    (Some(index), _, false) => {
                        self.apply_from(&mut entries[index].1, depth + 1)?;
                    }
                    (None, Some(_), false) => {
                        let is_array = depth == 0 && step == "stage";
                        let empty = if is_array {
                            Value::Array(Vec::new())
                        } else {
                            Value::Table(Vec::new())
                        };
                        let mut below = Located::new(empty, &self.location);
                        self.apply_from(&mut below, depth + 1)?;
                        entries.push((step.clone(), below));
                    }
                }
                Ok(())
            }
            // A part is one of all datasets that are split.
            Value::Array(items) if parent == "dataset" && step == "split" && !is_last => {
                let mut split = items.iter_mut().filter(|item| item.get("split").is_some());
                let Some(first) = split.next() else {
                    return Err(self.error("no `[[dataset]]` has a `split` table"));
                };
                self.apply_from(first, depth)?;
                split.try_for_each(|item| self.apply_from(item, depth))
            }
            Value::Array(items) => {
                let index = match find_element(items, step) {
                    Ok(index) => index,
                    // The fetch stage need not be written, and a function may be given without a stage.
                    Err(_)
                        if parent == "stage"
                            && (step == "fetch"
                                || self.path.get(depth + 1).is_some_and(|key| key == "python")) =>
                    {
                        let name = Located::new(Value::String(step.clone()), &self.location);
                        let table = Value::Table(vec![("name".to_owned(), name)]);
                        items.push(Located::new(table, &self.location));
                        items.len() - 1
                    }
                    Err(reason) => return Err(self.error(&format!("`{parent}` {reason}"))),
                };
                match (&self.value, is_last) {
                    (Some(value), true) => merge_values(&mut items[index], value.clone(), false),
                    (None, true) => {
                        items.remove(index);
                    }
                    (_, false) => self.apply_from(&mut items[index], depth + 1)?,
                }
                Ok(())
            }
            other => {
                let kind = other.kind();
                Err(self.error(&format!("`{parent}` is {kind}, so nothing can be set in it")))
            }
        }
    }
}

/// The index of an element by its `name` or `op`, or by its number counted from 0.
fn find_element(items: &[Located], step: &str) -> Result<usize, String> {
    fn label(item: &Located) -> Option<&str> {
        ["name", "op"].iter().find_map(|key| item.get(key)?.value.as_text())
    }
    let labels: Vec<&str> = items.iter().filter_map(label).collect();
    let mut matches = items.iter().enumerate().filter(|(_, item)| label(item) == Some(step));
    match (matches.next(), matches.next()) {
        (Some((index, _)), None) => Ok(index),
        (Some(_), Some(_)) => {
            Err(format!("has several elements `{step}`; give the number, counted from 0"))
        }
        (None, _) => match step.parse::<usize>() {
            Ok(index) if index < items.len() => Ok(index),
            _ if labels.is_empty() => Err(format!("has {} elements", items.len())),
            _ => Err(format!("has no element `{step}`; it has `{}`", labels.join("`, `"))),
        },
    }
}

fn collect_leaves(
    location: &SourceLocation,
    path: Vec<String>,
    value: &serde_json::Value,
    all: &mut Vec<Override>,
) -> Result<(), ConfigError> {
    if let serde_json::Value::Object(entries) = value {
        for (key, value) in entries {
            let mut path = path.clone();
            path.push(key.clone());
            collect_leaves(location, path, value, all)?;
        }
        return Ok(());
    }
    all.push(Override { path, value: from_json(location, value)?, location: location.clone() });
    Ok(())
}

/// Splits `a."b.c".d` at the dots outside quotes.
fn split_key(location: &SourceLocation, key: &str) -> Result<Vec<String>, ConfigError> {
    let mut parts = vec![String::new()];
    let mut quoted = false;
    for character in key.trim().chars() {
        match character {
            '"' => quoted = !quoted,
            '.' if !quoted => parts.push(String::new()),
            _ => {
                if let Some(part) = parts.last_mut() {
                    part.push(character);
                }
            }
        }
    }
    if quoted || parts.iter().any(String::is_empty) {
        return Err(ConfigError::new(
            location,
            format!("`{key}` is not a key; write it as batch.size"),
        ));
    }
    Ok(parts)
}

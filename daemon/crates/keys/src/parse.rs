//! Parses text or a dict to a tree of [`Located`] values. Checks the syntax only; keys are checked later.

use std::sync::Arc;

use toml::Spanned;
use toml::de::{DeArray, DeInteger, DeTable, DeValue};

use crate::error::{ConfigError, SourceLocation};
use crate::value::{Located, Value};

/// Parses a TOML document; `source` is its name in messages.
///
/// # Errors
/// A syntax error, a date (no key takes one) or a number out of range, each with its line.
pub fn parse_toml(source: &str, text: &str) -> Result<Located, ConfigError> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let lines = Lines::new(source, text);
    let document = DeTable::parse(text).map_err(|error| lines.syntax_error(&error))?;
    Ok(Located { value: lines.table(document.get_ref())?, location: lines.location(0) })
}

/// Parses one TOML value such as `128`, `"short"` or `[224, 224]`, for `--set`. All of it gets the given location.
///
/// A word that is not a TOML value is taken as a string, so that a shell needs no second pair of quotes: `--set
/// batch.last=short`, `--set ring.memory=4GiB`.
///
/// # Errors
/// The text starts like an array, a table or a string, but is not one.
pub fn parse_toml_value(location: &SourceLocation, text: &str) -> Result<Located, ConfigError> {
    let text = text.trim();
    let located = |value| Located::new(value, location);
    match DeValue::parse(text) {
        Ok(value) => {
            // Line numbers within a command-line argument are of no use.
            let lines = Lines { source: location.source.clone(), starts: Vec::new() };
            Ok(located(lines.value(&value)?.value))
        }
        Err(error) if text.is_empty() || text.starts_with(['"', '\'', '[', '{']) => {
            let reason = error.message();
            Err(ConfigError::new(location, format!("`{text}` is not a TOML value: {reason}")))
        }
        Err(_) => Ok(located(Value::String(text.to_owned()))),
    }
}

/// Reads a dict that arrived as JSON; `None` (null) counts as a missing key.
///
/// # Errors
/// A whole number does not fit into 64 signed bits.
pub fn from_json(
    location: &SourceLocation,
    value: &serde_json::Value,
) -> Result<Option<Located>, ConfigError> {
    let value = match value {
        serde_json::Value::Null => return Ok(None),
        serde_json::Value::Bool(value) => Value::Bool(*value),
        serde_json::Value::Number(number) => match (number.as_i64(), number.as_f64()) {
            (Some(whole), _) => Value::Integer(whole),
            (None, Some(float)) if number.is_f64() => Value::Float(float),
            _ => return Err(number_too_large(location, &number.to_string())),
        },
        serde_json::Value::String(text) => Value::String(text.clone()),
        serde_json::Value::Array(items) => {
            let items = items.iter().map(|item| from_json(location, item));
            Value::Array(items.filter_map(Result::transpose).collect::<Result<_, _>>()?)
        }
        serde_json::Value::Object(entries) => {
            let mut table = Vec::with_capacity(entries.len());
            for (key, value) in entries {
                if let Some(value) = from_json(location, value)? {
                    table.push((key.clone(), value));
                }
            }
            Value::Table(table)
        }
    };
    Ok(Some(Located::new(value, location)))
}

fn number_too_large(location: &SourceLocation, text: &str) -> ConfigError {
    let (least, most) = (i64::MIN, i64::MAX);
    ConfigError::new(
        location,
        format!("{text} is out of range: whole numbers go from {least} to {most}"),
    )
}

/// Converts byte offsets of one source to locations.
struct Lines {
    source: Arc<str>,
    /// The offset of each line's first byte; empty: everything is on line 0.
    starts: Vec<usize>,
}

impl Lines {
    fn new(source: &str, text: &str) -> Self {
        let breaks = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n');
        Self {
            source: source.into(),
            starts: std::iter::once(0).chain(breaks.map(|(at, _)| at + 1)).collect(),
        }
    }

    fn location(&self, offset: usize) -> SourceLocation {
        let line = self.starts.partition_point(|start| *start <= offset);
        SourceLocation {
            source: self.source.clone(),
            line: u32::try_from(line).unwrap_or(u32::MAX),
        }
    }

    /// The parser's message spans several lines; its first words and the line are enough.
    fn syntax_error(&self, error: &toml::de::Error) -> ConfigError {
        let location = self.location(error.span().map_or(0, |span| span.start));
        let message = match error.message() {
            "duplicate key" => "the key is repeated here".to_owned(),
            message => format!("this is not TOML: {message}"),
        };
        ConfigError::new(&location, message)
    }

    fn table(&self, table: &DeTable<'_>) -> Result<Value, ConfigError> {
        let entries =
            table.iter().map(|(key, value)| Ok((key.get_ref().to_string(), self.value(value)?)));
        Ok(Value::Table(entries.collect::<Result<_, _>>()?))
    }

    fn array(&self, array: &DeArray<'_>) -> Result<Value, ConfigError> {
        let items = array.iter().map(|item| self.value(item));
        Ok(Value::Array(items.collect::<Result<_, _>>()?))
    }

    fn value(&self, spanned: &Spanned<DeValue<'_>>) -> Result<Located, ConfigError> {
        let location = self.location(spanned.span().start);
        let value = match spanned.get_ref() {
            DeValue::Boolean(value) => Value::Bool(*value),
            DeValue::Integer(integer) => Value::Integer(whole_number(&location, integer)?),
            DeValue::Float(float) => {
                let text = float.as_str();
                let parsed = text.parse::<f64>().map_err(|_| {
                    ConfigError::new(&location, format!("{text} is not a supported number"))
                })?;
                Value::Float(parsed)
            }
            DeValue::String(text) => Value::String(text.to_string()),
            DeValue::Datetime(date) => {
                return Err(ConfigError::new(
                    &location,
                    format!("{date} is a date, and no key takes one; put a string in quotes"),
                ));
            }
            DeValue::Array(array) => self.array(array)?,
            DeValue::Table(table) => self.table(table)?,
        };
        Ok(Located { value, location })
    }
}

fn whole_number(location: &SourceLocation, integer: &DeInteger<'_>) -> Result<i64, ConfigError> {
    i64::from_str_radix(integer.as_str(), integer.radix())
        .map_err(|_| number_too_large(location, integer.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn location() -> SourceLocation {
        SourceLocation { source: "--set".into(), line: 0 }
    }

    fn get<'a>(located: &'a Located, path: &[&str]) -> &'a Located {
        path.iter().fold(located, |located, key| match &located.value {
            Value::Table(entries) => &entries.iter().find(|(name, _)| name == key).unwrap().1,
            Value::Array(items) => &items[key.parse::<usize>().unwrap()],
            _ => panic!("no {key}"),
        })
    }

    #[test]
    fn every_value_has_its_line() {
        let text = "a = 1\n[order]\nseed = 0x1F\n\n[[stage]]\nname = 'x'\noperations = [\n {op = 'y'},\n {op = 'z',\n  size = 1_0},\n]\n[output]\nimage.dtype = 'uint8'\n";
        let tree = parse_toml("c.toml", text).unwrap();
        for (path, line) in [
            (vec!["a"], 1),
            (vec!["order"], 2),
            (vec!["order", "seed"], 3),
            (vec!["stage", "0"], 5),
            (vec!["stage", "0", "operations", "1"], 9),
            (vec!["stage", "0", "operations", "1", "size"], 10),
            (vec!["output", "image", "dtype"], 13),
        ] {
            assert_eq!(get(&tree, &path).location.line, line, "{path:?}");
        }
        assert_eq!(get(&tree, &["order", "seed"]).value, Value::Integer(31));
        assert_eq!(
            get(&tree, &["stage", "0", "operations", "1", "size"]).value,
            Value::Integer(10)
        );
    }

    #[test]
    fn syntax_errors_name_file_and_line() {
        for (text, expected) in [
            ("a = 1\n\na = 2\n", "c.toml:3: the key is repeated here"),
            ("x = 1\n[batch\nsize = 3\n", "c.toml:2: this is not TOML: unclosed table"),
            ("x = short\n", "c.toml:1: this is not TOML: "),
            ("\nd = 2024-01-01\n", "c.toml:2: 2024-01-01 is a date"),
            ("n = 99999999999999999999\n", "c.toml:1: 99999999999999999999 is out of range"),
        ] {
            let error = parse_toml("c.toml", text).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}");
        }
    }

    #[test]
    fn values_of_set_may_be_bare_words() {
        let value = |text| parse_toml_value(&location(), text).map(|located| located.value);
        assert_eq!(value("128"), Ok(Value::Integer(128)));
        assert_eq!(value("short"), Ok(Value::String("short".into())));
        assert_eq!(value("2GiB"), Ok(Value::String("2GiB".into())));
        assert_eq!(value("\"a b\""), Ok(Value::String("a b".into())));
        assert_eq!(value("true"), Ok(Value::Bool(true)));
        assert!(matches!(value("[1, 2]"), Ok(Value::Array(items)) if items.len() == 2));
        let error = value("[1, 2").unwrap_err().to_string();
        assert!(error.starts_with("--set: `[1, 2` is not a TOML value"), "{error}");
        assert!(value("").is_err());
    }

    #[test]
    fn dict_is_read_like_a_file() {
        let json = serde_json::json!({"a": {"b": [1, 2.5, "x", true]}, "left_out": null});
        let tree = from_json(&location(), &json).unwrap().unwrap();
        assert_eq!(get(&tree, &["a", "b", "1"]).value, Value::Float(2.5));
        assert!(matches!(&tree.value, Value::Table(entries) if entries.len() == 1));
        assert!(from_json(&location(), &serde_json::json!(u64::MAX)).is_err());
    }
}

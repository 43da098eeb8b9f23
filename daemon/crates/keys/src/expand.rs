//! `${NAME}` and `${NAME:-default}` in strings.
//!
//! Strings are expanded after presets and overrides, so a variable that an override made unnecessary may be unset. The
//! default is used if the variable is unset or empty, as in a shell. `$${` means `${`.

use std::ffi::OsString;

use crate::error::{ConfigError, SourceLocation};
use crate::value::{Located, Value};

/// A storage expands these when it sends them: the values are secrets, and a configuration is printed and saved.
const UNEXPANDED: &str = "storage.headers";

/// Returns an environment variable's value.
pub type Environment<'a> = &'a dyn Fn(&str) -> Option<OsString>;

/// Expands every string below the value at `path`.
///
/// # Errors
/// A variable is unset and has no default, is not UTF-8, or its braces are not closed: names key and variable.
pub fn expand_all(
    located: &mut Located,
    path: &str,
    environment: Environment<'_>,
) -> Result<(), ConfigError> {
    if path == UNEXPANDED {
        return Ok(());
    }
    match &mut located.value {
        Value::String(text) if text.contains("${") => {
            *text = expand(text, path, &located.location, environment)?;
        }
        Value::Array(items) => {
            for item in items {
                expand_all(item, path, environment)?;
            }
        }
        Value::Table(entries) => {
            for (key, value) in entries {
                let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                expand_all(value, &path, environment)?;
            }
        }
        Value::Bool(_) | Value::Integer(_) | Value::Float(_) | Value::String(_) => {}
    }
    Ok(())
}

fn expand(
    text: &str,
    path: &str,
    location: &SourceLocation,
    environment: Environment<'_>,
) -> Result<String, ConfigError> {
    let fail = |message| ConfigError::new(location, format!("`{path}`: {message}"));
    let mut expanded = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("${") {
        if rest[..at].ends_with('$') {
            expanded.push_str(&rest[..at - 1]);
            expanded.push_str("${");
            rest = &rest[at + 2..];
            continue;
        }
        expanded.push_str(&rest[..at]);
        let Some((reference, after)) = rest[at + 2..].split_once('}') else {
            let message = "`${` without a closing `}` (write `$${` for the characters)";
            return Err(fail(message.to_owned()));
        };
        expanded.push_str(&look_up(reference, &fail, environment)?);
        rest = after;
    }
    expanded.push_str(rest);
    Ok(expanded)
}

/// Expands the values of [`UNEXPANDED`], from this process's environment.
///
/// # Errors
/// As in a configuration.
pub fn expand_header(
    text: &str,
    path: &str,
    location: &SourceLocation,
) -> Result<String, ConfigError> {
    expand(text, path, location, &|name| std::env::var_os(name))
}

fn look_up(
    reference: &str,
    fail: &dyn Fn(String) -> ConfigError,
    environment: Environment<'_>,
) -> Result<String, ConfigError> {
    let (name, default) = match reference.split_once(":-") {
        Some((name, default)) => (name, Some(default)),
        None => (reference, None),
    };
    let is_name = !name.starts_with(|c: char| c.is_ascii_digit())
        && !name.is_empty()
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    if !is_name {
        return Err(fail(format!(
            "`${{{reference}}}` must be `${{NAME}}` or `${{NAME:-default}}`"
        )));
    }
    match (environment(name), default) {
        (Some(value), Some(default)) if value.is_empty() => Ok(default.to_owned()),
        (Some(value), _) => value
            .into_string()
            .map_err(|_| fail(format!("the environment variable {name} is not UTF-8"))),
        (None, Some(default)) => Ok(default.to_owned()),
        (None, None) => Err(fail(format!(
            "the environment variable {name} is not set; set it, or write `${{{name}:-default}}`"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse::parse_toml;

    fn expanded(text: &str) -> Result<String, String> {
        let mut tree = parse_toml("c.toml", &format!("\n\n\ndataset = ['{text}']")).unwrap();
        let environment = |name: &str| match name {
            "DATA" => Some(OsString::from("/data")),
            "EMPTY" => Some(OsString::new()),
            _ => None,
        };
        expand_all(&mut tree, "", &environment).map_err(|error| error.to_string())?;
        let Some(Located { value: Value::Array(items), .. }) = tree.get("dataset") else {
            panic!("an array");
        };
        Ok(items[0].value.as_text().unwrap().to_owned())
    }

    #[test]
    fn variables_expand_with_defaults() {
        for (text, expected) in [
            ("${DATA}/train", "/data/train"),
            ("${DATA:-/other}/x/${DATA}", "/data/x//data"),
            ("${UNSET:-/other}/x", "/other/x"),
            ("${UNSET:-}x", "x"),
            ("${EMPTY:-/other}", "/other"),
            ("${EMPTY}", ""),
            ("$${DATA} $DATA $", "${DATA} $DATA $"),
        ] {
            assert_eq!(expanded(text).as_deref(), Ok(expected), "{text}");
        }
    }

    #[test]
    fn unset_variable_is_named_with_its_key_and_line() {
        let error = expanded("${NOPE}/x").unwrap_err();
        assert!(
            error.starts_with("c.toml:4: `dataset`: the environment variable NOPE is not set"),
            "{error}"
        );
        for text in ["${DATA", "${}", "${A B}", "${1X}"] {
            let error = expanded(text).unwrap_err();
            assert!(error.starts_with("c.toml:4: `dataset`"), "{error}");
        }
    }
}

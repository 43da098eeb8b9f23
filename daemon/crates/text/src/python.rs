//! Values of templates as Python writes them: templates are written for Jinja, which prints Python's values.

use std::fmt::Write as _;
use std::sync::LazyLock;

use fancy_regex::Regex;
use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Error, ErrorKind};

/// The deepest nesting of values that is written.
const MAX_DEPTH: usize = 128;

/// What `{{ value }}` prints: `str(value)`, of about `most` bytes at most.
pub(crate) fn printed(value: &Value, most: usize) -> Result<String, Error> {
    match value.kind() {
        ValueKind::Undefined => Ok(String::new()),
        _ => match value.as_str() {
            Some(text) => Ok(text.to_owned()),
            None => {
                let mut out = String::new();
                write_repr(&mut out, value, (0, most))?;
                Ok(out)
            }
        },
    }
}

/// `repr(value)`, at a depth, while the text has no more than so many bytes.
fn write_repr(out: &mut String, value: &Value, (depth, most): (usize, usize)) -> Result<(), Error> {
    check(out, (depth, most))?;
    let inside = (depth + 1, most);
    match value.kind() {
        ValueKind::String => write_quoted(out, value.as_str().unwrap_or_default()),
        ValueKind::Seq | ValueKind::Iterable => {
            out.push('[');
            for (place, item) in value.try_iter()?.enumerate() {
                out.push_str(if place > 0 { ", " } else { "" });
                write_repr(out, &item, inside)?;
            }
            out.push(']');
        }
        ValueKind::Map => {
            out.push('{');
            for (place, key) in value.try_iter()?.enumerate() {
                out.push_str(if place > 0 { ", " } else { "" });
                write_repr(out, &key, inside)?;
                out.push_str(": ");
                write_repr(out, &value.get_item(&key)?, inside)?;
            }
            out.push('}');
        }
        _ => write_scalar(out, value, ["None", "True", "False"]),
    }
    Ok(())
}

/// Checks what is written so far, before one more value.
fn check(out: &str, (depth, most): (usize, usize)) -> Result<(), Error> {
    let message = match (depth <= MAX_DEPTH, out.len() <= most) {
        (true, true) => return Ok(()),
        (false, _) => format!("values are nested more than {MAX_DEPTH} deep"),
        (_, false) => format!(
            "a value has more than {most} bytes as a text, which is more than the steps that are left pay for"
        ),
    };
    Err(Error::new(ErrorKind::InvalidOperation, message))
}

/// A string in quotes: single ones, unless the string has them and no double ones.
fn write_quoted(out: &mut String, text: &str) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for letter in text.chars() {
        match letter {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\\' => out.push_str("\\\\"),
            letter if letter == quote => {
                out.push('\\');
                out.push(letter);
            }
            letter if is_printable(letter) => out.push(letter),
            letter => {
                // Writing to a String cannot fail, here and below.
                let _ = match u32::from(letter) {
                    number @ ..0x100 => write!(out, "\\x{number:02x}"),
                    number @ 0x100..0x1_0000 => write!(out, "\\u{number:04x}"),
                    number => write!(out, "\\U{number:08x}"),
                };
            }
        }
    }
    out.push(quote);
}

/// What `str.isprintable` says of a character.
fn is_printable(letter: char) -> bool {
    /// Characters that are controls, of formats, private, not assigned or separators.
    static OTHERS: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new(r"[\p{C}\p{Z}]").ok());
    if letter.is_ascii() {
        return letter == ' ' || letter.is_ascii_graphic();
    }
    let is_other = |others: &Regex| others.is_match(letter.encode_utf8(&mut [0; 4])).ok();
    !OTHERS.as_ref().and_then(is_other).unwrap_or(true)
}

/// A value that is no text and no container; `words` are those of null, true and false.
fn write_scalar(out: &mut String, value: &Value, words: [&str; 3]) {
    let _ = match value.kind() {
        ValueKind::None | ValueKind::Undefined => write!(out, "{}", words[0]),
        ValueKind::Bool => write!(out, "{}", words[if value.is_true() { 1 } else { 2 }]),
        ValueKind::Number if value.is_integer() => write!(out, "{value}"),
        ValueKind::Number => match f64::try_from(value.clone()) {
            Ok(number) => write!(out, "{}", float(number)),
            Err(_) => write!(out, "{value}"),
        },
        _ => write!(out, "{value}"),
    };
}

/// A float as Python writes it: the shortest digits that give it back, with an exponent outside of 1e-4 to 1e16.
fn float(number: f64) -> String {
    if number == 0.0 || !number.is_finite() {
        return format!("{number:?}").replace("NaN", "nan");
    }
    let size = number.abs();
    if (1e-4..1e16).contains(&size) {
        return format!("{number:?}");
    }
    let text = format!("{number:e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let (sign, exponent) = match exponent.strip_prefix('-') {
        Some(rest) => ('-', rest),
        None => ('+', exponent),
    };
    format!("{digits}e{sign}{exponent:0>2}")
}

/// The filter `tojson` of Transformers: `json.dumps` with `ensure_ascii=False`, of about `most` bytes at most.
pub(crate) fn to_json(value: &Value, options: &Kwargs, most: usize) -> Result<Value, Error> {
    let separators: Option<Vec<String>> = options.get("separators")?;
    let indent: Option<usize> = options.get("indent")?;
    let has_lines = indent.is_some();
    let [item, key] = match separators.as_deref() {
        Some([item, key]) => [item.clone(), key.clone()],
        Some(_) => {
            return Err(Error::new(ErrorKind::InvalidOperation, "`separators` are two texts"));
        }
        None => [if has_lines { "," } else { ", " }.to_owned(), ": ".to_owned()],
    };
    let json = Json {
        item,
        key,
        indent,
        is_ascii: options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
        is_sorted: options.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
        most,
    };
    options.assert_all_used()?;
    let mut out = String::new();
    json.write(&mut out, value, 0)?;
    Ok(Value::from(out))
}

/// The form of JSON.
struct Json {
    /// Between two items.
    item: String,
    /// Between a key and its value.
    key: String,
    indent: Option<usize>,
    is_ascii: bool,
    is_sorted: bool,
    /// The most bytes of the whole.
    most: usize,
}

impl Json {
    fn write(&self, out: &mut String, value: &Value, depth: usize) -> Result<(), Error> {
        check(out, (depth, self.most))?;
        match value.kind() {
            ValueKind::String => self.write_text(out, value.as_str().unwrap_or_default()),
            ValueKind::Undefined => {
                let message = "an undefined value has no JSON";
                return Err(Error::new(ErrorKind::InvalidOperation, message));
            }
            ValueKind::Seq | ValueKind::Iterable => {
                let items: Vec<Value> = value.try_iter()?.collect();
                self.write_all(out, ['[', ']'], items.len(), depth, |out, place| {
                    self.write(out, &items[place], depth + 1)
                })?;
            }
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.is_sorted {
                    keys.sort_by_key(ToString::to_string);
                }
                self.write_all(out, ['{', '}'], keys.len(), depth, |out, place| {
                    self.write_text(out, &keys[place].to_string());
                    out.push_str(&self.key);
                    self.write(out, &value.get_item(&keys[place])?, depth + 1)
                })?;
            }
            _ => write_scalar(out, value, ["null", "true", "false"]),
        }
        Ok(())
    }

    fn write_all(
        &self,
        out: &mut String,
        [open, close]: [char; 2],
        count: usize,
        depth: usize,
        mut write: impl FnMut(&mut String, usize) -> Result<(), Error>,
    ) -> Result<(), Error> {
        out.push(open);
        for place in 0..count {
            if place > 0 {
                out.push_str(&self.item);
            }
            self.new_line(out, depth + 1);
            write(out, place)?;
        }
        if count > 0 {
            self.new_line(out, depth);
        }
        out.push(close);
        Ok(())
    }

    fn new_line(&self, out: &mut String, depth: usize) {
        if let Some(indent) = self.indent {
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', indent.min(64) * depth));
        }
    }

    fn write_text(&self, out: &mut String, text: &str) {
        out.push('"');
        for letter in text.chars() {
            match letter {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{8}' => out.push_str("\\b"),
                '\u{c}' => out.push_str("\\f"),
                letter if u32::from(letter) < 0x20 || (self.is_ascii && !letter.is_ascii()) => {
                    for unit in letter.encode_utf16(&mut [0; 2]) {
                        let _ = write!(out, "\\u{unit:04x}");
                    }
                }
                letter => out.push(letter),
            }
        }
        out.push('"');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_printed_as_python_prints_them() {
        let value = Value::from(minijinja::value::Serde(&serde_json::json!({
            "a": [1, 2.0, true, null], "b": "it's", "c": {"d\n": "x\"'\\"}, "e": 1e-5, "f": 1e16, "g": 123456.75
        })));
        assert_eq!(
            printed(&value, 1 << 20).unwrap(),
            r#"{'a': [1, 2.0, True, None], 'b': "it's", 'c': {'d\n': 'x"\'\\'}, 'e': 1e-05, 'f': 1e+16, 'g': 123456.75}"#
        );
        let hidden = Value::from(vec![
            "\u{a0}\u{ad}\u{85}\u{200b}\u{2028}\u{e000}\u{e0001}\u{378}é 中👧\u{301}",
        ]);
        assert_eq!(
            printed(&hidden, 1 << 20).unwrap(),
            "['\\xa0\\xad\\x85\\u200b\\u2028\\ue000\\U000e0001\\u0378é 中👧\u{301}']"
        );
        assert_eq!(printed(&Value::from("text"), 1 << 20).unwrap(), "text");
        assert_eq!(printed(&Value::UNDEFINED, 1 << 20).unwrap(), "");
        assert_eq!(printed(&Value::from(false), 1 << 20).unwrap(), "False");
    }
}

//! Sanitizes strings for a terminal: file names in a daemon's responses can contain sequences that move the cursor, set
//! a title or reverse the direction of text.

use serde_json::Value;

/// The text with every control and direction character escaped, for example ESC as `\x1b`.
pub(crate) fn sanitize(text: &str) -> String {
    if !text.chars().any(is_unsafe) {
        return text.to_owned();
    }
    let mut clean = String::with_capacity(text.len() + 16);
    for character in text.chars() {
        match (is_unsafe(character), u32::from(character)) {
            (false, _) => clean.push(character),
            (true, code @ ..=0xff) => clean.push_str(&format!("\\x{code:02x}")),
            (true, code) => clean.push_str(&format!("\\u{{{code:x}}}")),
        }
    }
    clean
}

/// Sanitizes every string in a JSON value, including keys.
pub(crate) fn sanitize_json(value: Value) -> Value {
    match value {
        Value::String(text) => Value::String(sanitize(&text)),
        Value::Array(values) => values.into_iter().map(sanitize_json).collect(),
        Value::Object(fields) => {
            fields.into_iter().map(|(key, value)| (sanitize(&key), sanitize_json(value))).collect()
        }
        other => other,
    }
}

/// Control characters, line separators, direction marks and invisible characters.
fn is_unsafe(character: char) -> bool {
    character.is_control()
        || matches!(character,
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e0fff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_and_direction_characters_are_escaped() {
        assert_eq!(sanitize("/data/a\u{1b}[2J\u{7}.jpg"), "/data/a\\x1b[2J\\x07.jpg");
        assert_eq!(sanitize("\u{9b}31m\r\n\u{202e}gpj"), "\\x9b31m\\x0d\\x0a\\u{202e}gpj");
        assert_eq!(sanitize("Größe 図.jpg"), "Größe 図.jpg");
    }

    #[test]
    fn every_string_in_json_is_sanitized() {
        let dirty =
            serde_json::json!({ "a\u{1b}": [{ "path": "x\u{1b}]0;title\u{7}", "n": 1.5 }] });
        let clean = sanitize_json(dirty).to_string();
        assert_eq!(clean, r#"{"a\\x1b":[{"path":"x\\x1b]0;title\\x07","n":1.5}]}"#);
    }
}

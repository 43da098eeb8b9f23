//! Makes text harmless for a terminal: what a daemon tells of paths and samples may hold anything, also sequences that
//! would move the cursor, set a title or turn the writing around.

use serde_json::Value;

/// The text with every control and direction character written out: an escape becomes `\x1b`.
pub(super) fn harmless(text: &str) -> String {
    if !text.chars().any(is_harmful) {
        return text.to_owned();
    }
    let mut clean = String::with_capacity(text.len() + 16);
    for character in text.chars() {
        match (is_harmful(character), u32::from(character)) {
            (false, _) => clean.push(character),
            (true, code @ ..=0xff) => clean.push_str(&format!("\\x{code:02x}")),
            (true, code) => clean.push_str(&format!("\\u{{{code:x}}}")),
        }
    }
    clean
}

/// Every text in a JSON value, the keys included.
pub(super) fn harmless_json(value: Value) -> Value {
    match value {
        Value::String(text) => Value::String(harmless(&text)),
        Value::Array(values) => values.into_iter().map(harmless_json).collect(),
        Value::Object(fields) => {
            fields.into_iter().map(|(key, value)| (harmless(&key), harmless_json(value))).collect()
        }
        other => other,
    }
}

/// Control characters, line separators, and what changes the direction of writing or cannot be seen.
fn is_harmful(character: char) -> bool {
    character.is_control()
        || matches!(character,
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e0fff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_bells_and_turned_writing_are_written_out() {
        assert_eq!(harmless("/data/a\u{1b}[2J\u{7}.jpg"), "/data/a\\x1b[2J\\x07.jpg");
        assert_eq!(harmless("\u{9b}31m\r\n\u{202e}gpj"), "\\x9b31m\\x0d\\x0a\\u{202e}gpj");
        assert_eq!(harmless("Größe 図.jpg"), "Größe 図.jpg");
    }

    #[test]
    fn every_text_of_a_report_is_reached() {
        let dirty =
            serde_json::json!({ "a\u{1b}": [{ "path": "x\u{1b}]0;title\u{7}", "n": 1.5 }] });
        let clean = harmless_json(dirty).to_string();
        assert_eq!(clean, r#"{"a\\x1b":[{"path":"x\\x1b]0;title\\x07","n":1.5}]}"#);
    }
}

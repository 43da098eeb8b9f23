//! Text in a page: escaped, and numbers with their units.

use super::super::harmless::harmless;

/// The text as it may stand between tags and in quoted attributes, of HTML and of XML: no tag, no entity, no control
/// character of its own. Line feeds stay.
pub(super) fn escape(text: &str) -> String {
    let lines: Vec<String> = text.split('\n').map(|line| escape_line(&harmless(line))).collect();
    lines.join("\n")
}

fn escape_line(line: &str) -> String {
    let mut escaped = String::with_capacity(line.len() + 16);
    for character in line.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            // XML knows no such characters.
            '\u{fffe}' | '\u{ffff}' => escaped.push('\u{fffd}'),
            other => escaped.push(other),
        }
    }
    escaped
}

/// A time with the unit that fits it, in as few digits as a label needs.
pub(super) fn short_time(seconds: f64) -> String {
    let (value, unit) = match seconds {
        0.0 => (0.0, "s"),
        1.0.. => (seconds, "s"),
        1e-3.. => (seconds * 1e3, "ms"),
        1e-6.. => (seconds * 1e6, "µs"),
        _ => (seconds * 1e9, "ns"),
    };
    format!("{} {unit}", number(value))
}

/// A number in three digits or so, thousands apart.
pub(super) fn number(value: f64) -> String {
    let magnitude = value.abs();
    let text = match magnitude {
        100.0.. => return grouped(value),
        10.0.. => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    };
    // 5.00 says no more than 5.
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn grouped(value: f64) -> String {
    let digits = format!("{:.0}", value.abs());
    let mut text = if value < 0.0 { "-".to_owned() } else { String::new() };
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_holds_no_tag_entity_or_control_character() {
        assert_eq!(
            escape("<a href=\"x\">&'\u{1b}\n"),
            "&lt;a href=&quot;x&quot;&gt;&amp;&#39;\\x1b\n"
        );
    }

    #[test]
    fn numbers_are_short() {
        let shown: Vec<String> = [0.0, 1.5, 0.034, 4.2e-6, 2e-8, 1234.5].map(short_time).into();
        assert_eq!(shown, ["0 s", "1.5 s", "34 ms", "4.2 µs", "20 ns", "1,234 s"]);
        assert_eq!(
            (number(0.256), number(12.0), number(1_234_567.0)),
            ("0.26".into(), "12".into(), "1,234,567".into())
        );
    }
}

//! A mistake in a condition, and how it is shown.

use std::ops::Range;

/// The most characters that are shown before and after a mistake.
const SHOWN: usize = 60;

/// A mistake in a condition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mistake {
    /// The bytes of the text that are wrong.
    pub span: Range<usize>,
    /// What is wrong, and what was expected.
    pub message: String,
    /// The name of a column that does not exist.
    pub missing: Option<String>,
}

impl Mistake {
    pub(super) fn new(span: Range<usize>, message: impl Into<String>) -> Self {
        Self { span, message: message.into(), missing: None }
    }

    /// Two lines: the text around the mistake, and carets below it.
    #[must_use]
    pub fn pointed(&self, text: &str) -> String {
        let start = floor(text, self.span.start);
        let end = floor(text, self.span.end).max(start);
        let before: Vec<char> = text[..start].chars().map(plain).collect();
        let wrong: Vec<char> = text[start..end].chars().map(plain).collect();
        let after: Vec<char> = text[end..].chars().map(plain).collect();
        let (cut, first) = match before.len().checked_sub(SHOWN) {
            Some(skipped @ 1..) => ("…", skipped),
            _ => ("", 0),
        };
        let last = after.len().min(SHOWN);
        let rest = if last < after.len() { "…" } else { "" };
        let shown = wrong.len().min(SHOWN);
        let line: String = before[first..].iter().chain(&wrong[..shown]).collect();
        let more: String = if shown < wrong.len() {
            "…".to_owned()
        } else {
            after[..last].iter().collect::<String>() + rest
        };
        let indent = " ".repeat(cut.chars().count() + before.len() - first);
        format!("    {cut}{line}{more}\n    {indent}{}", "^".repeat(shown.max(1)))
    }
}

/// A character that takes one place on one line.
fn plain(character: char) -> char {
    if character.is_control() { ' ' } else { character }
}

/// The start of the character that a byte is in.
fn floor(text: &str, byte: usize) -> usize {
    (0..=byte.min(text.len())).rev().find(|byte| text.is_char_boundary(*byte)).unwrap_or(0)
}

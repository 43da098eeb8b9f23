//! A regular expression of a tokenizer, with the meaning that it has in the Python package.
//!
//! The package runs it with Oniguruma, whose syntax differs from that of `fancy-regex`: `^` and `$` are at every line.
//! What would silently mean something else is refused.

use std::ops::Range;
use std::time::{Duration, Instant};

use fancy_regex::{Regex, RegexBuilder};

/// The most of an expression that a message shows.
const MAX_SHOWN: usize = 200;

/// How often a search goes back before it gives up, which takes about a second. Looking for the next match in a text
/// without any goes back once for each character.
const MOST_RETURNS: usize = 10_000_000;

/// How long a text may take. Only expressions that look far ahead at each of their matches reach it, and then the text is
/// none that can be tokenized: the time grows with the square of its length.
const MOST_TIME: Duration = Duration::from_secs(60);

/// See the module's head.
#[derive(Debug)]
pub(crate) struct Pattern {
    regex: Regex,
    /// Where the tokenizer has it: `Split` or `Replace`.
    owner: &'static str,
}

impl Pattern {
    /// Of the expression in an `owner` of the tokenizer.
    ///
    /// # Errors
    /// It is not supported.
    pub(crate) fn compile(owner: &'static str, expression: &str) -> Result<Self, String> {
        let refused = |reason: &str| {
            let shown: String = expression.chars().take(MAX_SHOWN).collect();
            format!(
                "the pattern {shown:?} of `{owner}` is not supported: {reason}; tokenize these texts in a Python stage"
            )
        };
        if let Some(reason) = means_something_else(expression) {
            return Err(refused(reason));
        }
        // `^` and `$` of Oniguruma are at every line.
        let mut builder = RegexBuilder::new(&with_words(expression));
        builder.oniguruma_mode(true).multi_line(true).backtrack_limit(MOST_RETURNS);
        match builder.build() {
            Ok(regex) => Ok(Self { regex, owner }),
            Err(error) => Err(refused(&error.to_string())),
        }
    }

    /// The places of its matches in a text; an error if it gives up on the text.
    pub(crate) fn matches<'t>(
        &'t self,
        text: &'t str,
    ) -> impl Iterator<Item = Result<Range<usize>, String>> + 't {
        self.matches_within(text, MOST_TIME)
    }

    fn matches_within<'t>(
        &'t self,
        text: &'t str,
        most: Duration,
    ) -> impl Iterator<Item = Result<Range<usize>, String>> + 't {
        let start = Instant::now();
        self.regex.find_iter(text).map(move |found| match found {
            Ok(_) if start.elapsed() > most => Err(format!(
                "the pattern of `{}` gives up: it takes more than {most:?}",
                self.owner
            )),
            Ok(found) => Ok(found.range()),
            Err(error) => Err(format!("the pattern of `{}` gives up: {error}", self.owner)),
        })
    }

    /// The text with `content` in place of each match; `None` if there is none.
    pub(crate) fn replace(&self, text: &str, content: &str) -> Result<Option<String>, String> {
        let (mut replaced, mut end) = (None, 0);
        for found in self.matches(text) {
            let found = found?;
            let replaced = replaced.get_or_insert_with(|| String::with_capacity(text.len()));
            replaced.push_str(&text[end..found.start]);
            replaced.push_str(content);
            end = found.end;
        }
        if let Some(replaced) = &mut replaced {
            replaced.push_str(&text[end..]);
        }
        Ok(replaced)
    }
}

/// The expression with Oniguruma's characters of words in place of `\w` and `\W`.
fn with_words(expression: &str) -> String {
    let (mut written, mut letters) = (String::with_capacity(expression.len()), expression.chars());
    while let Some(letter) = letters.next() {
        let escaped = if letter == '\\' { letters.next() } else { None };
        match escaped {
            Some('w') => written.push_str(r"[\p{Alphabetic}\p{M}\p{Nd}\p{Pc}²³¹¼½¾]"),
            Some('W') => written.push_str(r"[^\p{Alphabetic}\p{M}\p{Nd}\p{Pc}²³¹¼½¾]"),
            escaped => written.extend(std::iter::once(letter).chain(escaped)),
        }
    }
    written
}

/// Why an expression that both engines take means something else in Oniguruma.
fn means_something_else(expression: &str) -> Option<&'static str> {
    let is_name = |letter: char| letter.is_ascii_alphabetic() || letter == '^';
    let names_class = |rest: &str| rest.trim_start_matches(is_name).starts_with(":]");
    if expression.split("[:").skip(1).any(names_class) {
        return Some("a class such as [:punct:] has other characters here");
    }
    // `(?m)` and `(?m:…)` let `.` match a newline.
    let has_lines = expression.split("(?").skip(1).any(|group| {
        let flags = group.find(|letter: char| !letter.is_ascii_alphabetic() && letter != '-');
        let flags = &group[..flags.unwrap_or(group.len())];
        flags.contains('m') && group[flags.len()..].starts_with([')', ':'])
    });
    has_lines.then_some("the flag `m` means something else here")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(expression: &str, text: &str) -> Vec<String> {
        let pattern = Pattern::compile("Split", expression).unwrap();
        pattern.matches(text).map(|found| text[found.unwrap()].to_owned()).collect()
    }

    #[test]
    fn expressions_mean_what_they_mean_in_oniguruma() {
        assert_eq!(parts("^a", "a\na ab"), ["a", "a"]);
        assert_eq!(parts("a$", "a\nab\na"), ["a", "a"]);
        assert_eq!(parts("a.b", "a\nb axb"), ["axb"]);
        assert_eq!(parts(r"\<a\>", "<a> a"), ["<a>"]);
        assert_eq!(parts(r"\h+", "abcxyz 12"), ["abc", "12"]);
        assert_eq!(parts("(?i:'s)", "'s 'S 'ſ"), ["'s", "'S", "'ſ"]);
        assert_eq!(parts(r"\w+", "x_²3\u{200c}é中"), ["x_²3", "é中"]);
        assert_eq!(parts(r"[\w-]+|\W", r"a-²\w"), ["a-²", r"\", "w"]);
        assert_eq!(parts(r"\\w", r"a\w"), [r"\w"]);
        assert_eq!(parts("a*", "baac"), ["", "aa", ""]);
    }

    #[test]
    fn expressions_of_another_meaning_are_refused_with_the_remedy() {
        for expression in ["(?m)a.b", "(?im:a.b)", "[[:punct:]]+", "(a", "(?<=a*"] {
            let message = Pattern::compile("Split", expression).unwrap_err();
            assert!(
                message.contains(expression) && message.contains("a Python stage"),
                "{message}"
            );
            assert!(message.contains("of `Split` is not supported"), "{message}");
        }
        assert!(Pattern::compile("Split", "(?i:m|am)(?=m)").is_ok());
        assert!(Pattern::compile("Split", "[:;.]+|[^:]").is_ok());
        let long = format!("({}", "a".repeat(1000));
        assert!(Pattern::compile("Split", &long).unwrap_err().len() < 2 * MAX_SHOWN);
    }

    #[test]
    fn a_search_that_takes_too_long_gives_up() {
        let pattern = Pattern::compile("Replace", r"(?:(?=a)a|a)*(?!.)b").unwrap();
        let error = pattern.replace(&"a".repeat(40), "").unwrap_err();
        assert!(error.contains("the pattern of `Replace` gives up"), "{error}");
        assert_eq!(pattern.replace("xyz", "").unwrap(), None);
        let late = Pattern::compile("Split", "a").unwrap();
        let error = late.matches_within("a", Duration::ZERO).next().unwrap().unwrap_err();
        assert!(error.contains("gives up: it takes more than"), "{error}");
        let pattern = Pattern::compile("Replace", r"a(?=\d)").unwrap();
        let long = "b".repeat(1 << 20) + "a1a";
        assert_eq!(pattern.replace(&long, "").unwrap().unwrap().len(), long.len() - 1);
    }
}

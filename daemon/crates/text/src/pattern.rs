//! A regular expression of a tokenizer, with the meaning that it has in the Python package.
//!
//! The package runs it with Oniguruma, whose syntax differs from that of `fancy-regex`: `^` and `$` are at every line.
//! What would silently mean something else is refused.

use std::ops::Range;

use fancy_regex::{Error, Matches, Regex, RegexBuilder, RegexInput, RuntimeError};

/// The most of an expression that a message shows.
const MAX_SHOWN: usize = 200;

/// How often a search goes back before it gives up and is made again with the next limit; the last one takes about a
/// second. Looking for the next match in a text without any goes back once for each character. The work is counted by
/// these limits rather than by a clock, so that a text is bad on every host or on none.
const MOST_RETURNS: [u64; 4] = [1_000, 16_000, 256_000, 10_000_000];

/// The returns of all searches in a text that reach the first limit: so many, and for each byte.
const MOST_RETURNS_OF_TEXT: u64 = 100_000_000;
const RETURNS_PER_BYTE: u64 = 64;

/// The most that searches times the bytes of the text come to, for an expression that looks ahead or behind without bound:
/// each search may read the whole text. At worst it takes some minutes; texts without long runs that it looks along take
/// far less.
const MOST_READ: u64 = 1 << 37;

/// See the module's head.
#[derive(Debug)]
pub(crate) struct Pattern {
    /// By limit of returns.
    regexes: [Regex; MOST_RETURNS.len()],
    looks_far: bool,
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
        builder.oniguruma_mode(true).multi_line(true);
        let mut within = |returns: u64| {
            let returns = usize::try_from(returns).unwrap_or(usize::MAX);
            builder.backtrack_limit(returns).build().map_err(|error| refused(&error.to_string()))
        };
        let [first, second, third, last] = MOST_RETURNS;
        Ok(Self {
            regexes: [within(first)?, within(second)?, within(third)?, within(last)?],
            looks_far: looks_far(expression),
            owner,
        })
    }

    /// The places of its matches in a text; an error if it gives up on the text.
    pub(crate) fn matches<'t>(&'t self, text: &'t str) -> Found<'t> {
        let bytes = text.len() as u64;
        Found {
            pattern: self,
            text,
            searches: self.regexes[0].find_iter(text),
            next: 0,
            last_end: None,
            returns_left: MOST_RETURNS_OF_TEXT
                .saturating_add(bytes.saturating_mul(RETURNS_PER_BYTE)),
            read_left: if self.looks_far { MOST_READ } else { u64::MAX },
            is_over: false,
        }
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

/// The matches of a pattern in a text.
pub(crate) struct Found<'t> {
    pattern: &'t Pattern,
    text: &'t str,
    /// With the first limit.
    searches: Matches<'t, 't, str>,
    /// Where the next search begins.
    next: usize,
    /// The end of the match before.
    last_end: Option<usize>,
    returns_left: u64,
    read_left: u64,
    is_over: bool,
}

impl Found<'_> {
    /// The next match, by a search with the first limit or else the next ones.
    fn search(&mut self) -> Result<Option<Range<usize>>, String> {
        self.pay(1, 0)?;
        match self.searches.next() {
            None => return Ok(None),
            Some(Ok(found)) => return Ok(Some(found.range())),
            Some(Err(error)) if is_limit(&error) => {}
            Some(Err(error)) => return Err(self.gives_up(&error.to_string())),
        }
        for (regex, returns) in self.pattern.regexes.iter().zip(MOST_RETURNS).skip(1) {
            self.pay(returns.min(self.text.len() as u64), returns)?;
            match regex.find_from_pos(self.text, self.next) {
                Ok(found) => {
                    let found = found.map(|found| found.range());
                    if let Some(found) = &found {
                        let from = RegexInput::new(self.text).from_pos(self.after(found));
                        self.searches = self.pattern.regexes[0].find_iter_input(from);
                    }
                    return Ok(found);
                }
                Err(error) if is_limit(&error) => {}
                Err(error) => return Err(self.gives_up(&error.to_string())),
            }
        }
        Err(self.gives_up("a search goes back too often"))
    }

    /// Counts the work of a search, of which `reads` may read the text.
    fn pay(&mut self, reads: u64, returns: u64) -> Result<(), String> {
        let left = self.returns_left.checked_sub(returns);
        self.returns_left =
            left.ok_or_else(|| self.gives_up("the searches of a text go back too often"))?;
        if self.pattern.looks_far {
            let left = self.read_left.checked_sub(reads.saturating_mul(self.text.len() as u64));
            self.read_left = left.ok_or_else(|| {
                self.gives_up(&format!(
                    "it looks ahead or behind without bound, too often for a text of {} bytes",
                    self.text.len()
                ))
            })?;
        }
        Ok(())
    }

    fn gives_up(&self, reason: &str) -> String {
        format!("the pattern of `{}` gives up: {reason}", self.pattern.owner)
    }

    /// Where the search after a match begins.
    fn after(&self, found: &Range<usize>) -> usize {
        let is_empty = found.start == found.end;
        let skipped = self.text[found.end..].chars().next().filter(|_| is_empty);
        // Behind the end, where nothing is found any more.
        let at_end = usize::from(is_empty && skipped.is_none());
        found.end + skipped.map_or(at_end, char::len_utf8)
    }
}

impl Iterator for Found<'_> {
    type Item = Result<Range<usize>, String>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.is_over && self.next <= self.text.len() {
            let found = match self.search() {
                Ok(found) => found?,
                Err(reason) => {
                    self.is_over = true;
                    return Some(Err(reason));
                }
            };
            self.next = self.after(&found);
            // Empty matches do not follow a match at once.
            if found.start < found.end || self.last_end != Some(found.end) {
                self.last_end = Some(found.end);
                return Some(Ok(found));
            }
        }
        None
    }
}

fn is_limit(error: &Error) -> bool {
    matches!(error, Error::RuntimeError(RuntimeError::BacktrackLimitExceeded))
}

/// Whether what the expression looks for ahead or behind repeats without bound.
fn looks_far(expression: &str) -> bool {
    let bytes = expression.as_bytes();
    // By open group, whether it is within one that looks ahead or behind.
    let (mut groups, mut classes, mut at) = (vec![false], 0, 0);
    while let Some(byte) = bytes.get(at) {
        let rest = &bytes[at + 1..];
        let is_inside = groups.last() == Some(&true);
        match byte {
            b'\\' => at += 1,
            b'[' => classes += 1,
            b']' => classes = i32::max(classes - 1, 0),
            _ if classes > 0 => {}
            b'(' => {
                let looks = [&b"?="[..], b"?!", b"?<=", b"?<!"];
                groups.push(is_inside || looks.iter().any(|look| rest.starts_with(look)));
            }
            b')' => drop(groups.pop()),
            b'*' | b'+' if is_inside => return true,
            b'{' if is_inside => {
                let bounds = rest.split(|byte| *byte == b'}').next().unwrap_or_default();
                if bounds.ends_with(b",") {
                    return true;
                }
            }
            _ => {}
        }
        at += 1;
    }
    false
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
        let pattern = Pattern::compile("Replace", r"a(?=\d)").unwrap();
        let long = "b".repeat(1 << 20) + "a1a";
        assert_eq!(pattern.replace(&long, "").unwrap().unwrap().len(), long.len() - 1);
    }

    #[test]
    fn searches_beyond_the_first_limit_find_what_one_search_finds() {
        let run = |letters: usize| "a".repeat(letters);
        let text = format!("x {}! {}1 y {}1 é1{}", run(1500), run(40), run(20_000), run(1200));
        for expression in [r"(?:(?=a)a)+(?=\d)|\w", r"(?:(?=a)a)*(?=\d)|", r"(?:(?=a)a)*?\d|$"] {
            let pattern = Pattern::compile("Split", expression).unwrap();
            let found: Vec<_> = pattern.matches(&text).map(Result::unwrap).collect();
            let expected = pattern.regexes[3].find_iter(&text).map(|found| found.unwrap().range());
            assert!(found == expected.collect::<Vec<_>>(), "{expression}");
        }
    }

    #[test]
    fn work_for_a_text_is_counted_and_bounded() {
        // Each part takes a search of some seconds' share, and all of them take hours.
        let pattern = Pattern::compile("Split", r"(?:(?=a)a|a)*(?!.)b|c").unwrap();
        let text = format!("{}c", "a".repeat(17)).repeat(20_000);
        let error = pattern.matches(&text).find_map(Result::err).unwrap();
        assert!(error.contains("gives up: the searches of a text go back too often"), "{error}");
        let far = Pattern::compile("Split", r"\d(?=\d*x)|\d").unwrap();
        let text = "1".repeat(1 << 14);
        let mut found = far.matches(&text);
        found.read_left = 100 << 14;
        assert_eq!(found.by_ref().take_while(Result::is_ok).count(), 100);
        assert!(found.next().is_none());
        let mut found = far.matches(&text);
        found.read_left = 0;
        let error = found.next().unwrap().unwrap_err();
        assert!(error.contains("too often for a text of 16384 bytes"), "{error}");
        assert_eq!(far.matches(&text).filter(Result::is_ok).count(), 1 << 14);
    }

    #[test]
    fn expressions_that_look_far_are_known() {
        for far in ["a(?=.*b)", r"\d{1,3}(?=(?:\d{3})*\b)", "(?<!(a)+)b", r"a(?!\)b{2,})"] {
            assert!(looks_far(far), "{far}");
        }
        for near in
            [r"\s+(?!\S)|\s+", "(?=[+*])a*", r"(?=\+)a+", "(?:a+)*", "(?=a{1,3})b+", "[(?=]a+"]
        {
            assert!(!looks_far(near), "{near}");
        }
    }
}

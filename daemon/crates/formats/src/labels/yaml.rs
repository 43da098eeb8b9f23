//! The part of YAML that lists of a dataset's folders and classes are written in: maps, lists and words in lines, and
//! `[…]` and `{…}`.
//!
//! Anchors, tags and several documents are refused with their line; blocks of text (`|`, `>`), such as the script of a
//! download, are skipped.

use std::collections::HashSet;

/// How deep lists and maps may lie within each other.
const MAX_DEPTH: usize = 16;

/// A value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Yaml {
    Word(String),
    List(Vec<Self>),
    Map(Vec<(String, Self)>),
}

/// The line, from 1, and its fault.
type Fault = (usize, String);

impl Yaml {
    /// Reads a file, which is a map.
    ///
    /// # Errors
    /// The line, from 1, and its fault.
    pub(crate) fn read(text: &str) -> Result<Self, Fault> {
        let mut lines = Lines::of(text)?;
        let map = lines.block(0, MAX_DEPTH)?;
        match lines.peek() {
            Some(line) => {
                Err((line.number, "its indentation is none of the lines above".to_owned()))
            }
            None if matches!(map, Self::Map(_)) => Ok(map),
            None => Err((1, "it is no map of keys".to_owned())),
        }
    }

    /// A map's value.
    pub(crate) fn get(&self, key: &str) -> Option<&Self> {
        match self {
            Self::Map(entries) => {
                entries.iter().find(|(name, _)| name == key).map(|(_, value)| value)
            }
            _ => None,
        }
    }

    /// A word.
    pub(crate) fn word(&self) -> Option<&str> {
        match self {
            Self::Word(word) => Some(word),
            _ => None,
        }
    }

    /// The words of a list, or one word.
    pub(crate) fn words(&self) -> Option<Vec<&str>> {
        match self {
            Self::Word(word) => Some(vec![word.as_str()]),
            Self::List(items) => items.iter().map(Self::word).collect(),
            Self::Map(_) => None,
        }
    }
}

/// A line that is neither empty nor a comment.
struct Line<'t> {
    number: usize,
    indent: usize,
    text: &'t str,
}

struct Lines<'t> {
    lines: Vec<Line<'t>>,
    at: usize,
}

impl<'t> Lines<'t> {
    fn of(text: &'t str) -> Result<Self, Fault> {
        let mut lines = Vec::new();
        for (number, text) in (1..).zip(text.strip_prefix('\u{feff}').unwrap_or(text).lines()) {
            let trimmed = text.trim_start_matches(' ');
            let indent = text.len() - trimmed.len();
            let trimmed = without_comment(trimmed).trim_end();
            if trimmed.is_empty() || (trimmed == "---" && lines.is_empty()) {
                continue;
            }
            if trimmed.starts_with('\t') {
                return Err((
                    number,
                    "it is indented by a tab; YAML is indented by spaces".to_owned(),
                ));
            }
            lines.push(Line { number, indent, text: trimmed });
        }
        Ok(Self { lines, at: 0 })
    }

    fn peek(&self) -> Option<&Line<'t>> {
        self.lines.get(self.at)
    }

    /// The map or list whose lines have this indentation or more.
    fn block(&mut self, least: usize, depth: usize) -> Result<Yaml, Fault> {
        let Some(first) = self.peek().filter(|line| line.indent >= least) else {
            return Ok(Yaml::Word(String::new()));
        };
        if depth == 0 {
            return Err((first.number, too_deep()));
        }
        let indent = first.indent;
        if item_of(first.text).is_some() {
            let mut items = Vec::new();
            while let Some(line) = self.peek().filter(|line| line.indent == indent) {
                let Some(rest) = item_of(line.text) else { break };
                let number = line.number;
                if rest.is_empty() {
                    self.at += 1;
                    items.push(self.block(indent + 1, depth - 1)?);
                } else if key_of(rest).is_some() {
                    return Err((
                        number,
                        "a list of maps is not read; write each as {key: value}".to_owned(),
                    ));
                } else {
                    items.push(self.flow(number, rest, depth)?);
                }
            }
            return Ok(Yaml::List(items));
        }
        let mut entries: Vec<(String, Yaml)> = Vec::new();
        let mut keys = HashSet::new();
        while let Some(line) = self.peek().filter(|line| line.indent == indent) {
            let (number, text) = (line.number, line.text);
            let Some((key, rest)) = key_of(text) else {
                return Err((number, format!("{text:?} is no key with a value")));
            };
            if !keys.insert(key.clone()) {
                return Err((number, format!("the key {key:?} is there twice")));
            }
            let value = if rest.is_empty() {
                self.at += 1;
                // A list may be indented as its key.
                let is_list = self.peek().is_some_and(|next| item_of(next.text).is_some());
                self.block(if is_list { indent } else { indent + 1 }, depth - 1)?
            } else if rest.starts_with(['|', '>']) {
                self.at += 1;
                while self.peek().is_some_and(|line| line.indent > indent) {
                    self.at += 1;
                }
                Yaml::Word(String::new())
            } else {
                self.flow(number, rest, depth)?
            };
            entries.push((key, value));
        }
        Ok(Yaml::Map(entries))
    }

    /// A value that begins in the present line, and may go on in the next ones within brackets.
    fn flow(&mut self, number: usize, text: &'t str, depth: usize) -> Result<Yaml, Fault> {
        let mut whole = text.to_owned();
        self.at += 1;
        let mut open = Open::default();
        open.add(text);
        let is_flow = text.starts_with(['[', '{', '"', '\'']);
        while is_flow && !open.is_closed() {
            let Some(line) = self.peek() else {
                return Err((number, "a bracket or a quote is never closed".to_owned()));
            };
            whole.push(' ');
            whole.push_str(line.text);
            open.add(line.text);
            self.at += 1;
        }
        let mut rest = whole.as_str();
        let value = value_of(&mut rest, false, depth).map_err(|message| (number, message))?;
        match rest.trim().is_empty() {
            true => Ok(value),
            false => Err((number, format!("{:?} follows a value", rest.trim()))),
        }
    }
}

fn too_deep() -> String {
    format!("lists and maps lie more than {MAX_DEPTH} deep within each other")
}

/// The text before a comment.
fn without_comment(text: &str) -> &str {
    let (mut quote, mut before) = (None, b' ');
    for (at, byte) in text.bytes().enumerate() {
        match (quote, byte) {
            (Some(open), _) if open == byte => quote = None,
            (Some(_), _) => {}
            (None, b'"' | b'\'') if !before.is_ascii_alphanumeric() => quote = Some(byte),
            (None, b'#') if before == b' ' || before == b'\t' => return &text[..at],
            _ => {}
        }
        before = byte;
    }
    text
}

/// The rest of a list's line.
fn item_of(text: &str) -> Option<&str> {
    if text == "-" { Some("") } else { text.strip_prefix("- ").map(str::trim_start) }
}

/// The key of a map's line, and the rest.
fn key_of(text: &str) -> Option<(String, &str)> {
    if text.starts_with(['[', '{']) {
        return None;
    }
    if let Some(quote @ ('"' | '\'')) = text.chars().next() {
        let end = text[1..].find(quote)? + 1;
        let rest = text[end + 1..].trim_start().strip_prefix(':')?;
        return Some((text[1..end].to_owned(), rest.trim_start()));
    }
    let colon = text.find(": ").or_else(|| text.ends_with(':').then(|| text.len() - 1))?;
    Some((text[..colon].trim_end().to_owned(), text[colon + 1..].trim_start()))
}

/// What of a text's brackets and quotes is not closed.
#[derive(Default)]
struct Open {
    depth: i64,
    quote: Option<u8>,
}

impl Open {
    /// Follows the next part of the text.
    fn add(&mut self, text: &str) {
        for byte in text.bytes() {
            match (self.quote, byte) {
                (Some(open), _) if open == byte => self.quote = None,
                (Some(_), _) => {}
                (None, b'"' | b'\'') => self.quote = Some(byte),
                (None, b'[' | b'{') => self.depth += 1,
                (None, b']' | b'}') => self.depth -= 1,
                _ => {}
            }
        }
    }

    const fn is_closed(&self) -> bool {
        self.depth <= 0 && self.quote.is_none()
    }
}

/// Removes a value from the front of a text; within brackets a comma ends it.
fn value_of(rest: &mut &str, is_within: bool, depth: usize) -> Result<Yaml, String> {
    *rest = rest.trim_start();
    if depth == 0 {
        return Err(too_deep());
    }
    let text = *rest;
    match text.chars().next() {
        Some(quote @ ('"' | '\'')) => {
            let end = text[1..].find(quote).ok_or("a quote is never closed")? + 1;
            *rest = &text[end + 1..];
            Ok(Yaml::Word(text[1..end].to_owned()))
        }
        Some(open @ ('[' | '{')) => {
            *rest = &text[1..];
            let close = if open == '[' { ']' } else { '}' };
            let (mut items, mut entries) = (Vec::new(), Vec::new());
            loop {
                *rest = rest.trim_start();
                if let Some(behind) = rest.strip_prefix(close) {
                    *rest = behind;
                    break;
                }
                if open == '[' {
                    items.push(value_of(rest, true, depth - 1)?);
                } else {
                    let colon =
                        rest.find(':').ok_or("a map in braces has a key without a value")?;
                    let key = rest[..colon].trim().trim_matches(['"', '\'']).to_owned();
                    *rest = &rest[colon + 1..];
                    entries.push((key, value_of(rest, true, depth - 1)?));
                }
                *rest = rest.trim_start();
                match rest.chars().next() {
                    Some(',') => *rest = &rest[1..],
                    Some(end) if end == close => {}
                    _ => {
                        return Err(format!(
                            "a list in brackets has no , or {close} behind a value"
                        ));
                    }
                }
            }
            Ok(if open == '[' { Yaml::List(items) } else { Yaml::Map(entries) })
        }
        Some(mark @ ('&' | '*' | '!')) => Err(format!("anchors and tags ({mark}) are not read")),
        _ => {
            let end = if is_within { text.find([',', ']', '}']) } else { None };
            let (word, behind) = text.split_at(end.unwrap_or(text.len()));
            *rest = behind;
            Ok(Yaml::Word(word.trim_end().to_owned()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn word(text: &str) -> Yaml {
        Yaml::Word(text.to_owned())
    }

    #[test]
    fn the_yaml_of_datasets_is_read() {
        let text = "# COCO8\npath: ../datasets/coco8 # root\ntrain: images/train\nval:\n- a\n- 'b: c'\nnc: 2\n\
            names:\n  0: person\n  1: traffic light\nold: ['x',\n  \"y # z\", w]\nmap: {0: a, 1: 'b'}\n\
            download: |\n  from x import y\n    for: z\nlast: it's  # end\nempty:\n";
        let read = Yaml::read(text).unwrap();
        assert_eq!(read.get("path"), Some(&word("../datasets/coco8")));
        assert_eq!(read.get("val").unwrap().words().unwrap(), ["a", "b: c"]);
        let names = Yaml::Map(vec![
            ("0".to_owned(), word("person")),
            ("1".to_owned(), word("traffic light")),
        ]);
        assert_eq!(read.get("names"), Some(&names));
        assert_eq!(read.get("old").unwrap().words().unwrap(), ["x", "y # z", "w"]);
        let map = Yaml::Map(vec![("0".to_owned(), word("a")), ("1".to_owned(), word("b"))]);
        assert_eq!(read.get("map"), Some(&map));
        assert_eq!((read.get("download"), read.get("empty")), (Some(&word("")), Some(&word(""))));
        assert_eq!(read.get("last"), Some(&word("it's")));
    }

    #[test]
    fn many_classes_are_read_in_time_that_grows_with_the_file() {
        let count = 21_000;
        let lines = |line: fn(usize) -> String| (0..count).map(line).collect::<String>();
        let map = lines(|number| format!("  {number}: class {number}\n"));
        let list = lines(|number| format!("  'class {number}',\n"));
        let (map, list) = (format!("names:\n{map}"), format!("names: [\n{list}]\n"));
        let started = std::time::Instant::now();
        let Some(Yaml::Map(entries)) = Yaml::read(&map).unwrap().get("names").cloned() else {
            panic!("no map")
        };
        assert_eq!(entries.len(), count);
        assert_eq!(Yaml::read(&list).unwrap().get("names").unwrap().words().unwrap().len(), count);
        // Quadratic reading compares half a billion pairs.
        assert!(started.elapsed().as_secs() < 5, "{:?}", started.elapsed());
        let twice = format!("{map}  7: again\n");
        assert!(Yaml::read(&twice).unwrap_err().1.contains("there twice"));
    }

    #[test]
    fn what_is_not_read_is_named_with_its_line() {
        for (text, line, reason) in [
            ("a: 1\n\tb: 2\n", 2, "indented by a tab"),
            ("a: 1\na: 2\n", 2, "there twice"),
            ("a: 1\n   b: 2\n", 2, "its indentation"),
            ("a: 1\nword\n", 2, "no key with a value"),
            ("a: &x 1\n", 1, "anchors and tags (&)"),
            ("a: [1, 2\n", 1, "never closed"),
            ("a: [1 2] 3\n", 1, "follows a value"),
            ("- a\n- b\n", 1, "no map of keys"),
            ("a: {x}\n", 1, "a key without a value"),
            ("a:\n  - b: 1\n", 2, "a list of maps"),
            (&format!("a: {}", "[".repeat(99) + &"]".repeat(99)), 1, "16 deep"),
        ] {
            let (at, message) = Yaml::read(text).unwrap_err();
            assert!(at == line && message.contains(reason), "{text:?}: {at}: {message}");
        }
    }
}

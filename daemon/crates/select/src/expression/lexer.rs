//! Divides the text of a condition into tokens.

use std::ops::Range;

use super::{MAX_BYTES, Mistake};

/// A token and its bytes in the text.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Token {
    pub(super) kind: TokenKind,
    pub(super) span: Range<usize>,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum TokenKind {
    /// A word of the language, in lower case.
    Word(&'static str),
    /// A column's name.
    Column(String),
    Text(String),
    Integer(i64),
    Float(f64),
    /// A comparison, a parenthesis or a comma.
    Sign(&'static str),
    End,
}

const WORDS: [&str; 10] =
    ["and", "or", "not", "in", "is", "null", "between", "like", "true", "false"];
/// Longer ones before their beginnings.
const SIGNS: [&str; 9] = ["==", "!=", "<=", ">=", "<", ">", "(", ")", ","];
/// Signs of other languages, and what is meant.
const FOREIGN: [(&str, &str); 8] = [
    ("=", "=="),
    ("<>", "!="),
    ("===", "=="),
    ("&&", "and"),
    ("||", "or"),
    ("&", "and"),
    ("|", "or"),
    ("!", "not"),
];

/// The tokens of a text; the last one is the end.
pub(super) fn tokens(text: &str) -> Result<Vec<Token>, Mistake> {
    if text.len() > MAX_BYTES {
        let message = format!("it has {} bytes, and at most {MAX_BYTES} are read", text.len());
        return Err(Mistake::new(0..0, message));
    }
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(first) = text[at..].chars().next() {
        if first.is_whitespace() {
            at += first.len_utf8();
            continue;
        }
        let (kind, length) = token(text, at, first)?;
        found.push(Token { kind, span: at..at + length });
        at += length;
    }
    found.push(Token { kind: TokenKind::End, span: text.len()..text.len() });
    Ok(found)
}

/// The token at a place, and its bytes.
fn token(text: &str, at: usize, first: char) -> Result<(TokenKind, usize), Mistake> {
    let rest = &text[at..];
    if first == '\'' || first == '"' {
        let (content, length) = quoted(rest, first)
            .ok_or_else(|| Mistake::new(at..text.len(), format!("the quote {first} has no end")))?;
        return Ok(match first {
            '\'' => (TokenKind::Text(content), length),
            _ => (TokenKind::Column(content), length),
        });
    }
    if is_of_number(rest) {
        return number(rest, at);
    }
    if first.is_alphabetic() || first == '_' {
        let length = rest.find(|next| !is_of_name(next)).unwrap_or(rest.len());
        let name = &rest[..length];
        let word = WORDS.into_iter().find(|word| name.eq_ignore_ascii_case(word));
        return Ok((
            word.map_or_else(|| TokenKind::Column(name.to_owned()), TokenKind::Word),
            length,
        ));
    }
    // The longest sign decides, so that `<>` and `===` are not read as two.
    let foreign = FOREIGN.into_iter().filter(|(sign, _)| rest.starts_with(sign));
    let foreign = foreign.max_by_key(|(sign, _)| sign.len());
    let own = SIGNS.into_iter().find(|sign| rest.starts_with(sign));
    match (own, foreign) {
        (Some(sign), foreign) if foreign.is_none_or(|(other, _)| other.len() <= sign.len()) => {
            Ok((TokenKind::Sign(sign), sign.len()))
        }
        (_, Some((sign, meant))) => {
            let message = format!("`{sign}` is `{meant}` here");
            Err(Mistake::new(at..at + sign.len(), message))
        }
        _ => {
            let message = format!(
                "{first:?} has no meaning here; texts are in single quotes, names with other characters than letters, digits, `_` and `.` in double quotes"
            );
            Err(Mistake::new(at..at + first.len_utf8(), message))
        }
    }
}

/// The content of quotes, in which a doubled quote is one, and the bytes with the quotes.
fn quoted(rest: &str, quote: char) -> Option<(String, usize)> {
    let mut content = String::new();
    let mut characters = rest.char_indices().skip(1).peekable();
    while let Some((place, character)) = characters.next() {
        if character != quote {
            content.push(character);
        } else if characters.next_if(|(_, next)| *next == quote).is_some() {
            content.push(quote);
        } else {
            return Some((content, place + 1));
        }
    }
    None
}

fn is_of_name(character: char) -> bool {
    character.is_alphanumeric() || matches!(character, '_' | '.')
}

/// Whether a number begins here: digits, with a sign and a point before them.
fn is_of_number(rest: &str) -> bool {
    let rest = rest.strip_prefix(['-', '+']).unwrap_or(rest);
    rest.strip_prefix('.').unwrap_or(rest).starts_with(|first: char| first.is_ascii_digit())
}

fn number(rest: &str, at: usize) -> Result<(TokenKind, usize), Mistake> {
    let mut previous = ' ';
    let ends = |next: char| {
        let is_sign_of_exponent = matches!(next, '-' | '+') && matches!(previous, 'e' | 'E' | ' ');
        let ends = !(is_of_name(next) || is_sign_of_exponent);
        previous = next;
        ends
    };
    let length = rest.find(ends).unwrap_or(rest.len());
    let written = &rest[..length];
    let digits = written.replace('_', "");
    // Rust reads `inf`, `nan` and `1_` too; a number begins with a digit and has no other letters.
    let is_plain = digits.chars().all(|next| next.is_ascii_digit() || "+-.eE".contains(next));
    let integer = digits.parse().map(TokenKind::Integer).ok();
    let float =
        || digits.parse().ok().filter(|float: &f64| float.is_finite()).map(TokenKind::Float);
    match integer.or_else(float).filter(|_| is_plain) {
        Some(kind) => Ok((kind, length)),
        None => Err(Mistake::new(at..at + length, format!("`{written}` is not a number"))),
    }
}

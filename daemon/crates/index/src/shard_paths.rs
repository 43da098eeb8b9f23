//! Expands a path with a pattern to files: braces as in webdataset's `braceexpand`, `*` and `?` in file names.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use crate::folder::hidden::is_hidden;
use forebay_dataset::error::DatasetError;
use forebay_storage::Storage;
use forebay_storage::listing::EntryKind;

/// The maximum number of files of a pattern.
const MAX_PATHS: usize = 1_000_000;

/// Splits a path into the folder that contains everything it names, and the rest: a pattern, or a file with one of the
/// extensions. `None`: all such files in the folder and below.
pub fn split<'a>(path: &'a Path, extensions: &[&str]) -> (PathBuf, Option<&'a str>) {
    split_named(path, |name| has_extension(name, extensions))
}

/// As [`split`], for files that `is_file` recognizes by name.
pub fn split_named(path: &Path, is_file: impl Fn(&[u8]) -> bool) -> (PathBuf, Option<&str>) {
    let Some(text) = path.to_str() else { return (path.to_owned(), None) };
    let special = text.find(['{', '*', '?']);
    let is_file = is_file(text.as_bytes());
    let end = special.unwrap_or(if is_file { text.len() } else { return (path.to_owned(), None) });
    match text[..end].rfind('/') {
        Some(0) => ("/".into(), Some(&text[1..])),
        Some(slash) => (text[..slash].into(), Some(&text[slash + 1..])),
        None => (".".into(), Some(text)),
    }
}

/// Whether a name has one of the extensions, in any case.
pub fn has_extension(name: &[u8], extensions: &[&str]) -> bool {
    extensions.iter().any(|extension| {
        let start = name.len().checked_sub(extension.len());
        start.is_some_and(|start| {
            start > 0 && name[start..].eq_ignore_ascii_case(extension.as_bytes())
        })
    })
}

/// The stem of a shard's file name of the form `STEM-00000-of-00001`. Also accepts patterns.
pub fn numbered_stem(name: &[u8]) -> Option<&[u8]> {
    let name = name.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    let digits = |text: &[u8]| text.iter().rev().take_while(|byte| byte.is_ascii_digit()).count();
    let count = digits(name);
    let before = name[..name.len() - count].strip_suffix(b"-of-")?;
    // In a pattern, a brace or a star replaces the number.
    let is_pattern = before.ends_with(b"}") || before.ends_with(b"*") || before.ends_with(b"?");
    let number = digits(before);
    if count < 5 || !(is_pattern || number >= 5) {
        return None;
    }
    let end = if is_pattern {
        before.iter().position(|byte| b"{*?".contains(byte))
    } else {
        Some(before.len() - number)
    };
    let stem = before[..end.unwrap_or(0)].strip_suffix(b"-")?;
    (!stem.is_empty()).then_some(stem)
}

/// Files relative to the root: the files of a pattern, in its order, or all files with one of the extensions, in the
/// order of their paths.
///
/// # Errors
/// A folder cannot be listed, or the pattern is malformed.
pub fn find(
    storage: &dyn Storage,
    path: &Path,
    pattern: Option<&str>,
    extensions: &[&str],
) -> Result<Vec<Vec<u8>>, DatasetError> {
    find_named(storage, path, pattern, &|name| has_extension(name, extensions))
}

/// As [`find`], for files that `is_one` recognizes by name.
///
/// # Errors
/// As [`find`].
pub fn find_named(
    storage: &dyn Storage,
    path: &Path,
    pattern: Option<&str>,
    is_one: &dyn Fn(&[u8]) -> bool,
) -> Result<Vec<Vec<u8>>, DatasetError> {
    let Some(pattern) = pattern else { return all(storage, is_one) };
    let refuse = |reason| DatasetError::BrokenFile { path: path.to_owned(), reason };
    let mut found = Vec::new();
    for name in expand(pattern).map_err(refuse)? {
        if !name.contains(['*', '?']) {
            found.push(name.into_bytes());
            continue;
        }
        let (folder, pattern) = name.rsplit_once('/').unwrap_or(("", &name));
        if folder.contains(['*', '?']) {
            return Err(refuse(
                "* and ? are read in the names of files alone, not of folders".to_owned(),
            ));
        }
        let mut names = Vec::new();
        storage.list(folder.as_bytes(), &mut |name, kind| {
            if is_file(kind) && matches(pattern.as_bytes(), name) {
                names.push(below(folder.as_bytes(), name));
            }
        })?;
        names.sort_unstable();
        // A listing may contain a name twice; a pattern that names a file twice is an error elsewhere.
        names.dedup();
        found.append(&mut names);
    }
    Ok(found)
}

const fn is_file(kind: EntryKind) -> bool {
    matches!(kind, EntryKind::File | EntryKind::Object(_))
}

/// Whether a path that a file names leads to a file below its folder.
pub fn is_below(path: &str) -> bool {
    !path.contains('\0') && !path.split('/').any(|part| matches!(part, "" | "." | ".."))
}

/// The path of a name in a folder; the root is empty.
pub fn below(folder: &[u8], name: &[u8]) -> Vec<u8> {
    if folder.is_empty() { name.to_vec() } else { [folder, name].join(&b'/') }
}

/// All such files in the root and the folders below, except hidden ones.
fn all(
    storage: &dyn Storage,
    is_one: &dyn Fn(&[u8]) -> bool,
) -> Result<Vec<Vec<u8>>, DatasetError> {
    let (mut found, mut linked) = (Vec::new(), HashSet::new());
    let mut waiting = vec![Vec::new()];
    while let Some(folder) = waiting.pop() {
        storage.list(&folder, &mut |name, kind| match kind {
            _ if is_hidden(name) => {}
            EntryKind::File | EntryKind::Object(_) => {
                if is_one(name) {
                    found.push(below(&folder, name));
                }
            }
            EntryKind::LinkedDirectory(identity) if !linked.insert(identity) => {}
            EntryKind::Directory | EntryKind::LinkedDirectory(_) => {
                waiting.push(below(&folder, name));
            }
        })?;
    }
    found.sort_unstable();
    // A listing may contain a name twice.
    found.dedup();
    Ok(found)
}

/// Whether a name matches a pattern: `*` matches any bytes, `?` one byte.
fn matches(pattern: &[u8], name: &[u8]) -> bool {
    let (mut at, mut place) = (0, 0);
    // The position of the last star, and the end of the bytes that it matches.
    let mut star = None;
    while place < name.len() {
        match pattern.get(at) {
            Some(b'*') => {
                star = Some((at, place));
                at += 1;
            }
            Some(b'?') => (at, place) = (at + 1, place + 1),
            Some(byte) if *byte == name[place] => (at, place) = (at + 1, place + 1),
            _ => match star {
                Some((star_at, taken)) => {
                    star = Some((star_at, taken + 1));
                    (at, place) = (star_at + 1, taken + 1);
                }
                None => return false,
            },
        }
    }
    pattern[at..].iter().all(|byte| *byte == b'*')
}

/// All names that a pattern with braces expands to.
///
/// # Errors
/// Unbalanced braces, or too many names.
pub fn expand(pattern: &str) -> Result<Vec<String>, String> {
    let mut done = vec![String::new()];
    let mut rest = pattern;
    while let Some(open) = rest.find(['{', '}']) {
        let unbalanced = || format!("the braces of {pattern:?} are not balanced");
        let close = matching_brace(&rest[open..]).ok_or_else(unbalanced)?;
        let inner = &rest[open + 1..open + close];
        let choices = choices(inner)?;
        if done.len().saturating_mul(choices.len()) > MAX_PATHS {
            return Err(format!("{pattern:?} stands for more than {MAX_PATHS} files"));
        }
        let extend = |done: &String| {
            let before = &rest[..open];
            choices.iter().map(|choice| format!("{done}{before}{choice}")).collect::<Vec<_>>()
        };
        done = done.iter().flat_map(extend).collect();
        rest = &rest[open + close + 1..];
    }
    done.iter_mut().for_each(|name| name.push_str(rest));
    Ok(done)
}

/// The position of the brace that closes the one at the start of the text.
fn matching_brace(text: &str) -> Option<usize> {
    let mut depth = 0_usize;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'{' => depth += 1,
            b'}' => {
                depth = depth.checked_sub(1)?;
                if depth == 0 {
                    return Some(at);
                }
            }
            _ => {}
        }
    }
    None
}

/// Expands the text between two braces: alternatives, a range, or neither, which is kept with its braces.
fn choices(inner: &str) -> Result<Vec<String>, String> {
    let mut parts = vec![String::new()];
    let mut depth = 0_usize;
    for character in inner.chars() {
        match character {
            ',' if depth == 0 => parts.push(String::new()),
            _ => {
                depth = match character {
                    '{' => depth + 1,
                    '}' => depth.saturating_sub(1),
                    _ => depth,
                };
                parts.iter_mut().last().into_iter().for_each(|part| part.push(character));
            }
        }
    }
    if parts.len() > 1 {
        let mut all = Vec::new();
        for part in parts {
            all.append(&mut expand(&part)?);
        }
        return Ok(all);
    }
    match range(inner)? {
        Some(range) => Ok(range),
        None => Ok(expand(inner)?.into_iter().map(|inner| format!("{{{inner}}}")).collect()),
    }
}

/// Expands `FIRST..LAST` or `FIRST..LAST..STEP`, of integers or of single letters.
fn range(text: &str) -> Result<Option<Vec<String>>, String> {
    let parts: Vec<&str> = text.split("..").collect();
    let (first, last, step) = match parts[..] {
        [first, last] => (first, last, 1),
        [first, last, step] => match step.parse::<i64>() {
            Ok(step) => (first, last, step.unsigned_abs().max(1)),
            Err(_) => return Ok(None),
        },
        _ => return Ok(None),
    };
    let (start, end, is_letter) = match (first.parse::<i64>(), last.parse::<i64>()) {
        (Ok(start), Ok(end)) => (start, end, false),
        _ => match (first.as_bytes(), last.as_bytes()) {
            ([start], [end]) if start.is_ascii_alphabetic() && end.is_ascii_alphabetic() => {
                (i64::from(*start), i64::from(*end), true)
            }
            _ => return Ok(None),
        },
    };
    let count = start.abs_diff(end) / step + 1;
    let count = usize::try_from(count).ok().filter(|count| *count <= MAX_PATHS);
    let count =
        count.ok_or_else(|| format!("{{{text}}} stands for more than {MAX_PATHS} files"))?;
    let is_padded = |text: &str| {
        text.trim_start_matches('-').starts_with('0') && text.trim_start_matches('-').len() > 1
    };
    let width = if is_padded(first) || is_padded(last) { first.len().max(last.len()) } else { 0 };
    let values = (0..count as u64).map(|place| {
        let distance = place.saturating_mul(step).cast_signed();
        if start <= end { start.saturating_add(distance) } else { start.saturating_sub(distance) }
    });
    let name = |value: i64| match u8::try_from(value) {
        Ok(letter) if is_letter => char::from(letter).to_string(),
        _ => format!("{value:0width$}"),
    };
    Ok(Some(values.map(name).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn braces_expand_as_webdataset_expands_them() {
        for (pattern, expected) in [
            ("a-{000..002}.tar", "a-000.tar a-001.tar a-002.tar"),
            ("{1..3}", "1 2 3"),
            ("{0..10..5}", "0 5 10"),
            ("{10..08}", "10 09 08"),
            ("{a..c}", "a b c"),
            ("{c..a}", "c b a"),
            ("{a,b}-{0..2}", "a-0 a-1 a-2 b-0 b-1 b-2"),
            ("x{001}", "x{001}"),
            ("{a,{b,c}d}", "a bd cd"),
            ("{x{1..2}}", "{x1} {x2}"),
            ("{,a}b", "b ab"),
            ("{-1..1}", "-1 0 1"),
            ("plain.tar", "plain.tar"),
        ] {
            assert_eq!(expand(pattern).unwrap().join(" "), expected, "{pattern}");
        }
        for pattern in [
            "a{b",
            "a}b",
            "{a}}",
            "{0..9999999}",
            "{0..999}{0..999}{0..9}",
            "{0..9223372036854775807}",
        ] {
            expand(pattern).unwrap_err();
        }
    }

    #[test]
    fn a_path_is_a_folder_and_a_pattern() {
        let split = |path| split(Path::new(path), &[".tar"]);
        assert_eq!(split("/data/a-{0..9}.tar"), ("/data".into(), Some("a-{0..9}.tar")));
        assert_eq!(split("/data/{a,b}/x.tar"), ("/data".into(), Some("{a,b}/x.tar")));
        assert_eq!(split("/data/x.TAR"), ("/data".into(), Some("x.TAR")));
        assert_eq!(split("s3://bucket/a/*.tar"), ("s3://bucket/a".into(), Some("*.tar")));
        assert_eq!(split("/x.tar"), ("/".into(), Some("x.tar")));
        assert_eq!(split("/data/tars"), ("/data/tars".into(), None));
        for (pattern, name, is_match) in [
            ("*.tar", "a.tar", true),
            ("a*b?c", "aXXbbYc", true),
            ("a*b?c", "abc", false),
            ("*", "", true),
            ("?", "", false),
            ("a*", "b", false),
        ] {
            assert_eq!(matches(pattern.as_bytes(), name.as_bytes()), is_match, "{pattern} {name}");
        }
    }
}

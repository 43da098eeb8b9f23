//! Cells that are lists of pictures' paths.
//!
//! The index stores a list as its paths, each followed by a byte of zero, which no path contains. The path of a picture
//! that is null is stored as empty.

use std::borrow::Cow;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, SeqAccess, Visitor};

use super::paths::Paths;

/// The most paths of a list, as of a list of pictures in a table.
const MAX_PATHS: usize = 4096;
/// Ends each path.
const END: u8 = 0;

/// The paths of a cell of the index, in their order.
pub(super) fn paths_of(cell: &[u8]) -> impl Iterator<Item = &[u8]> {
    cell.split_inclusive(|byte| *byte == END).map(|path| path.strip_suffix(&[END]).unwrap_or(path))
}

/// The number of files that a cell of the index names.
pub(super) fn files_of(cell: &[u8]) -> usize {
    paths_of(cell).filter(|path| !path.is_empty()).count()
}

/// Makes a cell of the index of a manifest's cell: of a list as JSON, or of one path.
///
/// # Errors
/// Describes the fault of the list or of a path.
pub(super) fn resolve(
    text: &[u8],
    is_list: bool,
    paths: &Paths<'_>,
    cell: &mut Vec<u8>,
) -> Result<(), String> {
    cell.clear();
    let mut path = Vec::new();
    // A table's list, and one in a cell of CSV, is text with JSON.
    let is_text_of_list = text.starts_with(b"[") && text.ends_with(b"]");
    if !(is_list || is_text_of_list) {
        return push(text, paths, &mut path, cell);
    }
    let mut fault = None;
    let mut take = |text: &[u8]| match push(text, paths, &mut path, cell) {
        Ok(()) => true,
        Err(reason) => {
            fault = Some(reason);
            false
        }
    };
    let mut json = serde_json::Deserializer::from_slice(text);
    let read = List { take: &mut take }.deserialize(&mut json).and_then(|()| json.end());
    match (fault, read) {
        (Some(fault), _) => Err(fault),
        (None, Ok(())) => Ok(()),
        (None, Err(error)) => {
            let reason = error.to_string();
            let reason = reason.split(" at line ").next().unwrap_or_default();
            Err(format!("is no list of paths: {reason}"))
        }
    }
}

fn push(
    text: &[u8],
    paths: &Paths<'_>,
    path: &mut Vec<u8>,
    cell: &mut Vec<u8>,
) -> Result<(), String> {
    if !text.is_empty() {
        paths.resolve(text, path)?;
        cell.extend_from_slice(path);
    }
    cell.push(END);
    Ok(())
}

/// A JSON list of paths and nulls, read without keeping it: a row has millions of elements at most.
struct List<'t> {
    /// Takes a path, which is empty for null. False: it is unusable.
    take: &'t mut dyn FnMut(&[u8]) -> bool,
}

impl<'de> DeserializeSeed<'de> for List<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for List<'_> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a list")
    }

    fn visit_seq<S: SeqAccess<'de>>(self, mut elements: S) -> Result<(), S::Error> {
        let mut count = 0;
        while let Some(path) = elements.next_element::<Option<Cow<'de, str>>>()? {
            count += 1;
            if count > MAX_PATHS {
                return Err(S::Error::custom(format!("it has more than {MAX_PATHS}")));
            }
            if !(self.take)(path.unwrap_or_default().as_bytes()) {
                return Err(S::Error::custom("a path is unusable"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn cell(text: &str, is_list: bool) -> Result<Vec<u8>, String> {
        let mut cell = b"before".to_vec();
        let paths = Paths::new(Path::new("s3://bucket/data"), b"lists", true);
        resolve(text.as_bytes(), is_list, &paths, &mut cell).map(|()| cell)
    }

    #[test]
    fn lists_and_single_paths_are_cells() {
        for (text, is_list, expected) in [
            ("[]", true, &[][..]),
            ("a.jpg", false, &["lists/a.jpg"]),
            ("[1] a.jpg", false, &["lists/[1] a.jpg"]),
            (r#"["a.jpg", "../b.jpg","a.jpg"]"#, true, &["lists/a.jpg", "b.jpg", "lists/a.jpg"]),
            (r#"["a.jpg"]"#, false, &["lists/a.jpg"]),
            (r#"["\u00e4/1.jpg", null, ""]"#, true, &["lists/ä/1.jpg", "", ""]),
        ] {
            let cell = cell(text, is_list).unwrap();
            let found: Vec<_> = paths_of(&cell).map(|path| String::from_utf8_lossy(path)).collect();
            assert_eq!(found, expected, "{text}");
            let files = expected.iter().filter(|path| !path.is_empty()).count();
            assert_eq!(files_of(&cell), files, "{text}");
        }
    }

    #[test]
    fn what_is_no_list_of_paths_is_refused() {
        let many = |count: usize| format!("[{}null]", "null,".repeat(count - 1));
        assert_eq!(paths_of(&cell(&many(MAX_PATHS), true).unwrap()).count(), MAX_PATHS);
        for (text, reason) in [
            ("[1]", "is no list of paths: invalid type: integer `1`"),
            (r#"["a.jpg", {"path": "b.jpg"}]"#, "is no list of paths: invalid type: map"),
            (r#"[["a.jpg"]]"#, "is no list of paths: invalid type: sequence"),
            (r#"["a.jpg"] x]"#, "is no list of paths: trailing characters"),
            (r#"["a.jpg", "../../b.jpg"]"#, "leads out of s3://bucket/data: ../../b.jpg"),
            (r#"["/etc/passwd"]"#, "is an absolute path"),
            (r#"["a\u0000b"]"#, "holds a byte of zero"),
            (&many(MAX_PATHS + 1), "is no list of paths: it has more than 4096"),
        ] {
            let message = cell(text, false).unwrap_err();
            assert!(message.contains(reason), "{text}: {message}");
        }
    }
}

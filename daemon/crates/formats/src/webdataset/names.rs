//! Groups members into samples by webdataset's rule for whole names.
//!
//! A name is split at the first dot after its last slash. The part before the dot is the key, the part after it the
//! field, in lower case. Consecutive members with the same key are a sample; if the key occurs again later in the
//! archive, another sample begins.

/// A parsed member name.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Name<'a> {
    /// A field of a sample.
    Field {
        /// The sample's key.
        key: &'a [u8],
        /// Not yet in lower case.
        field: &'a [u8],
    },
    /// Ignored, as in webdataset: it has no extension, or is a special name such as `__name__`.
    None,
    /// A hidden file, such as macOS adds. webdataset makes a sample of it; here it is ignored.
    Hidden,
}

/// Splits a member's name.
pub(super) fn split(name: &[u8]) -> Name<'_> {
    if is_special(name) {
        return Name::None;
    }
    let base = name.iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
    match name[base..].iter().position(|byte| *byte == b'.') {
        Some(0) => Name::Hidden,
        Some(dot) => Name::Field { key: &name[..base + dot], field: &name[base + dot + 1..] },
        None => Name::None,
    }
}

/// Whether a name matches `__[^/]*__($|/)` at its start.
fn is_special(name: &[u8]) -> bool {
    let first = name.split(|byte| *byte == b'/').next().unwrap_or_default();
    first.len() >= 4 && first.starts_with(b"__") && first.ends_with(b"__")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_split_as_in_webdataset() {
        for (name, key, field) in [
            ("a/b.c/img001.seg.png", "a/b.c/img001", "seg.png"),
            ("./000.jpg", "./000", "jpg"),
            ("n01/IMG.JPEG", "n01/IMG", "JPEG"),
            ("a.", "a", ""),
            ("a__b__.jpg", "a__b__", "jpg"),
        ] {
            let expected = Name::Field { key: key.as_bytes(), field: field.as_bytes() };
            assert_eq!(split(name.as_bytes()), expected, "{name}");
        }
        for name in ["x/noext", "a.b/c", "__meta__/x.json", "__key__", ""] {
            assert_eq!(split(name.as_bytes()), Name::None, "{name}");
        }
        for name in [".DS_Store", "dir/._img.jpg"] {
            assert_eq!(split(name.as_bytes()), Name::Hidden, "{name}");
        }
    }
}

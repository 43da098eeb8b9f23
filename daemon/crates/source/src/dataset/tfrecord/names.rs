//! Which files are TFRecords: by `.tfrecord`, `.tfrecords` or `.tfrec`, or by TensorFlow's names of shards, as in
//! `train-00000-of-01024` and `mnist-train.tfrecord-00000-of-00001`.

use std::path::{Path, PathBuf};

use crate::dataset::shard_paths::{has_extension, split_named};

pub(super) const EXTENSIONS: [&str; 3] = [".tfrecord", ".tfrecords", ".tfrec"];
/// Compressed files are named here so that they are refused by name.
const COMPRESSED: [&str; 7] = [
    ".tfrecord.gz",
    ".tfrecords.gz",
    ".tfrec.gz",
    ".tfrecord.zz",
    ".tfrecords.zz",
    ".tfrecord.zlib",
    ".tfrecords.zlib",
];

/// Whether a file, or all that a pattern names, are TFRecords by the name, compressed or not.
pub(in crate::dataset) fn is_of_records(name: &[u8]) -> bool {
    is_record_file(name) || is_compressed(name)
}

/// Whether they are, and were not compressed as a whole.
pub(super) fn is_record_file(name: &[u8]) -> bool {
    has_extension(name, &EXTENSIONS) || is_numbered(name)
}

/// Whether they were compressed as a whole.
pub(super) fn is_compressed(name: &[u8]) -> bool {
    has_extension(name, &COMPRESSED)
}

/// `STEM-00000-of-00001`, where the stem has no other format's extension.
fn is_numbered(name: &[u8]) -> bool {
    let name = name.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    let digits = |text: &[u8]| text.iter().rev().take_while(|byte| byte.is_ascii_digit()).count();
    let count = digits(name);
    let Some(before) = name[..name.len() - count].strip_suffix(b"-of-") else { return false };
    // Of a pattern a brace or a star stands for the number.
    let is_pattern = before.ends_with(b"}") || before.ends_with(b"*") || before.ends_with(b"?");
    let number = digits(before);
    if count < 5 || !(is_pattern || number >= 5) {
        return false;
    }
    let end = if is_pattern {
        before.iter().position(|byte| b"{*?".contains(byte))
    } else {
        Some(before.len() - number)
    };
    let stem = &before[..end.unwrap_or(0)];
    let Some(stem) = stem.strip_suffix(b"-") else { return false };
    !stem.is_empty() && (!stem.contains(&b'.') || has_extension(stem, &EXTENSIONS))
}

/// The folder that a path's files lie in, and the pattern or the file that it names.
pub(super) fn split(path: &Path) -> (PathBuf, Option<&str>) {
    split_named(path, is_of_records)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_known_by_their_names() {
        for (name, is_one) in [
            ("a.tfrecord", true),
            ("a.TFRecords", true),
            ("x/a.tfrec", true),
            ("train-00000-of-01024", true),
            ("train-{00000..01023}-of-01024", true),
            ("train-*-of-01024", true),
            ("data.v2/train-00000-of-01024", true),
            ("mnist-train.tfrecord-00000-of-00001", true),
            ("x.array_record-00000-of-00001", false),
            ("data-00000-of-00002.arrow", false),
            ("-00000-of-00001", false),
            ("train-0-of-1", false),
            ("a-of-00001", false),
            (".tfrecord", false),
            ("a.tfrecord.gz", false),
            ("", false),
        ] {
            assert_eq!(is_record_file(name.as_bytes()), is_one, "{name}");
        }
        assert_eq!(split(Path::new("/d/a.tfrecord.gz")), ("/d".into(), Some("a.tfrecord.gz")));
        assert_eq!(split(Path::new("/d/train-00000-of-00001")).0, Path::new("/d"));
        assert_eq!(split(Path::new("/d/train")), ("/d/train".into(), None));
    }
}

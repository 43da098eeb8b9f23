//! Detects TFRecord files by name: `.tfrecord`, `.tfrecords`, `.tfrec`, or TensorFlow's shard names, such as
//! `train-00000-of-01024` and `mnist-train.tfrecord-00000-of-00001`.

use forebay_index::shard_paths::{has_extension, numbered_stem};

pub(super) const EXTENSIONS: [&str; 3] = [".tfrecord", ".tfrecords", ".tfrec"];
/// Compressed files, detected by name for a specific error.
const COMPRESSED: [&str; 7] = [
    ".tfrecord.gz",
    ".tfrecords.gz",
    ".tfrec.gz",
    ".tfrecord.zz",
    ".tfrecords.zz",
    ".tfrecord.zlib",
    ".tfrecords.zlib",
];

/// Whether the name is that of TFRecords, compressed or not. Also accepts patterns.
pub(crate) fn is_of_records(name: &[u8]) -> bool {
    is_record_file(name) || is_compressed(name)
}

/// Whether the name is that of an uncompressed TFRecord file.
pub(super) fn is_record_file(name: &[u8]) -> bool {
    has_extension(name, &EXTENSIONS) || is_numbered(name)
}

/// Whether the name is that of a file that was compressed as a whole.
pub(super) fn is_compressed(name: &[u8]) -> bool {
    has_extension(name, &COMPRESSED)
}

/// Whether the name is that of a shard whose stem does not have another format's extension.
fn is_numbered(name: &[u8]) -> bool {
    numbered_stem(name)
        .is_some_and(|stem| !stem.contains(&b'.') || has_extension(stem, &EXTENSIONS))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::indexed::Format;
    use crate::tfrecord::TfRecord;
    use std::path::Path;

    #[test]
    fn files_are_recognized_by_name() {
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
        let split = |path| TfRecord::split(path);
        assert_eq!(split(Path::new("/d/a.tfrecord.gz")), ("/d".into(), Some("a.tfrecord.gz")));
        assert_eq!(split(Path::new("/d/train-00000-of-00001")).0, Path::new("/d"));
        assert_eq!(split(Path::new("/d/train")), ("/d/train".into(), None));
    }
}

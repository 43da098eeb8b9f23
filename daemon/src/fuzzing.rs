//! What fuzzers run: one function for each parser of this crate that sees bytes of a file or a configuration.
//!
//! No part of the program. `fuzz/` calls these with a fuzzer's bytes, the tests with the files of `fuzz/corpus`. A
//! function here may end in any way but a panic; what it checks beside that, it asserts.

use forebay_protocol::fuzzing::Target;
use std::path::Path;

use forebay_config::Config;
pub use forebay_pipeline::fuzzing::{exif, jpeg, jpeg_markers, png, webp};
pub use forebay_source::dataset::fuzzing::{index, npy, npz};

/// Every target's name, which is that of its folder in `fuzz/corpus`.
pub const TARGETS: [(&str, Target); 9] = [
    ("config", config),
    ("exif", exif),
    ("index", index),
    ("jpeg", jpeg),
    ("jpeg_markers", jpeg_markers),
    ("npy", npy),
    ("npz", npz),
    ("png", png),
    ("webp", webp),
];

/// A configuration's text; what resolves must print itself, and that must resolve to the same.
///
/// # Panics
/// When it does not.
pub fn config(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    let Ok(resolved) = Config::from_text("fuzz", Path::new("/data"), text) else {
        return;
    };
    let printed = resolved.resolved_toml();
    let again = Config::from_text("fuzz", Path::new("/data"), &printed)
        .unwrap_or_else(|error| panic!("{error}:\n{printed}"));
    assert_eq!(printed, again.resolved_toml());
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Replays what the fuzzers start from and what they have found.
    #[test]
    fn no_file_of_the_corpus_makes_a_parser_panic() {
        let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus");
        for (name, target) in TARGETS {
            let mut files = 0;
            for entry in std::fs::read_dir(corpus.join(name)).unwrap() {
                let path = entry.unwrap().path();
                let bytes = std::fs::read(&path).unwrap();
                if std::panic::catch_unwind(|| target(&bytes)).is_err() {
                    panic!("{} makes {name} panic", path.display());
                }
                files += 1;
            }
            assert!(files >= 3, "{name} has a corpus of {files} files");
        }
    }
}

//! What fuzzers run: one function for each parser of this crate that sees bytes of a file or a configuration.
//!
//! No part of the program. `fuzz/` calls these with a fuzzer's bytes, the tests with the files of `fuzz/corpus`. A
//! function here may end in any way but a panic; what it checks beside that, it asserts.

use forebay_protocol::fuzzing::Target;
use std::path::Path;

use forebay_config::Config;
pub use forebay_jpeg_index::fuzz_records as jpeg_index;
pub use forebay_pipeline::fuzzing::{bmp, exif, gif, jpeg, jpeg_markers, png, sound, tiff, webp};
pub use forebay_source::dataset::fuzzing::{
    arrow_table, coco, dali_index, index, json_key, manifest, manifest_index, npy, npz,
    parquet_table, records, tar, tar_index, tfrecord, token_file, token_index,
};
pub use forebay_source::storage::cache_entry;

/// Every target's name, which is that of its folder in `fuzz/corpus`.
pub const TARGETS: [(&str, Target); 28] = [
    ("arrow_table", arrow_table),
    ("bmp", bmp),
    ("cache_entry", cache_entry),
    ("coco", coco),
    ("config", config),
    ("dali_index", dali_index),
    ("exif", exif),
    ("gif", gif),
    ("index", index),
    ("jpeg", jpeg),
    ("jpeg_index", jpeg_index),
    ("jpeg_markers", jpeg_markers),
    ("json_key", json_key),
    ("manifest", manifest),
    ("manifest_index", manifest_index),
    ("npy", npy),
    ("npz", npz),
    ("parquet_table", parquet_table),
    ("png", png),
    ("records", records),
    ("sound", sound),
    ("tar", tar),
    ("tar_index", tar_index),
    ("tfrecord", tfrecord),
    ("tiff", tiff),
    ("token_file", token_file),
    ("token_index", token_index),
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
    let Ok(resolved) = Config::from_text("fuzz", Path::new("/data"), text, &[]) else {
        return;
    };
    let printed = resolved.resolved_toml();
    let again = Config::from_text("fuzz", Path::new("/data"), &printed, &[])
        .unwrap_or_else(|error| panic!("{error}:\n{printed}"));
    assert_eq!(printed, again.resolved_toml());
}

#[test]
fn no_file_of_the_corpus_makes_a_parser_panic() {
    forebay_protocol::fuzzing::replay_corpus(&TARGETS);
}

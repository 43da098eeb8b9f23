//! Entry points for fuzzers: one function for each parser of this crate that reads untrusted bytes.
//!
//! Not part of the program. `fuzz/` calls these functions with a fuzzer's bytes, the tests with the files of
//! `fuzz/corpus`. A function here may return in any way but must not panic; it asserts further properties.

use forebay_protocol::fuzzing::Target;
use std::path::Path;

pub use forebay_cache::cache_entry;
use forebay_config::Config;
#[cfg(feature = "feed")]
pub use forebay_feed::fuzzing::{feed_answer, feed_ticket};
pub use forebay_formats::fuzzing::{
    array_record, arrow_table, coco, dali_index, energon, hdf5, index, json_key, label_file,
    lance_file, litdata_nested, manifest, manifest_index, npy, npz, parquet_table, records, tar,
    tar_index, tfrecord, token_file, token_index, zarr,
};
pub use forebay_jpeg_index::fuzz_records as jpeg_index;
pub use forebay_media::fuzzing::{
    bmp, exif, gif, jpeg, jpeg_markers, mask, pictures, png, sound, sound_lossy, tiff, webp,
};
pub use forebay_select::fuzzing::condition;
#[cfg(feature = "text")]
pub use forebay_text::fuzzing::{conversation, text, tokenizer};
pub use forebay_video::fuzzing::{video_clip, video_mkv, video_mp4};

/// The name of each target, which is also its folder in `fuzz/corpus`.
pub const TARGETS: &[(&str, Target)] = &[
    ("array_record", array_record),
    ("arrow_table", arrow_table),
    ("bmp", bmp),
    ("cache_entry", cache_entry),
    ("coco", coco),
    ("condition", condition),
    ("config", config),
    #[cfg(feature = "text")]
    ("conversation", conversation),
    ("dali_index", dali_index),
    ("energon", energon),
    ("exif", exif),
    #[cfg(feature = "feed")]
    ("feed_answer", feed_answer),
    #[cfg(feature = "feed")]
    ("feed_ticket", feed_ticket),
    ("gif", gif),
    ("hdf5", hdf5),
    ("index", index),
    ("jpeg", jpeg),
    ("jpeg_index", jpeg_index),
    ("jpeg_markers", jpeg_markers),
    ("json_key", json_key),
    ("label_file", label_file),
    ("lance_file", lance_file),
    ("litdata_nested", litdata_nested),
    ("manifest", manifest),
    ("manifest_index", manifest_index),
    ("mask", mask),
    ("npy", npy),
    ("npz", npz),
    ("parquet_table", parquet_table),
    ("pictures", pictures),
    ("png", png),
    ("records", records),
    ("sound", sound),
    ("sound_lossy", sound_lossy),
    ("tar", tar),
    ("tar_index", tar_index),
    #[cfg(feature = "text")]
    ("text", text),
    ("tfrecord", tfrecord),
    ("tiff", tiff),
    ("token_file", token_file),
    ("token_index", token_index),
    #[cfg(feature = "text")]
    ("tokenizer", tokenizer),
    ("video_clip", video_clip),
    ("video_mkv", video_mkv),
    ("video_mp4", video_mp4),
    ("webp", webp),
    ("zarr", zarr),
];

/// A configuration's text: if it resolves, its printed form must resolve to the same.
///
/// # Panics
/// The printed form does not resolve, or resolves to something else.
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
fn parsers_do_not_panic_on_the_corpus() {
    forebay_protocol::fuzzing::replay_corpus(TARGETS);
}

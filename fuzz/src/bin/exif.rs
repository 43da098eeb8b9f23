//! See `forebay::fuzzing::exif`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| forebay::fuzzing::exif(bytes));

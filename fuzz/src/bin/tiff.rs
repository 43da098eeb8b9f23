//! See `forebay::fuzzing::tiff`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| forebay::fuzzing::tiff(bytes));

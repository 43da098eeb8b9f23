//! See `forebay::fuzzing::bmp`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| forebay::fuzzing::bmp(bytes));

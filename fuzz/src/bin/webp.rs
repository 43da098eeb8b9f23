//! See `forebay::fuzzing::webp`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| forebay::fuzzing::webp(bytes));

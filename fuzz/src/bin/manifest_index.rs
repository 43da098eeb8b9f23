//! See `forebay::fuzzing::manifest_index`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| forebay::fuzzing::manifest_index(bytes));

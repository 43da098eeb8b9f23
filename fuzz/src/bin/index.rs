//! See `forebay::fuzzing::index`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| forebay::fuzzing::index(bytes));

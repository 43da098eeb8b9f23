//! See `forebay::fuzzing::tar`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| forebay::fuzzing::tar(bytes));

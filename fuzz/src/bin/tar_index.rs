//! See `forebay::fuzzing::tar_index`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| forebay::fuzzing::tar_index(bytes));

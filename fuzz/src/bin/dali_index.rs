//! See `forebay::fuzzing::dali_index`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| forebay::fuzzing::dali_index(bytes));

//! See `forebay::fuzzing::token_index`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| forebay::fuzzing::token_index(bytes));

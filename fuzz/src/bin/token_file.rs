//! See `forebay::fuzzing::token_file`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| forebay::fuzzing::token_file(bytes));

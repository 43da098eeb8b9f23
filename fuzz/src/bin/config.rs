//! See `forebay::fuzzing::config`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| forebay::fuzzing::config(bytes));

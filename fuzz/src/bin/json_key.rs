//! See `forebay::fuzzing::json_key`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| forebay::fuzzing::json_key(bytes));

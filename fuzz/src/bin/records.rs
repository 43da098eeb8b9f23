//! See `forebay::fuzzing::records`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| forebay::fuzzing::records(bytes));

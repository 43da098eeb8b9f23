//! See `forebay::fuzzing::png`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| forebay::fuzzing::png(bytes));

//! See `forebay::fuzzing::gif`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| forebay::fuzzing::gif(bytes));

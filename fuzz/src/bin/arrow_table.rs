//! See `forebay::fuzzing::arrow_table`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| forebay::fuzzing::arrow_table(bytes));

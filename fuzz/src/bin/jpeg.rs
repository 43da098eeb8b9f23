//! See `forebay::fuzzing::jpeg`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| forebay::fuzzing::jpeg(bytes));

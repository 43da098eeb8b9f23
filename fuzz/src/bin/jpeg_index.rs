//! See `forebay::fuzzing::jpeg_index`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| forebay::fuzzing::jpeg_index(bytes));

//! See `forebay::fuzzing::npz`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| forebay::fuzzing::npz(bytes));

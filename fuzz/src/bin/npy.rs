//! See `forebay::fuzzing::npy`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| forebay::fuzzing::npy(bytes));

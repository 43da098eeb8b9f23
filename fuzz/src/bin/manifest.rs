//! See `forebay::fuzzing::manifest`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| forebay::fuzzing::manifest(bytes));

//! See `forebay::fuzzing::sound`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| forebay::fuzzing::sound(bytes));

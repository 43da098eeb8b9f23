//! See `forebay::fuzzing::cache_entry`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| forebay::fuzzing::cache_entry(bytes));

//! See `forebay_protocol::fuzzing::frames`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| forebay_protocol::fuzzing::frames(bytes));

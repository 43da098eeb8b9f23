//! See `forebay_protocol::fuzzing::tensors`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| forebay_protocol::fuzzing::tensors(bytes));

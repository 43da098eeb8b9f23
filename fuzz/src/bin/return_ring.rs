//! See `forebay_protocol::fuzzing::return_ring`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| forebay_protocol::fuzzing::return_ring(bytes));

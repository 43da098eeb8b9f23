//! See `forebay_protocol::fuzzing::publish_ring`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| forebay_protocol::fuzzing::publish_ring(bytes));

//! See `forebay::fuzzing::tfrecord`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| forebay::fuzzing::tfrecord(bytes));

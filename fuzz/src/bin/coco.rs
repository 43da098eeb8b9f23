//! See `forebay::fuzzing::coco`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| forebay::fuzzing::coco(bytes));

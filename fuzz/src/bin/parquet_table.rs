//! See `forebay::fuzzing::parquet_table`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| forebay::fuzzing::parquet_table(bytes));

//! One fuzzer for all targets: the variable `FOREBAY_FUZZ_TARGET` names one of `forebay::fuzzing` or
//! `forebay_protocol::fuzzing`. libFuzzer takes the arguments of the command line.

#![no_main]

use std::sync::LazyLock;

use forebay_protocol::fuzzing::Target;

static TARGET: LazyLock<Target> = LazyLock::new(|| {
    let wanted = std::env::var("FOREBAY_FUZZ_TARGET").unwrap_or_default();
    let mut all = forebay::fuzzing::TARGETS.iter().chain(&forebay_protocol::fuzzing::TARGETS);
    let found = all.find(|(name, _)| *name == wanted);
    found.unwrap_or_else(|| panic!("FOREBAY_FUZZ_TARGET={wanted:?} is not a target")).1
});

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| TARGET(bytes));

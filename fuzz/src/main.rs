//! One fuzzer for all targets: the variable `FOREBAY_FUZZ_TARGET` names one of `forebay::fuzzing` or
//! `forebay_protocol::fuzzing`. libFuzzer takes the arguments of the command line.

#![no_main]

use std::sync::LazyLock;

use forebay_protocol::fuzzing::Target;

/// Crates whose panics the targets catch, as part of the folder of their sources: libFuzzer ends at any other panic, and
/// at one of these that nobody catches.
const CAUGHT: [&str; 2] = ["/tk-encode-", "/ptr_hash-"];

static TARGET: LazyLock<Target> = LazyLock::new(|| {
    let ends = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let is_in = |file: &str| CAUGHT.iter().any(|part| file.contains(part));
        if !panic.location().is_some_and(|location| is_in(location.file())) {
            ends(panic);
        }
    }));
    let wanted = std::env::var("FOREBAY_FUZZ_TARGET").unwrap_or_default();
    let mut all = forebay::fuzzing::TARGETS.iter().chain(&forebay_protocol::fuzzing::TARGETS);
    let found = all.find(|(name, _)| *name == wanted);
    found.unwrap_or_else(|| panic!("FOREBAY_FUZZ_TARGET={wanted:?} is not a target")).1
});

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| TARGET(bytes));

//! Entry points of fuzzers for this format.

use super::frame::{self, Frames};
use crate::examples::rules::{find, value};
use crate::examples::{Feature, Kind, SeenKeys, features};
use forebay_dataset::{ArrayValue, FieldValue};
use forebay_index::window::{InMemory, WindowSize};

/// Visits the frames of a file in memory, with offset and length.
///
/// # Errors
/// The defect of the file.
pub(crate) fn walk_for_fuzzing(file: &[u8], mut visit: impl FnMut(u64, u64)) -> Result<(), String> {
    let source = InMemory(file);
    let mut frames = Frames::new(&source, WindowSize::LOCAL);
    let remedy = |compression| format!("{compression:?}");
    while let Some(extent) = frames.next(remedy).map_err(|error| error.to_string())? {
        let start = usize::try_from(extent.offset).unwrap();
        let _ = frame::data(&file[start..start + usize::try_from(extent.bytes).unwrap()]);
        visit(extent.offset, extent.bytes);
    }
    Ok(())
}

/// Parses an Example, and reads each feature as the field that is inferred from it.
pub(crate) fn read_for_fuzzing(example: &[u8], mut array: impl FnMut(&ArrayValue<'_>)) {
    let mut seen = SeenKeys::default();
    if seen.add(example).is_err() {
        assert!(find(&[], example).is_err());
        return;
    }
    let (rules, _) = seen.infer();
    let found = find(&rules, example).unwrap();
    for (rule, feature) in rules.iter().zip(found) {
        let is_large = |feature: &Feature<'_>| feature.unpacked_bytes() > 8 * example.len() as u64;
        assert!(!feature.as_ref().is_some_and(is_large));
        if let Ok(FieldValue::Array(value)) = value(rule, feature) {
            array(&value);
        }
    }
    features(example, |_, feature| {
        let mut count = 0;
        if feature.integers(|_| count += 1).is_ok() && feature.kind == Some(Kind::Integers) {
            assert_eq!(count, feature.count);
        }
    })
    .unwrap();
}

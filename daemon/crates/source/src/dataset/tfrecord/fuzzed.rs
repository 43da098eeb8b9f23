//! What fuzzers run of this format.

use std::path::PathBuf;

use super::example::features;
use super::frame::{self, Frames};
use super::rules::{SeenKeys, find, value};
use crate::dataset::columns::Labels;
use crate::dataset::error::DatasetError;
use crate::dataset::window::{Bytes, WindowSize};
use crate::dataset::{ArrayValue, FieldValue};

/// Walks over the frames of a file in memory; gives where each lies.
///
/// # Errors
/// What is wrong with it.
pub(in crate::dataset) fn walk_for_fuzzing(
    file: &[u8],
    mut visit: impl FnMut(u64, u64),
) -> Result<(), String> {
    struct InMemory<'a>(&'a [u8]);
    impl Bytes for InMemory<'_> {
        fn read(&self, offset: u64, length: u64, buffer: &mut Vec<u8>) -> Result<(), DatasetError> {
            let start = usize::try_from(offset).unwrap();
            buffer.clear();
            buffer.extend_from_slice(&self.0[start..start + usize::try_from(length).unwrap()]);
            Ok(())
        }

        fn fault(&self, reason: String) -> DatasetError {
            DatasetError::BrokenFile { path: PathBuf::from("file"), reason }
        }
    }
    let source = InMemory(file);
    let mut frames = Frames::new(&source, file.len() as u64, WindowSize::LOCAL);
    let remedy = |compression| format!("{compression:?}");
    while let Some(extent) = frames.next(remedy).map_err(|error| error.to_string())? {
        let start = usize::try_from(extent.offset).unwrap();
        let _ = frame::data(&file[start..start + usize::try_from(extent.bytes).unwrap()]);
        visit(extent.offset, extent.bytes);
    }
    Ok(())
}

/// Takes an Example apart: each of its features as the field that would be made of it.
pub(in crate::dataset) fn read_for_fuzzing(example: &[u8], mut array: impl FnMut(&ArrayValue<'_>)) {
    let mut seen = SeenKeys::default();
    if seen.add(example).is_err() {
        assert!(find(&[], example).is_err());
        return;
    }
    let (rules, _) = seen.infer();
    let found = find(&rules, example).unwrap();
    for (rule, feature) in rules.iter().zip(found) {
        let is_large = |feature: &super::example::Feature<'_>| {
            feature.unpacked_bytes() > 8 * example.len() as u64
        };
        assert!(!feature.as_ref().is_some_and(is_large));
        if let Ok(FieldValue::Array(value)) = value(rule, &Labels::default(), feature) {
            array(&value);
        }
    }
    features(example, |_, feature| {
        let mut count = 0;
        if feature.integers(|_| count += 1).is_ok()
            && feature.kind == Some(super::example::Kind::Integers)
        {
            assert_eq!(count, feature.count);
        }
    })
    .unwrap();
}

//! What fuzzers run of this format.

use std::ops::ControlFlow;
use std::path::PathBuf;

use super::open::Table;
use super::parse::{Fault, parse};
use crate::dataset::error::DatasetError;
use crate::dataset::window::Bytes;

/// Reads a COCO file in memory; gives each image's path with the number of its boxes.
///
/// # Errors
/// What is wrong with it.
pub(in crate::dataset) fn parse_for_fuzzing(
    file: &[u8],
    mut visit: impl FnMut(&[u8], usize),
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
    // A small window, so that values lie over its ends.
    let parsed = parse(&source, file.len() as u64, 7, &|| ControlFlow::Continue(()));
    let parsed = parsed.map_err(|fault| match fault {
        Fault::Read(error) => error.to_string(),
        Fault::Broken(line, message) => format!("{line}: {message}"),
    })?;
    let table = Table::of(&parsed)?;
    let mut start = 0;
    for (place, image) in parsed.images.iter().enumerate() {
        let boxes = table.annotations(&parsed, place);
        let count = boxes.filter(|(one, _)| one.corners.iter().all(|number| number.is_finite()));
        visit(&parsed.names[start..image.name_end], count.count());
        start = image.name_end;
    }
    Ok(())
}

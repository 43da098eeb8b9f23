//! Entry points for fuzzers.

use std::ops::ControlFlow;

use super::parse::{Fault, parse};
use super::scan::Table;
use forebay_index::window::InMemory;

/// Reads a COCO file in memory; gives each image's path and number of boxes.
///
/// # Errors
/// Describes the fault.
pub(crate) fn parse_for_fuzzing(
    file: &[u8],
    mut visit: impl FnMut(&[u8], usize),
) -> Result<(), String> {
    let source = InMemory(file);
    // A small window, so that values cross its ends.
    let parsed = parse(&source, 7, &|| ControlFlow::Continue(()));
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

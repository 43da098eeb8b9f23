//! Entry points for fuzzers.

use std::ops::ControlFlow;

use super::cells::{Cells, SegmentFiles};
use super::parse::{Fault, Wanted, parse};
use super::scan::Table;
use super::{Coco, Masks};
use forebay_dataset::mask::CodedMask;
use forebay_index::window::InMemory;

/// Reads a COCO file in memory, in each of the ways that a configuration may ask for; gives each image's path and number
/// of boxes.
///
/// # Errors
/// Describes the fault.
pub(crate) fn parse_for_fuzzing(
    file: &[u8],
    mut visit: impl FnMut(&[u8], usize),
) -> Result<(), String> {
    read(file, Wanted::Objects { crowds: true }, |_, _| {}).ok();
    read(file, Wanted::Segments, |_, _| {}).ok();
    read(file, Wanted::Boxes, &mut visit)
}

fn read(file: &[u8], wanted: Wanted, mut visit: impl FnMut(&[u8], usize)) -> Result<(), String> {
    let source = InMemory(file);
    // A small window, so that values cross its ends.
    let parsed = parse(&source, 7, wanted, &|| ControlFlow::Continue(()));
    let parsed = parsed.map_err(|fault| match fault {
        Fault::Read(error) => error.to_string(),
        Fault::Broken(line, message) => format!("{line}: {message}"),
    })?;
    let table = Table::of(&parsed)?;
    let objects = matches!(wanted, Wanted::Objects { .. });
    let layout = Coco {
        classes: Vec::new(),
        has_sizes: parsed.images.iter().all(|image| image.size.is_some()),
        masks: objects.then_some(Masks::Categories),
        points_each: objects.then_some(parsed.points_each as u64),
        is_panoptic: wanted == Wanted::Segments,
    };
    let segment_files = SegmentFiles::of(&parsed, Vec::new())?;
    let cells = Cells { layout: &layout, parsed: &parsed, table: &table, segment_files };
    let mut start = 0;
    for (place, image) in parsed.images.iter().enumerate() {
        let boxes = table.annotations(&parsed, place);
        let count = boxes.filter(|(_, one, _)| one.corners.iter().all(|number| number.is_finite()));
        visit(&parsed.names[start..image.name_end], count.count());
        start = image.name_end;
        if let Ok(row) = cells.of(place, b"path") {
            assert_eq!(row.len(), layout.columns());
            let objects = row[2].len() / 8;
            if let Some(each) = layout.points_each {
                assert_eq!(row[5].len() as u64, objects as u64 * each * 12);
            }
            assert!(layout.masks.is_none() || CodedMask::open(&row[4]).is_some());
        }
    }
    Ok(())
}

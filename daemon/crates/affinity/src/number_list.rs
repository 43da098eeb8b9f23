//! Lists of numbers in the kernel's format.

use std::fs;
use std::path::Path;

/// Reads a file with a list such as `0-3,8`. `None`: the file is missing or empty.
pub(crate) fn read_list(file: &Path) -> Option<Vec<u32>> {
    let text = fs::read_to_string(file).ok()?;
    let mut numbers = Vec::new();
    for range in text.trim().split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        numbers.extend(first.parse::<u32>().ok()?..=last.parse::<u32>().ok()?);
    }
    Some(numbers)
}

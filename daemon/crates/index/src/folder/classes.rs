//! The classes of an index with their samples, and the detection of a wrong root, whose folders would silently become
//! the labels.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::index::FolderIndex;
use super::scan::{FolderFormat, ScannedFolder};
use forebay_dataset::ClassSummary;
use forebay_dataset::error::DatasetError;

/// The maximum number of class folders in a message.
const MAX_SPELT_OUT: usize = 5;

/// The classes of an index; `None` if there are no classes.
#[must_use]
pub fn class_summary(index: &FolderIndex) -> Option<ClassSummary> {
    ClassSummary::of_counts(index.classes(), &samples_by_class(index))
}

/// The number of samples per class, in label order.
fn samples_by_class(index: &FolderIndex) -> Vec<u64> {
    let mut counts = vec![0; index.classes().len()];
    let mut next = index.sample_count();
    for place in (0..index.directory_count()).rev() {
        let Some((_, record)) = index.directory(place) else {
            continue;
        };
        if let Some(count) = counts.get_mut(record.label as usize) {
            *count += next.saturating_sub(record.first_sample);
        }
        next = record.first_sample;
    }
    counts
}

/// The warning about classes without samples; `None` if every class has some.
#[must_use]
pub fn empty_classes(index: &FolderIndex, extensions: &[&str]) -> Option<String> {
    let counts = samples_by_class(index);
    let empty = counts.iter().zip(index.classes()).filter(|(samples, _)| **samples == 0);
    let empty: Vec<&str> = empty.map(|(_, name)| name.as_str()).collect();
    (!empty.is_empty()).then(|| {
        format!(
            "no {} file in class folder {}: no sample has its label; put files there, or remove the folder if it is no \
             class",
            extensions.join(" "),
            spelt_out(&empty)
        )
    })
}

/// Refuses class folders without samples whose subfolders have samples, as when `dataset.path` is the folder above
/// `train/` and `val/` instead of one of the two.
///
/// # Errors
/// Such folders exist; the error names them, and the path that was probably meant.
pub fn refuse_nested_classes(
    scanned: &ScannedFolder,
    root: &Path,
    format: FolderFormat,
) -> Result<(), DatasetError> {
    // Per class: files directly in it, and files in folders below.
    let mut files = vec![(0, 0); scanned.class_folders.len()];
    let is_own = |path: &[u8]| !path.contains(&b'/');
    for directory in &scanned.directories {
        if let Some((own, below)) = files.get_mut(directory.class as usize) {
            *if is_own(&directory.path) { own } else { below } += directory.file_count;
        }
    }
    let is_nested = |class: usize| matches!(files.get(class), Some((0, 1..)));
    let names: Vec<_> = (0..)
        .zip(&scanned.class_folders)
        .filter(|(class, _)| is_nested(*class))
        .map(|(_, name)| String::from_utf8_lossy(name))
        .collect();
    if names.is_empty() {
        return Ok(());
    }
    let mut parents: BTreeMap<&[u8], u64> = BTreeMap::new();
    for directory in &scanned.directories {
        let name = directory.path.iter().rposition(|byte| *byte == b'/');
        if let Some(name) = name.filter(|_| is_nested(directory.class as usize)) {
            *parents.entry(&directory.path[..name]).or_default() += directory.file_count;
        }
    }
    let is_train = |path: &[u8]| {
        path.split(|byte| *byte == b'/').any(|part| part.to_ascii_lowercase().starts_with(b"train"))
    };
    let meant = parents
        .iter()
        .rev()
        .max_by_key(|(path, files)| (**files > 0, is_train(path), **files))
        .map_or(&b""[..], |(path, _)| *path);
    let names: Vec<&str> = names.iter().map(|name| &**name).collect();
    Err(DatasetError::NestedClasses {
        path: root.to_owned(),
        names: spelt_out(&names),
        extensions: format.extensions.join(" "),
        meant: root.join(OsStr::from_bytes(meant)),
    })
}

/// The names in quotes, at most [`MAX_SPELT_OUT`] of them.
fn spelt_out(names: &[&str]) -> String {
    let shown: Vec<_> = names.iter().take(MAX_SPELT_OUT).map(|name| format!("{name:?}")).collect();
    let shown = shown.join(", ");
    match names.len().saturating_sub(MAX_SPELT_OUT) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

//! The classes as a user checks them: how many, from which to which, with how many samples; and the signs of a wrong
//! root, whose folders would become the labels in silence.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::index::FolderIndex;
use super::scan::{FolderFormat, ScannedFolder};
use crate::dataset::error::DatasetError;

/// Class folders that a message spells out.
const MAX_SPELT_OUT: usize = 5;

/// The number of classes, the first and the last, and those of the fewest and of the most samples.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClassSummary {
    /// How many.
    pub count: usize,
    /// The class of label 0.
    pub first: String,
    /// The class of the highest label.
    pub last: String,
    /// The fewest samples, and the first class that has them.
    pub least: (u64, String),
    /// The most samples, and the first class that has them.
    pub greatest: (u64, String),
}

impl ClassSummary {
    /// Of an index; `None` where there are no classes.
    #[must_use]
    pub fn of(index: &FolderIndex) -> Option<Self> {
        let shown = |name: &String| name.escape_debug().to_string();
        let counts = samples_by_class(index);
        let named = || counts.iter().copied().zip(index.classes());
        let least = named().min_by_key(|(samples, _)| *samples)?;
        // Of equal ones the last is the maximum.
        let greatest = named().rev().max_by_key(|(samples, _)| *samples)?;
        Some(Self {
            count: index.classes().len(),
            first: shown(index.classes().first()?),
            last: shown(index.classes().last()?),
            least: (least.0, shown(least.1)),
            greatest: (greatest.0, shown(greatest.1)),
        })
    }
}

impl fmt::Display for ClassSummary {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { count, first, last, least, greatest } = self;
        match count {
            1 => write!(formatter, "1, {first}, of ")?,
            count => write!(formatter, "{count}, {first} to {last}, of ")?,
        }
        if least.0 == greatest.0 {
            let each = if *count == 1 { "" } else { " each" };
            return write!(formatter, "{} samples{each}", least.0);
        }
        write!(formatter, "{} ({}) to {} ({}) samples", least.0, least.1, greatest.0, greatest.1)
    }
}

/// The samples of each class, in label order.
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

/// The sentence about classes without samples; `None` where each has some.
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

/// Refuses class folders that hold no samples of their own, but folders that do: as when `dataset.path` leads to
/// `train/` and `val/` instead of to one of them.
///
/// # Errors
/// Names the folders, and the path that was probably meant.
pub fn refuse_nested_classes(
    scanned: &ScannedFolder,
    root: &Path,
    format: FolderFormat,
) -> Result<(), DatasetError> {
    // Of each class: files of its own, and files in folders below.
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

/// The names in quotes, at most five of them.
fn spelt_out(names: &[&str]) -> String {
    let shown: Vec<_> = names.iter().take(MAX_SPELT_OUT).map(|name| format!("{name:?}")).collect();
    let shown = shown.join(", ");
    match names.len().saturating_sub(MAX_SPELT_OUT) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

//! Differences between a new scan and the previous one, with file names. Missing folders are reported as a warning, so
//! that a class folder that was removed by mistake or is not mounted is noticed before the labels change.

use std::cmp::Ordering;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;

use forebay_protocol::ids::SampleId;

use super::index::FolderIndex;
use crate::changes::Changes;
use forebay_storage::location::{FileId, FileTable};

/// The maximum number of folder names.
const NAMED: usize = 3;

/// The text about new, missing and changed files. Allocates memory per folder, not per file.
pub(super) fn all(before: &FolderIndex, now: &FolderIndex) -> String {
    let mut changes = Changes::default();
    let mut left: HashMap<&[u8], usize> = (0..before.directory_count())
        .filter_map(|place| Some((before.directory(place)?.0, place)))
        .collect();
    for place in 0..now.directory_count() {
        let Some((path, _)) = now.directory(place) else { continue };
        let known = left.remove(path).map_or(0..0, |place| samples(before, place));
        compare(&mut changes, (before, known), (now, samples(now, place)));
    }
    let mut left: Vec<usize> = left.into_values().collect();
    left.sort_unstable();
    for place in left {
        compare(&mut changes, (before, samples(before, place)), (now, 0..0));
    }
    changes.sentence()
}

/// The samples of a folder.
fn samples(index: &FolderIndex, place: usize) -> Range<u64> {
    let first = |place: usize| index.directory(place).map(|(_, record)| record.first_sample);
    let start = first(place).unwrap_or_else(|| index.sample_count());
    start..first(place + 1).unwrap_or_else(|| index.sample_count())
}

/// Compares the files of one folder; both indexes have them in the order of their names.
fn compare(
    changes: &mut Changes,
    (before, mut old): (&FolderIndex, Range<u64>),
    (now, mut new): (&FolderIndex, Range<u64>),
) {
    let name = |index: &FolderIndex, sample: Option<u64>| {
        let mut path = Vec::new();
        sample.map(|sample| {
            index.append_path(SampleId(sample), &mut path);
            (path, sample)
        })
    };
    let (mut left, mut right) = (name(before, old.next()), name(now, new.next()));
    loop {
        let order = match (&left, &right) {
            (None, None) => return,
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some((one, _)), Some((other, _))) => one.cmp(other),
        };
        if order.is_eq()
            && let (Some((path, one)), Some((_, other))) = (&mut left, &right)
        {
            let stamps = [(before, *one), (now, *other)]
                .map(|(index, sample)| FileTable::stamp(index, FileId(sample)));
            changes.compare(stamps[0], stamps[1], || std::mem::take(path));
        }
        if order.is_le() {
            if order.is_lt()
                && let Some((path, _)) = left.take()
            {
                changes.gone(|| path);
            }
            left = name(before, old.next());
        }
        if order.is_ge() {
            if order.is_gt()
                && let Some((path, _)) = right.take()
            {
                changes.added(|| path);
            }
            right = name(now, new.next());
        }
    }
}

/// The warning about folders with samples that exist only in the previous index.
pub(super) fn gone(before: &FolderIndex, now: &FolderIndex) -> Option<String> {
    let present: HashSet<&[u8]> =
        (0..now.directory_count()).filter_map(|place| Some(now.directory(place)?.0)).collect();
    let mut gone: BTreeMap<&[u8], u64> = BTreeMap::new();
    for place in 0..before.directory_count() {
        let Some((path, _)) = before.directory(place) else { continue };
        let Range { start, end } = samples(before, place);
        if end > start && !present.contains(path) {
            *gone.entry(topmost_absent(path, &present)).or_default() += end - start;
        }
    }
    let samples: u64 = gone.values().sum();
    let mut names: Vec<String> = gone
        .keys()
        .take(NAMED)
        .map(|path| format!("`{}`", String::from_utf8_lossy(path)))
        .collect();
    if gone.len() > NAMED {
        names.push(format!("{} more", gone.len() - NAMED));
    }
    (!gone.is_empty()).then(|| {
        format!(
            "folders with {samples} samples are gone since the last scan: {}; where that is a mistake, restore or mount \
             them and start again",
            names.join(", ")
        )
    })
}

/// The topmost folder above a path that is missing, or the path itself.
fn topmost_absent<'a>(path: &'a [u8], present: &HashSet<&[u8]>) -> &'a [u8] {
    let ends = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(end, _)| end);
    ends.map(|end| &path[..end]).find(|folder| !present.contains(folder)).unwrap_or(path)
}

//! What a new scan no longer finds, told by name: whoever removed a class folder by mistake, or has not mounted it, sees it
//! before the labels do.

use std::collections::{BTreeMap, HashSet};

use super::index::FolderIndex;

/// Folders that are named.
const NAMED: usize = 3;

/// The sentence about folders with samples that the index before had and the new one has not.
pub(super) fn gone(before: &FolderIndex, now: &FolderIndex) -> Option<String> {
    let present: HashSet<&[u8]> =
        (0..now.directory_count()).filter_map(|place| Some(now.directory(place)?.0)).collect();
    let mut gone: BTreeMap<&[u8], u64> = BTreeMap::new();
    for place in 0..before.directory_count() {
        let Some((path, record)) = before.directory(place) else { continue };
        let end = match before.directory(place + 1) {
            Some((_, next)) => next.first_sample,
            None => before.sample_count(),
        };
        let samples = end.saturating_sub(record.first_sample);
        if samples > 0 && !present.contains(path) {
            *gone.entry(topmost_absent(path, &present)).or_default() += samples;
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

/// The topmost folder above a path, or the path itself, that is not present.
fn topmost_absent<'a>(path: &'a [u8], present: &HashSet<&[u8]>) -> &'a [u8] {
    let ends = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(end, _)| end);
    ends.map(|end| &path[..end]).find(|folder| !present.contains(folder)).unwrap_or(path)
}

//! The differences between two indexes of a dataset: the number of files, and the names of the first ones.

use crate::index_file::IndexFile;
use forebay_storage::version::{FileStamp, ObjectStamp};
use std::collections::HashMap;

/// The maximum number of file names per kind of change.
const NAMED: usize = 3;
/// The maximum length of a name in the text, in characters.
const MAX_NAME_CHARS: usize = 80;

/// Files with one kind of change.
#[derive(Debug, Default)]
struct Kind {
    count: u64,
    names: Vec<String>,
}

/// New, missing and changed files.
#[derive(Debug, Default)]
pub struct Changes {
    new: Kind,
    gone: Kind,
    changed: Kind,
}

impl Kind {
    fn add(&mut self, count: u64, name: impl FnOnce() -> Vec<u8>) {
        self.count += count;
        if self.names.len() < NAMED && count > 0 {
            let name = name();
            let name = String::from_utf8_lossy(&name);
            self.names.push(format!(
                "`{}`",
                name.chars().take(MAX_NAME_CHARS).collect::<String>().escape_debug()
            ));
        }
    }

    /// For example `1204 gone (`a.jpg`, `b.jpg`, `c.jpg`, …)`.
    fn words(&self, what: &str) -> Option<String> {
        let more = if self.count > self.names.len() as u64 { ", …" } else { "" };
        (self.count > 0).then(|| format!("{} {what} ({}{more})", self.count, self.names.join(", ")))
    }
}

/// The text for messages, with the versions of the files if they differ.
#[must_use]
pub fn with_revisions(before: &IndexFile, now: &IndexFile, files: String) -> String {
    match (before.revision(), now.revision()) {
        (Some(before), Some(now)) if before != now => {
            format!("commit {now} instead of {before}; {files}")
        }
        _ => files,
    }
}

impl Changes {
    /// Counts a new file.
    pub fn added(&mut self, name: impl FnOnce() -> Vec<u8>) {
        self.new.add(1, name);
    }

    /// Counts a file that no longer exists.
    pub fn gone(&mut self, name: impl FnOnce() -> Vec<u8>) {
        self.gone.add(1, name);
    }

    /// Counts a file as changed if its stamps differ. Does nothing if a stamp is missing.
    pub fn compare(
        &mut self,
        before: Option<ObjectStamp>,
        now: Option<ObjectStamp>,
        name: impl FnOnce() -> Vec<u8>,
    ) {
        if let (Some(before), Some(now)) = (before, now)
            && !before.agrees(now)
        {
            self.changed.add(1, name);
        }
    }

    /// The text for messages.
    pub fn sentence(&self) -> String {
        let parts = [self.new.words("new"), self.gone.words("gone"), self.changed.words("changed")];
        let parts: Vec<_> = parts.into_iter().flatten().collect();
        match parts.is_empty() {
            true => "the last index has the same files".to_owned(),
            false => format!("files since the last index: {}", parts.join(", ")),
        }
    }
}

/// The text for two lists of files that contain many samples each.
pub fn of_files<'i>(
    before: impl Iterator<Item = (&'i [u8], FileStamp)>,
    now: impl Iterator<Item = (&'i [u8], FileStamp)>,
) -> String {
    let mut changes = Changes::default();
    let order: Vec<_> = before.collect();
    let mut left: HashMap<&[u8], FileStamp> = order.iter().copied().collect();
    for (path, stamp) in now {
        match left.remove(path) {
            None => changes.added(|| path.to_vec()),
            Some(known) => {
                // Files are compared by their times, objects by their tags.
                let is_rewritten = known.modified_seconds != stamp.modified_seconds
                    || known.modified_nanoseconds != stamp.modified_nanoseconds
                    || known.status_changed != stamp.status_changed;
                let other = ObjectStamp { bytes: u64::MAX, tag: 0 };
                let before = if is_rewritten { other } else { known.object() };
                changes.compare(Some(before), Some(stamp.object()), || path.to_vec());
            }
        }
    }
    for (path, _) in order.iter().filter(|(path, _)| left.contains_key(path)) {
        changes.gone(|| path.to_vec());
    }
    changes.sentence()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_list_the_first_names_and_count_all_files() {
        let stamp = |bytes, tag, modified_seconds| FileStamp {
            bytes,
            tag,
            modified_seconds,
            ..FileStamp::default()
        };
        let names: Vec<String> = (0..9).map(|number| format!("{number}.tar")).collect();
        let of = |range: std::ops::Range<usize>, stamp: FileStamp| {
            names[range].iter().map(move |name| (name.as_bytes(), stamp))
        };
        let before = of(0..5, stamp(7, 1, 0)).chain(of(5..6, stamp(7, 0, 0)));
        let now = of(4..5, stamp(7, 2, 0))
            .chain(of(3..4, stamp(8, 1, 0)))
            .chain(of(5..6, stamp(7, 3, 0)))
            .chain(of(6..7, stamp(1, 1, 1)));
        assert_eq!(
            of_files(before, now),
            "files since the last index: 1 new (`6.tar`), 3 gone (`0.tar`, `1.tar`, `2.tar`), 2 changed \
             (`4.tar`, `3.tar`)"
        );
        let gone = of_files(of(0..9, stamp(7, 0, 1)), of(0..1, stamp(7, 0, 2)));
        assert_eq!(
            gone,
            "files since the last index: 8 gone (`1.tar`, `2.tar`, `3.tar`, …), 1 changed (`0.tar`)"
        );
        let same = of_files(of(0..9, stamp(7, 0, 1)), of(0..9, stamp(7, 5, 1)));
        assert_eq!(same, "the last index has the same files");
    }
}

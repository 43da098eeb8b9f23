//! Hidden files and folders, which file managers, archives, notebooks and file systems create among the samples.
//!
//! `.ipynb_checkpoints` would become a class, `._x.jpg` (a Mac's resource fork) a defective image. [`VisibleEntries`]
//! lists a storage's directories without them, so that the scan does not see them, and counts the excluded entries.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use super::names::{Extensions, split_extension};
use forebay_storage::StorageError;
use forebay_storage::listing::{Directories, DirectoryStamp, EntryKind};

/// System folders without a leading dot: macOS archives, Synology and QNAP, ext4, Windows.
const SYSTEM_NAMES: [&[u8]; 7] = [
    b"__MACOSX",
    b"@eaDir",
    b"#recycle",
    b"@Recycle",
    b"lost+found",
    b"$RECYCLE.BIN",
    b"System Volume Information",
];
/// Names that are counted separately; the rest are counted together.
const MAX_NAMES: usize = 32;
/// Names that the summary lists.
const MAX_SPELT_OUT: usize = 5;

/// Whether a name begins with a dot or is that of a system folder.
#[must_use]
pub fn is_hidden(name: &[u8]) -> bool {
    name.starts_with(b".") || SYSTEM_NAMES.contains(&name)
}

/// How often each name was excluded.
#[derive(Debug, Default)]
struct Counts {
    by_name: BTreeMap<String, u64>,
    others: u64,
}

impl Counts {
    fn add(&mut self, name: &str) {
        if let Some(count) = self.by_name.get_mut(name) {
            *count += 1;
        } else if self.by_name.len() < MAX_NAMES {
            self.by_name.insert(name.to_owned(), 1);
        } else {
            self.others += 1;
        }
    }
}

/// The directories of a storage without hidden entries.
pub struct VisibleEntries<'a> {
    source: &'a dyn Directories,
    extensions: Extensions,
    counts: Mutex<Counts>,
}

impl<'a> VisibleEntries<'a> {
    /// Counts only excluded files that have one of the extensions: others would not be samples anyway.
    #[must_use]
    pub fn new(source: &'a dyn Directories, extensions: Extensions) -> Self {
        Self { source, extensions, counts: Mutex::default() }
    }

    /// The entries that the listings so far excluded, such as `2 .ipynb_checkpoints, 1 ._*`; may be empty.
    #[must_use]
    pub fn left_out(&self) -> String {
        let counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let mut names: Vec<_> = counts.by_name.iter().collect();
        names.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
        let (named, unnamed) = names.split_at(names.len().min(MAX_SPELT_OUT));
        let mut parts: Vec<_> =
            named.iter().map(|(name, count)| format!("{count} {name}")).collect();
        let others = counts.others + unnamed.iter().map(|(_, count)| **count).sum::<u64>();
        if others > 0 {
            parts.push(format!("{others} others"));
        }
        parts.join(", ")
    }

    fn leave_out(&self, name: &[u8], kind: EntryKind) {
        let kind = match kind {
            EntryKind::Object(_) => EntryKind::File,
            kind => kind,
        };
        let shown = match kind {
            EntryKind::File if split_extension(name, self.extensions).is_none() => return,
            // Every file has a different name; the pattern is sufficient.
            EntryKind::File if name.starts_with(b"._") => "._*".to_owned(),
            EntryKind::File => ".*".to_owned(),
            _ => String::from_utf8_lossy(name).escape_debug().to_string(),
        };
        self.counts.lock().unwrap_or_else(PoisonError::into_inner).add(&shown);
    }
}

impl Directories for VisibleEntries<'_> {
    fn list(
        &self,
        directory: &[u8],
        visit: &mut dyn FnMut(&[u8], EntryKind),
    ) -> Result<DirectoryStamp, StorageError> {
        self.source.list(directory, &mut |name, kind| {
            if is_hidden(name) { self.leave_out(name, kind) } else { visit(name, kind) }
        })
    }

    fn stamp(&self, directory: &[u8]) -> Result<DirectoryStamp, StorageError> {
        self.source.stamp(directory)
    }

    fn root_is_file(&self) -> bool {
        self.source.root_is_file()
    }

    fn remote_root(&self) -> Option<&Path> {
        self.source.remote_root()
    }

    fn server(&self) -> Option<String> {
        self.source.server()
    }

    fn revision(&self) -> Option<String> {
        self.source.revision()
    }

    fn read_revision(&self, revision: &str) {
        self.source.read_revision(revision);
    }
}

/// The warning about excluded entries.
#[must_use]
pub fn warning(left_out: &str) -> String {
    format!("left out hidden files and folders ({left_out}); dataset.hidden = true takes them in")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One directory with these entries.
    struct Entries(Vec<(String, EntryKind)>);

    impl Directories for Entries {
        fn list(
            &self,
            directory: &[u8],
            visit: &mut dyn FnMut(&[u8], EntryKind),
        ) -> Result<DirectoryStamp, StorageError> {
            for (name, kind) in &self.0 {
                visit(name.as_bytes(), *kind);
            }
            self.stamp(directory)
        }

        fn stamp(&self, _directory: &[u8]) -> Result<DirectoryStamp, StorageError> {
            Ok(DirectoryStamp::default())
        }
    }

    fn visible(entries: Vec<(String, EntryKind)>) -> (Vec<String>, String) {
        let entries = Entries(entries);
        let visible = VisibleEntries::new(&entries, &[".jpg"]);
        let mut names = Vec::new();
        let mut visit = |name: &[u8], _| names.push(String::from_utf8(name.to_vec()).unwrap());
        visible.list(b"", &mut visit).unwrap();
        (names, visible.left_out())
    }

    #[test]
    fn hidden_entries_are_excluded_and_counted_by_name_most_frequent_first() {
        let folders = ["a", ".git", "@eaDir", "__MACOSX", "_b", "@c", "#recycle"];
        let files = ["1.jpg", "._1.jpg", "._2.jpg", ".3.jpg", ".DS_Store", "Thumbs.db"];
        let entries = folders.map(|name| (name.to_owned(), EntryKind::Directory)).into_iter();
        let files = files.map(|name| (name.to_owned(), EntryKind::File));
        let (names, left_out) = visible(entries.chain(files).collect());
        assert_eq!(names, ["a", "_b", "@c", "1.jpg", "Thumbs.db"]);
        assert_eq!(left_out, "2 ._*, 1 #recycle, 1 .*, 1 .git, 1 @eaDir, 1 others");
    }

    #[test]
    fn counts_are_empty_without_hidden_entries_and_bounded_with_many_names() {
        assert_eq!(visible(vec![("a".to_owned(), EntryKind::Directory)]).1, "");
        let many = (0..100).map(|number| (format!(".{number:03}\n"), EntryKind::Directory));
        let (names, left_out) = visible(many.collect());
        assert_eq!(names.len(), 0);
        assert_eq!(left_out, "1 .000\\n, 1 .001\\n, 1 .002\\n, 1 .003\\n, 1 .004\\n, 95 others");
    }
}

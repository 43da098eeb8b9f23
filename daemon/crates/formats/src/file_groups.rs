//! The configurations and splits of a repository of Hugging Face's hub, by the names of its files: `forebay init` reads one
//! of them, and asks which if there are several.
//!
//! A group has the files of one folder and one extension whose names are equal up to their first digit:
//! `data/train-00000-of-00012.parquet` and its neighbours are `data/train-*.parquet`. The repository's own description of
//! its configurations, in its README, is not read.

use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};

use forebay_config::DatasetConfig;
use forebay_observe::format_bytes;

use crate::layouts::Layout;
use crate::registry::{of_pattern, open_storage};
use forebay_dataset::error::DatasetError;
use forebay_dataset::opening::OpenOptions;
use forebay_index::folder::hidden::is_hidden;
use forebay_index::saved_index::tell_missing;
use forebay_index::shard_paths::below;
use forebay_storage::Storage;
use forebay_storage::listing::EntryKind;

/// Extensions of files with many samples.
const EXTENSIONS: [&str; 13] = [
    ".parquet",
    ".tar",
    ".tar.gz",
    ".tar.zst",
    ".jsonl",
    ".jsonl.gz",
    ".jsonl.zst",
    ".arrow",
    ".tfrecord",
    ".array_record",
    ".arrayrecord",
    ".csv",
    ".tsv",
];
/// Extensions of files that describe a repository.
const DESCRIPTIONS: [&str; 6] = [".md", ".txt", ".json", ".yaml", ".yml", ".py"];
/// The most folders that are listed, and the most groups that a message names.
const MAX_FOLDERS: usize = 10_000;
const MAX_NAMED: usize = 24;

/// Files that are read together.
#[derive(Debug, Default, PartialEq, Eq)]
struct Group {
    files: u64,
    bytes: u64,
    /// The name of its first file.
    first: String,
}

/// The groups by their patterns, relative to the root.
type Groups = BTreeMap<String, Group>;

/// The layout of a repository with one group of files; `None`: it has none, or most bytes are in other files.
///
/// # Errors
/// It has several groups: the message has a command for each. Or a folder cannot be listed.
pub(crate) fn of_repository(
    config: &DatasetConfig,
    options: OpenOptions<'_>,
) -> Result<Option<Layout>, DatasetError> {
    let path = &config.path;
    if !path.starts_with("hf:") || of_pattern(path).is_some() {
        return Ok(None);
    }
    let storage = open_storage(path, &config.storage, options)?;
    if storage.root_is_file() {
        return Ok(None);
    }
    let Some(mut groups) = groups_in(storage.as_ref())? else { return Ok(None) };
    // A URL is text.
    let root = path.to_string_lossy();
    groups.retain(|pattern, _| of_pattern(Path::new(&format!("{root}/{pattern}"))).is_some());
    let mut named = groups.iter().map(|(pattern, group)| {
        let name = if group.files == 1 { &group.first } else { pattern };
        (format!("{root}/{name}"), group)
    });
    let Some((url, group)) = named.next() else { return Ok(None) };
    if groups.len() == 1 {
        let path = PathBuf::from(&url);
        let Some(format) = of_pattern(&path) else { return Ok(None) };
        let note = format!("{url} is read: {}", in_words(group));
        return Ok(Some(Layout { format: format.name, path, root: None, note }));
    }
    let lines = [(url, group)].into_iter().chain(named).take(MAX_NAMED);
    let lines: String = lines
        .map(|(url, group)| format!("\n    forebay init '{url}'    # {}", in_words(group)))
        .collect();
    let more = match groups.len().saturating_sub(MAX_NAMED) {
        0 => String::new(),
        more => format!("\n    and {more} more"),
    };
    let reason = format!(
        "has {} configurations or splits, by the names of its files; choose one:{lines}{more}",
        groups.len()
    );
    Err(DatasetError::Question { path: path.clone(), reason })
}

fn in_words(group: &Group) -> String {
    let plural = if group.files == 1 { "" } else { "s" };
    format!("{} file{plural}, {}", group.files, format_bytes(group.bytes))
}

/// The groups of files; `None`: most bytes are in other files.
fn groups_in(storage: &dyn Storage) -> Result<Option<Groups>, DatasetError> {
    let (mut groups, mut grouped_bytes, mut other_bytes) = (Groups::new(), 0_u64, 0_u64);
    let mut waiting = VecDeque::from([Vec::new()]);
    let mut folders = 0;
    while let Some(folder) = waiting.pop_front() {
        let listed = storage.list(&folder, &mut |name, kind| match kind {
            _ if is_hidden(name) => {}
            EntryKind::Directory | EntryKind::LinkedDirectory(_) => {
                waiting.push_back(below(&folder, name));
            }
            EntryKind::File | EntryKind::Object(_) => {
                let bytes = if let EntryKind::Object(stamp) = kind { stamp.bytes } else { 1 };
                let path = String::from_utf8_lossy(&below(&folder, name)).into_owned();
                match pattern_of(&path) {
                    Some(pattern) => {
                        let group = groups.entry(pattern).or_default();
                        if group.files == 0 {
                            group.first = path;
                        }
                        group.files += 1;
                        group.bytes = group.bytes.saturating_add(bytes);
                        grouped_bytes = grouped_bytes.saturating_add(bytes);
                    }
                    None if describes(&path) => {}
                    None => other_bytes = other_bytes.saturating_add(bytes),
                }
            }
        });
        listed.map_err(|error| tell_missing(error.into()))?;
        folders += 1;
        if folders > MAX_FOLDERS {
            return Ok(None);
        }
    }
    Ok((grouped_bytes > other_bytes).then_some(groups))
}

fn describes(path: &str) -> bool {
    DESCRIPTIONS.iter().any(|extension| path.ends_with(extension))
}

/// The pattern of a file with many samples: everything from the first digit of its name on may differ.
fn pattern_of(path: &str) -> Option<String> {
    let (folder, name) = path.rsplit_once('/').map_or(("", path), |(folder, name)| (folder, name));
    // The longest extension that fits.
    let extension = EXTENSIONS
        .iter()
        .filter(|extension| name.len() > extension.len() && name.ends_with(**extension))
        .max_by_key(|extension| extension.len())?;
    if path.contains(['*', '?', '{', '}']) {
        return None;
    }
    let stem = &name[..name.len() - extension.len()];
    let name = match stem.find(|char: char| char.is_ascii_digit()) {
        Some(digit) => format!("{}*{extension}", &stem[..digit]),
        None => name.to_owned(),
    };
    Some(if folder.is_empty() { name } else { format!("{folder}/{name}") })
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_storage::LocalFiles;

    #[test]
    fn names_up_to_their_first_digit_are_a_group() {
        for (path, pattern) in [
            ("data/train-00000-of-00012.parquet", "data/train-*.parquet"),
            ("en/test/0000.parquet", "en/test/*.parquet"),
            ("train.jsonl.gz", "train.jsonl.gz"),
            ("shards/a_001.tar", "shards/a_*.tar"),
        ] {
            assert_eq!(pattern_of(path).as_deref(), Some(pattern), "{path}");
        }
        for path in ["README.md", "a.jpg", ".parquet", "a/{1}.tar", "x.parquets"] {
            assert_eq!(pattern_of(path), None, "{path}");
        }
    }

    #[test]
    fn repository_of_pictures_with_a_table_has_no_groups() {
        let folder = tempfile::tempdir().unwrap();
        let make = |name: &str| {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "x").unwrap();
        };
        for name in ["metadata.csv", "README.md", "train/1.jpg"] {
            make(name);
        }
        let groups = || groups_in(&LocalFiles::open(folder.path()).unwrap()).unwrap();
        assert_eq!(groups(), None);
        for name in ["data/train-0.parquet", "data/train-1.parquet", "data/test-0.parquet"] {
            make(name);
        }
        let names: Vec<_> = groups().unwrap().into_keys().collect();
        assert_eq!(names, ["data/test-*.parquet", "data/train-*.parquet", "metadata.csv"]);
    }
}

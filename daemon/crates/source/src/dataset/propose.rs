//! What lies at a path that has no configuration yet: of which format it is, and what a first configuration says of it.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use forebay_config::DatasetConfig;

use super::ClassSummary;
use super::draft::{Draft, Seen};
use super::error::DatasetError;
use super::folder::hidden::is_hidden;
use super::folder::names::split_extension;
use super::opening::{IndexReport, OpenOptions, Opened};
use super::progress::ScanProgress;
use super::registry::{find, formats, open_silently, open_storage};
use crate::storage::listing::EntryKind;

/// Files of one format after which the look ends: the scan counts them all.
const ENOUGH_FILES: u64 = 10_000;
/// Folders after which the look ends: one that is this deep in a file system is hardly a dataset's.
const MAX_FOLDERS: u64 = 10_000;
/// Extensions that a message names.
const MAX_SPELT_OUT: usize = 5;

/// What a first configuration says of a dataset.
#[derive(Debug)]
pub struct Proposal {
    /// The format's name.
    pub format: String,
    /// What opening it found; its warnings and those of the samples that were read.
    pub report: IndexReport,
    /// `None` where there are no labels.
    pub classes: Option<ClassSummary>,
    /// The format's part of the configuration.
    pub draft: Draft,
}

/// Opens a dataset, which saves its index, reads a few samples and proposes a configuration. The warnings are for the caller.
///
/// # Errors
/// As [`open`](super::open).
pub fn propose(config: &DatasetConfig, options: OpenOptions<'_>) -> Result<Proposal, DatasetError> {
    let Opened { dataset, storage, mut report } = open_silently(config, options)?;
    let seen = Seen::read(dataset.as_ref(), storage.as_ref(), config);
    report.warnings.extend(seen.warnings());
    let draft = find(&config.format).map(|format| (format.draft)(&seen)).unwrap_or_default();
    let classes = dataset.class_summary();
    Ok(Proposal { format: config.format.clone(), report, classes, draft })
}

/// The name of the format that reads most of what lies at a configuration's path: a file, or the files in a folder and the
/// folders below. Its format is not looked at.
///
/// # Errors
/// There is nothing that a format reads; a folder cannot be listed; or the callback's wish to stop.
pub fn recognize(
    config: &DatasetConfig,
    options: OpenOptions<'_>,
) -> Result<&'static str, DatasetError> {
    let path = &config.path;
    let storage = open_storage(path, &config.storage, options)?;
    let mut census = Census::default();
    if storage.root_is_file() {
        census.count(path.file_name().unwrap_or_default().as_bytes());
        return census.verdict(path, "is a file");
    }
    let (mut waiting, mut linked) = (VecDeque::from([Vec::new()]), HashSet::new());
    let mut folders = 0;
    while let Some(folder) = waiting.pop_front() {
        storage.list(&folder, &mut |name, kind| {
            let below = || match folder.is_empty() {
                true => name.to_vec(),
                false => [&folder, name].join(&b'/'),
            };
            match kind {
                _ if is_hidden(name) => {}
                EntryKind::File | EntryKind::Object(_) => census.count(name),
                EntryKind::LinkedDirectory(identity) if !linked.insert(identity) => {}
                EntryKind::Directory | EntryKind::LinkedDirectory(_) => waiting.push_back(below()),
            }
        })?;
        folders += 1;
        let samples = census.most();
        let seen = ScanProgress { directories: folders, samples, waiting_for_another: false };
        if (options.progress)(seen).is_break() {
            return Err(DatasetError::Cancelled);
        }
        if samples >= ENOUGH_FILES || folders >= MAX_FOLDERS {
            break;
        }
    }
    census.verdict(path, if folders == 1 { "is a folder" } else { "is a folder of folders" })
}

/// Files by what reads them.
#[derive(Default)]
struct Census {
    /// By the format's place in the registry.
    readable: BTreeMap<usize, u64>,
    /// By extension.
    others: BTreeMap<String, u64>,
}

impl Census {
    fn count(&mut self, name: &[u8]) {
        let reads = |format: &super::registry::Format| {
            split_extension(name, format.folder.extensions).is_some()
        };
        if let Some(place) = formats().iter().position(reads) {
            *self.readable.entry(place).or_default() += 1;
            return;
        }
        let extension = Path::new(OsStr::from_bytes(name)).extension().map(OsStr::to_string_lossy);
        let extension = extension.map_or_else(
            || "without an extension".to_owned(),
            |extension| format!(".{}", extension.to_ascii_lowercase().escape_debug()),
        );
        // A tree of any size has few kinds of files.
        if self.others.len() < 1000 || self.others.contains_key(&extension) {
            *self.others.entry(extension).or_default() += 1;
        }
    }

    /// The files of the format that reads most.
    fn most(&self) -> u64 {
        self.readable.values().copied().max().unwrap_or(0)
    }

    /// The format that reads most; the first of several.
    fn verdict(&self, path: &Path, what: &str) -> Result<&'static str, DatasetError> {
        let most = self.readable.iter().rev().max_by_key(|(_, files)| **files);
        if let Some(format) = most.and_then(|(place, _)| formats().get(*place)) {
            return Ok(format.name);
        }
        let mut others: Vec<_> = self.others.iter().collect();
        others.sort_by_key(|(_, files)| std::cmp::Reverse(**files));
        let shown: Vec<_> = others
            .iter()
            .take(MAX_SPELT_OUT)
            .map(|(extension, files)| format!("{files} {extension}"))
            .collect();
        let found = match shown.is_empty() {
            true => format!("{what} without files"),
            false => format!("{what} that no format reads ({})", shown.join(", ")),
        };
        let known = formats()
            .iter()
            .map(|format| format!("{} reads {}", format.name, format.folder.extensions.join(" ")));
        let known = known.collect::<Vec<_>>().join(", ");
        Err(DatasetError::NotRecognized { path: path.to_owned(), found, known })
    }
}

//! What lies at a path that has no configuration yet: of which format it is, and what a first configuration says of it.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use forebay_config::DatasetConfig;

use super::ClassSummary;
use super::draft::{Draft, Seen};
use super::error::DatasetError;
use super::folder::hidden::is_hidden;
use super::opening::{IndexReport, OpenOptions, Opened};
use super::progress::ScanProgress;
use super::registry::{
    self, AUTO, Format, find, formats, of_pattern, open_silently, open_storage, resolve_keys,
};
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
/// As [`open`].
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
    if let Some(format) = of_pattern(path) {
        return Ok(format.name);
    }
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
                EntryKind::File | EntryKind::Object(_) => {
                    if folder.is_empty() {
                        census.look_for_mark(name);
                    }
                    census.count(name);
                }
                EntryKind::LinkedDirectory(identity) if !linked.insert(identity) => {}
                EntryKind::Directory | EntryKind::LinkedDirectory(_) => waiting.push_back(below()),
            }
        })?;
        if let Some(format) = census.marked {
            return Ok(format.name);
        }
        folders += 1;
        let samples = census.most();
        let seen = ScanProgress { directories: folders, samples, ..ScanProgress::default() };
        if (options.progress)(seen).is_break() {
            return Err(DatasetError::Cancelled);
        }
        if samples >= ENOUGH_FILES || folders >= MAX_FOLDERS {
            break;
        }
    }
    census.verdict(path, if folders == 1 { "is a folder" } else { "is a folder of folders" })
}

/// Opens a dataset and its storage, and logs the report's warnings. Finds its format where that is `"auto"`.
///
/// # Errors
/// An unknown format, or a dataset that cannot be used as configured.
pub fn open(config: &DatasetConfig, options: OpenOptions<'_>) -> Result<Opened, DatasetError> {
    let config = settled(config, options)?;
    registry::open(config.as_ref(), options)
}

/// Opens a dataset for its index alone: what `forebay index` does. A saved index that is still true is kept; that of a URL,
/// of which nobody can say so, is made anew.
///
/// # Errors
/// As [`open`].
pub fn build_index(
    config: &DatasetConfig,
    options: OpenOptions<'_>,
) -> Result<IndexReport, DatasetError> {
    let config = settled(config, options)?;
    registry::build_index(config.as_ref(), options)
}

/// Has a configuration whose format is `"auto"` name the one that is found, and its keys resolved.
///
/// # Errors
/// As [`recognize`], and keys that the format does not know.
pub fn settle_format(
    config: &mut DatasetConfig,
    options: OpenOptions<'_>,
) -> Result<(), DatasetError> {
    if config.format == AUTO {
        config.format = recognize(config, options)?.to_owned();
        tracing::info!(path = %config.path.display(), format = config.format, "the dataset's format was found");
        resolve_keys(config)?;
    }
    Ok(())
}

fn settled<'c>(
    config: &'c DatasetConfig,
    options: OpenOptions<'_>,
) -> Result<Cow<'c, DatasetConfig>, DatasetError> {
    if config.format != AUTO {
        return Ok(Cow::Borrowed(config));
    }
    let mut found = config.clone();
    settle_format(&mut found, options)?;
    Ok(Cow::Owned(found))
}

/// Files by what reads them.
#[derive(Default)]
struct Census {
    /// By the format's place in the registry.
    readable: BTreeMap<usize, u64>,
    /// By extension.
    others: BTreeMap<String, u64>,
    /// The format of which a mark was seen.
    marked: Option<&'static Format>,
}

impl Census {
    fn look_for_mark(&mut self, name: &[u8]) {
        let is_marked = |format: &&Format| format.marks.iter().any(|mark| mark.as_bytes() == name);
        self.marked = self.marked.or_else(|| formats().iter().find(is_marked));
    }

    fn count(&mut self, name: &[u8]) {
        if let Some(place) = formats().iter().position(|format| format.reads(name)) {
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
            .filter(|format| !format.extensions().is_empty())
            .map(|format| format!("{} reads {}", format.name, format.extensions().join(" ")));
        let known = known.collect::<Vec<_>>().join(", ");
        Err(DatasetError::NotRecognized { path: path.to_owned(), found, known })
    }
}

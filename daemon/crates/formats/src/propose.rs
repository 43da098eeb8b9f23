//! Inspects a path without a configuration: detects its format, and proposes a first configuration.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use forebay_config::DatasetConfig;

use crate::draft::{Draft, Seen};
use crate::layouts::check_classes;
use crate::npz;
use crate::registry::{
    self, AUTO, Format, formats, of_pattern, open_silently, open_storage, refuse_other_windows,
    resolve_keys,
};
use crate::tokens::{self, Width};
use crate::windows;
use forebay_dataset::ClassSummary;
use forebay_dataset::error::DatasetError;
use forebay_dataset::opening::{IndexReport, OpenOptions, Opened};
use forebay_dataset::progress::ScanProgress;
use forebay_index::folder::hidden::is_hidden;
use forebay_index::shard_paths::below;
use forebay_storage::StorageError;
use forebay_storage::listing::EntryKind;

/// The number of files of one format after which detection stops: the scan counts all of them.
const ENOUGH_FILES: u64 = 10_000;
/// The number of folders after which detection stops: a larger tree is hardly a dataset.
const MAX_FOLDERS: u64 = 10_000;
/// The maximum number of extensions in a message.
const MAX_SPELT_OUT: usize = 5;

/// A proposed configuration of a dataset.
#[derive(Debug)]
pub struct Proposal {
    /// The format's name.
    pub format: String,
    /// The report of the opening; its warnings include the ones about samples that were read.
    pub report: IndexReport,
    /// `None` if there are no labels.
    pub classes: Option<ClassSummary>,
    /// The format's part of the configuration.
    pub draft: Draft,
}

/// Opens a dataset, which saves its index, reads a few samples, and proposes a configuration. Warnings are returned,
/// not logged.
///
/// `asks`: whether class folders with names that are hardly classes are refused.
///
/// # Errors
/// As [`open`]; all samples that were read are unusable; or a question that only the user can answer.
pub fn propose(
    config: &DatasetConfig,
    asks: bool,
    options: OpenOptions<'_>,
) -> Result<Proposal, DatasetError> {
    windows::ask_for_length(config, &registry::OF_WINDOWS)?;
    let mut config = config.clone();
    let mut width = None;
    let given_dtype = tokens::given_dtype(&config);
    if config.format == tokens::FORMAT.name {
        let storage = open_storage(&config.path, &config.storage, options)?;
        width = tokens::settle_width(&mut config, storage.as_ref(), options)?;
    }
    let config = &config;
    let Opened { dataset, storage, mut report } = open_silently(config, options)?;
    let mut seen = Seen::read(dataset.as_ref(), storage.as_ref(), config, options.progress)?;
    if seen.is_all_bad() {
        let causes = report.warnings.iter().map(|warning| format!("; {warning}")).collect();
        return Err(DatasetError::AllUnusable {
            path: config.path.clone(),
            samples: seen.samples,
            named: seen.named_defects(),
            causes,
        });
    }
    if let Some(rows) = seen.rows_of_single_sample()
        && asks
        && config.format == npz::FORMAT.name
    {
        return Err(npz::question_of_rows(&config.path, Some(rows)));
    }
    let classes = dataset.description().classes;
    if classes.is_some() && asks {
        report.warnings.extend(check_classes(config, dataset.classes())?);
    }
    if let Some(Width { dtype, reason }) = &width {
        let note =
            format!("the tokens are {}: guessed from the data, since {reason}", dtype.name());
        report.warnings.push(note);
    }
    (seen.width, seen.given_dtype) = (width, given_dtype);
    seen.mark_lacking(&report.warnings);
    report.warnings.extend(seen.warnings());
    let draft = registry::named(config).map(|format| (format.draft)(&seen)).unwrap_or_default();
    Ok(Proposal { format: config.format.clone(), report, classes, draft })
}

/// The format that reads most of the files at a configuration's path: a file, or the files in a folder and the folders
/// below. Ignores the configured format.
///
/// # Errors
/// No file has a known format, a folder cannot be listed, or the callback requested a stop.
pub fn recognize(
    config: &DatasetConfig,
    options: OpenOptions<'_>,
) -> Result<&'static str, DatasetError> {
    let path = &config.path;
    if let Some(format) = of_pattern(path) {
        return Ok(format.name);
    }
    let storage = open_storage(path, &config.storage, options)?;
    let mut census = FormatCounts::default();
    if storage.root_is_file() {
        census.count(path.file_name().unwrap_or_default().as_bytes());
        return match census.verdict(path, "is a file")? {
            name if name == npz::FORMAT.name => Err(npz::question_of_rows(path, None)),
            name => Ok(name),
        };
    }
    let (mut waiting, mut linked) = (VecDeque::from([Vec::new()]), HashSet::new());
    let mut folders = 0;
    while let Some(folder) = waiting.pop_front() {
        let listed = storage.list(&folder, &mut |name, kind| match kind {
            EntryKind::File | EntryKind::Object(_) => {
                // Some marks are hidden files.
                census.look_for_mark(&below(&folder, name));
                if !is_hidden(name) {
                    census.count(name);
                }
            }
            _ if is_hidden(name) => {}
            EntryKind::LinkedDirectory(identity) if !linked.insert(identity) => {}
            EntryKind::Directory | EntryKind::LinkedDirectory(_) => {
                waiting.push_back(below(&folder, name));
            }
        });
        match listed {
            // Nothing exists below the URL.
            Err(StorageError::Vanished { .. }) if folder.is_empty() => {
                return Err(DatasetError::Missing { path: path.clone() });
            }
            listed => listed?,
        };
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

/// Opens a dataset and its storage, and logs the report's warnings. Detects the format if it is `"auto"`.
///
/// # Errors
/// An unknown format, or a dataset that cannot be used as configured.
pub fn open(config: &DatasetConfig, options: OpenOptions<'_>) -> Result<Opened, DatasetError> {
    let config = settled(config, options)?;
    registry::open(config.as_ref(), options)
}

/// Opens a dataset for its index only, as `forebay index` does. A saved index that is up to date is kept; that of a
/// URL, which cannot be checked, is rebuilt.
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

/// Opens the dataset of a configuration, and writes the detected format and the resolved keys into it.
///
/// # Errors
/// As [`open`], or a key that the format does not know.
pub fn open_configured(
    config: &mut DatasetConfig,
    options: OpenOptions<'_>,
) -> Result<Opened, DatasetError> {
    resolve_keys(config)?;
    settle_format(config, options)?;
    open(config, options)
}

/// Replaces the format `"auto"` of a configuration by the detected one, and resolves its keys.
///
/// # Errors
/// As [`recognize`], or a key that the format does not know.
pub fn settle_format(
    config: &mut DatasetConfig,
    options: OpenOptions<'_>,
) -> Result<(), DatasetError> {
    if config.format == AUTO {
        refuse_other_windows(config)?;
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

/// Counts files by the format that reads them.
#[derive(Default)]
struct FormatCounts {
    /// By the format's index in the registry.
    readable: BTreeMap<usize, u64>,
    /// By extension.
    others: BTreeMap<String, u64>,
    /// The format whose mark was found.
    marked: Option<&'static Format>,
}

impl FormatCounts {
    fn look_for_mark(&mut self, path: &[u8]) {
        // A mark may be a folder.
        let is_at = |mark: &&str| {
            let rest = path.strip_prefix(mark.as_bytes());
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
        };
        let is_marked = |format: &&Format| format.marks.iter().any(is_at);
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
        // Limits the memory; a tree of any size has few extensions.
        if self.others.len() < 1000 || self.others.contains_key(&extension) {
            *self.others.entry(extension).or_default() += 1;
        }
    }

    /// The number of files of the most frequent format.
    fn most(&self) -> u64 {
        self.readable.values().copied().max().unwrap_or(0)
    }

    /// The most frequent format; the first one if several are equal.
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
        let known = format!(
            "{known}. Any other kind is read by a Dataset in Python: forebay.Loader(dataset)"
        );
        Err(DatasetError::NotRecognized { path: path.to_owned(), found, known })
    }
}

//! Selects samples from a scanned folder: the list of classes, the list of ids, the limit.
//!
//! `dataset.classes` sets the labels and must be complete: folders and lines must match. `dataset.ids` selects samples;
//! their order remains that of the scan. `dataset.limit` then keeps the first samples. Lists are read completely here
//! and dropped afterwards.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::names::{Extensions, NameDecoder, NameEncoder};
use super::scan::{FolderFormat, ScannedDirectory, ScannedFolder};
use forebay_dataset::error::DatasetError;

/// A text file with one entry per line; blank lines are ignored.
#[derive(Debug)]
pub struct ListFile {
    path: PathBuf,
    bytes: Vec<u8>,
    /// A prefix that entries may have.
    root: Option<PathBuf>,
}

impl ListFile {
    /// Reads the whole file.
    ///
    /// # Errors
    /// The file is missing or unreadable; `key` is the configuration key for the message.
    pub fn read(path: &Path, key: &'static str) -> Result<Self, DatasetError> {
        let bytes = std::fs::read(path)
            .map_err(|error| DatasetError::from_io(path.to_owned(), key, error))?;
        Ok(Self { path: path.to_owned(), bytes, root: None })
    }

    /// Accepts entries that begin with the samples' root, as the paths of a loader's `paths()` do.
    #[must_use]
    pub fn below(self, root: Option<&Path>) -> Self {
        Self { root: root.map(Path::to_owned), ..self }
    }

    /// The unmodified file.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The entries with their lines, counted from 1, without `\r`, a leading `./` and the samples' root.
    pub fn entries(&self) -> impl Iterator<Item = (usize, &[u8])> {
        let root = self.root.as_deref().map_or(&b""[..], |root| root.as_os_str().as_bytes());
        let root = root.strip_suffix(b"/").unwrap_or(root);
        let below = move |line: &'_ [u8]| {
            let rest = line.strip_prefix(root).and_then(|rest| rest.strip_prefix(b"/"));
            rest.filter(|_| !root.is_empty()).map(<[u8]>::len)
        };
        self.bytes.split(|byte| *byte == b'\n').enumerate().filter_map(move |(place, line)| {
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            let line = line.strip_prefix(b"./").unwrap_or(line);
            let line = below(line).map_or(line, |length| &line[line.len() - length..]);
            (!line.is_empty()).then_some((place + 1, line))
        })
    }

    /// The reason text for an empty selection.
    pub fn lists_none(&self) -> String {
        format!("{} lists none", self.path.display())
    }

    /// An error in a line of the list.
    pub fn error(&self, line: usize, message: String) -> DatasetError {
        DatasetError::List { path: self.path.clone(), line, message }
    }
}

/// The names of a list that selects samples, and which of them were found.
pub struct Listed<'a> {
    list: &'a ListFile,
    /// Sorted: the name, its line, whether it was found.
    names: Vec<(&'a [u8], usize, bool)>,
}

impl<'a> Listed<'a> {
    /// # Errors
    /// A name is listed twice.
    pub fn new(list: &'a ListFile) -> Result<Self, DatasetError> {
        let mut names: Vec<_> = list.entries().map(|(line, name)| (name, line, false)).collect();
        names.sort_unstable();
        if let Some(pair) = names.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            let shown = String::from_utf8_lossy(pair[0].0);
            return Err(list.error(
                pair[1].1,
                format!(
                    "{shown:?} is listed already in line {}; a sample is used once an epoch",
                    pair[0].1
                ),
            ));
        }
        Ok(Self { list, names })
    }

    /// Whether a sample's name is listed; marks it as found.
    pub fn take(&mut self, name: &[u8]) -> bool {
        let place = self.names.binary_search_by(|entry| entry.0.cmp(name));
        place.is_ok_and(|place| {
            self.names[place].2 = true;
            true
        })
    }

    /// # Errors
    /// A name does not belong to a sample; `form` describes the form of names.
    pub fn finish(self, form: &str) -> Result<(), DatasetError> {
        let missing = self.names.iter().filter(|entry| !entry.2).min_by_key(|entry| entry.1);
        missing.map_or(Ok(()), |(name, line, _)| {
            let shown = String::from_utf8_lossy(name);
            Err(self.list.error(*line, format!("{shown:?} is no sample of the dataset; {form}")))
        })
    }
}

/// The lists and the limit of a configuration.
#[derive(Debug, Default)]
pub struct Selection {
    /// `dataset.classes`.
    pub classes: Option<ListFile>,
    /// `dataset.ids`.
    pub ids: Option<ListFile>,
    /// `dataset.limit`.
    pub limit: Option<u64>,
}

/// The selected samples and classes.
#[derive(Debug)]
pub struct SelectedFolder {
    /// In label order; empty if there are no classes.
    pub classes: Vec<Vec<u8>>,
    /// The label of each class folder, by its index among the sorted folders.
    pub labels: Vec<u32>,
    /// In the order of ids.
    pub directories: Vec<ScannedDirectory>,
}

impl Selection {
    /// Applies the lists and the limit to a scan's result.
    ///
    /// # Errors
    /// A list does not match the folder, or no samples are left.
    pub fn apply(
        &self,
        scanned: ScannedFolder,
        root: &Path,
        format: FolderFormat,
    ) -> Result<SelectedFolder, DatasetError> {
        let extensions = || format.extensions.join(" ");
        let none = |reason: String| DatasetError::NoSamples { path: root.to_owned(), reason };
        if scanned.sample_count() == 0 {
            return Err(none(format!("there is no {} file in it", extensions())));
        }
        let ScannedFolder { class_folders, mut directories, .. } = scanned;
        let (classes, labels) = match &self.classes {
            None => (class_folders.clone(), (0..).take(class_folders.len()).collect()),
            Some(list) => number_classes(list, &class_folders)?,
        };
        if let Some(ids) = &self.ids {
            directories = keep_listed(ids, directories, format.extensions)?;
            if directories.iter().all(|directory| directory.file_count == 0) {
                return Err(none(ids.lists_none()));
            }
        }
        if let Some(limit) = self.limit {
            if limit == 0 {
                return Err(none("dataset.limit is 0; leave it out or raise it".to_owned()));
            }
            keep_first(limit, &mut directories);
        }
        Ok(SelectedFolder { classes, labels, directories })
    }
}

/// The classes in listed order, and the label of each folder.
fn number_classes(
    list: &ListFile,
    folders: &[Vec<u8>],
) -> Result<(Vec<Vec<u8>>, Vec<u32>), DatasetError> {
    let mut labels: Vec<Option<u32>> = vec![None; folders.len()];
    let mut classes = Vec::with_capacity(folders.len());
    for ((line, entry), label) in list.entries().zip(0_u32..) {
        let entry = entry.strip_suffix(b"/").unwrap_or(entry);
        let shown = String::from_utf8_lossy(entry);
        let Ok(place) = folders.binary_search_by(|folder| folder.as_slice().cmp(entry)) else {
            return Err(list.error(
                line,
                format!("class {shown:?} has no folder in the dataset; correct the name or remove the line"),
            ));
        };
        if labels[place].replace(label).is_some() {
            return Err(
                list.error(line, format!("class {shown:?} is listed twice; remove one line"))
            );
        }
        classes.push(entry.to_vec());
    }
    let not_listed = |folder: &Vec<u8>| DatasetError::ClassNotListed {
        path: list.path.clone(),
        folder: String::from_utf8_lossy(folder).into_owned(),
    };
    let labels = labels
        .into_iter()
        .zip(folders)
        .map(|(label, folder)| label.ok_or_else(|| not_listed(folder)))
        .collect::<Result<_, _>>()?;
    Ok((classes, labels))
}

/// Keeps the listed files in their order.
fn keep_listed(
    ids: &ListFile,
    directories: Vec<ScannedDirectory>,
    extensions: Extensions,
) -> Result<Vec<ScannedDirectory>, DatasetError> {
    let mut listed = Listed::new(ids)?;
    let mut kept = Vec::with_capacity(directories.len());
    let mut path = Vec::new();
    for directory in directories {
        let start = path_prefix(&directory.path, &mut path);
        let mut decoder = NameDecoder::new(&directory.encoded_names, extensions, start);
        let mut encoder = NameEncoder::default();
        let mut selected = ScannedDirectory {
            path: directory.path.clone(),
            class: directory.class,
            stamp: directory.stamp,
            ..ScannedDirectory::default()
        };
        for file in 0.. {
            if file as u64 >= directory.file_count {
                break;
            }
            let Some((stem_end, code)) = next_name(&mut decoder, &mut path) else {
                break;
            };
            if listed.take(&path) {
                selected.file_count += 1;
                selected.stamps.extend(directory.stamps.get(file).copied());
                let names = &mut selected.encoded_names;
                // Cannot overflow: the names of the whole directory fit.
                let _ =
                    encoder.push(&path[start..stem_end], code, names, &mut selected.block_offsets);
            }
            path.truncate(stem_end);
        }
        kept.push(selected);
    }
    listed.finish(&format!(
        "paths are relative to dataset.path, as in CLASS/name{}, or those that loader.paths() gives",
        extensions.first().copied().unwrap_or_default()
    ))?;
    Ok(kept)
}

/// Replaces `path` by a directory's path, with a trailing slash unless it is the root. Returns the length.
fn path_prefix(directory: &[u8], path: &mut Vec<u8>) -> usize {
    path.clear();
    path.extend_from_slice(directory);
    if !directory.is_empty() {
        path.push(b'/');
    }
    path.len()
}

/// Appends the next whole name; returns the end of its stem, and the code of its extension.
fn next_name(decoder: &mut NameDecoder<'_>, path: &mut Vec<u8>) -> Option<(usize, u16)> {
    decoder.next_stem(path)?;
    let stem_end = path.len();
    decoder.finish_name(path)?;
    Some((stem_end, decoder.extension()))
}

/// Keeps the first samples. Directories without samples stay, because a change in them is a change of the dataset.
fn keep_first(limit: u64, directories: &mut [ScannedDirectory]) {
    let mut left = limit;
    for directory in directories {
        if directory.file_count > left {
            // Names after the last one are never decoded; the blocks after it are removed.
            directory.file_count = left;
            directory.stamps.truncate(usize::try_from(left).unwrap_or(usize::MAX));
            let blocks =
                usize::try_from(left.div_ceil(super::names::BLOCK_NAMES)).unwrap_or(usize::MAX);
            if let Some(end) = directory.block_offsets.get(blocks) {
                directory.encoded_names.truncate(*end as usize);
            }
            directory.block_offsets.truncate(blocks);
        }
        left -= directory.file_count;
    }
}

//! Detects the probable layout of a folder with several kinds of files: COCO, VOC, YOLO, images with masks, one array per
//! column. The names of their folders are not classes, and training with them as labels is useless.
//!
//! Only `forebay init` detects layouts: a run reads what its configuration describes.

use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};
use std::path::{Path, PathBuf};

use forebay_config::DatasetConfig;

use crate::fields::IMAGES;
use crate::file_groups;
use crate::indexed::Format;
use crate::labels::{Labels, Voc, Yolo};
use crate::manifest::coco::Coco;
use crate::manifest::{Manifest, NamedPictures, named_pictures, tabular};
use crate::registry::{of_pattern, open_storage};
use crate::tables::TableFormat;
use forebay_dataset::error::DatasetError;
use forebay_dataset::npy_header::{ArrayHeader, MAX_HEADER_BYTES};
use forebay_dataset::opening::OpenOptions;
use forebay_index::folder::hidden::is_hidden;
use forebay_index::saved_index::tell_missing;
use forebay_index::shard_paths::{self, below};
use forebay_index::stored_file::StoredFile;
use forebay_storage::listing::EntryKind;
use forebay_storage::{Storage, StorageError};

/// The maximum number of folders to list.
const MAX_FOLDERS: usize = 200;
/// The maximum depth of folders below the root.
const MAX_DEPTH: usize = 3;
/// The maximum number of file names per folder to compare: those with the smallest digests, which are the same names in
/// each folder.
const MAX_COMPARED: usize = 512;
/// The maximum number of JSON files to inspect; a folder with more has one per sample.
const MAX_JSON: usize = 16;
/// The number of bytes to read from the start and from the end of a JSON file.
const JSON_BYTES: u64 = 64 << 10;
/// The number of a COCO file's images to look for.
const MAX_SOUGHT: usize = 4;
/// The maximum number of arrays that may be columns.
const MAX_COLUMNS: usize = 8;
/// The percentage of equal names from which on the files of two folders belong together.
const PAIRED_PERCENT: usize = 80;
/// Suffixes of masks' names after their images' names.
const MASK_SUFFIXES: [&str; 6] = ["_mask", "-mask", "_masks", "_seg", "_gt", "_label"];
/// Folders with parts of samples or splits of a dataset.
const ROLES: [&str; 14] = [
    "images",
    "image",
    "imgs",
    "img",
    "masks",
    "mask",
    "labels",
    "annotations",
    "train",
    "val",
    "valid",
    "validation",
    "test",
    "segmentations",
];

/// A configuration for the detected layout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// The format's name.
    pub format: &'static str,
    /// The value of `dataset.path`.
    pub path: PathBuf,
    /// The value of `dataset.root`, if it is needed.
    pub root: Option<PathBuf>,
    /// A sentence for the user.
    pub note: String,
}

/// One folder.
#[derive(Default)]
struct Folder {
    /// Relative to the root; empty: the root.
    path: Vec<u8>,
    /// By lower-case extension.
    files: BTreeMap<String, u64>,
    /// Digests of the names without their extensions.
    stems: BTreeSet<u64>,
    json: Vec<Vec<u8>>,
    arrays: Vec<Vec<u8>>,
}

impl Folder {
    fn name(&self) -> String {
        let name = self.path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        String::from_utf8_lossy(name).into_owned()
    }

    fn parent(&self) -> &[u8] {
        let end = self.path.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
        &self.path[..end]
    }

    fn pictures(&self) -> u64 {
        IMAGES.iter().filter_map(|extension| self.files.get(*extension)).sum()
    }

    fn of(&self, extension: &str) -> u64 {
        self.files.get(extension).copied().unwrap_or(0)
    }

    fn add(&mut self, name: &[u8]) {
        let text = String::from_utf8_lossy(name);
        let (stem, extension) = text.rsplit_once('.').unwrap_or((&text, ""));
        let extension = extension.to_ascii_lowercase();
        if extension == "json" && self.json.len() <= MAX_JSON {
            self.json.push(name.to_vec());
        }
        if extension == "npy" && self.arrays.len() <= MAX_COLUMNS {
            self.arrays.push(name.to_vec());
        }
        // Limits the memory; a tree of any size has few extensions.
        if self.files.len() < 100 || self.files.contains_key(&extension) {
            *self.files.entry(extension).or_default() += 1;
        }
        let lower = stem.to_ascii_lowercase();
        let stem =
            MASK_SUFFIXES.iter().find_map(|suffix| lower.strip_suffix(suffix)).unwrap_or(&lower);
        let digest = blake3::hash(stem.as_bytes());
        let digest = digest.as_bytes().first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        self.stems.insert(digest);
        if self.stems.len() > MAX_COMPARED {
            self.stems.pop_last();
        }
    }

    /// Whether nearly all names of one folder occur in the other.
    fn is_paired_with(&self, other: &Self) -> bool {
        let least: BTreeSet<_> = self.stems.union(&other.stems).take(MAX_COMPARED).collect();
        let both =
            least.iter().filter(|stem| self.stems.contains(**stem) && other.stems.contains(**stem));
        self.stems.len() > 1 && both.count() * 100 >= least.len() * PAIRED_PERCENT
    }
}

/// The folders at a root, breadth first.
struct Tree<'a> {
    root: &'a Path,
    storage: &'a dyn Storage,
    folders: Vec<Folder>,
}

impl<'a> Tree<'a> {
    fn list(
        root: &'a Path,
        storage: &'a dyn Storage,
        options: OpenOptions<'_>,
    ) -> Result<Self, DatasetError> {
        let mut tree = Self { root, storage, folders: Vec::new() };
        let (mut waiting, mut linked) = (VecDeque::from([(Vec::new(), 0)]), HashSet::new());
        while let Some((path, depth)) = waiting.pop_front() {
            let mut folder = Folder { path, ..Folder::default() };
            let path = folder.path.clone();
            let visit = &mut |name: &[u8], kind| match kind {
                _ if is_hidden(name) => {}
                EntryKind::File | EntryKind::Object(_) => folder.add(name),
                EntryKind::LinkedDirectory(identity) if !linked.insert(identity) => {}
                EntryKind::Directory | EntryKind::LinkedDirectory(_) if depth < MAX_DEPTH => {
                    waiting.push_back((below(&path, name), depth + 1));
                }
                EntryKind::Directory | EntryKind::LinkedDirectory(_) => {}
            };
            let listed = options.call("listing", root, || storage.list(&path, visit));
            listed.map_err(|error| match error {
                StorageError::Vanished { .. } if path.is_empty() => {
                    DatasetError::Missing { path: root.to_owned() }
                }
                error => error.into(),
            })?;
            tree.folders.push(folder);
            if tree.folders.len() >= MAX_FOLDERS {
                break;
            }
        }
        Ok(tree)
    }

    fn full(&self, path: &[u8]) -> PathBuf {
        match path.is_empty() {
            true => self.root.to_owned(),
            false => self.root.join(String::from_utf8_lossy(path).as_ref()),
        }
    }

    fn question(&self, reason: String) -> DatasetError {
        DatasetError::Question { path: self.root.to_owned(), reason }
    }

    /// Whether a folder contains all of the files.
    fn has_all(&self, folder: &[u8], names: &[String]) -> Result<bool, DatasetError> {
        for name in names {
            match StoredFile::if_there(self.storage, &below(folder, name.as_bytes())) {
                Ok(Some(_)) => {}
                // A path in a missing or empty folder is not an outage here.
                Ok(None) | Err(StorageError::Away { .. } | StorageError::Dangling { .. }) => {
                    return Ok(false);
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(!names.is_empty())
    }

    /// The folder that contains the images of a COCO file: the file's folder, or another one in the tree.
    fn pictures_of(&self, json: &[u8], names: &[String]) -> Result<Option<&[u8]>, DatasetError> {
        let end = json.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
        let own = &json[..end];
        let others = self.folders.iter().map(|folder| folder.path.as_slice());
        for folder in std::iter::once(own).chain(others) {
            if self.has_all(folder, names)? {
                let known = self.folders.iter().find(|other| other.path == folder);
                return Ok(known.map(|known| known.path.as_slice()));
            }
        }
        Ok(None)
    }

    fn coco(&self) -> Result<Option<Layout>, DatasetError> {
        let few = |folder: &&Folder| folder.json.len() <= MAX_JSON;
        let all = self.folders.iter().filter(few);
        let all = all.flat_map(|folder| folder.json.iter().map(|name| below(&folder.path, name)));
        let (mut found, mut annotated) = (Vec::new(), None);
        for path in all.take(MAX_JSON) {
            let head = CocoHead::read(self.storage, &path)?;
            match head.names() {
                Some(names) => found.push((rank(&path), path, names)),
                None if head.has("annotations") => annotated = annotated.or(Some(path)),
                None => {}
            }
        }
        let has_pictures = self.folders.iter().any(|folder| folder.pictures() > 0);
        if let (Some(path), true, true) = (&annotated, found.is_empty(), has_pictures) {
            return Err(self.question(format!(
                "holds {} with annotations, which is not a COCO file that lists pictures by \"file_name\"; save the \
                 annotations as one and give its path, or list them in a CSV (format = \"manifest\"). {AS_CLASSES}",
                self.full(path).display()
            )));
        }
        found.sort();
        let [(best, path, names), others @ ..] = &found[..] else { return Ok(None) };
        let shown = |path: &[u8]| self.full(path).display().to_string();
        if others.first().is_some_and(|(rank, ..)| rank == best) {
            let all: Vec<_> = found.iter().map(|(_, path, _)| shown(path)).collect();
            return Err(self.question(format!(
                "holds several COCO files; name one to init: {}",
                all.join(", ")
            )));
        }
        self.coco_of(path, names, others.len()).map(Some)
    }

    fn coco_of(
        &self,
        path: &[u8],
        names: &[String],
        others: usize,
    ) -> Result<Layout, DatasetError> {
        let full = self.full(path);
        let Some(folder) = self.pictures_of(path, names)? else {
            return Err(self.question(format!(
                "{} lists pictures, such as {:?}, that are neither in its folder nor in one beside it; name their folder \
                 with --set dataset.root=FOLDER and the file itself as init's path",
                full.display(),
                names.first().map_or("", String::as_str)
            )));
        };
        let is_beside = path.iter().rposition(|byte| *byte == b'/').unwrap_or(0) == folder.len()
            && path.starts_with(folder);
        let root = (!is_beside).then(|| self.full(folder));
        let more = match others {
            0 => String::new(),
            others => format!("; {others} more COCO files are beside it"),
        };
        let note = format!("a COCO file, and its pictures are in {:?}{more}", self.full(folder));
        Ok(Layout { format: "coco", path: full, root, note })
    }

    /// YOLO's labels: a text file for each image, in separate folders.
    fn yolo(&self) -> Option<Layout> {
        let texts = self.folders.iter().find(|folder| {
            let is_labels = folder
                .path
                .split(|byte| *byte == b'/')
                .any(|part| part.eq_ignore_ascii_case(b"labels"));
            is_labels && folder.of("txt") > 0
        })?;
        let has_pictures = self.folders.iter().any(|folder| folder.pictures() > 0);
        let note = format!(
            "YOLO's layout: {:?} has {} .txt files for the pictures beside it; dataset.image_set names other pictures than \
             those of \"train\"",
            texts.name(),
            texts.of("txt")
        );
        let format = Labels::<Yolo>::FORMAT.name;
        has_pictures.then(|| Layout { format, path: self.root.to_owned(), root: None, note })
    }

    /// Pascal VOC's folders.
    fn voc(&self) -> Option<Layout> {
        let named = |name: &[u8]| self.folders.iter().find(|folder| folder.path == name);
        let annotations = named(b"Annotations")?.of("xml");
        let has_pictures = named(b"JPEGImages")?.pictures() > 0;
        let note = format!(
            "Pascal VOC's layout with {annotations} files in Annotations; dataset.image_set names one of its ImageSets"
        );
        let format = Labels::<Voc>::FORMAT.name;
        let is_one = annotations > 0 && has_pictures;
        is_one.then(|| Layout { format, path: self.root.to_owned(), root: None, note })
    }

    /// Refuses two folders whose files have the same names, if one folder contains masks.
    fn refuse_pairs(&self) -> Result<(), DatasetError> {
        for (place, first) in self.folders.iter().enumerate() {
            for second in &self.folders[place + 1..] {
                if first.pictures() == 0 || second.pictures() == 0 || !first.is_paired_with(second)
                {
                    continue;
                }
                let is_png = |folder: &Folder| folder.of("png") == folder.pictures();
                let is_named = |folder: &Folder| {
                    folder.path.split(|byte| *byte == b'/').any(|part| {
                        let part = String::from_utf8_lossy(part).to_ascii_lowercase();
                        part.contains("mask")
                            || part.contains("seg")
                            || part == "labels"
                            || part == "annotations"
                    })
                };
                let is_mask = |folder: &Folder, other: &Folder| {
                    is_named(folder) && !is_named(other) || is_png(folder) && !is_png(other)
                };
                let (pictures, masks) = match (is_mask(second, first), is_mask(first, second)) {
                    (true, false) => (first, second),
                    (false, true) => (second, first),
                    _ => continue,
                };
                if pictures.parent() != masks.parent() && !is_named(masks) {
                    continue;
                }
                let shown = |folder: &Folder| String::from_utf8_lossy(&folder.path).into_owned();
                return Err(self.question(format!(
                    "has files of the same names in {:?} and {:?}: pictures and their masks, it seems. List them in a CSV \
                     with the columns image,mask, a line such as {0}/NAME.jpg,{1}/NAME.png for each, and give its path: \
                     format = \"manifest\", preset = \"segmentation\", dataset.fields: image = {{ from = \"image\", as = \
                     \"image\" }} and mask = {{ from = \"mask\", as = \"image\" }}. {2}",
                    shown(pictures),
                    shown(masks),
                    AS_CLASSES
                )));
            }
        }
        Ok(())
    }

    /// Refuses arrays with equal numbers of rows in one folder: they are columns of one table rather than samples.
    fn refuse_columns(&self, options: OpenOptions<'_>) -> Result<(), DatasetError> {
        let [root] = &self.folders[..] else { return Ok(()) };
        if !(2..=MAX_COLUMNS).contains(&root.arrays.len()) {
            return Ok(());
        }
        let mut arrays = Vec::new();
        for name in &root.arrays {
            let file =
                options.call("opening", self.root, || StoredFile::new(self.storage, name))?;
            let mut head = Vec::new();
            file.read(0, file.stamp.bytes.min(MAX_HEADER_BYTES as u64), &mut head)?;
            let Ok(header) = ArrayHeader::parse(&head) else { return Ok(()) };
            arrays.push((String::from_utf8_lossy(name).into_owned(), header.shape));
        }
        let rows = arrays[0].1.first().copied().unwrap_or(0);
        let have_rows = rows > 1 && arrays.iter().all(|(_, shape)| shape.first() == Some(&rows));
        let differ = arrays
            .iter()
            .any(|(_, shape)| shape.len() != arrays[0].1.len() || shape[1..] != arrays[0].1[1..]);
        let are_named = arrays.iter().all(|(name, _)| {
            let name = name.to_ascii_lowercase();
            let first = name.split(['_', '-', '.']).next().unwrap_or_default().to_owned();
            [
                "x", "y", "data", "labels", "label", "targets", "target", "features", "inputs",
                "outputs", "images",
            ]
            .contains(&first.as_str())
        });
        if !have_rows || !(differ || are_named) {
            return Ok(());
        }
        let named: Vec<_> =
            arrays.iter().map(|(name, shape)| format!("{name} {shape:?}")).collect();
        Err(self.question(format!(
            "holds arrays of {rows} rows each ({}): columns of one dataset, it seems, and not {} samples. Rows of one array \
             are read by its own path, as in `forebay init {}`, without the others; for rows of all, save them as a table, \
             such as datasets.Dataset.from_dict({{\"x\": x, \"y\": y}}).save_to_disk(FOLDER) (format = \"arrow\"). To read \
             each file as a sample: --set dataset.format=npy",
            named.join(", "),
            arrays.len(),
            self.full(&root.arrays[0]).display()
        )))
    }
}

/// The end of a question about folders.
const AS_CLASSES: &str =
    "To read the folders as classes all the same: --set dataset.format=image-folder";

/// Sorts COCO files by the probability that they are intended.
fn rank(path: &[u8]) -> (bool, bool) {
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    let name = String::from_utf8_lossy(name).to_ascii_lowercase();
    (!name.contains("instances"), !name.contains("train"))
}

/// The start and the end of a JSON file.
struct CocoHead(Vec<u8>);

impl CocoHead {
    fn read(storage: &dyn Storage, path: &[u8]) -> Result<Self, DatasetError> {
        let Some(file) = StoredFile::if_there(storage, path)? else { return Ok(Self(Vec::new())) };
        let bytes = file.stamp.bytes;
        let (mut text, mut end) = (Vec::new(), Vec::new());
        file.read(0, bytes.min(JSON_BYTES), &mut text)?;
        if bytes > JSON_BYTES {
            let length = (bytes - JSON_BYTES).min(JSON_BYTES);
            file.read(bytes - length, length, &mut end)?;
            text.push(b'\n');
            text.extend(end);
        }
        Ok(Self(text))
    }

    fn has(&self, key: &str) -> bool {
        let quoted = format!("\"{key}\"");
        self.0.windows(quoted.len()).any(|part| part == quoted.as_bytes())
    }

    /// The first images in the file; `None`: it is not a COCO file.
    fn names(&self) -> Option<Vec<String>> {
        let is_coco = self.has("images") || self.has("annotations") && self.has("categories");
        if !is_coco {
            return None;
        }
        let text = String::from_utf8_lossy(&self.0);
        let values = text.split("\"file_name\"").skip(1).filter_map(|rest| {
            let value = rest.trim_start().strip_prefix(':')?.trim_start();
            // Reads only the string; the rest of the text follows it.
            serde_json::Deserializer::from_str(value).into_iter::<String>().next()?.ok()
        });
        let names: Vec<_> = values.take(MAX_SOUGHT).collect();
        (!names.is_empty()).then_some(names)
    }
}

/// Detects the layout of a folder or of a COCO file; `None`: the format of the files determines it.
///
/// # Errors
/// No format reads the layout, or it is ambiguous: the message has the keys for each choice.
pub fn find_layout(
    config: &DatasetConfig,
    options: OpenOptions<'_>,
) -> Result<Option<Layout>, DatasetError> {
    let path = &config.path;
    if let Some(layout) = file_groups::of_repository(config, options)? {
        return Ok(Some(layout));
    }
    if let Some(layout) = picture_paths(config, options)? {
        return Ok(Some(layout));
    }
    if of_pattern(path).is_some_and(|format| format.name != Coco::FORMAT.name) {
        return Ok(None);
    }
    let storage = open_storage(path, &config.storage, options)?;
    if storage.root_is_file() {
        return find_root(config, storage.as_ref(), options);
    }
    let tree = Tree::list(path, storage.as_ref(), options)?;
    let has_marks = tree.folders.first().is_some_and(|root| {
        root.json
            .iter()
            .any(|name| name == b"_annotations.coco.json" || name == b"dataset_info.json")
            || ["csv", "tsv", "jsonl", "arrow", "parquet", "tar", "mds"]
                .iter()
                .any(|known| root.of(known) > 0)
    });
    if has_marks {
        return Ok(None);
    }
    if let Some(layout) = tree.coco()? {
        return Ok(Some(layout));
    }
    if let Some(layout) = tree.voc().or_else(|| tree.yolo()) {
        return Ok(Some(layout));
    }
    tree.refuse_pairs()?;
    tree.refuse_columns(options)?;
    Ok(None)
}

/// A table that holds no pictures but their paths is read as a manifest.
fn picture_paths(
    config: &DatasetConfig,
    options: OpenOptions<'_>,
) -> Result<Option<Layout>, DatasetError> {
    let path = &config.path;
    let is_table = |name: &[u8]| tabular::format_of(name).is_some();
    let is_named = is_table(path.as_os_str().as_encoded_bytes());
    let (root, pattern) = shard_paths::split_named(path, is_table);
    if pattern.is_some() && !is_named {
        return Ok(None);
    }
    let storage = match open_storage(&root, &config.storage, options) {
        // It may be a pattern of another format, whose opening says what does not exist.
        Err(DatasetError::Missing { .. }) => return Ok(None),
        opened => opened?,
    };
    if storage.root_is_file() {
        return Ok(None);
    }
    let tables = match pattern {
        Some(_) => shard_paths::find_named(storage.as_ref(), path, pattern, &is_table)
            .map_err(tell_missing)?,
        None => tables_in(storage.as_ref())?,
    };
    let Some(first) = tables.first().cloned() else { return Ok(None) };
    let found = match named_pictures(storage.as_ref(), &root, &first) {
        // The opening says what is wrong with it.
        Err(DatasetError::BrokenFile { .. } | DatasetError::List { .. }) => None,
        found => found?,
    };
    let (Some(found), Some(format)) = (found, tabular::format_of(&first)) else { return Ok(None) };
    let mut meant = path.clone();
    if pattern.is_none() {
        if !lists_all(storage.as_ref(), config, format, &tables)? {
            return Ok(None);
        }
        let extension = format.format.extensions.first().copied().unwrap_or_default();
        meant = root.join(format!("*{extension}"));
    }
    let NamedPictures { column, example, are_there } = found;
    if !are_there {
        return Err(DatasetError::Question {
            path: path.clone(),
            reason: format!(
                "has paths of pictures in its column {column}, such as {example:?}, which do not start at its folder; name \
                 the folder that they start at: forebay init {:?} --set dataset.format=manifest --set dataset.root=FOLDER, or \
                 read the table alone: --set dataset.format={}",
                meant.display().to_string(),
                format.format.name
            ),
        });
    }
    let note = format!(
        "its column {column} has paths of pictures: it is read as a manifest, with the files that it names"
    );
    Ok(Some(Layout { format: Manifest::FORMAT.name, path: meant, root: None, note }))
}

/// The tables in the root, sorted.
fn tables_in(storage: &dyn Storage) -> Result<Vec<Vec<u8>>, DatasetError> {
    let mut found = Vec::new();
    let listed = storage.list(b"", &mut |name, kind| {
        let is_file = matches!(kind, EntryKind::File | EntryKind::Object(_));
        if is_file && tabular::format_of(name).is_some() && !is_hidden(name) {
            found.push(name.to_vec());
        }
    });
    listed.map_err(|error| tell_missing(error.into()))?;
    found.sort_unstable();
    Ok(found)
}

/// Whether the files that a folder lists, if it does, are the format's tables in it: neither in folders of splits nor
/// beside others. Then a pattern names the same files.
fn lists_all(
    storage: &dyn Storage,
    config: &DatasetConfig,
    format: &TableFormat,
    tables: &[Vec<u8>],
) -> Result<bool, DatasetError> {
    let Some(mut files) = (format.listed)(storage, config)? else { return Ok(true) };
    files.sort_unstable();
    let is_own = |name: &&Vec<u8>| shard_paths::has_extension(name, format.format.extensions);
    Ok(files.iter().eq(tables.iter().filter(is_own)))
}

/// Finds the images' folder of a COCO file that the path names: next to the file, or next to its folder.
fn find_root(
    config: &DatasetConfig,
    file: &dyn Storage,
    options: OpenOptions<'_>,
) -> Result<Option<Layout>, DatasetError> {
    let path = &config.path;
    let is_json = path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("json"));
    let (Some(name), Some(folder)) = (path.file_name(), path.parent()) else { return Ok(None) };
    let name = name.as_encoded_bytes();
    let names = if is_json { CocoHead::read(file, name)?.names() } else { None };
    let Some(names) = names else { return Ok(None) };
    let storage = open_storage(folder, &config.storage, options)?;
    let tree = Tree::list(folder, storage.as_ref(), options)?;
    let found = tree.coco_of(name, &names, 0);
    let (Err(DatasetError::Question { .. }), Some(above)) = (&found, folder.parent()) else {
        return found.map(Some);
    };
    let storage = open_storage(above, &config.storage, options)?;
    let tree = Tree::list(above, storage.as_ref(), options)?;
    let name = below(folder.file_name().unwrap_or_default().as_encoded_bytes(), name);
    tree.coco_of(&name, &names, 0).map(Some)
}

/// Refuses class folders whose names are those of parts or splits; returns a warning if there is only one class.
///
/// # Errors
/// Such folders exist; the error names them, and the key that accepts them as classes.
pub(super) fn check_classes(
    config: &DatasetConfig,
    classes: &[String],
) -> Result<Option<String>, DatasetError> {
    let is_role = |name: &&String| ROLES.iter().any(|role| name.eq_ignore_ascii_case(role));
    let roles: Vec<_> = classes.iter().filter(is_role).map(|name| format!("{name:?}")).collect();
    if roles.len() > 1 || (roles.len() == 1 && classes.len() == 1) {
        let reason = format!(
            "has class folders named {}: parts of samples or splits, it seems, and not classes. Give init the folder of one \
             split whose folders are classes; list pictures without classes, or with labels of their own, in a CSV (format \
             = \"manifest\"). To read them as classes all the same: --set dataset.format={}",
            roles.join(", "),
            config.format
        );
        return Err(DatasetError::Question { path: config.path.clone(), reason });
    }
    Ok(match classes {
        [one] => Some(format!("there is one class alone, {one:?}: every label is 0")),
        _ => None,
    })
}

#[cfg(test)]
mod tests;

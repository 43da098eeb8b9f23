//! Opening a COCO file: which it is, whether the saved index is still true of it, and making a new one.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use forebay_config::{DatasetConfig, Keys};

use super::parse::{Annotation, Fault, Parsed, parse};
use super::{COLUMNS, CocoKeys, CocoSamples, FORMAT, Layout};
use crate::dataset::error::DatasetError;
use crate::dataset::folder::scan::FolderFormat;
use crate::dataset::folder::select::Listed;
use crate::dataset::manifest::open::open_lists;
use crate::dataset::manifest::paths::Paths;
use crate::dataset::opening::{IndexReport, OpenOptions, OpenedFormat};
use crate::dataset::progress::ScanProgress;
use crate::dataset::row_index::{RowDraft, RowIndex, append_name};
use crate::dataset::saved_index::{
    Asked, Request, is_unchanged, now_seconds, refuse_other_file, tell_missing,
};
use crate::dataset::shard_paths;
use crate::dataset::stored_file::StoredFile;
use crate::location::FileId;
use crate::storage::{PatientStorage, Storage, StorageError};

/// The file of a folder that is named, as Roboflow writes it.
pub(in crate::dataset) const IN_FOLDERS: [&str; 1] = ["_annotations.coco.json"];
/// What is read at once.
const LOCAL_WINDOW: u64 = 1 << 20;
const REMOTE_WINDOW: u64 = 8 << 20;
/// What a sample's name looks like.
const NAME_FORM: &str =
    "a sample is named by its JSON file and the image's id, as in instances_train2017.json:397133";

fn split(path: &Path) -> (PathBuf, Option<&str>) {
    shard_paths::split(path, FORMAT.extensions)
}

/// The folder that a path's file lies in.
pub(in crate::dataset) fn root(path: &Path) -> PathBuf {
    split(path).0
}

/// What images are read from, where that is not the file's folder.
pub(in crate::dataset) fn data_root(config: &DatasetConfig) -> Option<PathBuf> {
    CocoKeys::read(&mut config.own.clone()).ok()?.root
}

/// Whether an index of this dataset was saved: then its folder has been there before.
pub(in crate::dataset) fn has_saved_index(
    config: &DatasetConfig,
    _format: FolderFormat,
    options: OpenOptions<'_>,
) -> bool {
    let Ok(request) = request(config, options) else { return false };
    request.load::<RowIndex>().is_ok_and(|index| index.is_some())
}

fn request<'a>(
    config: &'a DatasetConfig,
    options: OpenOptions<'a>,
) -> Result<Request<'a>, DatasetError> {
    let data_root = CocoKeys::read(&mut config.own.clone())?.root.unwrap_or_default();
    let (root, pattern) = split(&config.path);
    let asked = Asked { format: FORMAT.name, root, pattern, is_listed: false };
    Request::of(config, options, asked, &data_root.to_string_lossy())
}

/// Opens the images that a file lists.
pub(in crate::dataset) fn open(
    config: &DatasetConfig,
    storage: &dyn Storage,
    options: OpenOptions<'_>,
) -> OpenedFormat {
    let started = Instant::now();
    let request = request(config, options)?;
    let data = CocoKeys::read(&mut config.own.clone())?.root;
    let (root, name) = split(&config.path);
    let lists = open_lists(config, data.as_deref(), &root, options)?;
    let patient = lists
        .as_ref()
        .zip(options.patience)
        .map(|(lists, patience)| PatientStorage { storage: lists.as_ref(), patience });
    let lists: &dyn Storage = match (&patient, &lists) {
        (Some(patient), _) => patient,
        (None, Some(lists)) => lists.as_ref(),
        (None, None) => storage,
    };
    if name.is_none() {
        let expected = "a .json file, or a folder with an _annotations.coco.json";
        let words = ("a file of another name", FORMAT.name, expected);
        refuse_other_file(lists, &config.path, words, options)?;
    }
    let file_name = name.unwrap_or(IN_FOLDERS[0]);
    if file_name.contains(['{', '*', '?']) {
        return Err(request.no_samples("a COCO file is one file; name it without a pattern"));
    }
    let data_root = data.unwrap_or(root);
    let task = Task { request, file_name, is_folder: name.is_none(), lists, data_root };
    let mut report = IndexReport::default();
    let is_true = |index: &RowIndex| {
        let is_named = index.manifest_path(0) == file_name.as_bytes();
        let known = index.manifest_stamp(0);
        Ok(is_named && is_unchanged(lists, index, FileId(0), known, index.started_seconds())?)
    };
    let index = task.request.open(lists, &mut report, is_true, |warnings| task.make(warnings))?;
    let layout = Layout::parse(index.rules()).filter(|_| index.columns() == COLUMNS);
    let layout = layout.ok_or_else(|| DatasetError::BrokenFile {
        path: task.request.place.path.clone(),
        reason: "its fields cannot be read back; remove the index".to_owned(),
    })?;
    report.classes = layout.classes.len() as u64;
    report.seconds = started.elapsed().as_secs_f64();
    let fields = layout.fields();
    Ok((Arc::new(CocoSamples { index, layout, fields }), report))
}

/// One opening.
struct Task<'a> {
    request: Request<'a>,
    file_name: &'a str,
    is_folder: bool,
    /// Of the JSON file.
    lists: &'a dyn Storage,
    data_root: PathBuf,
}

impl Task<'_> {
    /// The error for a folder without the file, or one that is not there.
    fn no_file(&self) -> DatasetError {
        match self.lists.list(b"", &mut |_, _| {}) {
            Err(error) => tell_missing(error.into()),
            Ok(_) => self.request.no_samples(
                "it is a folder without _annotations.coco.json; name the JSON file in dataset.path, such as \
                 annotations/instances_train2017.json",
            ),
        }
    }

    /// Reads the file and lays out an index.
    fn make(&self, warnings: &mut Vec<String>) -> Result<Vec<u8>, DatasetError> {
        let started_seconds = now_seconds();
        let request = &self.request;
        request.check_limit()?;
        let file = StoredFile::new(self.lists, self.file_name.as_bytes());
        let file = file.map_err(|error| match error {
            StorageError::Vanished { .. } if self.is_folder => self.no_file(),
            error => tell_missing(error.into()),
        })?;
        let is_remote = self.lists.remote_root().is_some();
        let window = if is_remote { REMOTE_WINDOW } else { LOCAL_WINDOW };
        let ask = || -> ControlFlow<()> {
            let seen = ScanProgress::default();
            (request.options.progress)(seen)
        };
        let parsed = parse(&file, file.stamp.bytes, window, &ask).map_err(|fault| match fault {
            Fault::Read(error) => error,
            Fault::Broken(line, message) => file.fault_at(line, message),
        })?;
        let refuse = |reason: String| file.fault(reason);
        let table = Table::of(&parsed).map_err(refuse)?;
        let mut draft =
            RowDraft::new(COLUMNS, [&request.identity, &request.digest], |cell| cell.len() as u64);
        draft.begin(self.file_name.as_bytes(), file.stamp);
        let mut listed = request.ids.as_ref().map(Listed::new).transpose()?;
        let paths = Paths::new(&self.data_root, b"", true);
        let (mut name_start, mut path, mut name) = (0, Vec::new(), Vec::new());
        for (place, image) in parsed.images.iter().enumerate() {
            let given = &parsed.names[name_start..image.name_end];
            name_start = image.name_end;
            if request.config.limit.is_some_and(|limit| draft.samples() >= limit) {
                break;
            }
            if let Some(listed) = &mut listed {
                name.clear();
                append_name(self.file_name.as_bytes(), image.id, &mut name);
                if !listed.take(&name) {
                    continue;
                }
            }
            paths.resolve(given, &mut path).map_err(|reason| {
                refuse(format!("the file_name of image {} {reason}", image.id))
            })?;
            let (mut boxes, mut labels) = (Vec::new(), Vec::new());
            for (annotation, label) in table.annotations(&parsed, place) {
                boxes.extend(annotation.corners.iter().flat_map(|number| number.to_le_bytes()));
                labels.extend_from_slice(&label.to_le_bytes());
            }
            let size: Vec<u8> = image
                .size
                .iter()
                .flatten()
                .flat_map(|side| i64::from(*side).to_le_bytes())
                .collect();
            let cells = [&path, &boxes, &labels, &size];
            draft.add(image.id, cells.into_iter().map(|cell| Some(cell.as_slice())));
        }
        if let Some(listed) = listed {
            listed.finish(NAME_FORM)?;
        }
        if draft.samples() == 0 {
            return Err(request.no_samples(match &request.ids {
                Some(ids) => ids.lists_none(),
                None => "it lists no images".to_owned(),
            }));
        }
        warnings.extend(table.sentences(&parsed));
        let layout = Layout {
            classes: table.classes,
            has_sizes: parsed.images.iter().all(|image| image.size.is_some()),
        };
        // Strings alone: writing them cannot fail.
        let rules = serde_json::to_string(&layout).unwrap_or_default();
        Ok(draft.build(started_seconds, &rules))
    }
}

/// Which annotations belong to which image.
pub(super) struct Table {
    /// In the order of the categories' ids.
    classes: Vec<String>,
    /// Annotations by image, in the order of the file, each with its label.
    order: Vec<(u32, u32)>,
    /// By image, where its annotations begin in `order`; one more ends the last.
    starts: Vec<u32>,
    /// Annotations of images that are not listed.
    foreign: u64,
}

impl Table {
    /// # Errors
    /// Two images or categories have one id, or an annotation has a category that is not listed.
    pub(super) fn of(parsed: &Parsed) -> Result<Self, String> {
        let count = |length: usize, what: &str| {
            u32::try_from(length)
                .map_err(|_| format!("it has {length} {what}, and at most 4 billion are read"))
        };
        count(parsed.images.len(), "images")?;
        count(parsed.annotations.len(), "annotations")?;
        let mut images: Vec<(u64, u32)> =
            parsed.images.iter().map(|image| image.id).zip(0..).collect();
        images.sort_unstable();
        if let Some(twice) = images.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            return Err(format!("two images have the id {}", twice[0].0));
        }
        let mut categories: Vec<_> = parsed.categories.iter().collect();
        categories.sort_unstable();
        if let Some(twice) = categories.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            return Err(format!("two categories have the id {}", twice[0].0));
        }
        let place = |annotation: &Annotation| {
            let found = images.binary_search_by_key(&annotation.image, |(id, _)| *id);
            found.ok().map(|found| images[found].1)
        };
        let mut starts = vec![0_u32; parsed.images.len() + 1];
        let mut foreign = 0;
        for annotation in &parsed.annotations {
            match place(annotation) {
                Some(place) => starts[place as usize + 1] += 1,
                None => foreign += 1,
            }
        }
        for place in 1..starts.len() {
            starts[place] += starts[place - 1];
        }
        let mut next = starts.clone();
        let mut order = vec![(0, 0); *starts.last().unwrap_or(&0) as usize];
        for (annotation, number) in parsed.annotations.iter().zip(0..) {
            let Some(place) = place(annotation) else { continue };
            let label = categories.binary_search_by_key(&annotation.category, |(id, _)| *id);
            let label = label.ok().and_then(|label| u32::try_from(label).ok()).ok_or_else(|| {
                format!(
                    "an annotation of image {} has the category {}, which categories do not list",
                    annotation.image, annotation.category
                )
            })?;
            let at = &mut next[place as usize];
            order[*at as usize] = (number, label);
            *at += 1;
        }
        let classes = categories.into_iter().map(|(_, name)| name.clone()).collect();
        Ok(Self { classes, order, starts, foreign })
    }

    /// The annotations of an image, with their labels.
    pub(super) fn annotations<'p>(
        &'p self,
        parsed: &'p Parsed,
        image: usize,
    ) -> impl Iterator<Item = (&'p Annotation, i64)> {
        let range = self.starts[image] as usize..self.starts[image + 1] as usize;
        let order = self.order[range].iter();
        order.map(|(number, label)| (&parsed.annotations[*number as usize], i64::from(*label)))
    }

    /// What the user should know, a sentence each.
    fn sentences(&self, parsed: &Parsed) -> impl Iterator<Item = String> {
        let tell = |count: u64, words: &str| (count > 0).then(|| format!("{count} {words}"));
        let sentences = [
            tell(parsed.crowds, "annotations of crowds (iscrowd) are left out"),
            tell(parsed.empty, "boxes without an area are left out"),
            tell(self.foreign, "annotations of images that the file does not list are left out"),
        ];
        sentences.into_iter().flatten()
    }
}

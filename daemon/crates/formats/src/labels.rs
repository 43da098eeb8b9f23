//! `voc` and `yolo`: pictures with a file of labels each. A sample is a picture with its boxes, labels and, as configured,
//! a mask.
//!
//! The files of labels are read once, for an index as manifests have it; a sample reads only its picture, and the file
//! of its mask. [`LabelKind`] has what differs: which files belong together, and what a file of labels says.

mod fuzzed;
mod voc;
pub(crate) mod yaml;
mod yolo;

use std::collections::HashMap;
use std::fmt::Debug;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};

use forebay_keys::{ConfigError, Keys};
use forebay_protocol::counted::counted;
use forebay_protocol::ids::SampleId;
use forebay_protocol::tensor::DType;
use serde::{Deserialize, Serialize};

pub(crate) use self::fuzzed::read_for_fuzzing;
pub(crate) use self::voc::Voc;
pub(crate) use self::yolo::Yolo;
use crate::draft::{Draft, Epochs, Seen};
use crate::indexed::{Format, Opening, Take};
use forebay_dataset::error::DatasetError;
use forebay_dataset::progress::ScanProgress;
use forebay_dataset::{ArrayValue, Defect, Field, FieldKind, FieldValue};
use forebay_index::folder::scan::FolderFormat;
use forebay_index::folder::select::Listed;
use forebay_index::row_index::{RowDraft, RowIndex, append_name};
use forebay_index::saved_index::{SavedIndex, now_seconds, open_file, tell_missing};
use forebay_index::shard_paths::find_named;
use forebay_storage::Storage;
use forebay_storage::location::{FileId, Location, SampleBytes};
use forebay_storage::version::FileStamp;

/// The maximal size of a file of labels.
const MAX_LABEL_BYTES: u64 = 16 << 20;
/// The form of a sample's name.
const NAME_FORM: &str = "a sample is named by its file of labels, or by its picture if it has none, as in labels/train/0001.txt:1";
/// The bytes of a box's row.
const BOX_BYTES: usize = 16;
/// The bytes of a label.
const LABEL_BYTES: usize = 8;
/// The columns of a row: the path of the picture, the boxes, the labels, height and width, which objects are difficult,
/// and the mask or its path.
const COLUMNS: usize = 6;

/// A kind of pictures with a file of labels each.
pub(crate) trait LabelKind: Debug + Send + Sync + Sized + 'static {
    /// As [`Format::FORMAT`].
    const FORMAT: FolderFormat;
    /// As [`Format::EXPECTED`].
    const EXPECTED: &'static str;
    /// As [`Format::MARKS`].
    const MARKS: &'static [&'static str];
    /// Its keys of `[dataset]`.
    type Keys: Keys;

    /// As [`Format::split`].
    fn split(path: &Path) -> (PathBuf, Option<&str>);

    /// As [`Format::digested`].
    fn digested(keys: &Self::Keys) -> String;

    /// Assigns the files below the root: pictures, and what [`is_label`](Self::is_label).
    ///
    /// # Errors
    /// The files cannot be read, are broken, or have no pictures.
    fn plan(opening: &Opening<'_, Labels<Self>>, found: &[Vec<u8>]) -> Result<Plan, DatasetError>;

    /// Whether a name is that of a file of labels.
    fn is_label(name: &[u8]) -> bool;

    /// Reads a file of labels; `None`: the picture has none.
    ///
    /// # Errors
    /// The line, from 1, and its fault.
    fn read(
        plan: &Plan,
        text: Option<&str>,
        size: Option<[u32; 2]>,
    ) -> Result<Objects, (usize, String)>;
}

/// Which files belong together.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    pub(crate) samples: Vec<Pair>,
    /// Files that list samples or classes: a change of one makes a new index.
    pub(crate) lists: Vec<Vec<u8>>,
    /// The names of classes; `None`: those that occur, sorted.
    pub(crate) classes: Option<Vec<String>>,
    /// Where masks come from.
    pub(crate) masks: MaskSource,
    /// Whether the picture's header is read for its size.
    pub(crate) needs_sizes: bool,
    /// Whether objects may be difficult.
    pub(crate) has_difficult: bool,
}

/// A picture and its files, relative to the root.
#[derive(Debug)]
pub(crate) struct Pair {
    pub(crate) picture: Vec<u8>,
    pub(crate) labels: Option<Vec<u8>>,
    pub(crate) mask: Option<Vec<u8>>,
}

impl Pair {
    /// The file that the sample is named by.
    fn name(&self) -> &[u8] {
        self.labels.as_deref().unwrap_or(&self.picture)
    }

    /// The picture, if its size is in the index and it is not the file that the sample is named by: another picture
    /// makes a new index.
    fn measured(&self, plan: &Plan) -> Option<&[u8]> {
        (plan.needs_sizes && self.labels.is_some()).then_some(self.picture.as_slice())
    }
}

/// Where masks come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) enum MaskSource {
    /// There are none.
    #[default]
    None,
    /// Files.
    Files,
    /// Outlines in the files of labels; whether their pixels are numbers of objects or of classes.
    Outlines {
        /// Numbers of objects.
        instances: bool,
    },
}

/// The contents of a file of labels.
#[derive(Debug, Default)]
pub(crate) struct Objects {
    /// The corners: x and y of the upper left, then of the lower right, in pixels.
    pub(crate) boxes: Vec<[f32; 4]>,
    pub(crate) labels: Vec<Label>,
    pub(crate) difficult: Vec<u8>,
    /// Height and width.
    pub(crate) size: Option<[u32; 2]>,
    /// The parts of each object in a mask.
    pub(crate) outlines: Vec<Vec<u8>>,
    /// The number of boxes without an area, which are left out.
    pub(crate) empty: u64,
}

/// An object's class.
#[derive(Debug)]
pub(crate) enum Label {
    Number(u32),
    Name(String),
}

/// The definition of the fields, as the index stores it.
#[derive(Debug, Serialize, Deserialize)]
#[serde(bound = "")]
pub(crate) struct Labels<K> {
    classes: Vec<String>,
    has_sizes: bool,
    has_difficult: bool,
    masks: MaskSource,
    #[serde(skip)]
    kind: PhantomData<K>,
}

impl<K: LabelKind> Labels<K> {
    const fn files_each(&self) -> u64 {
        if matches!(self.masks, MaskSource::Files) { 2 } else { 1 }
    }

    const fn has_instances(&self) -> bool {
        matches!(self.masks, MaskSource::Outlines { instances: true })
    }
}

/// All pictures and files of labels below the root, sorted.
fn found<K: LabelKind>(opening: &Opening<'_, Labels<K>>) -> Result<Vec<Vec<u8>>, DatasetError> {
    let is_one = |name: &[u8]| is_picture(name) || K::is_label(name);
    find_named(opening.storage, &opening.request.config.path, None, &is_one).map_err(tell_missing)
}

/// Whether a name is that of a picture.
pub(super) fn is_picture(name: &[u8]) -> bool {
    let dot = name.iter().rposition(|byte| *byte == b'.');
    let extension = dot.map(|dot| name[dot + 1..].to_ascii_lowercase());
    extension.is_some_and(|extension| {
        crate::fields::IMAGES.iter().any(|image| image.as_bytes() == extension)
    })
}

/// Names of classes as part of a digest: none differ from a list without any.
pub(super) fn text_of_names(names: Option<&[String]>) -> String {
    match names {
        Some([]) => "[]".to_owned(),
        names => names.map_or(String::new(), |names| names.join("\u{1}")),
    }
}

/// Two pictures that one file of labels would belong to.
fn twice(storage: &dyn Storage, [one, other]: [&[u8]; 2]) -> DatasetError {
    DatasetError::BrokenFile {
        path: storage.full_path(one),
        reason: format!(
            "{} has the same name apart from its ending, and there is one file of labels for both: move one of them away",
            String::from_utf8_lossy(other)
        ),
    }
}

/// A path without its extension.
pub(super) fn stem(path: &[u8]) -> &[u8] {
    let name = path.iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
    let dot = path[name..].iter().rposition(|byte| *byte == b'.');
    &path[..dot.filter(|dot| *dot > 0).map_or(path.len(), |dot| name + dot)]
}

impl<K: LabelKind> Format for Labels<K> {
    const FORMAT: FolderFormat = K::FORMAT;
    const EXPECTED: &'static str = K::EXPECTED;
    const MARKS: &'static [&'static str] = K::MARKS;
    const IS_LISTED: bool = true;

    type Keys = K::Keys;
    type Index = RowIndex;

    fn split(path: &Path) -> (PathBuf, Option<&str>) {
        K::split(path)
    }

    /// Crops and mirrors images, and their boxes and labels.
    fn draft(seen: &Seen) -> Draft {
        let has = |name: &str| seen.fields.iter().any(|field| field.name == name);
        let more = if has("difficult") { ", \"difficult\"" } else { "" };
        let fields = format!("fields = [\"image\", \"boxes\", \"labels\"{more}]");
        let tables = format!(
            r#"[[stage]]
name = "augment"
operations = [
    {{ op = "decode-image" }},
    # Boxes follow the image; those that are cut off are dropped with their labels. For validation: "resize" alone.
    {{ op = "random-resized-crop", size = 512, area = [0.3, 1.0], {fields} }},
    {{ op = "random-horizontal-flip", {fields} }},
]
"#
        );
        Draft { tables, epochs: Epochs::Many, ..Draft::default() }
    }

    fn digested(keys: &K::Keys) -> Result<String, ConfigError> {
        Ok(K::digested(keys))
    }

    fn files(opening: &Opening<'_, Self>) -> Result<Vec<Vec<u8>>, DatasetError> {
        let plan = K::plan(opening, &found(opening)?)?;
        let samples = plan.samples.iter().flat_map(|pair| {
            [pair.measured(&plan), Some(pair.name())].into_iter().flatten().map(<[u8]>::to_vec)
        });
        Ok(plan.lists.iter().cloned().chain(samples).collect())
    }

    fn make(
        opening: &Opening<'_, Self>,
        warnings: &mut Vec<String>,
    ) -> Result<Vec<u8>, DatasetError> {
        make(opening, warnings)
    }

    fn of_index(index: &RowIndex, _opening: &Opening<'_, Self>) -> Option<Self> {
        serde_json::from_str(index.rules()).ok().filter(|_| index.columns() == COLUMNS)
    }

    fn fields(
        &self,
        _index: &RowIndex,
        _first: Option<SampleBytes<'_>>,
    ) -> Result<Vec<Field>, Defect> {
        let field = |name: &str, kind| Field { name: name.to_owned(), kind };
        let list = |dtype, row_shape: Vec<u64>| FieldKind::RaggedArray { dtype, row_shape };
        let mut fields = vec![
            field("image", FieldKind::EncodedImage),
            field("boxes", list(DType::F32, vec![4])),
            field("labels", list(DType::I64, Vec::new())),
        ];
        if self.has_difficult {
            fields.push(field("difficult", list(DType::U8, Vec::new())));
        }
        if self.has_sizes {
            fields.push(field("orig_size", FieldKind::Array { dtype: DType::I64, shape: vec![2] }));
        }
        if self.masks != MaskSource::None {
            fields.push(field("mask", FieldKind::EncodedImage));
        }
        if self.has_instances() {
            fields.push(field("instances", list(DType::I64, Vec::new())));
        }
        Ok(fields)
    }

    fn locate(&self, _index: &RowIndex, id: SampleId, locations: &mut Vec<Location>) {
        let first = id.0.saturating_mul(self.files_each());
        let files = first..first.saturating_add(self.files_each());
        locations.extend(files.map(|file| Location::whole(FileId(file))));
    }

    fn values<'a>(
        &'a self,
        index: &'a RowIndex,
        id: SampleId,
        bytes: SampleBytes<'a>,
        take: Take<'_, 'a>,
    ) -> Result<(), Defect> {
        let file = |part: usize, name: &str| match bytes.part(part) {
            Some(file) if !file.is_empty() => Ok(file),
            _ => Err(Defect(format!("`{name}` is empty"))),
        };
        let mut cells = index.cells(id).skip(1).map(Option::unwrap_or_default);
        let mut cell = || cells.next().unwrap_or_default();
        let (boxes, labels, size, difficult, mask) = (cell(), cell(), cell(), cell(), cell());
        let count = labels.len() / LABEL_BYTES;
        let are_whole = labels.len() == count * LABEL_BYTES
            && boxes.len() == count * BOX_BYTES
            && (!self.has_difficult || difficult.len() == count)
            && (!self.has_sizes || size.len() == 16);
        if !are_whole {
            return Err(Defect("its row in the index is damaged; remove the index".to_owned()));
        }
        let count = count as u64;
        let array = |dtype, shape: Vec<u64>, bytes: &'a [u8]| {
            FieldValue::Array(ArrayValue::new(dtype, shape, bytes))
        };
        take(FieldValue::EncodedImage(file(0, "image")?))?;
        take(array(DType::F32, vec![count, 4], boxes))?;
        take(array(DType::I64, vec![count], labels))?;
        if self.has_difficult {
            take(array(DType::U8, vec![count], difficult))?;
        }
        if self.has_sizes {
            take(array(DType::I64, vec![2], size))?;
        }
        match self.masks {
            MaskSource::None => {}
            MaskSource::Files => take(FieldValue::EncodedImage(file(1, "mask")?))?,
            MaskSource::Outlines { .. } => take(FieldValue::EncodedImage(mask))?,
        }
        if self.has_instances() {
            let numbers: Vec<u8> = (1..=count.cast_signed()).flat_map(i64::to_le_bytes).collect();
            take(FieldValue::Array(ArrayValue::new(DType::I64, vec![count], numbers)))?;
        }
        Ok(())
    }

    /// A file's number follows from its sample and the column of the path.
    fn append_path(&self, index: &RowIndex, file: FileId, path: &mut Vec<u8>) {
        let column = if file.0.is_multiple_of(self.files_each()) { 0 } else { COLUMNS - 1 };
        let cell = index.cells(SampleId(file.0 / self.files_each())).nth(column);
        path.extend_from_slice(cell.flatten().unwrap_or_default());
    }

    fn max_row_bytes(&self, index: &RowIndex, _place: usize, field: &Field) -> Option<u64> {
        match field.name.as_str() {
            "boxes" => Some(index.longest(1).max(BOX_BYTES as u64)),
            "labels" | "instances" => Some(index.longest(2).max(LABEL_BYTES as u64)),
            "difficult" => Some(index.longest(4).max(1)),
            _ => None,
        }
    }

    /// The only array of a fixed length is the picture's size.
    fn rows_differ(&self, _index: &RowIndex, _field: usize) -> Option<bool> {
        Some(false)
    }

    fn classes(&self) -> &[String] {
        &self.classes
    }
}

/// Reads the files of labels and builds an index.
fn make<K: LabelKind>(
    opening: &Opening<'_, Labels<K>>,
    warnings: &mut Vec<String>,
) -> Result<Vec<u8>, DatasetError> {
    let started_seconds = now_seconds();
    let request = &opening.request;
    request.check_limit()?;
    let plan = K::plan(opening, &found(opening)?)?;
    let mut rows = Vec::new();
    for (pair, samples) in plan.samples.iter().zip(0..) {
        let seen = ScanProgress { samples, ..ScanProgress::default() };
        if (request.options.progress)(seen).is_break() {
            return Err(DatasetError::Cancelled);
        }
        // With classes by name all files are read: a limit does not change the numbers of classes.
        let is_over = request.config.limit.is_some_and(|limit| samples >= limit);
        if is_over && plan.classes.is_some() && request.ids.is_none() {
            break;
        }
        rows.push(read_pair(opening, &plan, pair)?);
    }
    let classes = match &plan.classes {
        Some(classes) => classes.clone(),
        None => names_of(&rows),
    };
    let layout = Labels::<K> {
        has_sizes: rows.iter().all(|(objects, _)| objects.size.is_some()),
        has_difficult: plan.has_difficult,
        masks: plan.masks,
        kind: PhantomData,
        classes,
    };
    let keys = [&request.identity, &request.digest];
    let mut draft = RowDraft::new(COLUMNS, keys, |cell| cell.len() as u64);
    for path in &plan.lists {
        draft.begin(path, open_file(opening.storage, path)?.stamp);
    }
    let mut listed = request.ids.as_ref().map(Listed::new).transpose()?;
    let mut places = HashMap::new();
    for (class, place) in layout.classes.iter().zip(0..) {
        places.entry(class.as_str()).or_insert(place);
    }
    let mut empty = 0;
    let mut beyond = Vec::new();
    for (pair, (objects, [picture, stamp])) in plan.samples.iter().zip(rows) {
        if request.config.limit.is_some_and(|limit| draft.samples() >= limit) {
            beyond.push((pair, stamp));
            continue;
        }
        if let Some(path) = pair.measured(&plan) {
            draft.begin(path, picture);
        }
        draft.begin(pair.name(), stamp);
        if let Some(listed) = &mut listed {
            let mut name = Vec::new();
            append_name(pair.name(), 1, &mut name);
            if !listed.take(&name) {
                continue;
            }
        }
        empty += objects.empty;
        let cells = layout.cells(pair, &objects, &places).map_err(|reason| {
            DatasetError::BrokenFile { path: opening.storage.full_path(pair.name()), reason }
        })?;
        draft.add(1, cells.iter().map(|cell| Some(cell.as_slice())));
    }
    if let Some(listed) = listed {
        listed.finish(NAME_FORM)?;
    }
    // Classes by name come from the files beyond the limit as well.
    if plan.classes.is_none() {
        for (pair, stamp) in beyond {
            draft.begin(pair.name(), stamp);
        }
    }
    if draft.samples() == 0 {
        return Err(request.no_samples(match &request.ids {
            Some(ids) => ids.lists_none(),
            None => "it has no pictures".to_owned(),
        }));
    }
    if empty > 0 {
        warnings.push(format!("left out: {} without an area", counted(empty, "box")));
    }
    // Strings only: serialization cannot fail.
    let rules = serde_json::to_string(&layout).unwrap_or_default();
    Ok(draft.build(started_seconds, &rules))
}

/// A sample's objects, and the stamps of its picture, if its size was read, and of the file that names it.
type Row = (Objects, [FileStamp; 2]);

fn read_pair<K: LabelKind>(
    opening: &Opening<'_, Labels<K>>,
    plan: &Plan,
    pair: &Pair,
) -> Result<Row, DatasetError> {
    let file = open_file(opening.storage, pair.name())?;
    let (size, picture) = match plan.needs_sizes {
        true => {
            let (size, stamp) = size_of(opening.storage, &pair.picture)?;
            (Some(size), stamp)
        }
        false => (None, file.stamp),
    };
    let text = match &pair.labels {
        Some(_) => Some(file.read_whole(MAX_LABEL_BYTES)?),
        None => None,
    };
    let text = text.as_deref().map(std::str::from_utf8).transpose();
    let text = text.map_err(|_| file.fault("it is not valid UTF-8".to_owned()))?;
    let objects =
        K::read(plan, text, size).map_err(|(line, message)| file.fault_at(line, message))?;
    Ok((objects, [picture, file.stamp]))
}

/// The bytes at the start of a picture that usually contain its header, and those that nearly always do.
const HEAD_BYTES: [u64; 2] = [16 << 10, 1 << 20];

/// Height and width of a picture, by its header, and its stamp.
fn size_of(
    storage: &dyn forebay_storage::Storage,
    path: &[u8],
) -> Result<([u32; 2], FileStamp), DatasetError> {
    let file = open_file(storage, path)?;
    let mut head = Vec::new();
    let mut reason = String::new();
    for bytes in HEAD_BYTES {
        file.read(0, bytes.min(file.stamp.bytes), &mut head)?;
        let header = forebay_media::decode::Decoders::default().read_header(&head, false, u64::MAX);
        match header {
            Ok(header) => return Ok(([header.size().height, header.size().width], file.stamp)),
            Err(defect) => reason = defect.0,
        }
        if file.stamp.bytes <= bytes {
            break;
        }
    }
    Err(file.fault(format!("its size in pixels cannot be read: {reason}")))
}

/// The names of classes that occur, sorted.
fn names_of(rows: &[Row]) -> Vec<String> {
    let labels = rows.iter().flat_map(|(objects, _)| &objects.labels);
    let names = labels.filter_map(|label| match label {
        Label::Name(name) => Some(name.clone()),
        Label::Number(_) => None,
    });
    let names: std::collections::BTreeSet<_> = names.collect();
    names.into_iter().collect()
}

impl<K: LabelKind> Labels<K> {
    /// The cells of a sample; `places` has the numbers of the classes' names.
    ///
    /// # Errors
    /// A class is none of the configured ones, or there are too many objects for a mask.
    fn cells(
        &self,
        pair: &Pair,
        objects: &Objects,
        places: &HashMap<&str, u32>,
    ) -> Result<[Vec<u8>; COLUMNS], String> {
        let boxes = objects.boxes.iter().flatten().flat_map(|number| number.to_le_bytes());
        let mut numbers = Vec::with_capacity(objects.labels.len());
        for label in &objects.labels {
            numbers.push(match label {
                Label::Number(number) => *number,
                Label::Name(name) => *places
                    .get(name.as_str())
                    .ok_or_else(|| format!("its object {name:?} is none of dataset.class_names"))?,
            });
        }
        let labels = numbers.iter().flat_map(|number| i64::from(*number).to_le_bytes()).collect();
        let size = objects.size.iter().flatten();
        let size = size.flat_map(|side| i64::from(*side).to_le_bytes()).collect();
        let mask = match (self.masks, objects.size) {
            (MaskSource::Files, _) => pair.mask.clone().unwrap_or_default(),
            (MaskSource::Outlines { instances }, Some([height, width])) => {
                let mut draft = forebay_dataset::mask::MaskDraft::new(width, height);
                for ((row, label), outline) in (1_u32..).zip(&numbers).zip(&objects.outlines) {
                    let value = if instances { row } else { *label + 1 };
                    let value = u16::try_from(value);
                    let many = "it has more objects or classes than a mask of 16 bits has numbers";
                    draft.add(value.map_err(|_| many.to_owned())?, outline);
                }
                draft.into_bytes()
            }
            (MaskSource::Outlines { .. } | MaskSource::None, _) => Vec::new(),
        };
        let picture = pair.picture.clone();
        Ok([picture, boxes.collect(), labels, size, objects.difficult.clone(), mask])
    }
}

#[cfg(test)]
mod tests;

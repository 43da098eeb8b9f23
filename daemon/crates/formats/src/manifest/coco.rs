//! `coco`: pictures with boxes, masks and keypoints, as listed by a COCO JSON file.
//!
//! The file is read once, as a stream ([`parse`]), for an index as manifests have it. Each image is a row with its
//! path, boxes, labels, and what else is configured ([`scan`], [`cells`]). A sample reads only the image's file, and the
//! picture of ids of a panoptic file. Masks are painted when they are decoded ([`forebay_dataset::mask`]).

mod cells;
mod fuzzed;
mod parse;
mod scan;
mod segmentation;

use std::path::PathBuf;

use forebay_keys::{ConfigError, DataPath, Section, keys, words};
use forebay_protocol::ids::SampleId;
use forebay_protocol::tensor::DType;
use serde::{Deserialize, Serialize};

#[doc(hidden)]
pub(crate) use self::fuzzed::parse_for_fuzzing;
use crate::draft::{Draft, Epochs, Seen};
use crate::indexed::{Format, Opening, Take};
use forebay_dataset::error::DatasetError;
use forebay_dataset::{ArrayValue, Defect, Field, FieldKind, FieldValue};
use forebay_index::folder::scan::{FolderFormat, LooseFiles};
use forebay_index::row_index::RowIndex;
use forebay_index::saved_index::SavedIndex;
use forebay_storage::location::{FileId, Location, SampleBytes};

/// The file that is read from a folder, as Roboflow names it.
const IN_FOLDERS: [&str; 1] = ["_annotations.coco.json"];

words! {
    /// What the pixels of a mask are.
    #[derive(Serialize, Deserialize)]
    #[serde(rename_all = "lowercase")]
    pub(crate) enum Masks {
        /// One more than the label of the object's category.
        Categories = "categories",
        /// One more than the object's row among the boxes of the file.
        Instances = "instances",
    }
}

keys! {
    /// The keys of COCO files.
    pub(crate) struct CocoKeys = "dataset", check check_keys {
        /// the folder or URL that the paths in the manifest start at
        pub(super) root: DataPath, "", absent("the manifest's folder");
        /// a mask of each picture: the numbers of `"categories"`, or of `"instances"`; see [COCO](formats-labels.md#coco)
        pub(super) masks: Masks, "", absent("no masks");
        /// whether objects have their keypoints
        pub(super) keypoints: bool, "", default(false);
        /// the folder or URL of the pictures of ids that a panoptic file names
        pub(super) panoptic: DataPath, "", absent("the file is not a panoptic one");
    }
}

fn check_keys(keys: &mut CocoKeys, section: &Section) -> Result<(), ConfigError> {
    if keys.panoptic.is_some() && (keys.masks.is_some() || keys.keypoints) {
        let message = "a panoptic file has segments instead of `masks` and `keypoints`; leave these out, or `panoptic`";
        return Err(section.error_at("panoptic", message.to_owned()));
    }
    Ok(())
}

/// The bytes of a box's row.
const BOX_BYTES: usize = 16;
/// The bytes of a label.
const LABEL_BYTES: usize = 8;
/// The columns of every row: the path, the boxes, the labels, height and width.
const COLUMNS: usize = 4;
/// The columns of a panoptic row after these: the path of the picture of ids, the ids, and whether each is of a crowd.
const PANOPTIC_COLUMNS: usize = 3;
/// The bytes of a keypoint.
const POINT_BYTES: u64 = 12;

/// The configuration of the fields, as the index stores it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Coco {
    /// The categories' names in the order of their ids.
    classes: Vec<String>,
    /// Whether each image has a height and a width.
    has_sizes: bool,
    // What is not configured is not written: indexes without it are those of versions that did not know it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    masks: Option<Masks>,
    /// The number of keypoints of each object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    points_each: Option<u64>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    is_panoptic: bool,
}

impl Coco {
    /// The number of files of a sample.
    const fn files_each(&self) -> u64 {
        if self.is_panoptic { 2 } else { 1 }
    }

    /// The number of columns of a row.
    fn columns(&self) -> usize {
        let panoptic = if self.is_panoptic { PANOPTIC_COLUMNS } else { 0 };
        self.points_column() + usize::from(self.points_each.is_some()) + panoptic
    }

    fn points_column(&self) -> usize {
        COLUMNS + usize::from(self.masks.is_some())
    }

    /// Refuses a file that lacks what is configured.
    fn check(&self, parsed: &parse::Parsed) -> Result<(), String> {
        if self.points_each == Some(0) {
            return Err("no object has keypoints: leave dataset.keypoints out".to_owned());
        }
        let is_wide = u16::try_from(self.classes.len()).is_err();
        if self.masks == Some(Masks::Categories) && is_wide {
            return Err(format!(
                "it has {} categories, and masks have numbers of up to 65,535",
                self.classes.len()
            ));
        }
        if self.masks.is_some() && !self.has_sizes && !parsed.images.is_empty() {
            return Err("an image has no height or width, which masks need".to_owned());
        }
        Ok(())
    }
}

fn array(dtype: DType, shape: Vec<u64>, bytes: &[u8]) -> FieldValue<'_> {
    FieldValue::Array(ArrayValue::new(dtype, shape, bytes))
}

impl Format for Coco {
    const FORMAT: FolderFormat =
        FolderFormat { name: "coco", extensions: &[".json"], loose: LooseFiles::NoFolders };
    const EXPECTED: &'static str = "a .json file, or a folder with an _annotations.coco.json";
    const MARKS: &'static [&'static str] = &IN_FOLDERS;
    const IS_COMPARED_REMOTELY: bool = true;

    type Keys = CocoKeys;
    type Index = RowIndex;

    fn data_root(keys: &CocoKeys) -> Option<PathBuf> {
        keys.root.clone()
    }

    /// Crops and mirrors images, and their boxes and labels.
    fn draft(_seen: &Seen) -> Draft {
        let tables = r#"[[stage]]
name = "augment"
operations = [
    { op = "decode-image" },
    # Boxes follow the image; those that are cut off are dropped with their labels. For validation: "resize" alone.
    { op = "random-resized-crop", size = 512, area = [0.3, 1.0], fields = ["image", "boxes", "labels"] },
    { op = "random-horizontal-flip", fields = ["image", "boxes", "labels"] },
]
"#;
        Draft { tables: tables.to_owned(), epochs: Epochs::Many, ..Draft::default() }
    }

    /// `middles`: an index in which keypoints were numbers of pixels is another one.
    fn digested(keys: &CocoKeys) -> Result<String, ConfigError> {
        let root = keys.root.clone().unwrap_or_default().to_string_lossy().into_owned();
        let CocoKeys { masks, keypoints, panoptic, .. } = keys;
        if masks.is_none() && !keypoints && panoptic.is_none() {
            return Ok(root);
        }
        let masks = masks.map_or("", Masks::word);
        let panoptic = panoptic.clone().unwrap_or_default();
        let keypoints = if *keypoints { "middles" } else { "false" };
        Ok(format!("{root}\0{masks}\0{keypoints}\0{}", panoptic.display()))
    }

    fn files(opening: &Opening<'_, Self>) -> Result<Vec<Vec<u8>>, DatasetError> {
        let name = opening.pattern.unwrap_or(IN_FOLDERS[0]);
        if name.contains(['{', '*', '?']) {
            let reason = "a COCO file is one file; name it without a pattern";
            return Err(opening.request.no_samples(reason));
        }
        Ok(vec![name.as_bytes().to_vec()])
    }

    fn make(
        opening: &Opening<'_, Self>,
        warnings: &mut Vec<String>,
    ) -> Result<Vec<u8>, DatasetError> {
        scan::make(opening, warnings)
    }

    fn of_index(index: &RowIndex, _opening: &Opening<'_, Self>) -> Option<Self> {
        let layout: Self = serde_json::from_str(index.rules()).ok()?;
        (index.columns() == layout.columns()).then_some(layout)
    }

    fn fields(
        &self,
        _index: &RowIndex,
        _first: Option<SampleBytes<'_>>,
    ) -> Result<Vec<Field>, Defect> {
        let field = |name: &str, kind| Field { name: name.to_owned(), kind };
        let mut fields = vec![
            field("image", FieldKind::EncodedImage),
            field("boxes", FieldKind::RaggedArray { dtype: DType::F32, row_shape: vec![4] }),
            field("labels", FieldKind::RaggedArray { dtype: DType::I64, row_shape: Vec::new() }),
            field("image_id", FieldKind::Integer),
        ];
        if self.has_sizes {
            fields.push(field("orig_size", FieldKind::Array { dtype: DType::I64, shape: vec![2] }));
        }
        let list = |dtype, row_shape: &[u64]| FieldKind::RaggedArray {
            dtype,
            row_shape: row_shape.to_vec(),
        };
        if let Some(masks) = self.masks {
            fields.push(field("mask", FieldKind::EncodedImage));
            if masks == Masks::Instances {
                fields.push(field("instances", list(DType::I64, &[])));
            }
        }
        if let Some(each) = self.points_each {
            fields.push(field("keypoints", list(DType::F32, &[each, 3])));
        }
        if self.is_panoptic {
            fields.push(field("segments", FieldKind::EncodedImage));
            fields.push(field("segment_ids", list(DType::I64, &[])));
            fields.push(field("crowd", list(DType::U8, &[])));
        }
        Ok(fields)
    }

    fn locate(&self, _index: &RowIndex, id: SampleId, locations: &mut Vec<Location>) {
        let first = id.0.saturating_mul(self.files_each());
        locations
            .extend((first..first + self.files_each()).map(|file| Location::whole(FileId(file))));
    }

    fn values<'a>(
        &'a self,
        index: &'a RowIndex,
        id: SampleId,
        bytes: SampleBytes<'a>,
        take: Take<'_, 'a>,
    ) -> Result<(), Defect> {
        let damaged = || Defect("its row in the index is damaged; remove the index".to_owned());
        let file = |part: usize, name: &str| match bytes.part(part) {
            Some(file) if !file.is_empty() => Ok(file),
            _ => Err(Defect(format!("`{name}` is empty"))),
        };
        let image = file(0, "image")?;
        let mut cells = index.cells(id).skip(1).map(Option::unwrap_or_default);
        let mut cell = || cells.next().unwrap_or_default();
        let (boxes, labels, size) = (cell(), cell(), cell());
        let count = labels.len() / LABEL_BYTES;
        let are_whole = labels.len() == count * LABEL_BYTES && boxes.len() == count * BOX_BYTES;
        if !are_whole || (self.has_sizes && size.len() != 16) {
            return Err(damaged());
        }
        let count = count as u64;
        take(FieldValue::EncodedImage(image))?;
        take(array(DType::F32, vec![count, 4], boxes))?;
        take(array(DType::I64, vec![count], labels))?;
        take(FieldValue::Integer(index.line(id).cast_signed()))?;
        if self.has_sizes {
            take(array(DType::I64, vec![2], size))?;
        }
        if let Some(masks) = self.masks {
            take(FieldValue::EncodedImage(cell()))?;
            if masks == Masks::Instances {
                let numbers: Vec<u8> =
                    (1..=count.cast_signed()).flat_map(i64::to_le_bytes).collect();
                take(FieldValue::Array(ArrayValue::new(DType::I64, vec![count], numbers)))?;
            }
        }
        if let Some(each) = self.points_each {
            let points = cell();
            if points.len() as u64 != count.saturating_mul(each).saturating_mul(POINT_BYTES) {
                return Err(damaged());
            }
            take(array(DType::F32, vec![count, each, 3], points))?;
        }
        if self.is_panoptic {
            let (_path, ids, crowds) = (cell(), cell(), cell());
            if ids.len() != labels.len() || crowds.len() as u64 != count {
                return Err(damaged());
            }
            take(FieldValue::EncodedImage(file(1, "segments")?))?;
            take(array(DType::I64, vec![count], ids))?;
            take(array(DType::U8, vec![count], crowds))?;
        }
        Ok(())
    }

    /// A file's number is its sample's, or follows from the sample and the column of the path.
    fn append_path(&self, index: &RowIndex, file: FileId, path: &mut Vec<u8>) {
        let column = if file.0.is_multiple_of(self.files_each()) { 0 } else { self.columns() - 3 };
        let cell = index.cells(SampleId(file.0 / self.files_each())).nth(column);
        path.extend_from_slice(cell.flatten().unwrap_or_default());
    }

    fn max_row_bytes(&self, index: &RowIndex, _place: usize, field: &Field) -> Option<u64> {
        let points = self.points_each.unwrap_or(0).saturating_mul(POINT_BYTES);
        match field.name.as_str() {
            "boxes" => Some(index.longest(1).max(BOX_BYTES as u64)),
            "labels" | "instances" | "segment_ids" => {
                Some(index.longest(2).max(LABEL_BYTES as u64))
            }
            "keypoints" => Some(index.longest(self.points_column()).max(points)),
            "crowd" => Some(index.longest(self.columns() - 1).max(1)),
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

#[cfg(test)]
mod tests;

//! `coco`: pictures with boxes, as listed by a COCO JSON file.
//!
//! The file is read once, as a stream ([`parse`]), for an index as manifests have it. Each image is a row with its
//! path, boxes and labels ([`scan`]). A sample reads only the image's file.

mod fuzzed;
mod parse;
mod scan;

use std::path::PathBuf;

use forebay_keys::{ConfigError, DataPath, keys};
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

keys! {
    /// The keys of COCO files.
    pub(crate) struct CocoKeys = "dataset" {
        /// the folder or URL that the paths in the manifest start at
        pub(super) root: DataPath, "", absent("the manifest's folder");
    }
}

/// The bytes of a box's row.
const BOX_BYTES: usize = 16;
/// The bytes of a label.
const LABEL_BYTES: usize = 8;
/// The columns of a row: the path, the boxes, the labels, height and width.
const COLUMNS: usize = 4;

/// The configuration of the fields, as the index stores it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Coco {
    /// The categories' names in the order of their ids.
    classes: Vec<String>,
    /// Whether each image has a height and a width.
    has_sizes: bool,
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

    fn digested(keys: &CocoKeys) -> Result<String, ConfigError> {
        Ok(keys.root.clone().unwrap_or_default().to_string_lossy().into_owned())
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
        serde_json::from_str(index.rules()).ok().filter(|_| index.columns() == COLUMNS)
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
        Ok(fields)
    }

    fn locate(&self, _index: &RowIndex, id: SampleId, locations: &mut Vec<Location>) {
        locations.push(Location::whole(FileId(id.0)));
    }

    fn values<'a>(
        &'a self,
        index: &'a RowIndex,
        id: SampleId,
        bytes: SampleBytes<'a>,
        take: Take<'_, 'a>,
    ) -> Result<(), Defect> {
        let image = bytes.all();
        if image.is_empty() {
            return Err(Defect("`image` is empty".to_owned()));
        }
        let mut cells = index.cells(id).skip(1).map(Option::unwrap_or_default);
        let mut cell = || cells.next().unwrap_or_default();
        let (boxes, labels, size) = (cell(), cell(), cell());
        let count = labels.len() / LABEL_BYTES;
        let are_whole = labels.len() == count * LABEL_BYTES && boxes.len() == count * BOX_BYTES;
        if !are_whole || (self.has_sizes && size.len() != 16) {
            return Err(Defect("its row in the index is damaged; remove the index".to_owned()));
        }
        let count = count as u64;
        take(FieldValue::EncodedImage(image))?;
        take(array(DType::F32, vec![count, 4], boxes))?;
        take(array(DType::I64, vec![count], labels))?;
        take(FieldValue::Integer(index.line(id).cast_signed()))?;
        if self.has_sizes {
            take(array(DType::I64, vec![2], size))?;
        }
        Ok(())
    }

    /// A file's number is its sample's.
    fn append_path(&self, index: &RowIndex, file: FileId, path: &mut Vec<u8>) {
        let cell = index.cells(SampleId(file.0)).next();
        path.extend_from_slice(cell.flatten().unwrap_or_default());
    }

    fn max_row_bytes(&self, index: &RowIndex, _place: usize, field: &Field) -> Option<u64> {
        match field.kind {
            FieldKind::RaggedArray { dtype: DType::F32, .. } => {
                Some(index.longest(1).max(BOX_BYTES as u64))
            }
            FieldKind::RaggedArray { .. } => Some(index.longest(2).max(LABEL_BYTES as u64)),
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

//! `coco`: pictures with boxes, as a COCO JSON file lists them.
//!
//! The file is read once, as a stream ([`parse`]), for the index that manifests have: of each image a row with its path, its
//! boxes and its labels ([`open()`]). A sample is then the image's file; the rest is in the index.

mod fuzzed;
mod open;
mod parse;

use forebay_config::{DataPath, keys};
use forebay_protocol::ids::SampleId;
use forebay_protocol::tensor::DType;
use serde::{Deserialize, Serialize};

#[doc(hidden)]
pub(in crate::dataset) use self::fuzzed::parse_for_fuzzing;
pub(in crate::dataset) use self::open::{IN_FOLDERS, data_root, has_saved_index, open, root};
use crate::dataset::draft::{Draft, Seen};
use crate::dataset::folder::scan::FolderFormat;
use crate::dataset::row_index::RowIndex;
use crate::dataset::saved_index::SavedIndex;
use crate::dataset::{ArrayValue, Dataset, Defect, Field, FieldKind, FieldValue, IndexBytes};
use crate::location::{FileId, FileTable, Location, SampleBytes};

/// What is read.
pub(in crate::dataset) const FORMAT: FolderFormat =
    FolderFormat { name: "coco", extensions: &[".json"], flat_is_valid: true };

keys! {
    /// The keys of COCO files.
    pub(in crate::dataset) struct CocoKeys = "dataset" {
        /// the folder or URL that the paths in the manifest start at
        pub(super) root: DataPath, "", absent("the manifest's folder");
    }
}

/// A part of the image and its mirror image, with the boxes and labels of that part.
pub(in crate::dataset) fn draft(_seen: &Seen) -> Draft {
    let tables = r#"[[stage]]
name = "augment"
operations = [
    { op = "decode-image" },
    # Boxes follow the image; those that are cut off are dropped with their labels. For validation: "resize" alone.
    { op = "random-resized-crop", size = 512, area = [0.3, 1.0], fields = ["image", "boxes", "labels"] },
    { op = "random-horizontal-flip", fields = ["image", "boxes", "labels"] },
]
"#;
    Draft { head: String::new(), tables: tables.to_owned() }
}

/// The bytes of a box's row.
const BOX_BYTES: usize = 16;
/// The bytes of a label.
const LABEL_BYTES: usize = 8;
/// What a row has: the path, the boxes, the labels, height and width.
const COLUMNS: usize = 4;

/// What the index keeps beside the rows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Layout {
    /// The categories' names in the order of their ids.
    classes: Vec<String>,
    /// Whether each image has a height and a width.
    has_sizes: bool,
}

impl Layout {
    fn parse(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }

    fn fields(&self) -> Vec<Field> {
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
        fields
    }
}

/// The images of a COCO file.
#[derive(Debug)]
struct CocoSamples {
    index: RowIndex,
    layout: Layout,
    fields: Vec<Field>,
}

/// A file's number is its sample's.
impl FileTable for CocoSamples {
    fn append_path(&self, file: FileId, path: &mut Vec<u8>) {
        let cell = self.index.cells(SampleId(file.0)).next();
        path.extend_from_slice(cell.flatten().unwrap_or_default());
    }
}

fn array(dtype: DType, shape: Vec<u64>, bytes: &[u8]) -> FieldValue<'_> {
    FieldValue::Array(ArrayValue {
        dtype,
        shape: shape.into(),
        fortran_order: false,
        big_endian: false,
        bytes: bytes.into(),
    })
}

impl Dataset for CocoSamples {
    fn sample_count(&self) -> u64 {
        self.index.samples()
    }

    fn fields(&self) -> &[Field] {
        &self.fields
    }

    fn locate(&self, id: SampleId, locations: &mut Vec<Location>) {
        locations.push(Location::whole(FileId(id.0)));
    }

    fn read<'a>(
        &'a self,
        id: SampleId,
        bytes: SampleBytes<'a>,
        values: &mut Vec<FieldValue<'a>>,
    ) -> Result<(), Defect> {
        let image = bytes.all();
        if image.is_empty() {
            return Err(Defect("`image` is empty".to_owned()));
        }
        let mut cells = self.index.cells(id).skip(1).map(Option::unwrap_or_default);
        let mut cell = || cells.next().unwrap_or_default();
        let (boxes, labels, size) = (cell(), cell(), cell());
        let count = labels.len() / LABEL_BYTES;
        let are_whole = labels.len() == count * LABEL_BYTES && boxes.len() == count * BOX_BYTES;
        if !are_whole || (self.layout.has_sizes && size.len() != 16) {
            return Err(Defect("its row in the index is damaged; remove the index".to_owned()));
        }
        let count = count as u64;
        values.push(FieldValue::EncodedImage(image));
        values.push(array(DType::F32, vec![count, 4], boxes));
        values.push(array(DType::I64, vec![count], labels));
        values.push(FieldValue::Integer(self.index.line(id).cast_signed()));
        if self.layout.has_sizes {
            values.push(array(DType::I64, vec![2], size));
        }
        Ok(())
    }

    fn fingerprint(&self) -> [u8; 32] {
        self.index.fingerprint()
    }

    fn index(&self) -> Option<&IndexBytes> {
        Some(self.index.bytes())
    }

    /// The file's path and the image's id.
    fn append_name(&self, id: SampleId, name: &mut Vec<u8>) {
        self.index.append_name(id, name);
    }

    fn max_row_bytes(&self, field: usize) -> Option<u64> {
        match self.fields.get(field)?.kind {
            FieldKind::RaggedArray { dtype: DType::F32, .. } => {
                Some(self.index.longest(1).max(BOX_BYTES as u64))
            }
            FieldKind::RaggedArray { .. } => Some(self.index.longest(2).max(LABEL_BYTES as u64)),
            _ => None,
        }
    }

    fn classes(&self) -> &[String] {
        &self.layout.classes
    }
}

#[cfg(test)]
mod tests;

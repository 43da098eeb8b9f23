//! `image-folder`: images in class folders, as torchvision's `ImageFolder` reads them, with the fields `image`, `label`.
//!
//! torchvision also takes .ppm .bmp .pgm .tif .tiff; no decoder here reads those, so they are skipped and counted.
//! What is in a file is the decoding operation's part: a file is handed on as it is.

use std::sync::Arc;

use forebay_protocol::ids::SampleId;
use forebay_protocol::tensor::DType;

use super::error::DatasetError;
use super::folder::index::FolderIndex;
use super::folder::open_folder;
use super::folder::scan::{FolderFormat, ProgressCallback};
use super::registry::Opened;
use super::{ByteRange, Dataset, Defect, Field, FieldKind, FieldValue};
use crate::config::DatasetConfig;

/// What is read, and where it may lie.
pub(super) const FORMAT: FolderFormat = FolderFormat {
    name: "image-folder",
    extensions: &[".jpg", ".jpeg", ".png", ".webp"],
    flat_is_valid: false,
};

/// Opens a folder of class folders.
pub(super) fn open(
    config: &DatasetConfig,
    progress: ProgressCallback<'_>,
) -> Result<Opened, DatasetError> {
    let (index, report) = open_folder(config, FORMAT, progress)?;
    let fields = [
        Field { name: "image".to_owned(), kind: FieldKind::EncodedImage },
        Field {
            name: "label".to_owned(),
            kind: FieldKind::Array { dtype: DType::I64, shape: Vec::new() },
        },
    ];
    Ok(Opened { dataset: Arc::new(ImageFolder { index, fields }), report })
}

#[derive(Debug)]
struct ImageFolder {
    index: FolderIndex,
    fields: [Field; 2],
}

impl Dataset for ImageFolder {
    fn sample_count(&self) -> u64 {
        self.index.sample_count()
    }

    fn fields(&self) -> &[Field] {
        &self.fields
    }

    fn locate(&self, id: SampleId, path: &mut Vec<u8>) -> ByteRange {
        self.index.append_path(id, path);
        ByteRange { offset: 0, length: None }
    }

    fn read<'a>(
        &'a self,
        id: SampleId,
        bytes: &'a [u8],
        values: &mut Vec<FieldValue<'a>>,
    ) -> Result<(), Defect> {
        if bytes.is_empty() {
            return Err(Defect("the file is empty".to_owned()));
        }
        values.push(FieldValue::Encoded(bytes));
        values.push(FieldValue::Integer(self.index.label(id)));
        Ok(())
    }

    fn fingerprint(&self) -> [u8; 32] {
        self.index.header().fingerprint
    }

    fn index(&self) -> Option<&FolderIndex> {
        Some(&self.index)
    }

    fn classes(&self) -> &[String] {
        self.index.classes()
    }
}

#[cfg(test)]
mod tests;

//! `image-folder`: images in class folders, as torchvision's `ImageFolder` reads them, with the fields `image`, `label`.
//!
//! torchvision also takes .ppm and .pgm, which no decoder here reads: they are skipped and counted. It takes no .gif.
//! What is in a file is the decoding operation's part: a file is handed on as it is.

use forebay_config::DatasetConfig;

use super::draft::{Draft, Seen};
use super::file_samples::{FileReader, FileSamples};
use super::folder::scan::FolderFormat;
use super::opening::{OpenOptions, OpenedFormat};
use super::{Defect, Field, FieldKind, FieldValue};
use crate::storage::Storage;

/// What is read, and where it may lie.
pub(super) const FORMAT: FolderFormat = FolderFormat {
    name: "image-folder",
    // The place of an extension is part of an index: new ones stand at the end.
    extensions: &[".jpg", ".jpeg", ".png", ".webp", ".tif", ".tiff", ".bmp", ".gif"],
    flat_is_valid: false,
};

/// Opens a folder of class folders.
pub(super) fn open(
    config: &DatasetConfig,
    storage: &dyn Storage,
    options: OpenOptions<'_>,
) -> OpenedFormat {
    let fields = vec![Field { name: "image".to_owned(), kind: FieldKind::EncodedImage }];
    FileSamples::open(config, storage, FORMAT, options, fields, ImageFile)
}

/// Training of classification: the work is the preset's.
pub(super) fn draft(_: &Seen) -> Draft {
    Draft {
        head: "preset = \"imagenet-train\"  # decode, random-resized-crop 224, flip; for validation: \"imagenet-eval\"\n"
            .to_owned(),
        ..Draft::default()
    }
}

#[derive(Debug)]
struct ImageFile;

impl FileReader for ImageFile {
    fn read<'a>(
        &'a self,
        _fields: &'a [Field],
        bytes: &'a [u8],
        values: &mut Vec<FieldValue<'a>>,
    ) -> Result<(), Defect> {
        if bytes.is_empty() {
            return Err(Defect("the file is empty".to_owned()));
        }
        values.push(FieldValue::EncodedImage(bytes));
        Ok(())
    }
}

#[cfg(test)]
mod tests;

//! `image-folder`: images in class folders, as in torchvision's `ImageFolder`, with the fields `image` and `label`; or
//! all images in one folder, without a label.
//!
//! torchvision also reads .ppm and .pgm, which no decoder here supports: they are skipped and counted. It does not read
//! .gif. File contents are not inspected here; the decoding operation does that.

use forebay_config::DatasetConfig;

use crate::draft::{Draft, Epochs, Seen};
use crate::file_samples::{FileReader, FileSamples};
use forebay_dataset::opening::{OpenOptions, OpenedFormat};
use forebay_dataset::{Defect, Field, FieldKind, FieldValue};
use forebay_index::folder::scan::{FolderFormat, LooseFiles};
use forebay_storage::Storage;

/// The extensions, and where files may be.
pub(super) const FORMAT: FolderFormat = FolderFormat {
    name: "image-folder",
    // Indexes contain the position of an extension in this list: append new ones at the end.
    extensions: &[".jpg", ".jpeg", ".png", ".webp", ".tif", ".tiff", ".bmp", ".gif"],
    loose: LooseFiles::LeftOut,
};

/// Opens a folder of class folders.
pub(super) fn open(
    config: &DatasetConfig,
    storage: &dyn Storage,
    options: OpenOptions<'_>,
) -> OpenedFormat {
    let fields = vec![Field { name: "image".to_owned(), kind: FieldKind::EncodedImage }];
    let (dataset, mut report) =
        FileSamples::open(config, storage, FORMAT, options, |_| fields, ImageFile)?;
    if dataset.classes().is_empty() {
        let warning =
            "its pictures lie directly in it, without class folders: they have no `label`";
        report.warnings.push(warning.to_owned());
    }
    Ok((dataset, report))
}

/// A preset for training a classifier.
pub(super) fn draft(seen: &Seen) -> Draft {
    let has_labels = seen.fields.iter().any(|field| field.kind == FieldKind::Integer);
    let note = if has_labels {
        ""
    } else {
        "# There are no class folders: pictures have no label. Two views of each, to train without: preset = \"dino\"\n"
    };
    Draft {
        head: note.to_owned()
            + "preset = \"imagenet-train\"  # decode, random-resized-crop 224, flip; for validation: \"imagenet-eval\"\n",
        epochs: Epochs::Many,
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

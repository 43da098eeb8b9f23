//! Folders in which each file is a sample: the common part of image folders and folders of arrays.
//!
//! [`FileSamples`] is their [`Dataset`]; a format implements [`FileReader`], which splits a file's bytes into fields.
//! The label comes from the class folders.

use std::sync::Arc;

use forebay_config::DatasetConfig;
use forebay_protocol::ids::SampleId;
use forebay_protocol::tensor::MAX_NAME_BYTES;
use forebay_storage::version::ObjectStamp;

use crate::fields::RESERVED;
use forebay_dataset::IndexBytes;
use forebay_dataset::error::DatasetError;
use forebay_dataset::opening::{OpenOptions, OpenedFormat};
use forebay_dataset::{
    ArrayValue, Dataset, Defect, Description, DirectRead, Field, FieldKind, FieldValue,
};
use forebay_index::folder::classes::class_summary;
use forebay_index::folder::index::FolderIndex;
use forebay_index::folder::open_folder;
use forebay_index::folder::scan::FolderFormat;
use forebay_storage::Storage;
use forebay_storage::location::{FileId, FileTable, Location, SampleBytes};

/// The field of the class folder's label.
const LABEL: &str = "label";

/// Reads the contents of one file.
pub(super) trait FileReader: Send + Sync + std::fmt::Debug + 'static {
    /// Splits a file into the values of `fields`, which exclude the label. Appends to `values`.
    ///
    /// # Errors
    /// The bytes are defective.
    fn read<'a>(
        &'a self,
        fields: &'a [Field],
        bytes: &'a [u8],
        values: &mut Vec<FieldValue<'a>>,
    ) -> Result<(), Defect>;

    /// As [`Dataset::unpacked_bytes`].
    fn unpacked_bytes(&self, _bytes: &[u8]) -> u64 {
        0
    }

    /// As [`Dataset::direct_read`].
    fn direct_read(&self) -> Option<&DirectRead> {
        None
    }

    /// The dataset's fingerprint, derived from that of its files.
    fn fingerprint(&self, files: [u8; 32]) -> [u8; 32] {
        files
    }
}

/// A dataset with one sample per file.
#[derive(Debug)]
pub(super) struct FileSamples<R> {
    index: FolderIndex,
    /// The file's fields, then the label if there are classes.
    fields: Vec<Field>,
    /// The number of fields of the file.
    of_file: usize,
    reader: R,
}

impl<R: FileReader> FileSamples<R> {
    /// Opens a folder whose fields are determined by the format.
    ///
    /// # Errors
    /// As [`open_folder`].
    pub(super) fn open(
        config: &DatasetConfig,
        storage: &dyn Storage,
        format: FolderFormat,
        options: OpenOptions<'_>,
        fields: impl FnOnce(&FolderIndex) -> Vec<Field>,
        reader: R,
    ) -> OpenedFormat {
        let (index, report) = open_folder(config, storage, format, options)?;
        let fields = fields(&index);
        Ok((Arc::new(Self::new(index, fields, reader)), report))
    }

    /// Opens a folder of arrays, whose first file determines the fields.
    ///
    /// # Errors
    /// As [`open_folder`], or the first file is unusable.
    pub(super) fn open_arrays(
        config: &DatasetConfig,
        storage: &dyn Storage,
        format: FolderFormat,
        options: OpenOptions<'_>,
        inspect: impl FnOnce(&[u8]) -> Result<(Vec<Field>, R), Defect>,
    ) -> OpenedFormat {
        let (index, report) = open_folder(config, storage, format, options)?;
        let first = FileId(0);
        let refuse = |reason| DatasetError::FirstSample {
            path: storage.full_path(&index.path(first)),
            reason,
        };
        let mut bytes = Vec::new();
        storage
            .read(&index, Location::whole(first), config.limits.sample_bytes, &mut bytes)
            .map_err(|error| match error.is_transient() {
                true => error.into(),
                false => refuse(error.to_string()),
            })?;
        let (fields, reader) = inspect(&bytes)
            .and_then(|inspected| {
                check_names(&inspected.0, !index.classes().is_empty()).map(|()| inspected)
            })
            .map_err(|defect| refuse(defect.0))?;
        Ok((Arc::new(Self::new(index, fields, reader)), report))
    }

    fn new(index: FolderIndex, mut fields: Vec<Field>, reader: R) -> Self {
        let of_file = fields.len();
        if !index.classes().is_empty() {
            fields.push(Field { name: LABEL.to_owned(), kind: FieldKind::Integer });
        }
        Self { index, fields, of_file, reader }
    }

    /// The class, if the folders are classes.
    fn class(&self, id: SampleId) -> Option<i64> {
        (self.fields.len() > self.of_file).then(|| self.index.label(id))
    }

    fn push_label(&self, id: SampleId, values: &mut Vec<FieldValue<'_>>) {
        values.extend(self.class(id).map(FieldValue::Integer));
    }
}

impl<R: FileReader> FileTable for FileSamples<R> {
    fn append_path(&self, file: FileId, path: &mut Vec<u8>) {
        self.index.append_path(SampleId(file.0), path);
    }

    fn stamp(&self, file: FileId) -> Option<ObjectStamp> {
        self.index.stamp(file)
    }
}

impl<R: FileReader> Dataset for FileSamples<R> {
    fn sample_count(&self) -> u64 {
        self.index.sample_count()
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
        self.reader.read(&self.fields[..self.of_file], bytes.all(), values)?;
        self.push_label(id, values);
        Ok(())
    }

    fn label(&self, id: SampleId) -> Option<Result<i64, Defect>> {
        self.class(id).map(Ok)
    }

    fn append_key(&self, id: SampleId, key: &mut Vec<u8>) -> bool {
        self.index.append_path(id, key);
        true
    }

    fn unpacked_bytes(&self, bytes: SampleBytes<'_>) -> u64 {
        self.reader.unpacked_bytes(bytes.all())
    }

    fn direct_read(&self) -> Option<&DirectRead> {
        self.reader.direct_read()
    }

    fn read_in_place<'a>(&'a self, id: SampleId, values: &mut Vec<FieldValue<'a>>) {
        values.push(FieldValue::InPlace);
        self.push_label(id, values);
    }

    fn fingerprint(&self) -> [u8; 32] {
        self.reader.fingerprint(self.index.file().fingerprint())
    }

    fn index(&self) -> Option<&IndexBytes> {
        Some(self.index.file().bytes())
    }

    fn description(&self) -> Description {
        Description {
            classes: class_summary(&self.index),
            left_out: self.index.left_out().map(str::to_owned),
            ..Description::default()
        }
    }

    fn classes(&self) -> &[String] {
        self.index.classes()
    }
}

/// Refuses array names that are invalid for a tensor.
fn check_names(fields: &[Field], has_label: bool) -> Result<(), Defect> {
    for Field { name, .. } in fields {
        if RESERVED.contains(&name.as_str()) || (has_label && name == LABEL) {
            return Err(Defect(format!(
                "an array is named {name:?}, which every batch{} uses itself; save it under another name",
                if has_label { " of a dataset with class folders" } else { "" }
            )));
        }
        if name.is_empty() || name.len() > MAX_NAME_BYTES {
            return Err(Defect(format!(
                "an array's name {name:?} is empty or longer than {MAX_NAME_BYTES} bytes"
            )));
        }
    }
    Ok(())
}

/// The field of an array of the first sample.
pub(super) fn array_field(name: String, array: &ArrayValue<'_>) -> Field {
    Field { name, kind: FieldKind::Array { dtype: array.dtype, shape: array.shape.to_vec() } }
}

/// Refuses an array whose type differs from the first sample's. Shapes are checked when the row is written, because
/// those of ragged fields may differ.
///
/// # Errors
/// The types differ; the error has both.
pub(super) fn check_type(field: &Field, array: &ArrayValue<'_>) -> Result<(), Defect> {
    match &field.kind {
        FieldKind::Array { dtype, .. } if *dtype != array.dtype => Err(Defect(format!(
            "{} is {}, and {} in the first sample",
            field.name,
            array.dtype.name(),
            dtype.name()
        ))),
        _ => Ok(()),
    }
}

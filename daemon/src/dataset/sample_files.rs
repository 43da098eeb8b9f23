//! What the formats of array files share: the first sample, and the check of a later one's types against it.

use forebay_protocol::ids::SampleId;
use forebay_protocol::tensor::{DType, MAX_NAME_BYTES};

use super::error::DatasetError;
use super::folder::index::FolderIndex;
use super::{ArrayValue, ByteRange, Defect, Field, FieldKind};
use crate::storage::LocalFiles;

/// The field that class folders give.
pub(super) const LABEL: &str = "label";
/// Names that every batch uses itself.
const RESERVED: [&str; 2] = ["index", "valid"];

/// The first sample's file, and its path for messages.
pub(super) struct FirstSample {
    pub(super) path: std::path::PathBuf,
    pub(super) bytes: Vec<u8>,
}

impl FirstSample {
    /// Reads the file of sample 0.
    ///
    /// # Errors
    /// It cannot be read, or is larger than the limit.
    pub(super) fn read(
        index: &FolderIndex,
        root: &std::path::Path,
        limit_bytes: u64,
    ) -> Result<Self, DatasetError> {
        let mut relative = Vec::new();
        index.append_path(SampleId(0), &mut relative);
        let path = root.join(std::path::Path::new(
            <std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(&relative),
        ));
        let mut bytes = Vec::new();
        LocalFiles::open(root)
            .and_then(|files| {
                let whole = ByteRange { offset: 0, length: None };
                files.read(&relative, whole, limit_bytes, &mut bytes)
            })
            .map_err(|error| DatasetError::FirstSample {
                path: path.clone(),
                reason: error.to_string(),
            })?;
        Ok(Self { path, bytes })
    }

    /// The error that this sample's defect becomes.
    pub(super) fn defective(&self, defect: Defect) -> DatasetError {
        DatasetError::FirstSample { path: self.path.clone(), reason: defect.0 }
    }
}

/// The fields of array files: those of the first sample, then the label where there are classes.
///
/// # Errors
/// A name that cannot be a tensor's.
pub(super) fn array_fields(
    arrays: &[(String, ArrayValue<'_>)],
    has_label: bool,
) -> Result<Vec<Field>, Defect> {
    let mut fields = Vec::with_capacity(arrays.len() + 1);
    for (name, array) in arrays {
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
        let kind = FieldKind::Array { dtype: array.dtype, shape: array.shape.to_vec() };
        fields.push(Field { name: name.clone(), kind });
    }
    if has_label {
        let kind = FieldKind::Array { dtype: DType::I64, shape: Vec::new() };
        fields.push(Field { name: LABEL.to_owned(), kind });
    }
    Ok(fields)
}

/// Refuses an array whose type is not the first sample's. Shapes are compared where the row is written: ragged fields
/// may differ in theirs.
///
/// # Errors
/// Names both types.
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

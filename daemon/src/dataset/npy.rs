//! `npy`: a folder of `.npy` files, or one file whose first axis is the samples. The field is `array`; with class
//! folders there is `label` too.
//!
//! Of the one file each sample is a row, located by arithmetic: only its bytes are fetched. Types and shape are those of
//! the first sample (of the file's header).

use std::path::Path;
use std::sync::Arc;

use forebay_protocol::ids::SampleId;

use super::error::DatasetError;
use super::folder::index::FolderIndex;
use super::folder::scan::{FolderFormat, ProgressCallback};
use super::folder::{IndexReport, open_folder};
use super::npy_header::{ArrayHeader, header_bytes, read_array};
use super::registry::Opened;
use super::sample_files::{FirstSample, array_fields, check_type};
use super::{ArrayValue, ByteRange, Dataset, Defect, Field, FieldKind, FieldValue, StraightArray};
use crate::config::DatasetConfig;
use crate::storage::LocalFiles;

/// What is read, and where it may lie.
pub(super) const FORMAT: FolderFormat =
    FolderFormat { name: "npy", extensions: &[".npy"], flat_is_valid: true };

/// The one field's name.
const ARRAY: &str = "array";

/// Opens a folder of files, or one file.
pub(super) fn open(
    config: &DatasetConfig,
    progress: ProgressCallback<'_>,
) -> Result<Opened, DatasetError> {
    if config.path.is_file() {
        return open_array_file(config);
    }
    let (index, report) = open_folder(config, FORMAT, progress)?;
    let first = FirstSample::read(&index, &config.path, config.limits.sample_bytes)?;
    let has_label = !index.classes().is_empty();
    let opened = ArrayHeader::parse(&first.bytes).and_then(|header| {
        let fields = array_fields(&[(ARRAY.to_owned(), read_array(&first.bytes)?)], has_label)?;
        let straight = header.straight(&first.bytes[..header.data_start], header.data_bytes);
        Ok((header, fields, straight))
    });
    let (first_header, fields, straight) = opened.map_err(|defect| first.defective(defect))?;
    let before = first.bytes[..first_header.data_start].to_vec();
    let dataset = NpyFolder { index, fields, first_header, before, straight };
    Ok(Opened { dataset: Arc::new(dataset), report })
}

/// One sample a file.
#[derive(Debug)]
struct NpyFolder {
    index: FolderIndex,
    fields: Vec<Field>,
    /// What the first sample's header says, and its bytes: nearly every file has the same ones.
    first_header: ArrayHeader,
    before: Vec<u8>,
    straight: Option<StraightArray>,
}

impl NpyFolder {
    /// A file as an array. A header that is the first sample's is not parsed again.
    fn array<'a>(&'a self, bytes: &'a [u8]) -> Result<ArrayValue<'a>, Defect> {
        let Some(elements) = bytes.strip_prefix(self.before.as_slice()) else {
            return read_array(bytes);
        };
        let header = &self.first_header;
        header.check_length(bytes.len() as u64)?;
        Ok(ArrayValue {
            dtype: header.dtype,
            shape: header.shape.as_slice().into(),
            fortran_order: header.fortran_order,
            big_endian: header.big_endian,
            bytes: elements.into(),
        })
    }
}

impl Dataset for NpyFolder {
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
        let array = self.array(bytes)?;
        check_type(&self.fields[0], &array)?;
        values.push(FieldValue::Array(array));
        if self.fields.len() > 1 {
            values.push(FieldValue::Integer(self.index.label(id)));
        }
        Ok(())
    }

    fn straight(&self) -> Option<&StraightArray> {
        self.straight.as_ref()
    }

    fn read_beside<'a>(&'a self, id: SampleId, _field: usize, values: &mut Vec<FieldValue<'a>>) {
        values.push(FieldValue::InItsRow);
        if self.fields.len() > 1 {
            values.push(FieldValue::Integer(self.index.label(id)));
        }
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

/// One file, of which each row of the first axis is a sample.
#[derive(Debug)]
struct ArrayFile {
    /// Within its folder.
    name: Vec<u8>,
    header: ArrayHeader,
    row_shape: Vec<u64>,
    row_bytes: u64,
    samples: u64,
    fields: [Field; 1],
    straight: Option<StraightArray>,
    fingerprint: [u8; 32],
}

fn open_array_file(config: &DatasetConfig) -> Result<Opened, DatasetError> {
    use std::os::unix::ffi::OsStrExt;

    let path = &config.path;
    let refuse =
        |reason: &str| DatasetError::ArrayFile { path: path.clone(), reason: reason.to_owned() };
    let name = path.file_name().map(|name| name.as_bytes().to_vec()).unwrap_or_default();
    if !name.to_ascii_lowercase().ends_with(b".npy") {
        return Err(DatasetError::WrongKind {
            path: path.clone(),
            found: "a file that does not end in .npy",
            format: FORMAT.name,
            expected: "a folder of .npy files, or one .npy file",
        });
    }
    if config.classes.is_some() || config.ids.is_some() {
        return Err(refuse(
            "dataset.classes and dataset.ids name files, and the rows of one array have no names; leave them out, or \
             use dataset.limit",
        ));
    }
    let header = read_header_of(path, &name)?;
    let Some((rows, row_shape)) = header.shape.split_first() else {
        return Err(refuse("it holds a single number; the first axis must be the samples"));
    };
    if header.fortran_order && header.shape.len() > 1 {
        return Err(refuse(
            "it is in Fortran order, where a sample's elements lie far apart; save it again with \
             numpy.save(path, numpy.ascontiguousarray(array))",
        ));
    }
    let samples = config.limit.map_or(*rows, |limit| limit.min(*rows));
    if samples == 0 {
        let reason =
            format!("its shape is {:?} and dataset.limit {:?}", header.shape, config.limit);
        return Err(DatasetError::NoSamples { path: path.clone(), reason });
    }
    let row_shape = row_shape.to_vec();
    let row_bytes = header.data_bytes / rows;
    let kind = FieldKind::Array { dtype: header.dtype, shape: row_shape.clone() };
    let fields = [Field { name: ARRAY.to_owned(), kind }];
    let fingerprint = fingerprint(&name, &header, samples);
    let straight = header.straight(&[], row_bytes);
    let dataset =
        ArrayFile { name, header, row_shape, row_bytes, samples, fields, straight, fingerprint };
    let report = IndexReport { samples, ..IndexReport::default() };
    Ok(Opened { dataset: Arc::new(dataset), report })
}

/// Reads and checks a file's header without its elements.
fn read_header_of(path: &Path, name: &[u8]) -> Result<ArrayHeader, DatasetError> {
    let refuse = |reason: String| DatasetError::ArrayFile { path: path.to_owned(), reason };
    let files = LocalFiles::open(path).map_err(|error| refuse(error.to_string()))?;
    let whole = ByteRange { offset: 0, length: None };
    let file_bytes =
        files.open_file(name, whole).map_err(|error| refuse(error.to_string()))?.length();
    let mut bytes = Vec::new();
    let mut read_first = |length: usize| -> Result<ArrayHeader, Result<usize, DatasetError>> {
        let length = file_bytes.min(length as u64);
        files
            .read(name, ByteRange { offset: 0, length: Some(length) }, u64::MAX, &mut bytes)
            .map_err(|error| Err(refuse(error.to_string())))?;
        let wanted = header_bytes(&bytes).map_err(|defect| Err(refuse(defect.0)))?;
        if wanted as u64 > length && length < file_bytes {
            return Err(Ok(wanted));
        }
        ArrayHeader::parse(&bytes).map_err(|defect| Err(refuse(defect.0)))
    };
    // Headers are padded to a multiple of 64 bytes and hardly ever longer than this.
    let header = match read_first(1024) {
        Err(Ok(wanted)) => read_first(wanted),
        outcome => outcome,
    };
    let header = header.map_err(|failure| match failure {
        Err(error) => error,
        Ok(wanted) => {
            refuse(format!("the .npy header of {wanted} bytes changed while it was read"))
        }
    })?;
    header.check_length(file_bytes).map_err(|defect| refuse(defect.0))?;
    Ok(header)
}

/// BLAKE3 over name, type, shape and the number of samples; the elements are not read.
fn fingerprint(name: &[u8], header: &ArrayHeader, samples: u64) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(b"forebay array file 1\0");
    hasher.update(name);
    hasher.update(b"\0");
    hasher.update(&samples.to_le_bytes());
    hasher.update(header.dtype.name().as_bytes());
    for dim in &header.shape {
        hasher.update(&dim.to_le_bytes());
    }
    *hasher.finalize().as_bytes()
}

impl Dataset for ArrayFile {
    fn sample_count(&self) -> u64 {
        self.samples
    }

    fn fields(&self) -> &[Field] {
        &self.fields
    }

    fn locate(&self, id: SampleId, path: &mut Vec<u8>) -> ByteRange {
        assert!(
            id.0 < self.samples,
            "sample {} does not exist: the dataset has {}",
            id.0,
            self.samples
        );
        path.extend_from_slice(&self.name);
        ByteRange {
            offset: self.header.data_start as u64 + id.0 * self.row_bytes,
            length: Some(self.row_bytes),
        }
    }

    fn read<'a>(
        &'a self,
        _id: SampleId,
        bytes: &'a [u8],
        values: &mut Vec<FieldValue<'a>>,
    ) -> Result<(), Defect> {
        if bytes.len() as u64 != self.row_bytes {
            return Err(Defect(format!(
                "a row has {} bytes, and {} were read",
                self.row_bytes,
                bytes.len()
            )));
        }
        values.push(FieldValue::Array(ArrayValue {
            dtype: self.header.dtype,
            shape: self.row_shape.as_slice().into(),
            fortran_order: false,
            big_endian: self.header.big_endian,
            bytes: bytes.into(),
        }));
        Ok(())
    }

    fn straight(&self) -> Option<&StraightArray> {
        self.straight.as_ref()
    }

    fn fingerprint(&self) -> [u8; 32] {
        self.fingerprint
    }
}

#[cfg(test)]
mod tests;

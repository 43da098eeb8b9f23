//! A single `.npy` file; each row of the first axis is a sample.
//!
//! Rows are located by arithmetic: only their bytes are read, from a file that the storage keeps open.

use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use forebay_config::DatasetConfig;
use forebay_protocol::ids::SampleId;
use forebay_storage::version::{FileStatus, ObjectIdentity, ObjectStamp};

use forebay_dataset::error::DatasetError;
use forebay_dataset::npy_header::{ARRAY, ArrayHeader, MAX_HEADER_BYTES};
use forebay_dataset::opening::{IndexReport, OpenedFormat};
use forebay_dataset::{ArrayValue, Dataset, Defect, DirectRead, Field, FieldKind, FieldValue};
use forebay_index::folder::FolderKeys;
use forebay_storage::location::{ByteRange, FileId, FileTable, Location, SampleBytes};
use forebay_storage::{Storage, StorageError};

/// A dataset of the rows of one file.
#[derive(Debug)]
struct ArrayFile {
    file: OneFile,
    header: ArrayHeader,
    row_shape: Vec<u64>,
    row_bytes: u64,
    samples: u64,
    fields: [Field; 1],
    direct_read: Option<DirectRead>,
    fingerprint: [u8; 32],
}

/// The name of the file in its folder, and the stamp of the object whose header was read.
#[derive(Debug)]
struct OneFile(Vec<u8>, Option<ObjectStamp>);

const FILE: FileId = FileId(0);

impl FileTable for OneFile {
    fn append_path(&self, _file: FileId, path: &mut Vec<u8>) {
        path.extend_from_slice(&self.0);
    }

    fn stamp(&self, _file: FileId) -> Option<ObjectStamp> {
        self.1
    }
}

/// Opens one file.
pub(super) fn open(
    config: &DatasetConfig,
    storage: &dyn Storage,
    format: &'static str,
) -> OpenedFormat {
    let path = &config.path;
    let refuse =
        |reason: &str| DatasetError::ArrayFile { path: path.clone(), reason: reason.to_owned() };
    let name = path.file_name().map(|name| name.as_bytes().to_vec()).unwrap_or_default();
    if !name.to_ascii_lowercase().ends_with(b".npy") {
        return Err(DatasetError::WrongKind {
            path: path.clone(),
            found: "a file that does not end in .npy",
            format,
            expected: "a folder of .npy files, or one .npy file",
        });
    }
    if FolderKeys::of(config)?.classes.is_some() || config.ids.is_some() {
        return Err(refuse(
            "dataset.classes and dataset.ids name files, and the rows of one array have no names; leave them out, or \
             use dataset.limit",
        ));
    }
    let mut file = OneFile(name, None);
    let header = read_header(storage, &mut file)
        .map_err(|error| error.map_or_else(|error| error.into(), |reason| refuse(&reason)))?;
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
    let fingerprint = fingerprint(&file.0, &header, samples);
    let direct_read = header.direct_read(&[], row_bytes);
    let dataset =
        ArrayFile { file, header, row_shape, row_bytes, samples, fields, direct_read, fingerprint };
    let report = IndexReport { samples, ..IndexReport::default() };
    Ok((Arc::new(dataset), report))
}

/// Reads and validates a file's header without its elements. The error is the file's defect as text, or a transient
/// error of the storage.
fn read_header(
    storage: &dyn Storage,
    file: &mut OneFile,
) -> Result<ArrayHeader, Result<String, StorageError>> {
    let fail = |error: StorageError| match error.is_transient() {
        true => Err(error),
        false => Ok(error.to_string()),
    };
    let FileStatus { bytes: file_bytes, identity } = storage.status(file, FILE).map_err(fail)?;
    if let ObjectIdentity::Tag(tag) = identity {
        file.1 = Some(ObjectStamp::new(file_bytes, Some(&tag)));
    }
    let range = ByteRange { offset: 0, length: Some(file_bytes.min(MAX_HEADER_BYTES as u64)) };
    let mut bytes = Vec::new();
    storage
        .read(file, Location { range, ..Location::whole(FILE) }, u64::MAX, &mut bytes)
        .map_err(fail)?;
    let header = ArrayHeader::parse(&bytes).map_err(|defect| Ok(defect.0))?;
    header.check_length(file_bytes).map_err(|defect| Ok(defect.0))?;
    Ok(header)
}

/// BLAKE3 of name, type, shape and the number of samples; the elements are not read.
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

impl FileTable for ArrayFile {
    fn append_path(&self, file: FileId, path: &mut Vec<u8>) {
        self.file.append_path(file, path);
    }

    fn stamp(&self, file: FileId) -> Option<ObjectStamp> {
        self.file.stamp(file)
    }
}

impl Dataset for ArrayFile {
    fn sample_count(&self) -> u64 {
        self.samples
    }

    fn fields(&self) -> &[Field] {
        &self.fields
    }

    fn rows_differ(&self, _field: usize) -> Option<bool> {
        Some(false)
    }

    fn locate(&self, id: SampleId, locations: &mut Vec<Location>) {
        assert!(
            id.0 < self.samples,
            "sample {} does not exist: the dataset has {}",
            id.0,
            self.samples
        );
        let offset = self.header.data_start as u64 + id.0 * self.row_bytes;
        let range = ByteRange { offset, length: Some(self.row_bytes) };
        locations.push(Location { range, ..Location::whole(FILE) });
    }

    fn read<'a>(
        &'a self,
        _id: SampleId,
        bytes: SampleBytes<'a>,
        values: &mut Vec<FieldValue<'a>>,
    ) -> Result<(), Defect> {
        let bytes = bytes.all();
        if bytes.len() as u64 != self.row_bytes {
            return Err(Defect(format!(
                "a row has {} bytes, and {} were read",
                self.row_bytes,
                bytes.len()
            )));
        }
        values.push(FieldValue::Array(ArrayValue {
            fortran_order: false,
            ..self.header.array(&self.row_shape, bytes)
        }));
        Ok(())
    }

    fn direct_read(&self) -> Option<&DirectRead> {
        self.direct_read.as_ref()
    }

    fn fingerprint(&self) -> [u8; 32] {
        self.fingerprint
    }
}

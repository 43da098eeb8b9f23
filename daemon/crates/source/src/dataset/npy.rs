//! `npy`: a folder of `.npy` files, or one file whose first axis is the samples. The field is `array`; with class
//! folders there is `label` too.
//!
//! Of the one file each sample is a row, located by arithmetic: only its bytes are fetched. Types and shape are those of
//! the first sample (of the file's header).

mod array_file;

use forebay_config::DatasetConfig;

use super::draft::{Draft, Seen};
use super::file_samples::{FileReader, FileSamples, array_field, check_type};
use super::folder::scan::FolderFormat;
use super::npy_header::{ARRAY, ArrayHeader, read_array};
use super::opening::{OpenOptions, OpenedFormat};
use super::{Defect, DirectRead, Field, FieldValue};
use crate::storage::Storage;

/// What is read, and where it may lie.
pub(super) const FORMAT: FolderFormat =
    FolderFormat { name: "npy", extensions: &[".npy"], flat_is_valid: true };

/// Opens a folder of files, or one file.
pub(super) fn open(
    config: &DatasetConfig,
    storage: &dyn Storage,
    options: OpenOptions<'_>,
) -> OpenedFormat {
    if storage.root_is_file() {
        return array_file::open(config, storage, FORMAT.name);
    }
    FileSamples::open_arrays(config, storage, FORMAT, options, |first| {
        let field = array_field(ARRAY.to_owned(), &read_array(first)?);
        let header = ArrayHeader::parse(first)?;
        let before = first[..header.data_start].to_vec();
        let direct_read = header.direct_read(&before, header.data_bytes);
        Ok((vec![field], NpyFile { first_header: header, before, direct_read }))
    })
}

/// The arrays as they are.
pub(super) fn draft(seen: &Seen) -> Draft {
    Draft::of_arrays("copy", seen)
}

#[derive(Debug)]
struct NpyFile {
    /// What the first sample's header says, and its bytes: nearly every file has the same ones.
    first_header: ArrayHeader,
    before: Vec<u8>,
    direct_read: Option<DirectRead>,
}

impl FileReader for NpyFile {
    fn read<'a>(
        &'a self,
        fields: &'a [Field],
        bytes: &'a [u8],
        values: &mut Vec<FieldValue<'a>>,
    ) -> Result<(), Defect> {
        // A header that is the first sample's is not parsed again.
        let array = match bytes.strip_prefix(self.before.as_slice()) {
            Some(elements) => {
                self.first_header.check_length(bytes.len() as u64)?;
                self.first_header.array(&self.first_header.shape, elements)
            }
            None => read_array(bytes)?,
        };
        check_type(&fields[0], &array)?;
        values.push(FieldValue::Array(array));
        Ok(())
    }

    fn direct_read(&self) -> Option<&DirectRead> {
        self.direct_read.as_ref()
    }
}

#[cfg(test)]
mod tests;

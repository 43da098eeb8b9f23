//! `npy`: a folder of `.npy` files, or one file whose first axis is the samples. The field is `array`; with class
//! folders there is also `label`.
//!
//! In a single file, each sample is a row, located by arithmetic: only its bytes are read. Types and shape are those of
//! the first sample (of the file's header).

mod array_file;

use forebay_config::DatasetConfig;

use crate::draft::{Draft, Seen};
use crate::file_samples::{FileReader, FileSamples, array_field, check_type};
use forebay_dataset::npy_header::{ARRAY, ArrayHeader, read_array};
use forebay_dataset::opening::{OpenOptions, OpenedFormat};
use forebay_dataset::{Defect, DirectRead, Field, FieldValue};
use forebay_index::folder::scan::{FolderFormat, LooseFiles};
use forebay_storage::Storage;

/// The extension, and where files may be.
pub(super) const FORMAT: FolderFormat =
    FolderFormat { name: "npy", extensions: &[".npy"], loose: LooseFiles::NoFolders };

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

/// Copies the arrays without changes.
pub(super) fn draft(seen: &Seen) -> Draft {
    Draft::of_arrays("copy", seen)
}

#[derive(Debug)]
struct NpyFile {
    /// The parsed header of the first sample, and its bytes: nearly every file has the same header.
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
        // A header equal to the first sample's is not parsed again.
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

//! `npz`: a folder of `.npz` files; each member `NAME.npy` is the field `NAME`, in the member order of the first
//! sample.
//!
//! Stored members are borrowed from the read bytes, deflated ones are inflated into separate memory; both are verified
//! by their CRC-32, as in NumPy. The zip crate reads the archive's directory and inflates.

use std::io::{Cursor, Read};
use std::path::Path;

use forebay_config::DatasetConfig;
use zip::{CompressionMethod, ZipArchive};

use crate::draft::{Draft, Seen};
use crate::file_samples::{FileReader, FileSamples, array_field, check_type};
use forebay_dataset::error::DatasetError;
use forebay_dataset::npy_header::{ArrayHeader, read_array};
use forebay_dataset::opening::{OpenOptions, OpenedFormat};
use forebay_dataset::{ArrayValue, Defect, Field, FieldValue};
use forebay_index::folder::scan::{FolderFormat, LooseFiles};
use forebay_storage::Storage;
use forebay_storage::codec::Codec;

/// The extension, and where files may be.
pub(super) const FORMAT: FolderFormat =
    FolderFormat { name: "npz", extensions: &[".npz"], loose: LooseFiles::NoFolders };

/// Opens a folder of files.
pub(super) fn open(
    config: &DatasetConfig,
    storage: &dyn Storage,
    options: OpenOptions<'_>,
) -> OpenedFormat {
    let inflated_bytes = config.limits.inflated_bytes;
    FileSamples::open_arrays(config, storage, FORMAT, options, |first| {
        let members = read_all_members(first, inflated_bytes)?;
        let fields = members.into_iter().map(|(name, array)| array_field(name, &array)).collect();
        Ok((fields, NpzFile { inflated_bytes }))
    })
}

/// Unpacks the members without other changes.
pub(super) fn draft(seen: &Seen) -> Draft {
    Draft::of_arrays("unpack", seen)
}

/// Asks what to do with an archive whose rows are the samples, it seems; `rows`: their number, if it was read.
pub(super) fn question_of_rows(path: &Path, rows: Option<u64>) -> DatasetError {
    let holds = match rows {
        Some(rows) => format!("holds one .npz file, whose arrays have {rows} rows each"),
        None => "is one .npz file".to_owned(),
    };
    let reason = format!(
        "{holds}; to `npz` each file of a folder is one sample. If the rows are the samples, save them as a table, such as \
         datasets.Dataset.from_dict(dict(numpy.load(FILE))).save_to_disk(FOLDER) (format = \"arrow\"), or a single array by \
         numpy.save (format = \"npy\"). To read each file as a sample: its folder, and --set dataset.format=npz"
    );
    DatasetError::Question { path: path.to_owned(), reason }
}

#[derive(Debug)]
struct NpzFile {
    /// The maximum inflated size of a file's members together.
    inflated_bytes: u64,
}

impl FileReader for NpzFile {
    fn read<'a>(
        &'a self,
        fields: &'a [Field],
        bytes: &'a [u8],
        values: &mut Vec<FieldValue<'a>>,
    ) -> Result<(), Defect> {
        let mut archive = open_archive(bytes)?;
        // Names before contents: a different set of members is reported before anything is inflated.
        let mut places = vec![None; fields.len()];
        for place in 0..archive.len() {
            let name = member_name(&archive, place)?;
            match fields.iter().position(|field| field.name == name) {
                Some(field) => places[field] = Some(place),
                None => {
                    return Err(Defect(format!(
                        "it has a member {name:?} that the first sample does not have"
                    )));
                }
            }
        }
        let mut left = self.inflated_bytes;
        for (field, place) in fields.iter().zip(places) {
            let place = place.ok_or_else(|| {
                Defect(format!("the member {:?} of the first sample is missing", field.name))
            })?;
            let array = read_member(&mut archive, bytes, place, &mut left)
                .map_err(|defect| Defect(format!("member {:?}: {defect}", field.name)))?;
            check_type(field, &array)?;
            values.push(FieldValue::Array(array));
        }
        Ok(())
    }

    fn unpacked_bytes(&self, bytes: &[u8]) -> u64 {
        let Ok(mut archive) = open_archive(bytes) else { return 0 };
        let mut unpacked: u64 = 0;
        for place in 0..archive.len() {
            // The size in the archive's directory, by which a member is also read.
            if let Ok(member) = archive.by_index_raw(place)
                && member.compression() == CompressionMethod::Deflated
            {
                unpacked = unpacked.saturating_add(member.size());
            }
        }
        unpacked.min(self.inflated_bytes)
    }
}

type Archive<'a> = ZipArchive<Cursor<&'a [u8]>>;

fn open_archive(bytes: &[u8]) -> Result<Archive<'_>, Defect> {
    if bytes.is_empty() {
        return Err(Defect("the file is empty".to_owned()));
    }
    let archive = ZipArchive::new(Cursor::new(bytes))
        .map_err(|error| Defect(format!("not a whole .npz (zip) file: {error}")))?;
    if archive.has_duplicate_names() {
        return Err(Defect("two members have the same name".to_owned()));
    }
    if archive.is_empty() {
        return Err(Defect("the .npz file has no members".to_owned()));
    }
    Ok(archive)
}

/// The field name of a member.
fn member_name(archive: &Archive<'_>, place: usize) -> Result<String, Defect> {
    let name = match archive.name_for_index(place) {
        Some(Ok(name)) => name,
        _ => return Err(Defect("a member's name is not readable".to_owned())),
    };
    name.strip_suffix(".npy")
        .map(str::to_owned)
        .ok_or_else(|| Defect(format!("the member {name:?} is not an array (NAME.npy)")))
}

/// All members with their names, in the archive's order.
pub(super) fn read_all_members(
    bytes: &[u8],
    inflated_bytes: u64,
) -> Result<Vec<(String, ArrayValue<'_>)>, Defect> {
    let mut archive = open_archive(bytes)?;
    let mut left = inflated_bytes;
    (0..archive.len())
        .map(|place| {
            let name = member_name(&archive, place)?;
            let array = read_member(&mut archive, bytes, place, &mut left)
                .map_err(|defect| Defect(format!("member {name:?}: {defect}")))?;
            Ok((name, array))
        })
        .collect()
}

/// One member as an array. `left` is the number of bytes that the members may still inflate to.
fn read_member<'a>(
    archive: &mut Archive<'a>,
    bytes: &'a [u8],
    place: usize,
    left: &mut u64,
) -> Result<ArrayValue<'a>, Defect> {
    let broken = |error: &dyn std::fmt::Display| Defect(format!("cannot be read: {error}"));
    let mut member = archive.by_index(place).map_err(|error| broken(&error))?;
    let (size, compressed) = (member.size(), member.compressed_size());
    match member.compression() {
        CompressionMethod::Stored => {
            let start = member.data_start().and_then(|start| usize::try_from(start).ok());
            let stored = start
                .zip(usize::try_from(compressed).ok())
                .and_then(|(start, length)| bytes.get(start..start.checked_add(length)?))
                .filter(|_| size == compressed)
                .ok_or_else(|| {
                    Defect("cut short: the member lies beyond the file's end".to_owned())
                })?;
            // The CRC-32 is verified at the end of the member.
            std::io::copy(&mut member, &mut std::io::sink()).map_err(|error| broken(&error))?;
            read_array(stored)
        }
        CompressionMethod::Deflated => {
            if size > compressed.saturating_mul(Codec::MAX_DEFLATE_FACTOR).saturating_add(64) {
                return Err(Defect(format!(
                    "it declares {size} bytes, more than {compressed} deflated bytes can hold"
                )));
            }
            *left = left.checked_sub(size).ok_or_else(|| {
                Defect(format!(
                    "it declares {size} bytes, and {left} of limits.inflated_bytes are left for it"
                ))
            })?;
            let mut inflated = Vec::with_capacity(usize::try_from(size).unwrap_or(0) + 1);
            // The byte after the declared size detects a longer member; the CRC-32 is verified at the end of the
            // member.
            (&mut member)
                .take(size + 1)
                .read_to_end(&mut inflated)
                .map_err(|error| broken(&error))?;
            if inflated.len() as u64 != size {
                return Err(Defect(format!("it declares {size} bytes and inflates to others")));
            }
            let header = ArrayHeader::parse(&inflated)?;
            header.check_length(size)?;
            inflated.drain(..header.data_start);
            Ok(header.array(header.shape.clone(), inflated))
        }
        method => {
            Err(Defect(format!("compressed by {method}; stored and deflated members are read")))
        }
    }
}

#[cfg(test)]
mod tests;

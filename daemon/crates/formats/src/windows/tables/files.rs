//! The columns of tables as arrays: `.npy` files, one for each column, with all rows of all tables, and one that tells
//! episodes apart.
//!
//! ```text
//! STEM/x.npy     a column
//! STEM/*.npy     one for each further column, and `EPISODE`.npy
//! made.json      how many tables are in the files, and the checksums of their rows; see `Made`
//! ```
//! The rows of a table are appended when those before it are; after [`CHECKPOINT_BYTES`] `made.json` is replaced. An
//! interrupted process leaves rows behind those that `made.json` counts: they are cut off, and the table after is next.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use forebay_dataset::error::DatasetError;
use forebay_index::saved_index::now_seconds;
use forebay_protocol::tensor::DType;
use serde::{Deserialize, Serialize};

use crate::in_order::Piece;
use crate::made_files::{Look, Summed, checksum_of, unwritten, write_whole};

/// The array that tells episodes apart, by 0 and 1 in turn. No column's array has this name.
pub(super) const EPISODE: &str = "@episode";
/// The file of the counts, besides the folder of the arrays.
const MADE: &str = "made.json";
/// The bytes of rows that an interrupted process may have to make again, and those of a table.
const CHECKPOINT_BYTES: u64 = if cfg!(test) { 200 } else { 64 << 20 };
/// The bytes of an array that are written at once.
const BUFFER_BYTES: usize = 256 << 10;
/// How old an array says that it is when it is complete: an index of files that have just changed is not trusted, since they
/// may change again within the same tick of the clock.
const PAST: Duration = Duration::from_secs(60);
/// The size of a header is a multiple of this, as NumPy's are.
const HEADER_UNIT: usize = 64;

/// An array: a column, in its type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Array {
    /// The file's name without `.npy`.
    pub(super) name: String,
    pub(super) dtype: DType,
    /// The shape of a row.
    pub(super) shape: Vec<u64>,
}

impl Array {
    /// The array that tells episodes apart.
    pub(super) fn of_episodes() -> Self {
        Self { name: EPISODE.to_owned(), dtype: DType::U8, shape: Vec::new() }
    }

    /// The size of a row; `None`: it has no elements, too many, or of a type that NumPy lacks.
    pub(super) fn row_bytes(&self) -> Option<u64> {
        let each = self.dtype.size_bytes();
        let all = self.shape.iter().try_fold(each, |all, side| all.checked_mul(*side));
        all.filter(|bytes| *bytes > 0 && self.dtype != DType::BF16)
    }

    fn path(&self, folder: &Path) -> PathBuf {
        folder.join(format!("{}.npy", self.name))
    }

    /// The header of a file with so many rows, whose size does not depend on them.
    fn header(&self, rows: u64) -> Vec<u8> {
        let text = |rows: u64| {
            let mut shape = format!("{rows},");
            self.shape.iter().for_each(|side| shape.push_str(&format!(" {side},")));
            let size = self.dtype.size_bytes();
            let kind = match self.dtype {
                DType::Bool => "|b1".to_owned(),
                DType::U8 => "|u1".to_owned(),
                DType::I8 => "|i1".to_owned(),
                DType::U16 | DType::U32 | DType::U64 => format!("<u{size}"),
                DType::I16 | DType::I32 | DType::I64 => format!("<i{size}"),
                DType::F16 | DType::BF16 | DType::F32 | DType::F64 => format!("<f{size}"),
            };
            format!("{{'descr': '{kind}', 'fortran_order': False, 'shape': ({shape}), }}")
        };
        const MAGIC: &[u8; 8] = b"\x93NUMPY\x01\x00";
        let before = MAGIC.len() + 2;
        let whole = (before + text(u64::MAX).len() + 1).next_multiple_of(HEADER_UNIT);
        let length = u16::try_from(whole - before).unwrap_or(u16::MAX);
        let mut header = [&MAGIC[..], &length.to_le_bytes(), text(rows).as_bytes()].concat();
        header.resize(whole - 1, b' ');
        header.push(b'\n');
        header
    }

    /// Opens the file to append to its rows; `None`: it has others.
    fn continued(
        &self,
        path: &Path,
        rows: u64,
        checksum: u32,
    ) -> io::Result<Option<Summed<BufWriter<File>>>> {
        let mut file = OpenOptions::new().read(true).write(true).open(path)?;
        let header = self.header(0).len() as u64;
        let Some(end) = self.file_bytes(rows) else { return Ok(None) };
        file.seek(SeekFrom::Start(header))?;
        let summed = checksum_of(&mut (&mut file).take(end - header))?;
        if file.stream_position()? != end || summed.checksum() != checksum {
            return Ok(None);
        }
        file.set_len(end)?;
        Ok(Some(summed.with_file(BufWriter::with_capacity(BUFFER_BYTES, file))))
    }

    /// The size of a file with so many rows.
    fn file_bytes(&self, rows: u64) -> Option<u64> {
        self.row_bytes()?.checked_mul(rows)?.checked_add(self.header(rows).len() as u64)
    }
}

/// Consecutive rows of a table.
#[derive(Debug, Default)]
pub(super) struct MadeRows {
    pub(super) rows: u64,
    /// By column.
    pub(super) columns: Vec<Vec<u8>>,
    /// The rows that begin an episode, counted in these.
    pub(super) starts: Vec<u64>,
    /// Whether the table ends with them.
    pub(super) ends: bool,
}

impl Piece for MadeRows {
    fn bytes(&self) -> usize {
        let columns = self.columns.iter().map(Vec::len).sum::<usize>();
        columns + self.starts.len() * size_of::<u64>()
    }
}

/// What is in the files.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct Made {
    /// When the reading of the tables began, in seconds since 1970.
    pub(super) started_seconds: i64,
    pub(super) tables: u64,
    pub(super) rows: u64,
    pub(super) episodes: u64,
    /// CRC-32C of the rows, by file.
    checksums: Vec<u32>,
}

/// The files under construction.
#[derive(Debug)]
pub(super) struct RowFiles<'a> {
    folder: PathBuf,
    counts: PathBuf,
    arrays: &'a [Array],
    files: Vec<Summed<BufWriter<File>>>,
    made: Made,
    /// The bytes since the counts were written.
    unsaved: u64,
}

impl<'a> RowFiles<'a> {
    /// Continues after the tables that are in the files, of which all bytes are read; `is_usable`: whether they may be
    /// continued.
    ///
    /// # Errors
    /// The files cannot be written.
    pub(super) fn resume(
        folder: &Path,
        stem: &str,
        arrays: &'a [Array],
        is_usable: impl FnOnce(&Made) -> bool,
    ) -> Result<Self, DatasetError> {
        let (counts, folder) = (folder.join(MADE), folder.join(stem));
        fs::create_dir_all(&folder).map_err(|error| unwritten(&folder, error))?;
        let made: Made = match fs::read(&counts) {
            Ok(json) => serde_json::from_slice(&json).unwrap_or_default(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Made::default(),
            // The rows are perhaps there.
            Err(error) => return Err(unread(&counts, error)),
        };
        if made.tables > 0 && is_usable(&made) {
            match continued(&folder, arrays, &made)? {
                Some(files) => return Ok(Self { folder, counts, arrays, files, made, unsaved: 0 }),
                None => tracing::warn!(
                    "the rows of tables at {} are made again, because they are damaged",
                    folder.display()
                ),
            }
        }
        let files = arrays.iter().map(|array| {
            let path = array.path(&folder);
            // Jobs may still read a file of this name.
            let begun = remove(&path).and_then(|()| {
                let mut file = File::create_new(&path)?;
                file.write_all(&array.header(0))?;
                Ok(Summed::new(BufWriter::with_capacity(BUFFER_BYTES, file)))
            });
            begun.map_err(|error| unwritten(&path, error))
        });
        let files = files.collect::<Result<_, _>>()?;
        let made = Made { started_seconds: now_seconds(), ..Made::default() };
        Ok(Self { folder, counts, arrays, files, made, unsaved: 0 })
    }

    /// What is in the files.
    pub(super) const fn made(&self) -> &Made {
        &self.made
    }

    fn unwritten(&self, place: usize, error: io::Error) -> DatasetError {
        unwritten(&self.arrays[place].path(&self.folder), error)
    }

    /// Appends the next rows.
    ///
    /// # Errors
    /// They cannot be written.
    pub(super) fn add(&mut self, rows: &MadeRows) -> Result<(), DatasetError> {
        let mut starts = rows.starts.iter().peekable();
        let mut episodes = Vec::new();
        for row in 0..rows.rows {
            self.made.episodes += u64::from(starts.next_if(|start| **start == row).is_some());
            // The first row of a table begins an episode.
            episodes.push(u8::from(!self.made.episodes.is_multiple_of(2)));
        }
        let columns = rows.columns.iter().chain([&episodes]);
        for (place, bytes) in columns.enumerate() {
            let written = self.files[place].write_all(bytes);
            written.map_err(|error| self.unwritten(place, error))?;
            self.unsaved += bytes.len() as u64;
        }
        self.made.rows += rows.rows;
        if rows.ends {
            self.made.tables += 1;
            if self.unsaved >= CHECKPOINT_BYTES {
                self.save()?;
            }
        }
        Ok(())
    }

    /// Writes the counts of the tables that are in the files.
    fn save(&mut self) -> Result<(), DatasetError> {
        for place in 0..self.files.len() {
            let flushed = self.files[place].flush();
            flushed.map_err(|error| self.unwritten(place, error))?;
        }
        self.made.checksums = self.files.iter().map(Summed::checksum).collect();
        self.unsaved = 0;
        write_whole(&self.counts, |file| Ok(serde_json::to_writer(file, &self.made)?))
    }

    /// Ends the files.
    ///
    /// # Errors
    /// They cannot be written.
    pub(super) fn finish(mut self) -> Result<Made, DatasetError> {
        self.save()?;
        for place in 0..self.files.len() {
            let header = self.arrays[place].header(self.made.rows);
            let file = self.files[place].file.get_mut();
            let ended = file.seek(SeekFrom::Start(0)).and_then(|_| {
                file.write_all(&header)?;
                file.set_modified(SystemTime::now() - PAST)?;
                file.sync_all()
            });
            ended.map_err(|error| self.unwritten(place, error))?;
        }
        Ok(self.made)
    }
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn unread(path: &Path, source: io::Error) -> DatasetError {
    DatasetError::System { path: path.to_owned(), action: "reading", source }
}

/// Opens files to append to them. What is behind the rows is cut off. `None`: a file is missing, or has other rows.
///
/// # Errors
/// A file cannot be read, though it may have the rows.
fn continued(
    folder: &Path,
    arrays: &[Array],
    made: &Made,
) -> Result<Option<Vec<Summed<BufWriter<File>>>>, DatasetError> {
    if made.checksums.len() != arrays.len() {
        return Ok(None);
    }
    let mut files = Vec::with_capacity(arrays.len());
    for (array, checksum) in arrays.iter().zip(&made.checksums) {
        let path = array.path(folder);
        match array.continued(&path, made.rows, *checksum) {
            Ok(Some(file)) => files.push(file),
            Ok(None) => return Ok(None),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(unread(&path, error)),
        }
    }
    Ok(Some(files))
}

/// Whether the files have these rows.
pub(super) fn are_all_there(
    folder: &Path,
    stem: &str,
    arrays: &[Array],
    made: &Made,
    look: Look,
) -> bool {
    let folder = folder.join(stem);
    let is_there = |(array, checksum): (&Array, &u32)| {
        let Ok(mut file) = File::open(array.path(&folder)) else { return false };
        let header = array.header(made.rows);
        let mut found = vec![0; header.len()];
        let begins = file.read_exact(&mut found).is_ok() && found == header;
        let is_long =
            file.metadata().is_ok_and(|file| Some(file.len()) == array.file_bytes(made.rows));
        let mut has_rows = || checksum_of(&mut file).is_ok_and(|sum| sum.checksum() == *checksum);
        begins && is_long && (look == Look::Sizes || has_rows())
    };
    made.checksums.len() == arrays.len() && arrays.iter().zip(&made.checksums).all(is_there)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrays() -> Vec<Array> {
        let x = Array { name: "x".to_owned(), dtype: DType::F32, shape: vec![2] };
        vec![x, Array::of_episodes()]
    }

    /// A table of so many rows, in pieces of 2, with an episode for every 3.
    fn table(files: &mut RowFiles<'_>, number: u64, rows: u64) {
        let mut start = 0;
        while start < rows.max(1) {
            let end = (start + 2).min(rows);
            let column = (start..end).flat_map(|row| [number as f32, row as f32]);
            let rows_made = MadeRows {
                rows: end - start,
                columns: vec![column.flat_map(f32::to_le_bytes).collect()],
                starts: (start..end).filter(|row| row % 3 == 0).map(|row| row - start).collect(),
                ends: end == rows,
            };
            files.add(&rows_made).unwrap();
            start += 2;
        }
    }

    fn bytes(folder: &Path) -> Vec<Vec<u8>> {
        arrays().iter().map(|array| fs::read(array.path(&folder.join("s"))).unwrap()).collect()
    }

    #[test]
    fn rows_continue_where_an_earlier_process_saved_them() {
        let (arrays, lengths) = (arrays(), [5, 0, 3, 7]);
        let whole = tempfile::tempdir().unwrap();
        let mut files = RowFiles::resume(whole.path(), "s", &arrays, |_| true).unwrap();
        (0..).zip(lengths).for_each(|(number, rows)| table(&mut files, number, rows));
        let made = files.finish().unwrap();
        assert_eq!((made.tables, made.rows, made.episodes), (4, 15, 2 + 1 + 3));
        assert!(are_all_there(whole.path(), "s", &arrays, &made, Look::Bytes));
        let found = bytes(whole.path());
        assert_eq!(&found[0][found[0].len() - 8..], &[3_f32, 6.0].map(f32::to_le_bytes).concat());
        assert!(found[0].starts_with(b"\x93NUMPY") && found[0].len() == 128 + 15 * 8);
        for saved in 0..4 {
            let folder = tempfile::tempdir().unwrap();
            let mut files = RowFiles::resume(folder.path(), "s", &arrays, |_| true).unwrap();
            for (number, rows) in (0..).zip(lengths) {
                if number == saved {
                    files.save().unwrap();
                }
                table(&mut files, number, rows);
            }
            drop(files);
            let mut files = RowFiles::resume(folder.path(), "s", &arrays, |_| true).unwrap();
            assert_eq!(files.made().tables, saved);
            for (number, rows) in (0..).zip(lengths).skip(usize::try_from(saved).unwrap()) {
                table(&mut files, number, rows);
            }
            let again = files.finish().unwrap();
            assert_eq!(Made { started_seconds: made.started_seconds, ..again }, made);
            assert!(bytes(folder.path()) == found, "saved after {saved}");
        }
    }

    #[test]
    fn damaged_rows_are_noticed() {
        let arrays = arrays();
        let folder = tempfile::tempdir().unwrap();
        let mut files = RowFiles::resume(folder.path(), "s", &arrays, |_| true).unwrap();
        table(&mut files, 0, 4);
        let made = files.finish().unwrap();
        let path = arrays[0].path(&folder.path().join("s"));
        let whole = fs::read(&path).unwrap();
        let are_there = |look| are_all_there(folder.path(), "s", &arrays, &made, look);
        let mut other = whole.clone();
        other[130] ^= 1;
        fs::write(&path, &other).unwrap();
        assert!(are_there(Look::Sizes) && !are_there(Look::Bytes));
        let again = RowFiles::resume(folder.path(), "s", &arrays, |_| true).unwrap();
        assert_eq!(again.made().tables, 0, "damaged rows are kept");
        fs::write(&path, &whole[..whole.len() - 1]).unwrap();
        assert!(!are_there(Look::Sizes));
    }

    #[test]
    fn rows_that_are_not_usable_are_made_again() {
        let arrays = arrays();
        let folder = tempfile::tempdir().unwrap();
        let mut files = RowFiles::resume(folder.path(), "s", &arrays, |_| true).unwrap();
        table(&mut files, 0, 4);
        let made = files.finish().unwrap();
        let again = |is_usable: bool| {
            RowFiles::resume(folder.path(), "s", &arrays, |found| {
                assert_eq!(*found, made);
                is_usable
            })
        };
        assert_eq!(again(true).unwrap().made().tables, 1);
        assert_eq!(again(false).unwrap().made().tables, 0);
    }
}

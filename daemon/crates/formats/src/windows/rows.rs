//! What a format of rows defines for windows of them.

use std::borrow::Cow;
use std::fmt::Debug;
use std::ops::Range;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::Windows;
use super::index::{ScannedSet, WindowIndex};
use super::plan::Column;
use crate::indexed::Opening;
use forebay_dataset::Defect;
use forebay_dataset::error::DatasetError;
use forebay_index::folder::scan::FolderFormat;
use forebay_index::shard_paths;
use forebay_storage::Storage;
use forebay_storage::location::{FileId, Location, SampleBytes};
use forebay_storage::version::FileStamp;

/// A format whose files have rows in columns.
pub(crate) trait RowFormat: Debug + Send + Sync + Sized + 'static {
    /// Its name, and the extensions of its files.
    const FORMAT: FolderFormat;
    /// The accepted values of `dataset.path`, for messages.
    const EXPECTED: &'static str;
    /// As [`Format::MARKS`](crate::indexed::Format::MARKS).
    const MARKS: &'static [&'static str] = &[];
    /// Whether the rows of a column are one range of a file, as they are.
    const STORES_ROWS: bool = false;

    /// What a column has besides its type and shape.
    type More: Debug + Clone + Send + Sync + Serialize + DeserializeOwned;

    /// Whether a file name belongs to the format. Also accepts patterns.
    fn reads(name: &[u8]) -> bool {
        shard_paths::has_extension(name, Self::FORMAT.extensions)
    }

    /// The column that a configuration names so.
    fn column_name(from: &str) -> &str {
        from
    }

    /// The files whose change is noticed, in the order of the index.
    ///
    /// # Errors
    /// The files cannot be found.
    fn files(opening: &Opening<'_, Windows<Self>>) -> Result<Vec<Vec<u8>>, DatasetError>;

    /// Reads what the files say of themselves.
    ///
    /// # Errors
    /// A file cannot be read, is broken, or does not have the columns of the others.
    fn scan(
        opening: &Opening<'_, Windows<Self>>,
        warnings: &mut Vec<String>,
    ) -> Result<Found<Self::More>, DatasetError>;

    /// Whether an index whose files are unchanged also has the other files that there are now.
    ///
    /// # Errors
    /// A folder cannot be listed.
    fn is_complete(
        _index: &WindowIndex,
        _columns: &[Column<Self::More>],
        _opening: &Opening<'_, Windows<Self>>,
    ) -> Result<bool, DatasetError> {
        Ok(true)
    }

    /// Appends the locations of rows.
    fn locate(rows: Rows<'_, Self::More>, locations: &mut Vec<Location>);

    /// The bytes of rows, from the parts of their locations.
    ///
    /// # Errors
    /// The bytes are defective.
    fn values<'a>(
        rows: Rows<'_, Self::More>,
        parts: &mut Parts<'a>,
    ) -> Result<Cow<'a, [u8]>, Defect>;

    /// Whether rows of several samples are read together.
    fn shares_units(_columns: &[Column<Self::More>]) -> bool {
        false
    }

    /// The most memory that [`values`](Self::values) needs for so many rows.
    fn unpacked_bytes(_column: &Column<Self::More>, _rows: u64) -> u64 {
        0
    }

    /// The most locations of so many rows.
    fn places(_column: &Column<Self::More>, _rows: u64) -> u64 {
        1
    }

    /// The path of a file that the index does not list.
    fn append_path(
        _columns: &[Column<Self::More>],
        _index: &WindowIndex,
        _file: FileId,
        _path: &mut Vec<u8>,
    ) {
    }
}

/// What a scan finds.
#[derive(Debug)]
pub(crate) struct Found<E> {
    /// Those of fields, and the one of `by`.
    pub(crate) columns: Vec<Column<E>>,
    pub(crate) files: Vec<(Vec<u8>, FileStamp)>,
    pub(crate) sets: Vec<ScannedSet>,
}

/// Rows of a column.
#[derive(Debug)]
pub(crate) struct Rows<'i, E> {
    pub(crate) index: &'i WindowIndex,
    pub(crate) set: usize,
    pub(crate) place: usize,
    pub(crate) columns: &'i [Column<E>],
    /// Counted in the set; not empty.
    pub(crate) rows: Range<u64>,
}

impl<E> Clone for Rows<'_, E> {
    fn clone(&self) -> Self {
        let Self { index, set, place, columns, ref rows } = *self;
        Self { index, set, place, columns, rows: rows.clone() }
    }
}

impl<'i, E> Rows<'i, E> {
    pub(crate) fn column(&self) -> &'i Column<E> {
        &self.columns[self.place]
    }

    /// Their size.
    pub(crate) fn bytes(&self) -> Option<u64> {
        self.column().row_bytes()?.checked_mul(self.rows.end - self.rows.start)
    }
}

/// The parts of a sample's bytes, one after the other.
#[derive(Debug)]
pub(crate) struct Parts<'a> {
    bytes: SampleBytes<'a>,
    next: usize,
}

impl<'a> Parts<'a> {
    pub(crate) fn new(bytes: SampleBytes<'a>) -> Self {
        Self { bytes, next: 0 }
    }

    /// The next part; empty if there is none.
    pub(crate) fn take(&mut self) -> &'a [u8] {
        self.next += 1;
        self.bytes.part(self.next - 1).unwrap_or_default()
    }

    /// The next part, of this many bytes.
    ///
    /// # Errors
    /// It has another size.
    pub(crate) fn take_exact(&mut self, bytes: u64, name: &str) -> Result<&'a [u8], Defect> {
        let part = self.take();
        match part.len() as u64 == bytes {
            true => Ok(part),
            false => Err(Defect(format!(
                "{bytes} bytes of `{name}` were to be read, and {} were",
                part.len()
            ))),
        }
    }
}

/// Reads rows while an index is built.
///
/// # Errors
/// The storage's errors, more than `limit_bytes` to read, or the file of the rows is defective.
pub(super) fn read_rows<S: RowFormat>(
    storage: &dyn Storage,
    files: &dyn forebay_storage::location::FileTable,
    rows: Rows<'_, S::More>,
    limit_bytes: u64,
) -> Result<Vec<u8>, DatasetError> {
    let (mut locations, mut opened) = (Vec::new(), Vec::new());
    S::locate(rows.clone(), &mut locations);
    let (mut bytes, mut ends) = (Vec::new(), Vec::new());
    storage.open_all(files, &locations, limit_bytes, &mut opened)?;
    storage.read_all(files, &mut opened, &mut bytes, &mut ends)?;
    let mut parts = Parts::new(SampleBytes::new(&bytes, &ends));
    S::values(rows, &mut parts).map(Cow::into_owned).map_err(|Defect(reason)| {
        // Of several files, the reason has the one.
        let path = match &locations[..] {
            [only] => files.path(only.file),
            _ => Vec::new(),
        };
        DatasetError::BrokenFile { path: storage.full_path(&path), reason }
    })
}

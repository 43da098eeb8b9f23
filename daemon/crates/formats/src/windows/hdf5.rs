//! Rows of datasets in HDF5 files. The first axis is the rows.
//!
//! A group that has all named datasets is an episode, as a folder of `.npy` files is; or a dataset tells episodes apart (`by`).
//! Where the bytes are is read once: a range of the file, of which only the rows are read, or chunks ([`Piece`]: `first` is
//! a chunk's number). A chunk that several windows need is a block, which is read once while they are near.

use std::borrow::Cow;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::Windows;
use super::chunks::{self, Chunks, Stored};
use super::index::Piece;
use super::plan::Column;
use super::rows::{Found, Parts, RowFormat, Rows};
use crate::hdf5::{Filter, Scratch, scratch_chunks, unfilter};
use crate::indexed::Opening;
use crate::zarr::{Grid, ZarrArray};
use forebay_dataset::Defect;
use forebay_dataset::error::DatasetError;
use forebay_index::folder::scan::{FolderFormat, LooseFiles};
use forebay_index::saved_index::tell_missing;
use forebay_index::shard_paths;
use forebay_storage::location::{ByteRange, FileId, Location};

mod scan;

/// The format.
#[derive(Debug)]
pub(crate) struct Hdf5Rows;

/// How the elements of a dataset are divided and packed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Layout {
    /// Its chunks; one with all rows if the elements are in one range.
    array: ZarrArray,
    filters: Vec<Filter>,
}

/// What a column has besides its type and shape.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Layouts(Vec<Layout>);

/// What a piece says of a chunk besides its place: the filters that were not applied, and its layout.
#[derive(Debug, Clone, Copy)]
struct Form {
    mask: u32,
    layout: usize,
}

impl Form {
    fn of(form: u64) -> Self {
        let part = |from: u32| (form >> from) & 0xffff;
        Self {
            mask: u32::try_from(part(0)).unwrap_or(0),
            layout: usize::try_from(part(16)).unwrap_or(0),
        }
    }

    fn number(self) -> u64 {
        u64::from(self.mask & 0xffff) | (self.layout as u64) << 16
    }
}

/// The chunks of rows of a column.
struct Hdf5Chunks<'i> {
    rows: Rows<'i, Layouts>,
    layout: &'i Layout,
    scratch: Scratch,
}

impl<'i> Hdf5Chunks<'i> {
    fn new(rows: Rows<'i, Layouts>) -> Self {
        let Layouts(all) = &rows.column().more;
        // Without a chunk all elements have the fill value, which is that of every layout.
        let first = || rows.index.pieces_from(rows.set, rows.place, 0).next();
        let layout = match &all[..] {
            [only] => only,
            _ => {
                let place = first().map_or(0, |piece| Form::of(piece.form).layout);
                all.get(place).unwrap_or(&all[0])
            }
        };
        Self { rows, layout, scratch: Scratch::default() }
    }
}

impl<'i> Chunks<'i> for Hdf5Chunks<'i> {
    fn array(&self) -> &'i ZarrArray {
        &self.layout.array
    }

    fn is_plain(&self) -> bool {
        self.layout.filters.is_empty()
    }

    fn stored(&self, numbers: Range<u64>) -> impl Iterator<Item = Stored> {
        let pieces = self.rows.index.pieces_from(self.rows.set, self.rows.place, numbers.start);
        let is_in = move |piece: &Piece| piece.first >= numbers.start;
        let end = numbers.end;
        pieces.take_while(move |piece| piece.first < end).filter(is_in).map(|piece| {
            let range = ByteRange { offset: piece.offset, length: Some(piece.bytes) };
            Stored { number: piece.first, file: FileId(piece.file), range, form: piece.form }
        })
    }

    fn unpack<'b>(&'b mut self, stored: Stored, packed: &'b [u8]) -> Result<&'b [u8], Defect> {
        let whole = usize::try_from(self.layout.array.chunk_bytes())
            .map_err(|_| Defect("a chunk is larger than memory".to_owned()))?;
        let mask = Form::of(stored.form).mask;
        unfilter(&self.layout.filters, mask, packed, whole, &mut self.scratch)
    }

    fn named(&self, stored: Stored, Defect(reason): Defect) -> Defect {
        let name = &self.rows.column().name;
        Defect(format!("`{name}`, chunk at byte {}: {reason}", stored.range.offset))
    }
}

impl RowFormat for Hdf5Rows {
    const FORMAT: FolderFormat = FolderFormat {
        name: "hdf5",
        extensions: &[".h5", ".hdf5", ".he5", ".hdf", ".nc", ".nc4", ".mat"],
        loose: LooseFiles::NoFolders,
    };
    const EXPECTED: &'static str = "an HDF5 file (.h5, .hdf5, .he5, .hdf, .nc, .nc4 or .mat), several by a pattern, or a folder of them";

    type More = Layouts;

    fn files(opening: &Opening<'_, Windows<Self>>) -> Result<Vec<Vec<u8>>, DatasetError> {
        let (path, extensions) = (&opening.request.config.path, Self::FORMAT.extensions);
        let files = shard_paths::find(opening.storage, path, opening.pattern, extensions)
            .map_err(tell_missing)?;
        match files.is_empty() {
            true => Err(opening
                .request
                .no_samples(format!("it has no {} files", extensions.join(", ")))),
            false => Ok(files),
        }
    }

    fn scan(
        opening: &Opening<'_, Windows<Self>>,
        _warnings: &mut Vec<String>,
    ) -> Result<Found<Layouts>, DatasetError> {
        scan::scan(opening)
    }

    fn locate(rows: Rows<'_, Layouts>, locations: &mut Vec<Location>) {
        chunks::locate(&Hdf5Chunks::new(rows.clone()), &rows.rows, locations);
    }

    fn values<'a>(rows: Rows<'_, Layouts>, parts: &mut Parts<'a>) -> Result<Cow<'a, [u8]>, Defect> {
        let of_rows = (&rows.rows, rows.bytes().unwrap_or(u64::MAX), &rows.column().name[..]);
        chunks::values(&mut Hdf5Chunks::new(rows.clone()), of_rows, parts)
    }

    fn shares_units(columns: &[Column<Layouts>]) -> bool {
        columns.iter().flat_map(|column| &column.more.0).any(|layout| !layout.filters.is_empty())
    }

    fn places(column: &Column<Layouts>, rows: u64) -> u64 {
        let of = |Layout { array, .. }: &Layout| {
            let along = (rows / array.chunk[0]).saturating_add(2);
            along.saturating_mul(Grid(array).chunks_of_row())
        };
        column.more.0.iter().map(of).max().unwrap_or(1)
    }

    fn unpacked_bytes(column: &Column<Layouts>, rows: u64) -> u64 {
        let window = column.row_bytes().unwrap_or(0).saturating_mul(rows);
        let of = |Layout { array, filters }: &Layout| match filters.is_empty() {
            true => 0,
            false => array.chunk_bytes().saturating_mul(scratch_chunks(filters)),
        };
        window.saturating_add(column.more.0.iter().map(of).max().unwrap_or(0))
    }
}

#[cfg(test)]
mod tests;

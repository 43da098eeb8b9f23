//! Rows of datasets in HDF5 files. The first axis is the rows.
//!
//! A group that has all named datasets is an episode, as a folder of `.npy` files is; or a dataset tells episodes apart (`by`).
//! Where the bytes are is read once: a range of the file, of which only the rows are read, or chunks ([`Piece`]: `first` is
//! a chunk's number). A chunk that several windows need is a block, which is read once while they are near.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;

use forebay_protocol::tensor::DType;
use serde::{Deserialize, Serialize};

use super::chunks::{self, Chunks, Stored};
use super::index::{Piece, ScannedSet};
use super::plan::Column;
use super::rows::{Found, Parts, RowFormat, Rows};
use super::{Windows, report};
use crate::hdf5::{Filter, Hdf5, Hdf5Dataset, Place, Scratch, StoredChunk, unfilter};
use crate::indexed::Opening;
use crate::zarr::{Grid, ZarrArray};
use forebay_dataset::Defect;
use forebay_dataset::error::DatasetError;
use forebay_index::folder::scan::{FolderFormat, LooseFiles};
use forebay_index::saved_index::tell_missing;
use forebay_index::shard_paths;
use forebay_index::stored_file::StoredFile;
use forebay_index::window::WindowSize;
use forebay_storage::location::{ByteRange, FileId, Location};

/// The rows that the layout of a dataset says: more than any has. So datasets of different lengths have one layout.
const ANY_ROWS: u64 = 1 << 48;
/// The most layouts of a column: a piece has the number of its layout in 16 bits.
const MAX_LAYOUTS: usize = 1 << 16;
/// The names in a message.
const SHOWN: usize = 8;

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

/// What a piece says of a chunk besides its place: its bytes, the filters that were not applied, and its layout.
#[derive(Debug, Clone, Copy)]
struct Form {
    bytes: u32,
    mask: u32,
    layout: usize,
}

impl Form {
    fn of(form: u64) -> Self {
        let part = |from: u32, bits: u32| (form >> from) & ((1 << bits) - 1);
        Self {
            bytes: u32::try_from(part(0, 32)).unwrap_or(0),
            mask: u32::try_from(part(32, 16)).unwrap_or(0),
            layout: usize::try_from(part(48, 16)).unwrap_or(0),
        }
    }

    fn number(self) -> u64 {
        u64::from(self.bytes) | u64::from(self.mask & 0xffff) << 32 | (self.layout as u64) << 48
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
        let first = rows.index.pieces_from(rows.set, rows.place, 0).next();
        let place = first.map_or(0, |piece| Form::of(piece.form).layout);
        let layout = all.get(place).unwrap_or(&all[0]);
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
            let length = Some(Form::of(piece.form).bytes.into());
            let range = ByteRange { offset: piece.offset, length };
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

/// The datasets of an episode, in the order of the columns: their paths and the addresses of their headers.
type Group = Vec<(String, u64)>;

/// The names of the columns, and the groups of a file that have them.
fn groups(
    file: &StoredFile<'_>,
    found: &[(String, u64)],
    named: Option<&[String]>,
) -> Result<(Vec<String>, Vec<Group>), DatasetError> {
    let shown = || {
        let names = found.iter().take(SHOWN).map(|(path, _)| format!("`{path}`"));
        let more = if found.len() > SHOWN { ", …" } else { "" };
        names.collect::<Vec<_>>().join(", ") + more
    };
    let Some(named) = named else {
        let at_root: Group =
            found.iter().filter(|(path, _)| !path.contains('/')).cloned().collect();
        return match (&at_root[..], found) {
            ([], [one]) => Ok((vec![one.0.clone()], vec![vec![one.clone()]])),
            ([], _) => Err(file.fault(format!(
                "it has no datasets outside of groups; name those of an episode in dataset.windows.fields, as in \
                 x = {{ from = \"obs/x\" }}; it has {}",
                shown()
            ))),
            _ => Ok((at_root.iter().map(|(path, _)| path.clone()).collect(), vec![at_root])),
        };
    };
    let mut all = BTreeMap::<&str, Vec<Option<&(String, u64)>>>::new();
    for dataset in found {
        for (place, name) in named.iter().enumerate() {
            let name = name.trim_matches('/');
            let group = dataset.0.strip_suffix(name);
            if let Some(group) = group.filter(|group| group.is_empty() || group.ends_with('/')) {
                all.entry(group).or_insert_with(|| vec![None; named.len()])[place] = Some(dataset);
            }
        }
    }
    if all.is_empty() {
        return Err(file.fault(format!(
            "it has no dataset {:?}, which dataset.windows names; it has {}",
            named[0],
            shown()
        )));
    }
    let complete = |(group, datasets): (&str, Vec<Option<&(String, u64)>>)| {
        let one = |(place, dataset): (usize, Option<&(String, u64)>)| {
            dataset.cloned().ok_or_else(|| {
                file.fault(format!(
                    "the group {:?} has no dataset {:?}, and others that dataset.windows names",
                    format!("/{group}"),
                    named[place]
                ))
            })
        };
        datasets.into_iter().enumerate().map(one).collect::<Result<Group, _>>()
    };
    Ok((named.to_vec(), all.into_iter().map(complete).collect::<Result<_, _>>()?))
}

/// The layout of a dataset.
fn layout_of(dataset: &Hdf5Dataset) -> Layout {
    let Hdf5Dataset { dtype, big_endian, shape, fill, place } = dataset;
    let mut all = shape.clone();
    all[0] = ANY_ROWS;
    let (chunk, filters) = match place {
        Place::Range(_) => (all.clone(), Vec::new()),
        Place::Chunks { chunk, filters, .. } => (chunk.clone(), filters.clone()),
    };
    let array = ZarrArray {
        order: (0..all.len()).collect(),
        shape: all,
        chunk,
        dtype: dtype.name().to_owned(),
        big_endian: *big_endian,
        fill: fill.clone(),
        codecs: Vec::new(),
        prefix: String::new(),
        separator: '.',
        shards: None,
    };
    Layout { array, filters }
}

/// Adds a dataset of a set to its column, and gives the number of its layout.
fn add_layout(
    file: &StoredFile<'_>,
    path: &str,
    column: &mut Column<Layouts>,
    dataset: &Hdf5Dataset,
) -> Result<usize, DatasetError> {
    let Hdf5Dataset { dtype, big_endian, shape, fill, .. } = dataset;
    let layout = layout_of(dataset);
    let Layouts(layouts) = &mut column.more;
    let known = &layouts[0].array;
    let is_alike = column.dtype == dtype.name()
        && column.big_endian == *big_endian
        && column.shape == shape[1..]
        && known.fill == *fill;
    if !is_alike {
        return Err(file.fault(format!(
            "the rows of {path:?} are {} {:?}, and those of other `{}` {} {:?}; datasets of one name have one type, shape of a row \
             and fill value",
            dtype.name(),
            &shape[1..],
            column.name,
            column.dtype,
            column.shape
        )));
    }
    match layouts.iter().position(|known| *known == layout) {
        Some(place) => Ok(place),
        None if layouts.len() == MAX_LAYOUTS => Err(file.fault(format!(
            "datasets {:?} have more than {MAX_LAYOUTS} shapes of chunks; write them with one",
            column.name
        ))),
        None => {
            layouts.push(layout);
            Ok(layouts.len() - 1)
        }
    }
}

/// The pieces of a dataset.
fn pieces(
    hdf5: &mut Hdf5<'_>,
    dataset: &Hdf5Dataset,
    file: u64,
    layout: usize,
) -> Result<Vec<Piece>, DatasetError> {
    Ok(match &dataset.place {
        Place::Range(offset) => {
            let form = Form { bytes: 0, mask: 0, layout }.number();
            let piece = |offset: &u64| Piece { first: 0, file, offset: *offset, bytes: 0, form };
            offset.iter().map(piece).collect()
        }
        Place::Chunks { tree: None, .. } => Vec::new(),
        Place::Chunks { chunk, tree: Some(tree), .. } => {
            let found = hdf5.chunks(*tree, &dataset.shape, chunk)?.into_iter();
            let piece = |StoredChunk { number, offset, bytes, mask }| {
                let form = Form { bytes, mask, layout }.number();
                Piece { first: number, file, offset, bytes: bytes.into(), form }
            };
            found.map(piece).collect()
        }
    })
}

impl RowFormat for Hdf5Rows {
    const FORMAT: FolderFormat = FolderFormat {
        name: "hdf5",
        extensions: &[".h5", ".hdf5", ".he5", ".hdf"],
        loose: LooseFiles::NoFolders,
    };
    const EXPECTED: &'static str = "an HDF5 file, several by a pattern, or a folder of them";

    type More = Layouts;

    fn files(opening: &Opening<'_, Windows<Self>>) -> Result<Vec<Vec<u8>>, DatasetError> {
        let (path, extensions) = (&opening.request.config.path, Self::FORMAT.extensions);
        let files = shard_paths::find(opening.storage, path, opening.pattern, extensions)
            .map_err(tell_missing)?;
        match files.is_empty() {
            true => Err(opening.request.no_samples("it has no .h5 or .hdf5 files")),
            false => Ok(files),
        }
    }

    fn scan(
        opening: &Opening<'_, Windows<Self>>,
        _warnings: &mut Vec<String>,
    ) -> Result<Found<Layouts>, DatasetError> {
        let (storage, limits) = (opening.storage, &opening.request.config.limits);
        let named = named(opening);
        let mut found =
            Found::<Layouts> { columns: Vec::new(), files: Vec::new(), sets: Vec::new() };
        for path in Self::files(opening)? {
            let file = StoredFile::new(storage, &path)?;
            let mut hdf5 = Hdf5::open(&file, WindowSize::for_storage(storage))?;
            let datasets = hdf5.datasets()?;
            let (names, groups) = groups(&file, &datasets, named.as_deref())?;
            let number = found.files.len() as u64;
            for group in groups {
                let mut set = ScannedSet { file: number, ..ScannedSet::default() };
                for (place, (path, header)) in group.iter().enumerate() {
                    let dataset = hdf5.dataset(path, *header)?;
                    check(&file, path, &dataset, limits.inflated_bytes)?;
                    let rows = dataset.shape[0];
                    if place == 0 {
                        set.rows = rows;
                    } else if rows != set.rows {
                        return Err(file.fault(format!(
                            "{path:?} has {rows} rows, and {:?} has {}: datasets in step have the same first axis; name those \
                             that have it in dataset.windows.fields",
                            group[0].0, set.rows
                        )));
                    }
                    if found.columns.len() == place {
                        found.columns.push(Column {
                            name: names[place].clone(),
                            dtype: dataset.dtype.name().to_owned(),
                            shape: dataset.shape[1..].to_vec(),
                            big_endian: dataset.big_endian,
                            more: Layouts(vec![layout_of(&dataset)]),
                        });
                    }
                    let column =
                        found.columns.get_mut(place).filter(|column| column.name == names[place]);
                    let column = column.ok_or_else(|| {
                        file.fault(format!("its datasets are {names:?}, and those of other files differ; name them in dataset.windows.fields"))
                    })?;
                    let layout = add_layout(&file, path, column, &dataset)?;
                    set.pieces.push(pieces(&mut hdf5, &dataset, number, layout)?);
                }
                if set.pieces.len() != found.columns.len() {
                    return Err(file.fault(format!("its datasets are {names:?}, and other files have more; name them in dataset.windows.fields")));
                }
                found.sets.push(set);
                report(opening, number, found.sets.len() as u64)?;
            }
            let stamp = file.stamp;
            found.files.push((path, stamp));
        }
        Ok(found)
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
        let packed = column.more.0.iter().filter(|layout| !layout.filters.is_empty());
        let chunk = packed.map(|layout| layout.array.chunk_bytes()).max().unwrap_or(0);
        window.saturating_add(chunk.saturating_mul(3))
    }
}

/// The names of the datasets that the configuration names, that of `by` last.
fn named(opening: &Opening<'_, Windows<Hdf5Rows>>) -> Option<Vec<String>> {
    let fields = opening.keys.fields.as_ref()?;
    let mut names: Vec<String> = Vec::new();
    let all = fields.iter().map(|field| &field.from).chain(&opening.keys.windows.by);
    for name in all {
        if !names.contains(name) {
            names.push(name.clone());
        }
    }
    Some(names)
}

/// Refuses a dataset whose rows have no elements, whose chunks are too large, or whose bytes are not in the file.
fn check(
    file: &StoredFile<'_>,
    path: &str,
    dataset: &Hdf5Dataset,
    limit: u64,
) -> Result<(), DatasetError> {
    let size = DType::size_bytes(dataset.dtype);
    let bytes = |sides: &[u64]| sides.iter().fold(size, |all, side| all.saturating_mul(*side));
    let reason = match &dataset.place {
        Place::Range(Some(offset)) => {
            let end = offset.saturating_add(bytes(&dataset.shape));
            (end > file.stamp.bytes).then(|| {
                format!("ends at byte {end}, and the file has {}: it is cut off", file.stamp.bytes)
            })
        }
        Place::Chunks { chunk, .. } if bytes(chunk) > limit => Some(format!(
            "has chunks of {} bytes, and limits.inflated_bytes is {limit}",
            bytes(chunk)
        )),
        _ => None,
    };
    match reason {
        Some(reason) => Err(file.fault(format!("{path:?} {reason}"))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests;

//! Rows of datasets in HDF5 files. The first axis is the rows.
//!
//! A group that has all named datasets is an episode, as a folder of `.npy` files is; or a dataset tells episodes apart (`by`).
//! Where the bytes are is read once: a range of the file, of which only the rows are read, or chunks ([`Piece`]: `first` is
//! a chunk's number). A chunk that several windows need is a block, which is read once while they are near.

use std::borrow::Cow;
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::chunks::{self, Chunks, Stored};
use super::index::{Piece, ScannedSet};
use super::plan::Column;
use super::rows::{Found, Parts, RowFormat, Rows};
use super::{Windows, report};
use crate::hdf5::{
    Filter, Hdf5, Hdf5Dataset, Place, Scratch, StoredChunk, scratch_chunks, unfilter,
};
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
        let mut at_root: Group =
            found.iter().filter(|(path, _)| !path.contains('/')).cloned().collect();
        at_root.sort_unstable();
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
    let (group, datasets) =
        all.iter().max_by_key(|(_, datasets)| datasets.iter().flatten().count()).unzip();
    let groups: Vec<Group> = all
        .values()
        .filter_map(|datasets| datasets.iter().map(|dataset| dataset.cloned()).collect())
        .collect();
    if groups.is_empty() {
        let missing =
            datasets.and_then(|datasets: &Vec<_>| datasets.iter().position(Option::is_none));
        return Err(file.fault(format!(
            "none of its groups has all datasets that dataset.windows names: {:?} has no {:?}",
            format!("/{}", group.copied().unwrap_or_default()),
            named[missing.unwrap_or(0)]
        )));
    }
    Ok((named.to_vec(), groups))
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

/// The rows of a dataset, in a message.
fn words(dtype: &str, shape: &[u64], big_endian: bool, fill: &[u8]) -> String {
    let order = if big_endian { ", big endian" } else { "" };
    let fill = match fill.iter().all(|byte| *byte == 0) {
        true => String::new(),
        false => format!(", with the fill value {fill:02x?}"),
    };
    format!("{dtype} {shape:?}{order}{fill}")
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
            "the rows of {path:?} are {}, and those of other `{}` {}; datasets of one name have one type, shape of a row and fill \
             value",
            words(dtype.name(), &shape[1..], *big_endian, fill),
            column.name,
            words(&column.dtype, &column.shape, column.big_endian, &known.fill)
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

/// A dataset of a file, and its chunks.
type Known = HashMap<u64, (Hdf5Dataset, Vec<StoredChunk>)>;

/// Reads a dataset and its chunks, once for all paths that lead to it.
fn known<'k>(
    (file, hdf5): (&StoredFile<'_>, &mut Hdf5<'_>),
    (path, header): (&str, u64),
    limit: u64,
    all: &'k mut Known,
) -> Result<&'k (Hdf5Dataset, Vec<StoredChunk>), DatasetError> {
    let vacant = match all.entry(header) {
        Entry::Occupied(known) => return Ok(known.into_mut()),
        Entry::Vacant(vacant) => vacant,
    };
    let dataset = hdf5.dataset(path, header)?;
    check(file, path, &dataset, limit)?;
    let chunks = match &dataset.place {
        Place::Chunks { chunk, filters, tree: Some(tree) } => {
            let found = hdf5.chunks(*tree, &dataset.shape, chunk)?;
            let whole = filters.is_empty().then(|| bytes_of(&dataset, chunk));
            check_chunks(file, path, &found, whole)?;
            found
        }
        _ => Vec::new(),
    };
    Ok(vacant.insert((dataset, chunks)))
}

/// Refuses chunks that are not in the file, or do not have `whole` bytes.
fn check_chunks(
    file: &StoredFile<'_>,
    path: &str,
    chunks: &[StoredChunk],
    whole: Option<u64>,
) -> Result<(), DatasetError> {
    for StoredChunk { offset, bytes, .. } in chunks {
        let (bytes, end) = (u64::from(*bytes), offset.saturating_add((*bytes).into()));
        if end > file.stamp.bytes {
            return Err(file.fault(format!(
                "{path:?} has a chunk that ends at byte {end}, and the file has {}: it is cut off or damaged",
                file.stamp.bytes
            )));
        }
        if whole.is_some_and(|whole| bytes != whole) {
            return Err(file.fault(format!(
                "{path:?} has no filters, and a chunk of {bytes} bytes at byte {offset}: it is damaged"
            )));
        }
    }
    Ok(())
}

/// The size of so many elements.
fn bytes_of(dataset: &Hdf5Dataset, sides: &[u64]) -> u64 {
    sides.iter().fold(dataset.dtype.size_bytes(), |all, side| all.saturating_mul(*side))
}

/// The pieces of a dataset.
fn pieces(
    (dataset, chunks): &(Hdf5Dataset, Vec<StoredChunk>),
    file: u64,
    layout: usize,
) -> Vec<Piece> {
    if let Place::Range(offset) = &dataset.place {
        let form = Form { mask: 0, layout }.number();
        let piece = |offset: &u64| Piece { first: 0, file, offset: *offset, bytes: 0, form };
        return offset.iter().map(piece).collect();
    }
    let piece = |StoredChunk { number, offset, bytes, mask }: &StoredChunk| {
        let form = Form { mask: *mask, layout }.number();
        Piece { first: *number, file, offset: *offset, bytes: (*bytes).into(), form }
    };
    chunks.iter().map(piece).collect()
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
            let mut all = Known::new();
            for group in groups {
                let mut set = ScannedSet { file: number, ..ScannedSet::default() };
                for (place, (path, header)) in group.iter().enumerate() {
                    let found_there = known(
                        (&file, &mut hdf5),
                        (path, *header),
                        limits.inflated_bytes,
                        &mut all,
                    )?;
                    let dataset = &found_there.0;
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
                            more: Layouts(vec![layout_of(dataset)]),
                        });
                    }
                    let column =
                        found.columns.get_mut(place).filter(|column| column.name == names[place]);
                    let column = column.ok_or_else(|| {
                        file.fault(format!("its datasets are {names:?}, and those of other files differ; name them in dataset.windows.fields"))
                    })?;
                    let layout = add_layout(&file, path, column, dataset)?;
                    let pieces = pieces(found_there, number, layout);
                    hdf5.charge(size_of_val(&pieces[..]) as u64)?;
                    set.pieces.push(pieces);
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
        let of = |Layout { array, filters }: &Layout| match filters.is_empty() {
            true => 0,
            false => array.chunk_bytes().saturating_mul(scratch_chunks(filters)),
        };
        window.saturating_add(column.more.0.iter().map(of).max().unwrap_or(0))
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
    let reason = match &dataset.place {
        Place::Range(Some(offset)) => {
            let end = offset.saturating_add(bytes_of(dataset, &dataset.shape));
            (end > file.stamp.bytes).then(|| {
                format!("ends at byte {end}, and the file has {}: it is cut off", file.stamp.bytes)
            })
        }
        Place::Chunks { chunk, .. } if bytes_of(dataset, chunk) > limit => Some(format!(
            "has chunks of {} bytes, and limits.inflated_bytes is {limit}",
            bytes_of(dataset, chunk)
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

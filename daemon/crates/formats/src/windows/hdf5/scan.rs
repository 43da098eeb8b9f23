//! Finds the episodes of HDF5 files: the datasets of their columns, and where the bytes are. Files are read on a few threads; their
//! columns are put together in the order of the files.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};

use super::{Form, Hdf5Rows, Layout, Layouts};
use crate::hdf5::{Chunking, Hdf5, Hdf5Dataset, Place, StoredChunk};
use crate::indexed::Opening;
use crate::windows::Windows;
use crate::windows::index::{Piece, ScannedSet};
use crate::windows::plan::Column;
use crate::windows::rows::{Found, RowFormat as _};
use crate::zarr::ZarrArray;
use forebay_dataset::error::DatasetError;
use forebay_index::shards::{self, Pace, Scanned};
use forebay_index::stored_file::StoredFile;
use forebay_index::window::WindowSize;

/// The rows that the layout of a dataset says: more than any has. So datasets of different lengths have one layout.
const ANY_ROWS: u64 = 1 << 48;
/// The most layouts of a column: a piece has the number of its layout in 16 bits.
const MAX_LAYOUTS: usize = 1 << 16;
/// The names in a message.
const SHOWN: usize = 8;

/// The columns and sets of one file. In its pieces the file is 0, and layouts are numbered within the file.
struct ScannedFile<'f> {
    file: StoredFile<'f>,
    columns: Vec<Column<Layouts>>,
    sets: Vec<ScannedSet>,
}

impl Scanned for ScannedFile<'_> {
    fn samples(&self) -> usize {
        self.sets.len()
    }
}

/// Reads the headers of all files.
pub(super) fn scan(
    opening: &Opening<'_, Windows<Hdf5Rows>>,
) -> Result<Found<Layouts>, DatasetError> {
    let paths = Hdf5Rows::files(opening)?;
    let named = named(opening);
    let limit = opening.request.config.limits.inflated_bytes;
    let progress = opening.request.options.progress;
    let scanned = shards::scan(paths.len(), None, progress, &|place, pace| {
        let file = StoredFile::new(opening.storage, &paths[place])?;
        scan_file(file, named.as_deref(), limit, pace, WindowSize::for_storage(opening.storage))
    })?;
    let mut found = Found::<Layouts> { columns: Vec::new(), files: Vec::new(), sets: Vec::new() };
    for (path, scanned) in paths.iter().zip(scanned) {
        found.files.push((path.clone(), scanned.file.stamp));
        add_file(scanned, &mut found)?;
    }
    Ok(found)
}

/// Appends what the last file has.
fn add_file(scanned: ScannedFile<'_>, all: &mut Found<Layouts>) -> Result<(), DatasetError> {
    let ScannedFile { file, columns, mut sets } = scanned;
    let number = all.files.len() as u64 - 1;
    if number == 0 {
        all.columns.clone_from(&columns);
    }
    let names = |columns: &[Column<Layouts>]| -> Vec<String> {
        columns.iter().map(|column| column.name.clone()).collect()
    };
    let (own, others) = (names(&columns), names(&all.columns));
    if own != others {
        return Err(file.fault(format!(
            "its datasets are {own:?}, and those of other files {others:?}; name them in dataset.windows.fields"
        )));
    }
    for (place, (column, known)) in columns.iter().zip(&mut all.columns).enumerate() {
        let numbers = add_layouts(&file, &column.name, known, column)?;
        for piece in sets.iter_mut().flat_map(|set| &mut set.pieces[place]) {
            let Form { mask, layout } = Form::of(piece.form);
            (piece.file, piece.form) = (number, Form { mask, layout: numbers[layout] }.number());
        }
    }
    for set in &mut sets {
        set.file = number;
    }
    all.sets.append(&mut sets);
    Ok(())
}

/// Reads the headers of a file.
fn scan_file<'f>(
    file: StoredFile<'f>,
    named: Option<&[String]>,
    limit: u64,
    pace: &dyn Pace,
    window: WindowSize,
) -> Result<ScannedFile<'f>, DatasetError> {
    let mut hdf5 = Hdf5::open(&file, window)?;
    let datasets = hdf5.datasets()?;
    let (names, groups) = groups(&file, &datasets, named)?;
    let (mut columns, mut sets) = (Vec::<Column<Layouts>>::new(), Vec::new());
    let (mut all, count) = (Known::new(), groups.len() as u64);
    for (done, group) in (0..).zip(groups) {
        if pace.is_stopped_at(file.stamp.bytes / count * done, file.stamp.bytes) {
            return Err(DatasetError::Cancelled);
        }
        let mut set = ScannedSet::default();
        for (place, (path, header)) in group.iter().enumerate() {
            let known = known((&file, &mut hdf5), (path, *header), limit, &mut all)?;
            let rows = known.0.shape[0];
            if place == 0 {
                set.rows = rows;
            } else if rows != set.rows {
                return Err(file.fault(format!(
                    "{path:?} has {rows} rows, and {:?} has {}: datasets in step have the same first axis; name those \
                     that have it in dataset.windows.fields",
                    group[0].0, set.rows
                )));
            }
            let column = column_of(&names[place], &known.0);
            let layout = match columns.get_mut(place) {
                Some(known) => add_layouts(&file, path, known, &column)?[0],
                None => {
                    columns.push(column);
                    0
                }
            };
            let pieces = pieces(known, layout);
            hdf5.charge(size_of_val(&pieces[..]) as u64)?;
            set.pieces.push(pieces);
        }
        sets.push(set);
    }
    Ok(ScannedFile { file, columns, sets })
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

/// The column of a dataset.
fn column_of(name: &str, dataset: &Hdf5Dataset) -> Column<Layouts> {
    let Hdf5Dataset { dtype, big_endian, shape, .. } = dataset;
    Column {
        name: name.to_owned(),
        dtype: dtype.name().to_owned(),
        shape: shape[1..].to_vec(),
        big_endian: *big_endian,
        more: Layouts(vec![layout_of(dataset)]),
    }
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

/// The rows of a column, in a message.
fn words(column: &Column<Layouts>) -> String {
    let Column { dtype, shape, big_endian, more: Layouts(layouts), .. } = column;
    let order = if *big_endian { ", big endian" } else { "" };
    let fill = &layouts[0].array.fill;
    let fill = match fill.iter().all(|byte| *byte == 0) {
        true => String::new(),
        false => format!(", with the fill value {fill:02x?}"),
    };
    format!("{dtype} {shape:?}{order}{fill}")
}

/// Adds the layouts of a dataset, or of all datasets of a name in a file, to its column, and gives their numbers there. `shown`: the
/// dataset or the name.
fn add_layouts(
    file: &StoredFile<'_>,
    shown: &str,
    known: &mut Column<Layouts>,
    column: &Column<Layouts>,
) -> Result<Vec<usize>, DatasetError> {
    let fill = |column: &Column<Layouts>| column.more.0[0].array.fill.clone();
    let of = |column: &Column<Layouts>| {
        (column.dtype.clone(), column.big_endian, column.shape.clone(), fill(column))
    };
    if of(known) != of(column) {
        return Err(file.fault(format!(
            "the rows of {shown:?} are {}, and those of other `{}` {}; datasets of one name have one type, shape of a row and fill \
             value",
            words(column),
            known.name,
            words(known)
        )));
    }
    let Layouts(layouts) = &mut known.more;
    let mut numbers = Vec::with_capacity(column.more.0.len());
    for layout in &column.more.0 {
        let number = layouts.iter().position(|known| known == layout).unwrap_or(layouts.len());
        if number == layouts.len() {
            layouts.push(layout.clone());
        }
        numbers.push(number);
    }
    if layouts.len() > MAX_LAYOUTS {
        return Err(file.fault(format!(
            "datasets {:?} have more than {MAX_LAYOUTS} shapes of chunks; write them with one",
            known.name
        )));
    }
    Ok(numbers)
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
        Place::Chunks { chunk, filters, list: Some(list) } => {
            let size = dataset.dtype.size_bytes();
            let found = hdf5.chunks(list, Chunking { shape: &dataset.shape, chunk, size })?;
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
fn pieces((dataset, chunks): &(Hdf5Dataset, Vec<StoredChunk>), layout: usize) -> Vec<Piece> {
    if let Place::Range(offset) = &dataset.place {
        let form = Form { mask: 0, layout }.number();
        let piece = |offset: &u64| Piece { first: 0, file: 0, offset: *offset, bytes: 0, form };
        return offset.iter().map(piece).collect();
    }
    let piece = |StoredChunk { number, offset, bytes, mask }: &StoredChunk| {
        let form = Form { mask: *mask, layout }.number();
        Piece { first: *number, file: 0, offset: *offset, bytes: (*bytes).into(), form }
    };
    chunks.iter().map(piece).collect()
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

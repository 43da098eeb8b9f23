//! The columns of tables that become arrays, and the reading of their rows.

use std::ops::ControlFlow;

use forebay_columnar::{ArrayForm, Cell, Column, Encoding, Inferred, TableColumn, dtype};
use forebay_dataset::error::DatasetError;
use forebay_index::saved_index::open_file;
use forebay_index::stored_file::StoredFile;
use forebay_protocol::tensor::{DType, MAX_TENSORS};
use forebay_storage::Storage;
use forebay_storage::version::FileStamp;
use half::f16;

use super::files::{Array, MadeRows};
use crate::fields::{RESERVED, name_fault};
use crate::in_order::Give;
use crate::tables::{ColumnReader, ROWS_PER_QUESTION, TableFormat, reads};

/// The bytes of rows from which on they are given to the writer.
const PIECE_BYTES: usize = 1 << 20;
/// The most bytes of a value.
const MAX_ROW_BYTES: u64 = 16 << 20;

/// The columns that become arrays.
#[derive(Debug)]
pub(super) struct Columns {
    /// Their names in the tables, and their arrays.
    pub(super) chosen: Vec<(String, Array)>,
    /// The column of `by`.
    by: Option<String>,
    /// Columns that are not numbers, with why.
    pub(super) left_out: Vec<String>,
}

/// The type of a column's elements, and the shape of a value if the type says it.
fn element(encoding: &Encoding) -> Result<(&str, Option<&[u64]>), String> {
    Ok(match encoding {
        Encoding::Number(name) => (name, Some(&[])),
        Encoding::Array(ArrayForm::Plain(name, shape)) => (name, shape.as_deref()),
        Encoding::Array(ArrayForm::Rows(name, _)) => (name, None),
        Encoding::Unread(why) => return Err(why.clone()),
        other => return Err(other.words()),
    })
}

/// The shape of an element of a column of lists.
fn row_of(encoding: &Encoding) -> &[u64] {
    match encoding {
        Encoding::Array(ArrayForm::Rows(_, row)) => row,
        _ => &[],
    }
}

/// The shape of a value, of which a value's bytes say how many elements a list has.
fn shape_of(encoding: &Encoding, dtype: DType, value: Option<&[u8]>) -> Result<Vec<u64>, String> {
    if let Ok((_, Some(shape))) = element(encoding) {
        return Ok(shape.to_vec());
    }
    let value = value.ok_or_else(|| "lists without elements".to_owned())?;
    let row = row_of(encoding);
    let each = row.iter().try_fold(dtype.size_bytes(), |all, side| all.checked_mul(*side));
    match each.filter(|each| *each > 0) {
        Some(each) => Ok([&[value.len() as u64 / each], row].concat()),
        None => Err("lists without elements".to_owned()),
    }
}

/// Whether values of a column may have a shape.
fn may_have(encoding: &Encoding, shape: &[u64]) -> bool {
    match element(encoding) {
        Ok((_, Some(known))) => known == shape,
        Ok((_, None)) => shape.split_first().is_some_and(|(_, row)| row == row_of(encoding)),
        Err(_) => false,
    }
}

/// The name of a column's array.
fn array_name(column: &str, place: usize) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
    let is_file = column.bytes().all(is_plain)
        && column.len() <= 100
        && !column.starts_with('.')
        && !column.to_ascii_lowercase().ends_with(".npy");
    match is_file && !column.is_empty() {
        true => column.to_owned(),
        false => format!("@column-{place}"),
    }
}

impl Columns {
    /// Chooses from the columns of the first table. `named`: the columns that the configuration names; `None`: all that are
    /// of numbers.
    ///
    /// # Errors
    /// A named column does not exist or cannot be an array, or a table cannot be read.
    pub(super) fn choose(
        source @ (tables, storage): (&TableFormat, &dyn Storage),
        paths: &[Vec<u8>],
        named: Option<&[String]>,
        by: Option<&str>,
    ) -> Result<Self, DatasetError> {
        let file = open_file(storage, &paths[0])?;
        let found = (tables.reader.columns)(&file)?;
        let names = || {
            let names = found.iter().map(|column| format!("`{}`", column.column.name));
            names.collect::<Vec<_>>().join(", ")
        };
        let place_of = |key: &str, name: &str| {
            let place = found.iter().position(|column| column.column.name == name);
            place.ok_or_else(|| {
                file.fault(format!("{key} has {name:?}, and the columns are {}", names()))
            })
        };
        if let Some(by) = by {
            check_by(&file, &found[place_of("dataset.windows.by", by)?].column)?;
        }
        let is_of_rows = |column: &&TableColumn| {
            let name = &column.column.name;
            by != Some(name) && !column.is_path && column.inferred != Inferred::Unmentioned
        };
        let columns: Vec<&Column> = match named {
            Some(named) => named
                .iter()
                .map(|name| Ok(&found[place_of("dataset.windows.fields", name)?].column))
                .collect::<Result<_, DatasetError>>()?,
            None => found.iter().filter(is_of_rows).map(|column| &column.column).collect(),
        };
        let values = first_values(source, paths, &columns)?;
        let (mut chosen, mut left_out) = (Vec::<(String, Array)>::new(), Vec::new());
        for ((place, column), value) in (0..).zip(&columns).zip(values) {
            let array = element(&column.encoding).and_then(|(name, _)| {
                let dtype = dtype(name).ok_or_else(|| format!("of the type {name}"))?;
                let shape = shape_of(&column.encoding, dtype, value.as_deref())?;
                let array = Array { name: array_name(&column.name, place), dtype, shape };
                match array.row_bytes().is_some_and(|bytes| bytes <= MAX_ROW_BYTES) {
                    true => Ok(array),
                    false => Err(format!("of the shape {:?}", array.shape)),
                }
            });
            let array = array.and_then(|array| match named {
                None => field_fault(&column.name, &chosen).map_or(Ok(array), Err),
                Some(_) => Ok(array),
            });
            match array {
                Ok(array) => chosen.push((column.name.clone(), array)),
                Err(why) if named.is_none() => left_out.push(format!("`{}` ({why})", column.name)),
                Err(why) => {
                    return Err(file.fault(format!(
                        "dataset.windows.fields has {:?}, whose values are {why}, and windows are of numbers of one shape",
                        column.name
                    )));
                }
            }
        }
        if chosen.is_empty() {
            return Err(file.fault(format!(
                "it has no columns of numbers for windows; its columns are {}",
                names()
            )));
        }
        Ok(Self { chosen, by: by.map(str::to_owned), left_out })
    }

    /// The arrays, and that which tells episodes apart after them.
    pub(super) fn arrays(&self) -> Vec<Array> {
        let columns = self.chosen.iter().map(|(_, array)| array.clone());
        columns.chain([Array::of_episodes()]).collect()
    }

    /// The names of the columns and of their arrays.
    pub(super) fn names(&self) -> Vec<(String, String)> {
        self.chosen.iter().map(|(name, array)| (name.clone(), array.name.clone())).collect()
    }

    /// Reads the rows of a table of this version.
    ///
    /// # Errors
    /// It has other columns, a value is missing or of another shape, it has changed, or it cannot be read.
    pub(super) fn read(
        &self,
        (tables, storage): (&TableFormat, &dyn Storage),
        (table, stamp): (&[u8], FileStamp),
        give: Give<'_, MadeRows>,
        is_stopped: &dyn Fn() -> bool,
    ) -> Result<(), DatasetError> {
        let file = open_unchanged(storage, table, stamp)?;
        let found = (tables.reader.columns)(&file)?;
        let place_of = |name: &String| {
            let place = found.iter().position(|column| column.column.name == *name);
            place.ok_or_else(|| {
                file.fault(format!("it has no column {name:?}, which the first table has"))
            })
        };
        let mut places = Vec::with_capacity(self.chosen.len() + 1);
        for (name, array) in &self.chosen {
            let place = place_of(name)?;
            let encoding = &found[place].column.encoding;
            let own = element(encoding).map_err(|why| {
                file.fault(format!(
                    "its column {name:?} is not of numbers as that of the first table: {why}"
                ))
            })?;
            if own.0 != array.dtype.name() || !may_have(encoding, &array.shape) {
                let shape =
                    own.1.map_or_else(String::new, |shape| format!(" of the shape {shape:?}"));
                return Err(file.fault(format!(
                    "its column {name:?} is {}{shape}, and that of the first table {} of the shape {:?}; write it once more with \
                     one type",
                    own.0,
                    array.dtype.name(),
                    array.shape
                )));
            }
            places.push(place);
        }
        if let Some(by) = &self.by {
            let place = place_of(by)?;
            check_by(&file, &found[place].column)?;
            places.push(place);
        }
        let columns: Vec<&Column> = places.iter().map(|place| &found[*place].column).collect();
        let mut readers: Vec<_> = columns.iter().map(|column| ColumnReader::new(column)).collect();
        let empty =
            || MadeRows { columns: vec![Vec::new(); self.chosen.len()], ..MadeRows::default() };
        let (mut made, mut bytes, mut group) = (empty(), 0, Vec::new());
        let mut is_over = false;
        let mut of_row = |number: u64, cells: &[Cell]| {
            if number.is_multiple_of(ROWS_PER_QUESTION) && is_stopped() {
                return Err(DatasetError::Cancelled);
            }
            for (reader, cell) in readers.iter_mut().zip(cells) {
                reader.load(&file, cell)?;
            }
            let fault = |reason: String| file.fault(format!("row {number}: {reason}"));
            for ((reader, cell), ((name, array), column)) in
                readers.iter().zip(cells).zip(self.chosen.iter().zip(&mut made.columns))
            {
                let before = column.len();
                let value = reader.bytes(cell).map_err(fault)?;
                append(array, value, column).map_err(|why| fault(format!("`{name}` {why}")))?;
                bytes += column.len() - before;
            }
            if let Some(by) = &self.by {
                let value =
                    readers.last().zip(cells.last()).map(|(reader, cell)| reader.bytes(cell));
                let value = value.transpose().map_err(fault)?.flatten().ok_or_else(|| {
                    fault(format!(
                        "`{by}` has no value, and dataset.windows.by needs one in each row"
                    ))
                })?;
                if number == 0 || group != value {
                    made.starts.push(made.rows);
                    group.clear();
                    group.extend_from_slice(value);
                }
            } else if number == 0 {
                made.starts.push(0);
            }
            made.rows += 1;
            if bytes >= PIECE_BYTES {
                bytes = 0;
                is_over = give(std::mem::replace(&mut made, empty())).is_break();
            }
            Ok(if is_over { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        };
        (tables.reader.rows)(&file, &places, reads(storage), &mut of_row)?;
        open_unchanged(storage, table, stamp)?;
        if !is_over {
            made.ends = true;
            // The pass ends in any case.
            let _ = give(made);
        }
        Ok(())
    }
}

/// Opens a table that has to be of this version.
pub(super) fn open_unchanged<'s>(
    storage: &'s dyn Storage,
    table: &'s [u8],
    stamp: FileStamp,
) -> Result<StoredFile<'s>, DatasetError> {
    let file = open_file(storage, table)?;
    match file.stamp == stamp {
        true => Ok(file),
        false => Err(file.fault(
            "it has changed since this start looked at it; start again when nobody writes the tables".to_owned(),
        )),
    }
}

/// Refuses a column of `by` that is not read.
fn check_by(file: &StoredFile<'_>, column: &Column) -> Result<(), DatasetError> {
    match &column.encoding {
        Encoding::Unread(why) => Err(file
            .fault(format!("dataset.windows.by is {:?}, which is not read: {why}", column.name))),
        _ => Ok(()),
    }
}

/// Why a column has no field if the configuration names none.
fn field_fault(name: &str, chosen: &[(String, Array)]) -> Option<String> {
    if chosen.iter().any(|(other, _)| other == name) {
        return Some("a second column of this name".to_owned());
    }
    // With the field of rows that exist.
    let is_full = chosen.len() + RESERVED.len() + 1 >= MAX_TENSORS;
    name_fault(name).or_else(|| is_full.then(|| format!("after {} others", chosen.len())))
}

/// The first values with elements of columns whose type does not say their shape.
fn first_values(
    (tables, storage): (&TableFormat, &dyn Storage),
    paths: &[Vec<u8>],
    columns: &[&Column],
) -> Result<Vec<Option<Vec<u8>>>, DatasetError> {
    let mut values = vec![None; columns.len()];
    let is_list = |column: &Column| matches!(element(&column.encoding), Ok((_, None)));
    for path in paths {
        let is_wanted = |place: &usize| is_list(columns[*place]) && values[*place].is_none();
        let wanted: Vec<usize> = (0..columns.len()).filter(is_wanted).collect();
        if wanted.is_empty() {
            break;
        }
        let file = open_file(storage, path)?;
        let found = (tables.reader.columns)(&file)?;
        // A table without one of them is refused when it is read.
        let places: Vec<(usize, usize)> = wanted
            .into_iter()
            .filter_map(|own| {
                let name = &columns[own].name;
                Some((own, found.iter().position(|column| column.column.name == *name)?))
            })
            .collect();
        let of_file: Vec<usize> = places.iter().map(|(_, place)| *place).collect();
        let mut of_row = |_: u64, cells: &[Cell]| {
            for ((own, place), cell) in places.iter().zip(cells) {
                if values[*own].is_some() {
                    continue;
                }
                let mut reader = ColumnReader::new(&found[*place].column);
                reader.load(&file, cell)?;
                let value = reader.bytes(cell).map_err(|reason| file.fault(reason))?;
                values[*own] = value.filter(|value| !value.is_empty()).map(<[u8]>::to_vec);
            }
            let is_done = places.iter().all(|(own, _)| values[*own].is_some());
            Ok(if is_done { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        };
        (tables.reader.rows)(&file, &of_file, reads(storage), &mut of_row)?;
    }
    Ok(values)
}

/// Appends a value. One that is missing is NaN.
fn append(array: &Array, value: Option<&[u8]>, column: &mut Vec<u8>) -> Result<(), String> {
    let row_bytes = array.row_bytes().and_then(|bytes| usize::try_from(bytes).ok()).unwrap_or(0);
    if let Some(value) = value {
        if value.len() == row_bytes {
            column.extend_from_slice(value);
            return Ok(());
        }
        return Err(format!(
            "has {} numbers, and rows of the shape {:?} have {}: rows of a window have one shape",
            value.len() as u64 / array.dtype.size_bytes(),
            array.shape,
            row_bytes as u64 / array.dtype.size_bytes()
        ));
    }
    let nan = match array.dtype {
        DType::F16 => &f16::NAN.to_le_bytes()[..],
        DType::F32 => &f32::NAN.to_le_bytes(),
        DType::F64 => &f64::NAN.to_le_bytes(),
        other => {
            return Err(format!(
                "has no value, and {} has no number for that; fill it in, or write the column as floats, whose missing \
                 values are NaN",
                other.name()
            ));
        }
    };
    (0..row_bytes / nan.len()).for_each(|_| column.extend_from_slice(nan));
    Ok(())
}

#[test]
fn names_that_are_no_files_are_replaced() {
    assert_eq!(array_name("observation.state", 3), "observation.state");
    for odd in ["a/b", "", ".x", "x.npy", super::files::EPISODE, "größe"] {
        assert_eq!(array_name(odd, 3), "@column-3", "{odd}");
    }
}

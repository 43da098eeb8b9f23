//! The columns of tables that become arrays, and the reading of their rows.

use std::ops::ControlFlow;

use forebay_columnar::{ArrayForm, Cell, Column, Encoding, Inferred, TableColumn, dtype};
use forebay_dataset::error::DatasetError;
use forebay_index::saved_index::open_file;
use forebay_index::stored_file::StoredFile;
use forebay_protocol::tensor::DType;
use forebay_storage::Storage;
use half::f16;

use super::files::{Array, MadeRows};
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

/// The type of a column's elements, and the shape of a value if it is known.
fn element(encoding: &Encoding) -> Result<(&str, Option<&[u64]>), String> {
    Ok(match encoding {
        Encoding::Number(name) => (name, Some(&[])),
        Encoding::Array(ArrayForm::Plain(name, shape)) => (name, shape.as_deref()),
        Encoding::Array(ArrayForm::Rows(name, _)) => (name, None),
        Encoding::Unread(why) => return Err(why.clone()),
        Encoding::Text | Encoding::Json => return Err("texts".to_owned()),
        _ => return Err("not numbers".to_owned()),
    })
}

/// The shape of a value, whose bytes the first row has if the column does not say it.
fn shape_of(encoding: &Encoding, dtype: DType, first: Option<&[u8]>) -> Result<Vec<u64>, String> {
    let row = match encoding {
        Encoding::Number(_) => return Ok(Vec::new()),
        Encoding::Array(ArrayForm::Plain(_, Some(shape))) => return Ok(shape.clone()),
        Encoding::Array(ArrayForm::Rows(_, row)) => &row[..],
        _ => &[],
    };
    let first = first.ok_or_else(|| "lists, of which the first row has none".to_owned())?;
    let each = row.iter().try_fold(dtype.size_bytes(), |all, side| all.checked_mul(*side));
    match each.filter(|each| *each > 0 && !first.is_empty()) {
        Some(each) => Ok([&[first.len() as u64 / each], row].concat()),
        None => Err("lists, of which that of the first row is empty".to_owned()),
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
    /// Chooses from the columns of a table with rows. `named`: the columns that the configuration names; `None`: all that
    /// are of numbers.
    ///
    /// # Errors
    /// A named column does not exist or cannot be an array, or the table cannot be read.
    pub(super) fn choose(
        (tables, storage): (&TableFormat, &dyn Storage),
        table: &[u8],
        named: Option<&[String]>,
        by: Option<&str>,
    ) -> Result<Self, DatasetError> {
        let file = open_file(storage, table)?;
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
            let place = place_of("dataset.windows.by", by)?;
            if let Encoding::Unread(why) = &found[place].column.encoding {
                return Err(
                    file.fault(format!("dataset.windows.by is {by:?}, which is not read: {why}"))
                );
            }
        }
        let is_of_rows = |column: &&TableColumn| {
            let name = &column.column.name;
            by != Some(name) && !column.is_path && column.inferred != Inferred::Unmentioned
        };
        let places: Vec<usize> = match named {
            Some(named) => named
                .iter()
                .map(|name| place_of("dataset.windows.fields", name))
                .collect::<Result<_, _>>()?,
            None => (0..found.len()).filter(|place| is_of_rows(&&found[*place])).collect(),
        };
        let columns: Vec<&Column> = places.iter().map(|place| &found[*place].column).collect();
        let first = first_row(&file, tables, storage, &columns, &places)?;
        let (mut chosen, mut left_out) = (Vec::new(), Vec::new());
        for ((place, column), first) in (0..).zip(&columns).zip(first) {
            let array = element(&column.encoding).and_then(|(name, _)| {
                let dtype = dtype(name).ok_or_else(|| format!("of the type {name}"))?;
                let shape = shape_of(&column.encoding, dtype, first.as_deref())?;
                let array = Array { name: array_name(&column.name, place), dtype, shape };
                match array.row_bytes().is_some_and(|bytes| bytes <= MAX_ROW_BYTES) {
                    true => Ok(array),
                    false => Err(format!("of the shape {:?}", array.shape)),
                }
            });
            match array {
                Ok(array) => chosen.push((column.name.clone(), array)),
                Err(why) if named.is_none() => left_out.push(format!("`{}` ({why})", column.name)),
                Err(why) => {
                    return Err(file.fault(format!(
                        "dataset.windows.fields has {:?}, whose values are {why}, and windows are of numbers",
                        column.name
                    )));
                }
            }
        }
        if chosen.is_empty() {
            return Err(
                file.fault(format!("it has no columns of numbers: {}", left_out.join(", ")))
            );
        }
        Ok(Self { chosen, by: by.map(str::to_owned), left_out })
    }

    /// The arrays, and that which tells episodes apart after them.
    pub(super) fn arrays(&self) -> Vec<Array> {
        let columns = self.chosen.iter().map(|(_, array)| array.clone());
        columns.chain([Array::of_episodes()]).collect()
    }

    /// The name of the array of a column.
    pub(super) fn array_of(&self, column: &str) -> Option<&str> {
        let found = self.chosen.iter().find(|(name, _)| name == column);
        found.map(|(_, array)| &array.name[..])
    }

    /// Reads the rows of a table.
    ///
    /// # Errors
    /// It has other columns, a value is missing or of another shape, or it cannot be read.
    pub(super) fn read(
        &self,
        (tables, storage): (&TableFormat, &dyn Storage),
        table: &[u8],
        give: Give<'_, MadeRows>,
        is_stopped: &dyn Fn() -> bool,
    ) -> Result<(), DatasetError> {
        let file = open_file(storage, table)?;
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
            let own = element(&found[place].column.encoding)
                .map_or_else(|why| why, |(name, _)| name.to_owned());
            if own != array.dtype.name() {
                return Err(file.fault(format!(
                    "its column {name:?} is of {own}, and that of the first table of {}; write it once more with one type",
                    array.dtype.name()
                )));
            }
            places.push(place);
        }
        places.extend(self.by.as_ref().map(place_of).transpose()?);
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
        if !is_over {
            made.ends = true;
            // The pass ends in any case.
            let _ = give(made);
        }
        Ok(())
    }
}

/// The bytes of the first row's values; `None`: it has none.
fn first_row(
    file: &StoredFile<'_>,
    tables: &TableFormat,
    storage: &dyn Storage,
    columns: &[&Column],
    places: &[usize],
) -> Result<Vec<Option<Vec<u8>>>, DatasetError> {
    let mut first = vec![None; columns.len()];
    // Others may be pictures, which are long.
    let is_list = |column: &Column| matches!(element(&column.encoding), Ok((_, None)));
    let lists: Vec<usize> = (0..columns.len()).filter(|place| is_list(columns[*place])).collect();
    if lists.is_empty() {
        return Ok(first);
    }
    let of_file: Vec<usize> = lists.iter().map(|list| places[*list]).collect();
    let mut of_row = |_: u64, cells: &[Cell]| {
        for (place, cell) in lists.iter().zip(cells) {
            let mut reader = ColumnReader::new(columns[*place]);
            reader.load(file, cell)?;
            let value = reader.bytes(cell).map_err(|reason| file.fault(reason))?;
            first[*place] = value.map(<[u8]>::to_vec);
        }
        Ok(ControlFlow::Break(()))
    };
    (tables.reader.rows)(file, &of_file, reads(storage), &mut of_row)?;
    Ok(first)
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
            "has {} values, and the first row has {}: rows of a window have one shape",
            value.len() as u64 / array.dtype.size_bytes(),
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

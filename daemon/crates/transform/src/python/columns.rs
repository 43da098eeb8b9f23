//! The columns of a batch as a function gets and returns them: the names of their parts, and their tensors.

use forebay_config::OutputConfig;
use forebay_protocol::tensor::{DType, Extent, MAX_NAME_BYTES, MAX_RANK, TensorSpec};
use forebay_workers::{Declared, DeclaredKind};

use crate::row_tensors::{ListKind, RowTensors};

/// Separates a ragged column's name from the name of a part; does not occur in field names.
const PART: char = '\u{1f}';
/// The part with the rows' lengths: int64, in elements of the first dimension.
const LENGTHS: &str = "lengths";
/// A tensor of the batch.
#[derive(Debug, Clone)]
pub(super) struct Column {
    pub(super) number: usize,
    pub(super) name: String,
    pub(super) dtype: DType,
    pub(super) row_shape: Vec<u64>,
    pub(super) list: Option<ListKind>,
}

impl ListKind {
    const ALL: [Self; 3] = [Self::Text, Self::Bytes, Self::Array];

    /// Its name in the worker.
    const fn word(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Bytes => "bytes",
            Self::Array => "list",
        }
    }
}

impl Column {
    pub(super) fn of(number: usize, tensors: &RowTensors) -> Self {
        let TensorSpec { name, dtype, row_shape, .. } = &tensors.all()[number];
        let (name, row_shape) = (name.clone(), row_shape.clone());
        Self { number, name, dtype: *dtype, row_shape, list: tensors.list(number) }
    }

    /// Bytes of a row, or of an element of a ragged one.
    pub(super) fn element_bytes(&self) -> usize {
        let bytes = self.row_shape.iter().fold(self.dtype.size_bytes(), |bytes, side| bytes * side);
        usize::try_from(bytes).unwrap_or(usize::MAX)
    }

    /// The names of its parts in a call.
    fn part_names(&self) -> Vec<String> {
        match self.list {
            None => vec![self.name.clone()],
            Some(list) => {
                [list.word(), LENGTHS].map(|part| format!("{}{PART}{part}", self.name)).to_vec()
            }
        }
    }
}

pub(super) fn names_of(columns: &[Column]) -> Vec<String> {
    columns.iter().flat_map(Column::part_names).collect()
}

/// The function's result for the probed batch.
#[derive(Debug)]
pub(crate) struct FoundColumns(pub(super) Vec<FoundColumn>);

#[derive(Debug)]
pub(super) struct FoundColumn {
    pub(super) name: String,
    pub(super) dtype: DType,
    pub(super) row_shape: Vec<u64>,
    pub(super) list: Option<ListKind>,
}

/// The tensor of a field that a function makes or replaces.
pub(super) fn spec_of(
    found: &FoundColumn,
    before: Option<&TensorSpec>,
    output: Option<&OutputConfig>,
) -> Result<TensorSpec, String> {
    let FoundColumn { name, dtype, row_shape, list } = found;
    if name.is_empty() || name.len() > MAX_NAME_BYTES || matches!(name.as_str(), "index" | "valid")
    {
        return Err(format!(
            "it returns the field `{name}`; a name has 1 to {MAX_NAME_BYTES} bytes, and `index` and `valid` are made by \
             Forebay"
        ));
    }
    if row_shape.len() + 2 > MAX_RANK {
        return Err(format!("`{name}` has more than {MAX_RANK} dimensions"));
    }
    if let (None, Some(output)) = (before, output) {
        let is_for_images =
            output.layout.is_some() || output.mean.is_some() || output.std.is_some();
        if is_for_images || output.dtype.is_some() || (output.ragged && list.is_none()) {
            return Err(format!(
                "`output.{name}`: what it returns is written as it is; only a list of rows that differ in length takes \
                 `ragged`, `max_bytes` and `compact`"
            ));
        }
    }
    let extent = match list {
        None => Extent::Dense,
        Some(_) => {
            let before = before.map(|before| before.extent);
            let given = output.and_then(|output| {
                let (max_row_bytes, compact) = (output.max_bytes?, output.compact);
                Some(Extent::Ragged { max_row_bytes, compact })
            });
            let known = before.filter(|extent| *extent != Extent::Dense);
            given.or(known).ok_or_else(|| {
                format!(
                    "the length of `{name}` differs from row to row; say how long it may be with `[output] {name} = {{ ragged \
                     = true, max_bytes = \"64KiB\" }}`, or return an array"
                )
            })?
        }
    };
    Ok(TensorSpec { extent, ..TensorSpec::dense(name, *dtype, row_shape) })
}

/// The result, column by column.
pub(super) fn found_columns(fields: Vec<Declared>, rows: u64) -> Result<FoundColumns, String> {
    let mut columns = Vec::new();
    for Declared { name, kind } in fields {
        let (name, part) =
            name.split_once(PART).map_or((&*name, None), |(name, part)| (name, Some(part)));
        if part == Some(LENGTHS) {
            continue;
        }
        let list = ListKind::ALL.into_iter().find(|list| Some(list.word()) == part);
        let DeclaredKind::Array(dtype, shape) = kind else {
            return Err(format!("`{name}` is no array with a row for each sample"));
        };
        let Some((first, row_shape)) = shape.split_first() else {
            return Err(format!(
                "`{name}` is one number; a field of a batch has a row for each sample"
            ));
        };
        if list.is_none() && *first != rows {
            return Err(format!("`{name}` has {first} rows, and the batch {rows}"));
        }
        columns.push(FoundColumn {
            name: name.to_owned(),
            dtype,
            row_shape: row_shape.to_vec(),
            list,
        });
    }
    if columns.is_empty() {
        return Err("it returns no field".to_owned());
    }
    Ok(FoundColumns(columns))
}

//! The columns of a row that travels between daemons: what a row's maker writes, in the order of the stream's tensors.
//!
//! What only the receiver knows is not among them: whether the row is padding.

use forebay_protocol::tensor::{DType, Extent, TensorSpec};

use crate::ground::stream::Stream;

/// One column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowColumn {
    /// The tensor's name; of one that only batch operations see, after `beside.`.
    pub name: String,
    /// The type of the elements.
    pub dtype: DType,
    /// The shape of a row in memory; of a ragged one, its dimensions after the first.
    pub row_shape: Vec<u64>,
    /// The bytes of a dense row, or of one step along a ragged row's first dimension.
    pub unit_bytes: u64,
    /// The most bytes of a ragged row; `None`: rows are dense.
    pub max_row_bytes: Option<u64>,
    pub(crate) place: ColumnPlace,
}

/// The tensor that a column is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ColumnPlace {
    /// A tensor of the batch.
    Batch(usize),
    /// A tensor that only batch operations see.
    Beside(usize),
}

impl RowColumn {
    /// The column of a tensor.
    #[must_use]
    pub fn of_tensor(tensor: &TensorSpec) -> Self {
        Self::of(tensor, "", ColumnPlace::Batch(0))
    }

    fn of(tensor: &TensorSpec, prefix: &str, place: ColumnPlace) -> Self {
        let max_row_bytes = match tensor.extent {
            Extent::Dense => None,
            Extent::Ragged { max_row_bytes, .. } => Some(max_row_bytes),
        };
        Self {
            name: format!("{prefix}{}", tensor.name),
            dtype: tensor.dtype,
            row_shape: tensor.row_shape.clone(),
            unit_bytes: tensor.shape_bytes(&tensor.row_shape).unwrap_or(0),
            max_row_bytes,
            place,
        }
    }

    /// Checks the length of a row of this column.
    ///
    /// # Errors
    /// It has no such row.
    pub fn check(&self, bytes: usize) -> Result<(), String> {
        let bytes = bytes as u64;
        let fits = match self.max_row_bytes {
            None => bytes == self.unit_bytes,
            Some(most) => bytes <= most && bytes.is_multiple_of(self.unit_bytes.max(1)),
        };
        if fits {
            return Ok(());
        }
        let name = &self.name;
        Err(match self.max_row_bytes {
            None => format!("a row of `{name}` has {} bytes, and not {bytes}", self.unit_bytes),
            Some(most) => format!("a row of `{name}` has at most {most} bytes, and not {bytes}"),
        })
    }
}

/// The columns of a stream with these tensors; `left_out`: a tensor that only the receiver knows.
pub(crate) fn columns_of(
    tensors: &[TensorSpec],
    left_out: Option<usize>,
    beside: &[TensorSpec],
) -> Vec<RowColumn> {
    let batch = tensors.iter().enumerate().filter(|(number, _)| Some(*number) != left_out);
    let batch = batch.map(|(number, spec)| RowColumn::of(spec, "", ColumnPlace::Batch(number)));
    let beside = beside.iter().enumerate();
    let beside =
        beside.map(|(number, spec)| RowColumn::of(spec, "beside.", ColumnPlace::Beside(number)));
    batch.chain(beside).collect()
}

impl Stream {
    /// The columns of its rows as they travel between daemons.
    #[must_use]
    pub fn columns(&self) -> &[RowColumn] {
        &self.columns
    }
}

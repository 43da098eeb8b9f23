//! The offset of each tensor in a slot: a pure function of schema and batch size.

use crate::tensor::{
    Extent, MAX_ALL_ROW_SHAPES, MAX_NAME_BYTES, MAX_RANK, MAX_TENSORS, PAGE_BYTES,
    TENSOR_ALIGNMENT_BYTES, TensorSpec,
};

/// The reason why a schema has no layout.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LayoutError {
    /// Too many tensors.
    #[error("{0} tensors; a batch carries at most {MAX_TENSORS}")]
    TooManyTensors(usize),
    /// Too many dimensions.
    #[error(
        "tensor `{name}` has {rank} dimensions with the batch's own; at most {MAX_RANK} are carried"
    )]
    TooManyDimensions {
        /// The tensor.
        name: String,
        /// Its dimensions, the batch's included.
        rank: usize,
    },
    /// The first dimension of a ragged row cannot be derived from its length.
    #[error("tensor `{name}` is ragged and one of its other dimensions is 0 or too large")]
    RaggedShape {
        /// The tensor.
        name: String,
    },
    /// An empty, overlong or duplicate name.
    #[error("tensor name {0:?} is empty, longer than {MAX_NAME_BYTES} bytes, or a duplicate")]
    Name(String),
    /// The tensor's [`Finish`](crate::finish::Finish) does not fit it.
    #[error("tensor `{name}`: {reason}")]
    Finish {
        /// The tensor.
        name: String,
        /// What does not fit.
        reason: String,
    },
    /// The shapes of which each batch has one do not fit the tensor.
    #[error("tensor `{name}`: {reason}")]
    RowShapes {
        /// The tensor.
        name: String,
        /// What does not fit.
        reason: String,
    },
    /// The size exceeds a machine's address space.
    #[error("tensor `{0}` is larger than this machine can address")]
    TooLarge(String),
}

/// The location of one tensor in a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TensorPlace {
    /// From the slot's start to the first row.
    pub offset_bytes: u64,
    /// From one row to the next.
    pub row_pitch_bytes: u64,
    /// From the slot's start to the table before the rows: a ragged tensor's offsets and lengths, or the mixes of a
    /// tensor that the client finishes; 0 without a table.
    pub table_offset_bytes: u64,
}

/// The layout of a slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotLayout {
    tensors: Vec<TensorSpec>,
    places: Vec<TensorPlace>,
    rows: u32,
    slot_bytes: u64,
}

impl SlotLayout {
    /// The layout of a schema for batches of up to `rows` samples.
    ///
    /// # Errors
    /// The schema exceeds a limit of [`crate::tensor`].
    pub fn new(tensors: &[TensorSpec], rows: u32) -> Result<Self, LayoutError> {
        if tensors.len() > MAX_TENSORS {
            return Err(LayoutError::TooManyTensors(tensors.len()));
        }
        let shapes: usize = tensors.iter().map(|tensor| tensor.row_shapes.len()).sum();
        if let Some(first) = tensors.first().filter(|_| shapes > MAX_ALL_ROW_SHAPES) {
            let name = first.name.clone();
            let reason = format!(
                "it and the other tensors have {shapes} row shapes, more than {MAX_ALL_ROW_SHAPES}; list fewer \
                 `batch.buckets`, or give fewer fields their shape"
            );
            return Err(LayoutError::RowShapes { name, reason });
        }
        let mut end = 0u64;
        let mut places = Vec::with_capacity(tensors.len());
        for (index, tensor) in tensors.iter().enumerate() {
            let name = &tensor.name;
            let repeated = tensors[..index].iter().any(|earlier| earlier.name == *name);
            if name.is_empty() || name.len() > MAX_NAME_BYTES || repeated {
                return Err(LayoutError::Name(name.clone()));
            }
            let is_ragged = matches!(tensor.extent, Extent::Ragged { .. });
            let rank = tensor.row_shape.len() + if is_ragged { 2 } else { 1 };
            if rank > MAX_RANK {
                return Err(LayoutError::TooManyDimensions { name: name.clone(), rank });
            }
            // The first dimension of a row must be derivable from its length.
            if is_ragged && tensor.row_elements().is_none_or(|elements| elements == 0) {
                return Err(LayoutError::RaggedShape { name: name.clone() });
            }
            if let Some(finish) = &tensor.finish {
                tensor
                    .finish_sides(finish)
                    .map_err(|reason| LayoutError::Finish { name: name.clone(), reason })?;
            }
            tensor
                .check_row_shapes()
                .map_err(|reason| LayoutError::RowShapes { name: name.clone(), reason })?;
            let place = place_after(end, tensor, rows)
                .ok_or_else(|| LayoutError::TooLarge(name.clone()))?;
            places.push(place.0);
            end = place.1;
        }
        let slot_bytes = end
            .max(1)
            .checked_next_multiple_of(PAGE_BYTES)
            .filter(|bytes| isize::try_from(*bytes).is_ok())
            .ok_or_else(|| LayoutError::TooLarge("(all together)".to_owned()))?;
        Ok(Self { tensors: tensors.to_vec(), places, rows, slot_bytes })
    }

    /// The tensors, in order.
    #[must_use]
    pub fn tensors(&self) -> &[TensorSpec] {
        &self.tensors
    }

    /// The locations of the tensors, in the same order.
    #[must_use]
    pub fn places(&self) -> &[TensorPlace] {
        &self.places
    }

    /// The maximum number of rows in a batch.
    #[must_use]
    pub fn rows(&self) -> u32 {
        self.rows
    }

    /// The size of a slot; a multiple of [`PAGE_BYTES`].
    #[must_use]
    pub fn slot_bytes(&self) -> u64 {
        self.slot_bytes
    }
}

/// The place of a tensor after `end`, and the new end.
fn place_after(end: u64, tensor: &TensorSpec, rows: u32) -> Option<(TensorPlace, u64)> {
    let pitch = tensor.row_pitch_bytes()?;
    let mut end = end.checked_next_multiple_of(TENSOR_ALIGNMENT_BYTES)?;
    let mut table_offset_bytes = 0;
    if let Some(table_bytes) = tensor.table_bytes(rows) {
        table_offset_bytes = end;
        end = end.checked_add(table_bytes)?.checked_next_multiple_of(TENSOR_ALIGNMENT_BYTES)?;
    }
    let place = TensorPlace { offset_bytes: end, row_pitch_bytes: pitch, table_offset_bytes };
    Some((place, end.checked_add(pitch.checked_mul(rows.into())?)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finish::Finish;
    use crate::tensor::DType;

    #[test]
    fn tensors_are_aligned_and_do_not_overlap() {
        let image = TensorSpec::dense("image", DType::U8, &[3, 5, 7]);
        let text = TensorSpec {
            extent: Extent::Ragged { max_row_bytes: 100, compact: false },
            ..TensorSpec::dense("text", DType::U8, &[])
        };
        let label = TensorSpec::dense("label", DType::I64, &[]);
        let layout = SlotLayout::new(&[image, text, label], 3).unwrap();
        let places = layout.places();
        assert_eq!(
            places[0],
            TensorPlace { offset_bytes: 0, row_pitch_bytes: 105, table_offset_bytes: 0 }
        );
        assert_eq!(places[1].table_offset_bytes, 512);
        assert_eq!(places[1].offset_bytes, 768);
        assert_eq!(places[1].row_pitch_bytes, 256);
        assert_eq!(places[2].offset_bytes, 768 + 3 * 256);
        assert_eq!(layout.slot_bytes(), 4096);
    }

    #[test]
    fn mixes_precede_the_rows() {
        let image = |mixes| {
            let finish = Finish { mixes, ..Finish::new(DType::F32, [2, 2, 3], false, None) };
            TensorSpec {
                channels_last: true,
                finish: Some(finish),
                ..TensorSpec::dense("image", DType::U8, &[2, 2, 3])
            }
        };
        let label = TensorSpec::dense("label", DType::I64, &[]);
        for (mixes, table, rows) in [(0, 0, 256), (1, 256, 512), (8, 256, 512), (9, 256, 768)] {
            let layout = SlotLayout::new(&[label.clone(), image(mixes)], 3).unwrap();
            let place =
                TensorPlace { offset_bytes: rows, row_pitch_bytes: 12, table_offset_bytes: table };
            assert_eq!(layout.places()[1], place, "{mixes}");
        }
    }

    #[test]
    fn schemas_beyond_the_limits_are_refused() {
        let many: Vec<_> =
            (0..65).map(|i| TensorSpec::dense(format!("t{i}"), DType::U8, &[])).collect();
        assert_eq!(SlotLayout::new(&many, 1), Err(LayoutError::TooManyTensors(65)));
        let deep = TensorSpec::dense("deep", DType::U8, &[1; 8]);
        assert!(matches!(SlotLayout::new(&[deep], 1), Err(LayoutError::TooManyDimensions { .. })));
        let ragged = |shape: &[u64]| TensorSpec {
            extent: Extent::Ragged { max_row_bytes: 64, compact: false },
            ..TensorSpec::dense("boxes", DType::F32, shape)
        };
        assert!(SlotLayout::new(&[ragged(&[1; 6])], 1).is_ok());
        let rank = SlotLayout::new(&[ragged(&[1; 7])], 1);
        assert!(matches!(rank, Err(LayoutError::TooManyDimensions { rank: 9, .. })));
        for shape in [&[4, 0][..], &[u64::MAX, 2]] {
            let shape = SlotLayout::new(&[ragged(shape)], 1);
            assert!(matches!(shape, Err(LayoutError::RaggedShape { .. })));
        }
        let huge = TensorSpec::dense("huge", DType::F64, &[u64::MAX / 4, 2]);
        assert_eq!(SlotLayout::new(&[huge], 1), Err(LayoutError::TooLarge("huge".to_owned())));
        let finish = Finish::new(DType::F32, [2, 2, 3], false, None);
        let unfit = TensorSpec { finish: Some(finish), ..TensorSpec::dense("a", DType::U8, &[3]) };
        assert!(matches!(SlotLayout::new(&[unfit], 1), Err(LayoutError::Finish { .. })));
        let shapes =
            TensorSpec { row_shapes: vec![vec![4]], ..TensorSpec::dense("a", DType::U8, &[3]) };
        assert!(matches!(SlotLayout::new(&[shapes], 1), Err(LayoutError::RowShapes { .. })));
        let many = |name: &str| TensorSpec {
            row_shapes: vec![vec![3]; 256],
            ..TensorSpec::dense(name, DType::U8, &[3])
        };
        assert!(SlotLayout::new(&["a", "b", "c", "d"].map(many), 1).is_ok());
        let five = SlotLayout::new(&["a", "b", "c", "d", "e"].map(many), 1);
        assert!(matches!(five, Err(LayoutError::RowShapes { .. })));
        let twice = TensorSpec::dense("a", DType::U8, &[]);
        assert!(matches!(SlotLayout::new(&[twice.clone(), twice], 1), Err(LayoutError::Name(_))));
    }
}

//! Named tensors, and the check of the conversion that is left to the client's GPU.
//!
//! A stream's schema is a list of [`TensorSpec`]s. Its [`SlotLayout`](crate::layout::SlotLayout) is a pure function of
//! schema and batch size, so daemon and client compute the same one.

use serde::{Deserialize, Serialize};

pub use crate::dtype::DType;
use crate::finish::{Finish, FinishSides, MAX_CHANNELS};
use crate::mix::{MAX_MIXES, MIX_WORDS};

/// The maximum number of tensors in a batch.
pub const MAX_TENSORS: usize = 64;
/// The maximum number of dimensions of a tensor, the batch dimension included.
pub const MAX_RANK: usize = 8;
/// The alignment of each tensor in its slot.
pub const TENSOR_ALIGNMENT_BYTES: u64 = 256;
/// A slot's size is a multiple of this.
pub const PAGE_BYTES: u64 = 4096;
/// The maximum length of a tensor's name, in bytes of UTF-8.
pub const MAX_NAME_BYTES: usize = 64;

/// The maximum number of row shapes of a tensor whose batches differ in shape.
pub const MAX_ROW_SHAPES: usize = 256;

/// The maximum number of row shapes of all tensors together, so that a schema fits a frame.
pub const MAX_ALL_ROW_SHAPES: usize = 1024;

/// The memory layout of a tensor's rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Extent {
    /// Every row has the tensor's row shape; rows are contiguous.
    Dense,
    /// Rows differ in their first dimension. They have a fixed pitch and a table in elements: first `rows` offsets, then
    /// `rows` lengths, each a u64.
    Ragged {
        /// The maximum size of a row: the pitch before rounding up to [`TENSOR_ALIGNMENT_BYTES`].
        max_row_bytes: u64,
        /// Whether the daemon compacts the rows after the last one is written.
        compact: bool,
    },
}

/// How a client pads the rows of a ragged tensor, if it hands them out as one array.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Padding {
    /// The first dimension is that of the batch's longest row, rounded up to a multiple of this; at least 1.
    pub multiple_of: u32,
    /// The bits of the value after a row's end, as a float64.
    pub value_bits: u64,
}

/// One named tensor of a stream.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TensorSpec {
    /// At most [`MAX_NAME_BYTES`] bytes, unique within a schema.
    pub name: String,
    /// The type of the elements.
    pub dtype: DType,
    /// The shape of one row in memory, without the batch dimension; for a ragged tensor's row, the dimensions after the
    /// first: empty for a list of numbers, `[4]` for boxes.
    pub row_shape: Vec<u64>,
    /// The memory layout of the rows.
    pub extent: Extent,
    /// Whether rows are height × width × channels in memory, so that PyTorch gets an NCHW-shaped channels_last view.
    pub channels_last: bool,
    /// The conversion by a client's GPU; `None`: the tensor in the slot is complete.
    pub finish: Option<Finish>,
    /// The padding that the configuration asks the client for; the rows in the slot have none.
    pub padding: Option<Padding>,
    /// The shapes of which each batch has one, for all its rows, as its description says; the largest is also
    /// `row_shape`. Empty: all rows have `row_shape`.
    pub row_shapes: Vec<Vec<u64>>,
}

impl TensorSpec {
    /// A dense tensor of contiguous rows.
    #[must_use]
    pub fn dense(name: impl Into<String>, dtype: DType, row_shape: &[u64]) -> Self {
        Self {
            name: name.into(),
            dtype,
            row_shape: row_shape.to_vec(),
            extent: Extent::Dense,
            channels_last: false,
            finish: None,
            padding: None,
            row_shapes: Vec::new(),
        }
    }

    /// The distance from one row's start to the next, or `None` when the shape overflows.
    #[must_use]
    pub fn row_pitch_bytes(&self) -> Option<u64> {
        match self.extent {
            Extent::Dense => self
                .row_shape
                .iter()
                .try_fold(self.dtype.size_bytes(), |bytes, dim| bytes.checked_mul(*dim)),
            Extent::Ragged { max_row_bytes, .. } => {
                max_row_bytes.checked_next_multiple_of(TENSOR_ALIGNMENT_BYTES)
            }
        }
    }

    /// The elements of `row_shape`: of a row, or of one step along a ragged row's first dimension; `None` when the product
    /// overflows.
    #[must_use]
    pub fn row_elements(&self) -> Option<u64> {
        self.row_shape.iter().try_fold(1_u64, |elements, dim| elements.checked_mul(*dim))
    }

    /// The size of a row of this shape; `None` when it overflows.
    #[must_use]
    pub fn shape_bytes(&self, row_shape: &[u64]) -> Option<u64> {
        row_shape.iter().try_fold(self.dtype.size_bytes(), |bytes, dim| bytes.checked_mul(*dim))
    }

    /// Whether a dense tensor's rows may have this shape.
    #[must_use]
    pub fn allows(&self, row_shape: &[u64]) -> bool {
        match &self.row_shapes[..] {
            [] => row_shape == self.row_shape,
            shapes => shapes.iter().any(|shape| shape == row_shape),
        }
    }

    /// Checks `row_shapes`.
    ///
    /// # Errors
    /// What does not fit, for a message that names the tensor.
    pub(crate) fn check_row_shapes(&self) -> Result<(), String> {
        let shapes = &self.row_shapes;
        if shapes.is_empty() {
            return Ok(());
        }
        if shapes.len() > MAX_ROW_SHAPES {
            return Err(format!("it has {} row shapes, more than {MAX_ROW_SHAPES}", shapes.len()));
        }
        if self.extent != Extent::Dense || self.finish.is_some() {
            return Err("rows of several shapes are dense, and complete in the slot".to_owned());
        }
        let fits = |shape: &Vec<u64>| {
            let bytes = self.shape_bytes(shape);
            shape.len() == self.row_shape.len()
                && bytes.is_some()
                && bytes <= self.row_pitch_bytes()
        };
        match shapes.iter().find(|shape| !fits(shape)) {
            Some(shape) => {
                Err(format!("rows of {shape:?} do not fit rows of {:?}", self.row_shape))
            }
            None if !shapes.contains(&self.row_shape) => {
                Err(format!("{:?} is not one of its row shapes", self.row_shape))
            }
            None => Ok(()),
        }
    }

    /// The number of mixes that are left to the client's GPU, after the conversion.
    #[must_use]
    pub fn mixes(&self) -> u32 {
        self.finish.as_ref().map_or(0, |finish| finish.mixes)
    }

    /// The size of the table before the rows of a full batch: a ragged tensor's offsets and lengths, or the mixes;
    /// `None` without a table.
    #[must_use]
    pub(crate) fn table_bytes(&self, rows: u32) -> Option<u64> {
        match (self.extent, self.mixes()) {
            (Extent::Ragged { .. }, _) => Some(u64::from(rows) * 16),
            (Extent::Dense, 0) => None,
            (Extent::Dense, mixes) => Some(u64::from(mixes) * 8 * MIX_WORDS as u64),
        }
    }

    /// This tensor after a GPU has finished it: as the daemon announces it with `on = "cpu"`.
    #[must_use]
    pub fn finished(&self, finish: &Finish) -> Self {
        let channels_last = finish.channels_last;
        Self { channels_last, ..Self::dense(&*self.name, finish.dtype, &finish.row_shape) }
    }

    /// Checks that `finish` fits this tensor: all values that a client computes with are consistent.
    ///
    /// # Errors
    /// The mismatch, for a message that names the tensor.
    pub fn finish_sides(&self, finish: &Finish) -> Result<FinishSides, String> {
        let [height, width, channels] = self.row_shape[..] else {
            return Err(format!("its rows have {} dimensions instead of 3", self.row_shape.len()));
        };
        if self.dtype != DType::U8 || self.extent != Extent::Dense || !self.channels_last {
            return Err("its rows are not bytes in height × width × channels".to_owned());
        }
        if !matches!(finish.dtype, DType::U8 | DType::F16 | DType::BF16 | DType::F32) {
            return Err(format!("it cannot be finished to {}", finish.dtype.name()));
        }
        let sides = match (u8::try_from(channels), height.checked_mul(width)) {
            (Ok(count @ 1..=4), Some(pixels @ 1..)) => {
                u32::try_from(pixels).ok().map(|pixels_per_row| (pixels_per_row, count))
            }
            _ => None,
        };
        let Some((pixels_per_row, count)) = sides else {
            return Err(format!(
                "rows of {height} × {width} × {channels} cannot be finished: 1 to {MAX_CHANNELS} channels and at most \
                 {} pixels are supported",
                u32::MAX
            ));
        };
        let shape = if finish.channels_last {
            [height, width, channels]
        } else {
            [channels, height, width]
        };
        if finish.row_shape != shape {
            return Err(format!(
                "its finished rows are {:?} instead of {shape:?}",
                finish.row_shape
            ));
        }
        let normalized = finish.normalization.len();
        if normalized != 0 && (finish.dtype == DType::U8 || normalized != usize::from(count)) {
            return Err(format!(
                "{normalized} means are given for {count} channels of {}",
                finish.dtype.name()
            ));
        }
        if finish.mixes > MAX_MIXES {
            return Err(format!(
                "its rows are mixed {} times, more than {MAX_MIXES}",
                finish.mixes
            ));
        }
        Ok(FinishSides { pixels_per_row, channels: count })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pixel_values::{Normalization, PixelValues};

    fn raw(finish: Finish) -> TensorSpec {
        TensorSpec {
            channels_last: true,
            finish: Some(finish),
            ..TensorSpec::dense("image", DType::U8, &[5, 7, 3])
        }
    }

    #[test]
    fn finish_has_the_values_of_the_daemon() {
        let by = Normalization { mean: vec![0.485, 0.456, 0.1], std: vec![0.229, 1e-9, 3.0] };
        for dtype in [DType::U8, DType::F16, DType::BF16, DType::F32] {
            for by in [None, Some(&by)] {
                let finish = Finish::new(dtype, [5, 7, 3], false, by);
                let expected = PixelValues::new(dtype, 3, by).unwrap().table_bytes(3);
                assert_eq!(finish.values(3).unwrap().table_bytes(3), expected, "{dtype:?}");
                assert_eq!(expected.len() as u64, 3 * 256 * dtype.size_bytes());
            }
        }
        let finish = Finish::new(DType::F32, [5, 7, 3], false, None);
        let sides = FinishSides { pixels_per_row: 35, channels: 3 };
        assert_eq!(raw(finish.clone()).finish_sides(&finish), Ok(sides));
        assert_eq!(
            raw(finish.clone()).finished(&finish),
            TensorSpec::dense("image", DType::F32, &[3, 5, 7])
        );
    }

    #[test]
    fn row_shapes_fit_the_largest() {
        let of = |row_shapes: &[&[u64]]| TensorSpec {
            row_shapes: row_shapes.iter().map(|shape| shape.to_vec()).collect(),
            ..TensorSpec::dense("image", DType::U16, &[3, 4, 6])
        };
        let image = of(&[&[3, 4, 6], &[3, 6, 4], &[3, 2, 8]]);
        assert_eq!(image.check_row_shapes(), Ok(()));
        assert_eq!(image.shape_bytes(&[3, 2, 8]), Some(96));
        assert_eq!([&[3, 6, 4], &[3, 4, 4]].map(|shape| image.allows(shape)), [true, false]);
        assert!(of(&[]).allows(&[3, 4, 6]) && !of(&[]).allows(&[3, 6, 4]));
        for (shapes, words) in [
            (&[&[3, 6, 4][..]][..], "not one of"),
            (&[&[3, 4, 6], &[3, 4, 7]], "do not fit"),
            (&[&[3, 4, 6], &[72]], "do not fit"),
            (&[&[3, 4, 6], &[u64::MAX, 2, 1]], "do not fit"),
            (&[&[3, 4, 6][..]; 257], "257 row shapes"),
        ] {
            assert!(of(shapes).check_row_shapes().unwrap_err().contains(words), "{shapes:?}");
        }
        let extent = Extent::Ragged { max_row_bytes: 144, compact: false };
        let ragged = TensorSpec { extent, ..image };
        assert!(ragged.check_row_shapes().unwrap_err().contains("dense"));
    }

    #[test]
    fn finish_that_does_not_fit_its_tensor_is_refused() {
        let by = Normalization { mean: vec![0.5; 3], std: vec![0.5; 3] };
        let good = Finish::new(DType::F16, [5, 7, 3], true, Some(&by));
        assert!(raw(good.clone()).finish_sides(&good).is_ok());
        let mut wrong: Vec<(Finish, TensorSpec, &str)> = Vec::new();
        for (change, words) in [
            ((|it| it.dtype = DType::F64) as fn(&mut Finish), "float64"),
            (|it| it.dtype = DType::U8, "3 means"),
            (|it| it.row_shape[0] = 6, "[6, 7, 3]"),
            (|it| it.channels_last = false, "[3, 5, 7]"),
            (|it| it.normalization.truncate(2), "2 means"),
            (|it| it.mixes = 65, "mixed 65 times"),
        ] {
            let mut finish = good.clone();
            change(&mut finish);
            wrong.push((finish.clone(), raw(finish), words));
        }
        for (change, words) in [
            ((|it| it.dtype = DType::I8) as fn(&mut TensorSpec), "not bytes"),
            (|it| it.channels_last = false, "not bytes"),
            (|it| it.extent = Extent::Ragged { max_row_bytes: 9, compact: false }, "not bytes"),
            (|it| it.row_shape = vec![35, 3], "2 dimensions"),
            (|it| it.row_shape = vec![0, 7, 3], "0 × 7"),
            (|it| it.row_shape = vec![5, 7, 5], "channels"),
            (|it| it.row_shape = vec![1 << 20, 1 << 20, 3], "pixels"),
            (|it| it.row_shape = vec![u64::MAX, 2, 3], "pixels"),
        ] {
            let mut spec = raw(good.clone());
            change(&mut spec);
            wrong.push((good.clone(), spec, words));
        }
        for (finish, spec, words) in wrong {
            let reason = spec.finish_sides(&finish).unwrap_err();
            assert!(reason.contains(words), "{reason}");
        }
    }
}

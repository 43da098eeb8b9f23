//! Named tensors: their types, and where each lies inside a slot.
//!
//! A stream's schema is a list of [`TensorSpec`]s. Its [`SlotLayout`](crate::layout::SlotLayout) is a pure function of
//! schema and batch size, so daemon and client compute the same one.

use serde::{Deserialize, Serialize};

use crate::finish::Finish;

/// The most tensors that a batch may carry.
pub const MAX_TENSORS: usize = 64;
/// The most dimensions of a tensor, the batch's own included.
pub const MAX_RANK: usize = 8;
/// Each tensor starts at a multiple of this many bytes.
pub const TENSOR_ALIGNMENT_BYTES: u64 = 256;
/// A slot's size is a multiple of this many bytes.
pub const PAGE_BYTES: u64 = 4096;
/// The longest name of a tensor, in bytes of UTF-8.
pub const MAX_NAME_BYTES: usize = 64;

/// The type of a tensor's elements. The discriminants travel in descriptors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[repr(u8)]
pub enum DType {
    /// Unsigned 8-bit integer.
    U8 = 0,
    /// Signed 8-bit integer.
    I8 = 1,
    /// Unsigned 16-bit integer.
    U16 = 2,
    /// Signed 16-bit integer.
    I16 = 3,
    /// Signed 32-bit integer.
    I32 = 4,
    /// Signed 64-bit integer.
    I64 = 5,
    /// Unsigned 32-bit integer.
    U32 = 6,
    /// Unsigned 64-bit integer.
    U64 = 7,
    /// IEEE 754 half precision.
    F16 = 8,
    /// The upper half of a single-precision number.
    BF16 = 9,
    /// IEEE 754 single precision.
    F32 = 10,
    /// IEEE 754 double precision.
    F64 = 11,
    /// One byte, 0 or 1.
    Bool = 12,
}

impl DType {
    /// Every type, in the order of the discriminants.
    pub const ALL: [Self; 13] = [
        Self::U8,
        Self::I8,
        Self::U16,
        Self::I16,
        Self::I32,
        Self::I64,
        Self::U32,
        Self::U64,
        Self::F16,
        Self::BF16,
        Self::F32,
        Self::F64,
        Self::Bool,
    ];

    /// The size of one element in bytes.
    #[must_use]
    pub const fn size_bytes(self) -> u64 {
        match self {
            Self::U8 | Self::I8 | Self::Bool => 1,
            Self::U16 | Self::I16 | Self::F16 | Self::BF16 => 2,
            Self::I32 | Self::U32 | Self::F32 => 4,
            Self::I64 | Self::U64 | Self::F64 => 8,
        }
    }

    /// The name that configuration files and reports use, such as `float32`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::U8 => "uint8",
            Self::I8 => "int8",
            Self::U16 => "uint16",
            Self::I16 => "int16",
            Self::I32 => "int32",
            Self::I64 => "int64",
            Self::U32 => "uint32",
            Self::U64 => "uint64",
            Self::F16 => "float16",
            Self::BF16 => "bfloat16",
            Self::F32 => "float32",
            Self::F64 => "float64",
            Self::Bool => "bool",
        }
    }

    /// The type with this [`name`](Self::name).
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|dtype| dtype.name() == name)
    }

    /// The type with this discriminant.
    #[must_use]
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code)).copied()
    }
}

/// How the rows of a tensor lie in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Extent {
    /// Every row has the tensor's row shape; rows are contiguous.
    Dense,
    /// Rows are one-dimensional and differ in length. They lie at a fixed pitch, described by a table of
    /// (offset, length) in elements: first `rows` offsets, then `rows` lengths, each a u64.
    Ragged {
        /// The most bytes of a row: the pitch before rounding up to [`TENSOR_ALIGNMENT_BYTES`].
        max_row_bytes: u64,
        /// Whether the daemon moves the rows together after the last one is written.
        compact: bool,
    },
}

/// One named tensor of a stream.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TensorSpec {
    /// At most [`MAX_NAME_BYTES`] bytes, unique within a schema.
    pub name: String,
    /// The type of the elements.
    pub dtype: DType,
    /// The shape of one row, as it lies in memory, without the batch's own dimension. Empty for ragged tensors.
    pub row_shape: Vec<u64>,
    /// How the rows lie in memory.
    pub extent: Extent,
    /// Whether rows lie as height × width × channels and PyTorch should see an NCHW-shaped channels_last view.
    pub channels_last: bool,
    /// What a client's GPU is to make of it; `None`: the tensor is as the configuration wants it.
    pub finish: Option<Finish>,
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
        }
    }

    /// The bytes from one row's start to the next one's, or `None` when the shape overflows.
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
}

//! Views of a leased batch's tensors: bytes, typed slices, ragged rows. No copies.
//!
//! Every `unsafe` block here relies on the following:
//! - the descriptor was checked against the stream's layout when the lease began, so offset and length lie inside the slot
//!   and the slot inside the mapping; the mapping lives as long as the lease;
//! - the daemon does not write to a slot between publish and return, and a slot is returned after the batch's last clone is
//!   dropped;
//! - this crate never writes to a slot. A caller that writes through [`Tensor::pointer`] (the Python face does, for
//!   writable arrays) must not use slices of the same tensor meanwhile.
//!
//! In a forked child the data segment is not mapped, so every function that reads it checks for a fork first.
//! References created before the fork, and addresses from [`Tensor::pointer`], crash a child that reads them (SIGSEGV).

#![allow(unsafe_code)]

use forebay_protocol::frames::Attached;
use forebay_protocol::mix::{MIX_WORDS, Mix};
use forebay_protocol::publish::TensorEntry;
use forebay_protocol::sync::Ordering;
use forebay_protocol::tensor::{DType, Extent, TensorSpec};
use forebay_protocol::words::Words;

use crate::error::Error;
use crate::padding::PaddedRows;
use crate::ring::Lease;

mod sealed {
    pub trait Sealed {}
}

/// A type that tensors can be read as. Every bit pattern is a valid value.
pub trait Element: sealed::Sealed + Copy + 'static {
    /// The element types that can be read as this type.
    const DTYPES: &'static [DType];

    /// The value of these bytes, as they are in memory; 0 if they are not as many as a value has.
    #[doc(hidden)]
    fn from_bytes(bytes: &[u8]) -> Self;
}

macro_rules! element {
    ($($rust:ty => [$($dtype:ident),+]),+ $(,)?) => {$(
        impl sealed::Sealed for $rust {}
        impl Element for $rust {
            const DTYPES: &'static [DType] = &[$(DType::$dtype),+];

            fn from_bytes(bytes: &[u8]) -> Self {
                bytes.try_into().map(<$rust>::from_ne_bytes).unwrap_or_default()
            }
        }
    )+};
}

// Half precision is read as bits, bool as bytes: a `&[bool]` with a byte other than 0 and 1 is undefined behaviour.
element! {
    u8 => [U8, Bool], i8 => [I8], u16 => [U16, F16, BF16], i16 => [I16], u32 => [U32], i32 => [I32],
    u64 => [U64], i64 => [I64], f32 => [F32], f64 => [F64],
}

/// One tensor of a batch.
#[derive(Debug, Clone, Copy)]
pub struct Tensor<'batch> {
    lease: &'batch Lease,
    terms: &'batch Attached,
    index: usize,
}

impl<'batch> Tensor<'batch> {
    pub(crate) fn new(lease: &'batch Lease, terms: &'batch Attached, index: usize) -> Self {
        Self { lease, terms, index }
    }

    fn entry(&self) -> &'batch TensorEntry {
        // The descriptor was checked to have as many entries as the schema has tensors.
        &self.lease.descriptor().tensors[self.index]
    }

    /// The tensor's entry in the schema.
    #[must_use]
    pub fn spec(&self) -> &'batch TensorSpec {
        &self.terms.tensors[self.index]
    }

    /// The tensor's name.
    #[must_use]
    pub fn name(&self) -> &'batch str {
        &self.spec().name
    }

    /// The type of the elements.
    #[must_use]
    pub fn dtype(&self) -> DType {
        self.entry().dtype
    }

    /// The shape, batch dimension first; for a ragged tensor, the number of elements in the region of its rows.
    #[must_use]
    pub fn shape(&self) -> &'batch [u64] {
        let entry = self.entry();
        &entry.dims[..usize::from(entry.rank)]
    }

    /// The shape of a row in this batch; of a ragged tensor's row, the dimensions after the first.
    #[must_use]
    pub fn row_shape(&self) -> &'batch [u64] {
        match self.is_ragged() {
            true => &self.spec().row_shape,
            false => self.shape().get(1..).unwrap_or_default(),
        }
    }

    /// Whether the rows differ in length; see [`ragged`](Self::ragged).
    #[must_use]
    pub fn is_ragged(&self) -> bool {
        self.entry().ragged
    }

    /// The bytes; for a ragged tensor, the whole region of its rows, gaps included.
    ///
    /// # Panics
    /// In a forked child, where the memory is not mapped.
    #[must_use]
    pub fn bytes(&self) -> &'batch [u8] {
        assert!(self.is_mapped(), "{}", Error::Forked);
        // SAFETY: see the module documentation; u8 needs no alignment and every byte is a valid value.
        unsafe { std::slice::from_raw_parts(self.pointer(), self.length_bytes()) }
    }

    /// False in a forked child.
    fn is_mapped(&self) -> bool {
        self.lease.ring().is_own_process()
    }

    /// The size of [`bytes`](Self::bytes).
    #[must_use]
    pub fn length_bytes(&self) -> usize {
        // Checked against the mapping's size, so it fits.
        usize::try_from(self.entry().length_bytes).unwrap_or(0)
    }

    /// The address of the first byte, for other kinds of views; valid for [`length_bytes`](Self::length_bytes) as long as
    /// the batch or a clone of it lives, aligned to 256 bytes. The slot may be written to.
    #[must_use]
    pub fn pointer(&self) -> *mut u8 {
        let entry = self.entry();
        self.at(usize::try_from(entry.offset_bytes).unwrap_or(0))
    }

    /// The address of the table before the rows of a ragged tensor or of a tensor with mixes; as
    /// [`pointer`](Self::pointer).
    pub(crate) fn table_pointer(&self) -> *mut u8 {
        self.at(usize::try_from(self.entry().table_offset_bytes).unwrap_or(0))
    }

    /// The mixes that the client applies to the rows of this batch after finishing them, in order (see
    /// [`finish::mix_rows`](crate::finish::mix_rows)); empty for a complete tensor.
    ///
    /// # Errors
    /// [`Error::Protocol`] when the slot holds invalid mixes; [`Error::Forked`] in a forked child.
    pub fn mixes(&self) -> Result<Vec<Mix>, Error> {
        let (Some((data, start)), true) = (self.lease.slot(), self.is_mapped()) else {
            return Err(Error::Forked);
        };
        let table = usize::try_from(self.entry().table_offset_bytes).unwrap_or(0);
        let first = (start + table) / 8;
        (0..self.spec().mixes() as usize)
            .map(|number| {
                // Relaxed: ordered by the acquire load of the published count.
                let word = |word| data.word(first + number * MIX_WORDS + word);
                let words = std::array::from_fn(|at| word(at).load(Ordering::Relaxed));
                Mix::of_words(words).ok_or_else(|| {
                    Error::Protocol(format!("`{}` is mixed by {words:x?}", self.name()))
                })
            })
            .collect()
    }

    /// The address of a byte of the slot.
    fn at(&self, offset_bytes: usize) -> *mut u8 {
        match self.lease.slot() {
            // SAFETY: the slot was checked to lie inside the mapping, and with it every offset of its layout.
            Some((data, start)) => unsafe { data.base().add(start + offset_bytes) },
            // Only while the ring is being dropped, when no lease exists any more.
            None => std::ptr::NonNull::dangling().as_ptr(),
        }
    }

    /// The elements in row-major order. f16 and bf16 are read as `u16` bits, bool as `u8`.
    ///
    /// # Errors
    /// [`Error::NoSuchTensor`] when the elements have another type; [`Error::Forked`] in a forked child.
    pub fn as_slice<T: Element>(&self) -> Result<&'batch [T], Error> {
        if !self.is_mapped() {
            return Err(Error::Forked);
        }
        cast(self.bytes(), self.dtype()).ok_or_else(|| self.wrong_type::<T>())
    }

    fn wrong_type<T>(&self) -> Error {
        Error::NoSuchTensor(format!(
            "tensor `{}` has type {}, which cannot be read as {}",
            self.name(),
            self.dtype().name(),
            std::any::type_name::<T>()
        ))
    }

    /// The rows of a ragged tensor; `None` for a dense one.
    #[must_use]
    pub fn ragged(&self) -> Option<Ragged<'batch>> {
        matches!(self.spec().extent, Extent::Ragged { .. }).then_some(Ragged { tensor: *self })
    }

    /// The rows of a ragged tensor as one array, if the configuration pads them (`batch.pad`); `None`: it does not.
    ///
    /// # Errors
    /// [`Error::Protocol`] when a row leaves its slot; [`Error::Forked`] in a forked child.
    pub fn padded(&self) -> Result<Option<PaddedRows<'batch>>, Error> {
        if !self.is_mapped() {
            return Err(Error::Forked);
        }
        PaddedRows::of(*self).transpose()
    }
}

/// Bytes as elements, if type and alignment fit.
fn cast<T: Element>(bytes: &[u8], dtype: DType) -> Option<&[T]> {
    let size = size_of::<T>();
    if !T::DTYPES.contains(&dtype) || !bytes.as_ptr().cast::<T>().is_aligned() {
        return None;
    }
    // SAFETY: the bytes are valid as long as the result is borrowed, aligned for T as just checked, and the length is
    // rounded down to whole elements; `Element` is sealed and implemented only for types without invalid values.
    Some(unsafe { std::slice::from_raw_parts(bytes.as_ptr().cast(), bytes.len() / size) })
}

/// The rows of a ragged tensor, which differ in their first dimension.
#[derive(Debug, Clone, Copy)]
pub struct Ragged<'batch> {
    tensor: Tensor<'batch>,
}

impl<'batch> Ragged<'batch> {
    /// The number of rows.
    #[must_use]
    pub fn len(&self) -> usize {
        usize::try_from(self.tensor.lease.descriptor().rows).unwrap_or(0)
    }

    /// Whether the number of rows is 0.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The dimensions of each row after the first: empty for rows of one dimension, `[4]` for boxes.
    #[must_use]
    pub fn row_shape(&self) -> &'batch [u64] {
        &self.tensor.spec().row_shape
    }

    /// The first dimension of one row; `None` past the last row, and in a forked child.
    #[must_use]
    pub fn row_len(&self, row: usize) -> Option<usize> {
        // Not 0, by the layout that both sides compute.
        let elements = usize::try_from(self.tensor.spec().row_elements()?).ok()?;
        self.row_range(row)?.1.checked_div(elements)
    }

    /// The address of the table, and `n`, the rows of a full batch: `n` u64 offsets, in elements from the tensor's
    /// start, then `n` u64 lengths, in elements. Only the first [`len`](Self::len) of each are valid. For other kinds
    /// of views.
    #[must_use]
    pub fn table(&self) -> (*mut u64, usize) {
        // Tables start at multiples of 256 bytes.
        (self.tensor.table_pointer().cast::<u64>(), self.layout_rows())
    }

    fn layout_rows(&self) -> usize {
        self.tensor.lease.ring().layout().rows() as usize
    }

    /// Offset and length of a row, in elements; `None` past the last row, when they do not lie inside the tensor, and in a
    /// forked child.
    fn row_range(&self, row: usize) -> Option<(usize, usize)> {
        if row >= self.len() || !self.tensor.is_mapped() {
            return None;
        }
        let (data, start) = self.tensor.lease.slot()?;
        let table = usize::try_from(self.tensor.entry().table_offset_bytes).ok()?;
        let first = (start + table) / 8;
        // Relaxed: ordered by the acquire load of the published count.
        let read = |word: usize| data.word(word).load(Ordering::Relaxed);
        let offset = usize::try_from(read(first + row)).ok()?;
        let length = usize::try_from(read(first + self.layout_rows() + row)).ok()?;
        Some((offset, length))
    }

    /// The bytes of one row; `None` past the last row, and in a forked child.
    #[must_use]
    pub fn row_bytes(&self, row: usize) -> Option<&'batch [u8]> {
        let size = usize::try_from(self.tensor.dtype().size_bytes()).ok()?;
        let (offset, length) = self.row_range(row)?;
        let start = offset.checked_mul(size)?;
        let end = start.checked_add(length.checked_mul(size)?)?;
        self.tensor.bytes().get(start..end)
    }

    /// The elements of one row, in row-major order: [`row_len`](Self::row_len) times the elements of
    /// [`row_shape`](Self::row_shape).
    ///
    /// # Errors
    /// [`Error::NoSuchTensor`] past the last row or when the elements have another type; [`Error::Forked`] in a forked
    /// child.
    pub fn row<T: Element>(&self, row: usize) -> Result<&'batch [T], Error> {
        if !self.tensor.is_mapped() {
            return Err(Error::Forked);
        }
        let bytes = self.row_bytes(row).ok_or_else(|| {
            Error::NoSuchTensor(format!(
                "tensor `{}` has no row {row}; it has {}",
                self.tensor.name(),
                self.len()
            ))
        })?;
        cast(bytes, self.tensor.dtype()).ok_or_else(|| self.tensor.wrong_type::<T>())
    }
}

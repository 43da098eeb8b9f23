//! The dict of NumPy arrays of a batch. A large field is a view of the batch's slot: its base object is a [`Slot`], which
//! holds the lease, so the slot returns to the daemon when the last array, or view of one, is dropped.
//!
//! A field of at most [`SMALL_FIELD_BYTES`] per batch is a copy. Programs keep labels and ids for a whole epoch
//! (`labels.append(batch["label"])`), and a view of 512 bytes would hold a slot of many megabytes. Whether a field is
//! small depends only on the schema, so a short batch is not different.
//!
//! In a child that Python forks, arrays over slots are replaced ([`crate::forked_arrays`]).
//!
//! Arrays are writable. No Rust reference to the slot's bytes exists at the same time: this module takes addresses from
//! the client and never slices.

#![allow(unsafe_code)]

use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use forebay_client::cuda::SMALL_FIELD_BYTES;
use forebay_client::{Batch, DType, Extent, TensorSpec};
use numpy::npyffi::{NPY_ARRAY_CARRAY, NPY_ORDER, PY_ARRAY_API, PyArray_Descr, npy_intp};
use numpy::{PyArrayDescr, PyArrayDescrMethods, PyUntypedArray};
use pyo3::PyTypeInfo;
use pyo3::exceptions::PyOverflowError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString, PyTuple};

use crate::forked_arrays;

/// Holds a batch's slot on behalf of the arrays of one field.
#[pyclass(frozen, module = "forebay._forebay")]
pub(crate) struct Slot {
    _batch: Batch,
    /// This object's number.
    number: u64,
    /// The batches that this field holds.
    held: Arc<AtomicUsize>,
}

impl Slot {
    fn new(batch: &Batch, held: &Arc<AtomicUsize>) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        // Relaxed: a count for a message, and a unique number.
        held.fetch_add(1, Ordering::Relaxed);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Self { _batch: batch.clone(), number, held: Arc::clone(held) }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        forked_arrays::forget(self.number);
        // Relaxed: as above.
        self.held.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The properties of one tensor's arrays, the same for all batches.
struct Column {
    name: Py<PyString>,
    label: String,
    dtype: Py<PyArrayDescr>,
    /// The dimensions of a ragged tensor's rows after the first.
    ragged_shape: Option<Py<PyTuple>>,
    is_small: bool,
    /// The batches whose slots arrays of this field hold.
    held: Arc<AtomicUsize>,
}

/// The size of a field in a full batch, with the table of a ragged one.
fn field_bytes(spec: &TensorSpec, batch_size: u32) -> Option<u64> {
    let is_ragged = matches!(spec.extent, Extent::Ragged { .. });
    let row_bytes = spec.row_pitch_bytes()?.checked_add(if is_ragged { 16 } else { 0 })?;
    row_bytes.checked_mul(batch_size.into())
}

/// Creates the dicts of one session.
pub(crate) struct Collector {
    columns: Vec<Column>,
    int64: Py<PyArrayDescr>,
    ragged_class: Py<PyAny>,
}

impl Collector {
    /// Looks up every type that the stream's tensors need.
    pub(crate) fn new(py: Python<'_>, tensors: &[TensorSpec], batch_size: u32) -> PyResult<Self> {
        // Raises an exception for a missing NumPy before its C API is used.
        py.import("numpy")?;
        let columns = tensors.iter().map(|spec| {
            Ok(Column {
                name: PyString::intern(py, &spec.name).unbind(),
                label: spec.name.clone(),
                dtype: numpy_type(py, spec.dtype)?.unbind(),
                ragged_shape: match spec.extent {
                    Extent::Ragged { .. } => Some(PyTuple::new(py, &spec.row_shape)?.unbind()),
                    Extent::Dense => None,
                },
                is_small: field_bytes(spec, batch_size)
                    .is_some_and(|size| size <= SMALL_FIELD_BYTES),
                held: Arc::default(),
            })
        });
        Ok(Self {
            columns: columns.collect::<PyResult<_>>()?,
            int64: PyArrayDescr::new(py, "int64")?.unbind(),
            ragged_class: py.import("forebay._ragged")?.getattr("Ragged")?.unbind(),
        })
    }

    /// The fields that hold the most slots, for a message: `image`, or `image` and `mask`.
    pub(crate) fn holders(&self) -> String {
        // Relaxed: counts, for a message.
        let count = |column: &Column| column.held.load(Ordering::Relaxed);
        let most = self.columns.iter().map(count).max().unwrap_or(0);
        let holders = self.columns.iter().filter(|column| most > 0 && count(column) == most);
        let names: Vec<_> = holders.map(|column| format!("`{}`", column.label)).collect();
        names.join(" and ")
    }

    /// The arrays of a batch, by name.
    pub(crate) fn collect<'py>(
        &self,
        py: Python<'py>,
        batch: Batch,
    ) -> PyResult<Bound<'py, PyDict>> {
        let dict = PyDict::new(py);
        for (tensor, column) in batch.tensors().zip(&self.columns) {
            let dtype = column.dtype.bind(py);
            let slot = if column.is_small {
                None
            } else {
                Some(Bound::new(py, Slot::new(&batch, &column.held))?)
            };
            let slot = slot.as_ref();
            let value = match (tensor.ragged(), &column.ragged_shape) {
                (Some(ragged), Some(row_shape)) => {
                    let size = dtype.itemsize().max(1);
                    let elements = to_intp(tensor.length_bytes() / size)?;
                    let rows = to_intp(ragged.len())?;
                    let (table, lengths_at) = ragged.table();
                    let int64 = self.int64.bind(py);
                    // SAFETY: the lease was checked, so the tensor's region and the table of two times `lengths_at`
                    // (no fewer than `rows`) words lie inside the slot that `batch` and `slot` hold; both start at
                    // multiples of 256 bytes. Offsets and lengths are far below 2^63, so u64 reads as i64.
                    let (values, offsets, lengths) = unsafe {
                        (
                            array(py, slot, dtype, &mut [elements], tensor.pointer())?,
                            array(py, slot, int64, &mut [rows], table.cast())?,
                            array(py, slot, int64, &mut [rows], table.add(lengths_at).cast())?,
                        )
                    };
                    self.ragged_class.bind(py).call1((values, offsets, lengths, row_shape))?
                }
                _ => {
                    let mut dims = [0; 8];
                    let shape = tensor.shape();
                    for (dim, extent) in dims.iter_mut().zip(shape) {
                        *dim = to_intp(*extent)?;
                    }
                    let dims = &mut dims[..shape.len().min(8)];
                    // SAFETY: the lease was checked: the shape's elements are as many bytes as the tensor has, inside
                    // the slot that `batch` and `slot` hold, starting at a multiple of 256 bytes.
                    unsafe { array(py, slot, dtype, dims, tensor.pointer())? }
                }
            };
            dict.set_item(column.name.bind(py), value)?;
        }
        Ok(dict)
    }
}

fn to_intp<T: TryInto<npy_intp>>(count: T) -> PyResult<npy_intp> {
    count
        .try_into()
        .map_err(|_| PyOverflowError::new_err("a tensor is larger than NumPy can address"))
}

/// The NumPy type of an element type. bfloat16 is ml_dtypes' if that is installed, otherwise uint16 with the same bits.
fn numpy_type(py: Python<'_>, dtype: DType) -> PyResult<Bound<'_, PyArrayDescr>> {
    if dtype == DType::BF16 {
        let bfloat16 = py.import("ml_dtypes").and_then(|module| module.getattr("bfloat16"));
        return match bfloat16 {
            Ok(class) => PyArrayDescr::new(py, class),
            Err(_) => PyArrayDescr::new(py, "uint16"),
        };
    }
    // Forebay's names for all others are NumPy's.
    PyArrayDescr::new(py, dtype.name())
}

/// A writable, C-contiguous array: over memory of a slot, or, without a slot, a copy of that memory.
///
/// # Safety
/// Memory of the size of `dims` and `dtype` must be valid at `data` during this call and for as long as `slot` lives,
/// aligned for the type, and no Rust reference to it may be in use while the array is.
unsafe fn array<'py>(
    py: Python<'py>,
    slot: Option<&Bound<'py, Slot>>,
    dtype: &Bound<'py, PyArrayDescr>,
    dims: &mut [npy_intp],
    data: *mut u8,
) -> PyResult<Bound<'py, PyAny>> {
    let rank = c_int::try_from(dims.len()).unwrap_or(0);
    // SAFETY: NumPy takes over the reference to the type that `into_dtype_ptr` gives; dims has `rank` entries; without
    // strides the array is C-contiguous; the caller vouches for the memory. The result is a new reference or null with an
    // exception set.
    let array = unsafe {
        let array = PY_ARRAY_API.PyArray_NewFromDescr(
            py,
            PyUntypedArray::type_object_raw(py),
            dtype.clone().into_dtype_ptr().cast::<PyArray_Descr>(),
            rank,
            dims.as_mut_ptr(),
            std::ptr::null_mut(),
            data.cast(),
            NPY_ARRAY_CARRAY,
            std::ptr::null_mut(),
        );
        Bound::from_owned_ptr_or_err(py, array)?
    };
    let Some(slot) = slot else {
        // SAFETY: it is an array, over memory that is valid during this call. The result is as above, and the array without
        // a base is dropped before this function returns.
        return unsafe {
            let copy =
                PY_ARRAY_API.PyArray_NewCopy(py, array.as_ptr().cast(), NPY_ORDER::NPY_CORDER);
            Bound::from_owned_ptr_or_err(py, copy)
        };
    };
    // SAFETY: the array is new and has no base yet; NumPy takes over the reference to the slot, also when it fails.
    let status = unsafe {
        PY_ARRAY_API.PyArray_SetBaseObject(py, array.as_ptr().cast(), slot.clone().into_ptr())
    };
    if status != 0 {
        return Err(PyErr::fetch(py));
    }
    forked_arrays::note(slot.get().number, &array)?;
    Ok(array)
}

//! The dict of NumPy arrays over a batch's slot. No copies: each array's base object is a [`Slot`], which holds the lease,
//! so the slot returns to the daemon when the last array, or view of one, is dropped.
//!
//! Arrays are writable. No Rust reference to the slot's bytes exists meanwhile: this module takes addresses from the client
//! and never slices.

#![allow(unsafe_code)]

use std::ffi::c_int;

use forebay_client::{Batch, DType, Extent, TensorSpec};
use numpy::npyffi::{NPY_ARRAY_CARRAY, PY_ARRAY_API, PyArray_Descr, npy_intp};
use numpy::{PyArrayDescr, PyArrayDescrMethods, PyUntypedArray};
use pyo3::PyTypeInfo;
use pyo3::exceptions::PyOverflowError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString, PyTuple};

/// Holds a batch's slot on behalf of arrays.
#[pyclass(frozen, module = "forebay._forebay")]
pub(crate) struct Slot {
    _batch: Batch,
}

/// The properties of one tensor's arrays, the same for all batches.
struct Column {
    name: Py<PyString>,
    dtype: Py<PyArrayDescr>,
    /// The dimensions of a ragged tensor's rows after the first.
    ragged_shape: Option<Py<PyTuple>>,
}

/// Makes the dicts of one session.
pub(crate) struct Collector {
    columns: Vec<Column>,
    int64: Py<PyArrayDescr>,
    ragged_class: Py<PyAny>,
}

impl Collector {
    /// Looks up every type that the stream's tensors need.
    pub(crate) fn new(py: Python<'_>, tensors: &[TensorSpec]) -> PyResult<Self> {
        // Raises an exception for a missing NumPy before its C API is used.
        py.import("numpy")?;
        let columns = tensors.iter().map(|spec| {
            Ok(Column {
                name: PyString::intern(py, &spec.name).unbind(),
                dtype: numpy_type(py, spec.dtype)?.unbind(),
                ragged_shape: match spec.extent {
                    Extent::Ragged { .. } => Some(PyTuple::new(py, &spec.row_shape)?.unbind()),
                    Extent::Dense => None,
                },
            })
        });
        Ok(Self {
            columns: columns.collect::<PyResult<_>>()?,
            int64: PyArrayDescr::new(py, "int64")?.unbind(),
            ragged_class: py.import("forebay._ragged")?.getattr("Ragged")?.unbind(),
        })
    }

    /// The arrays of a batch, by name.
    pub(crate) fn collect<'py>(
        &self,
        py: Python<'py>,
        batch: Batch,
    ) -> PyResult<Bound<'py, PyDict>> {
        let dict = PyDict::new(py);
        let slot = Bound::new(py, Slot { _batch: batch.clone() })?;
        for (tensor, column) in batch.tensors().zip(&self.columns) {
            let dtype = column.dtype.bind(py);
            let value = match (tensor.ragged(), &column.ragged_shape) {
                (Some(ragged), Some(row_shape)) => {
                    let size = dtype.itemsize().max(1);
                    let elements = to_intp(tensor.length_bytes() / size)?;
                    let rows = to_intp(ragged.len())?;
                    let (table, lengths_at) = ragged.table();
                    let int64 = self.int64.bind(py);
                    // SAFETY: the lease was checked, so the tensor's region and the table of two times `lengths_at`
                    // (no fewer than `rows`) words lie inside the slot that `slot` holds; both start at multiples of
                    // 256 bytes. Offsets and lengths are far below 2^63, so u64 reads as i64.
                    let (values, offsets, lengths) = unsafe {
                        (
                            view(&slot, dtype, &mut [elements], tensor.pointer())?,
                            view(&slot, int64, &mut [rows], table.cast())?,
                            view(&slot, int64, &mut [rows], table.add(lengths_at).cast())?,
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
                    // the slot that `slot` holds, starting at a multiple of 256 bytes.
                    unsafe { view(&slot, dtype, dims, tensor.pointer())? }
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

/// The NumPy type of an element type. bfloat16 is ml_dtypes' where that is installed, else uint16 with the same bits.
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

/// A writable, C-contiguous array over memory of a slot.
///
/// # Safety
/// As many bytes as `dims` and `dtype` make must be valid at `data`, aligned for the type, for as long as `slot` lives, and
/// no Rust reference to them may be in use while the array is.
unsafe fn view<'py>(
    slot: &Bound<'py, Slot>,
    dtype: &Bound<'py, PyArrayDescr>,
    dims: &mut [npy_intp],
    data: *mut u8,
) -> PyResult<Bound<'py, PyAny>> {
    let py = slot.py();
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
    // SAFETY: the array is new and has no base yet; NumPy takes over the reference to the slot, also when it fails.
    let status = unsafe {
        PY_ARRAY_API.PyArray_SetBaseObject(py, array.as_ptr().cast(), slot.clone().into_ptr())
    };
    if status != 0 {
        return Err(PyErr::fetch(py));
    }
    Ok(array)
}

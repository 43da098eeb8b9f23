//! Arrays on a GPU for consumers of DLPack (CuPy, JAX, PyTorch) or the CUDA array interface, without a copy.
//!
//! An [`Array`] and every tensor made from it hold the batch: its memory is reused after the last of them is dropped
//! and the work of each consumer's stream is complete. Layouts: `dlpack.h` 1.0 and earlier
//! (<https://dmlc.github.io/dlpack/latest/c_api.html>); streams: the Python array API's `__dlpack__`.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_void};
use std::sync::Arc;

use forebay_client::{DType, DeviceBatch};
use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::errors::to_exception;

const CUDA_DEVICE: i32 = 2;
/// The legacy default stream's handle, for DLPack and the driver alike.
const LEGACY_STREAM: usize = 1;
const UNVERSIONED: &CStr = c"dltensor";
const VERSIONED: &CStr = c"dltensor_versioned";

#[repr(C)]
struct Device {
    kind: i32,
    ordinal: i32,
}

#[repr(C)]
struct ElementType {
    code: u8,
    bits: u8,
    lanes: u16,
}

#[repr(C)]
struct Tensor {
    data: *mut c_void,
    device: Device,
    rank: i32,
    dtype: ElementType,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

/// `DLManagedTensor`.
#[repr(C)]
struct Managed {
    tensor: Tensor,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Managed)>,
}

/// `DLManagedTensorVersioned`.
#[repr(C)]
struct ManagedVersioned {
    major: u32,
    minor: u32,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut ManagedVersioned)>,
    flags: u64,
    tensor: Tensor,
}

/// The allocation of a consumer's tensor: freed by its deleter, on any thread, without the interpreter.
#[repr(C)]
struct Exported<M> {
    // First, so that a pointer to it is a pointer to the struct.
    _managed: M,
    shape: Vec<i64>,
    strides: Vec<i64>,
    _batch: Arc<DeviceBatch>,
}

/// Frees the tensor that [`Array::export`] created.
///
/// # Safety
/// `managed` must come from there with the same type, and not be used afterwards.
unsafe extern "C" fn free<M>(managed: *mut M) {
    if !managed.is_null() {
        // SAFETY: it is the first field of an `Exported<M>` that was leaked from a box.
        drop(unsafe { Box::from_raw(managed.cast::<Exported<M>>()) });
    }
}

/// Frees a capsule's unconsumed tensor: a consumer renames the capsule.
///
/// # Safety
/// `capsule` must be a capsule for which `export` created a tensor.
unsafe fn end_capsule<M>(capsule: *mut ffi::PyObject, name: &CStr) {
    // SAFETY: a capsule of this name holds a pointer that `export` made.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, name.as_ptr()) == 1 {
            free(ffi::PyCapsule_GetPointer(capsule, name.as_ptr()).cast::<M>());
        }
    }
}

unsafe extern "C" fn end_unversioned(capsule: *mut ffi::PyObject) {
    // SAFETY: Python's, for a capsule that was made with this destructor.
    unsafe { end_capsule::<Managed>(capsule, UNVERSIONED) };
}

unsafe extern "C" fn end_versioned(capsule: *mut ffi::PyObject) {
    // SAFETY: as above.
    unsafe { end_capsule::<ManagedVersioned>(capsule, VERSIONED) };
}

/// The type's code in DLPack and its letter in NumPy's array interface.
fn codes(dtype: DType) -> (u8, char) {
    match dtype {
        DType::I8 | DType::I16 | DType::I32 | DType::I64 => (0, 'i'),
        DType::U8 | DType::U16 | DType::U32 | DType::U64 => (1, 'u'),
        DType::F16 | DType::F32 | DType::F64 => (2, 'f'),
        DType::BF16 => (4, 'V'),
        DType::Bool => (6, 'b'),
    }
}

/// An array on a GPU. Its memory lives as long as it, or a consumer's view of it.
#[pyclass(frozen, module = "forebay._forebay")]
pub(crate) struct Array {
    batch: Arc<DeviceBatch>,
    address: u64,
    dtype: DType,
    shape: Vec<u64>,
    ordinal: i32,
}

impl Array {
    pub(crate) fn new(
        batch: &Arc<DeviceBatch>,
        address: u64,
        dtype: DType,
        shape: Vec<u64>,
    ) -> Self {
        let ordinal = i32::try_from(batch.ordinal()).unwrap_or(i32::MAX);
        Self { batch: Arc::clone(batch), address, dtype, shape, ordinal }
    }

    fn strides(&self) -> Vec<i64> {
        let mut strides = vec![1i64; self.shape.len()];
        for place in (1..self.shape.len()).rev() {
            let extent = i64::try_from(self.shape[place]).unwrap_or(i64::MAX);
            strides[place - 1] = strides[place].saturating_mul(extent.max(1));
        }
        strides
    }

    /// Allocates a tensor for a consumer; `wrap` puts it into the requested struct.
    fn export<M>(&self, wrap: impl FnOnce(Tensor) -> M) -> *mut c_void {
        let shape = self.shape.iter().map(|extent| i64::try_from(*extent).unwrap_or(i64::MAX));
        let (mut shape, mut strides): (Vec<i64>, _) = (shape.collect(), self.strides());
        let bits = u8::try_from(self.dtype.size_bytes() * 8).unwrap_or(0);
        let tensor = Tensor {
            data: self.address as *mut c_void,
            device: Device { kind: CUDA_DEVICE, ordinal: self.ordinal },
            rank: i32::try_from(shape.len()).unwrap_or(0),
            dtype: ElementType { code: codes(self.dtype).0, bits, lanes: 1 },
            // Moving the vectors into the box does not move their memory.
            shape: shape.as_mut_ptr(),
            strides: strides.as_mut_ptr(),
            byte_offset: 0,
        };
        let batch = Arc::clone(&self.batch);
        let exported = Exported { _managed: wrap(tensor), shape, strides, _batch: batch };
        debug_assert_eq!(exported.shape.len(), exported.strides.len());
        Box::into_raw(Box::new(exported)).cast()
    }

    fn use_on(&self, py: Python<'_>, handle: usize) -> PyResult<()> {
        // SAFETY: by DLPack's rules the consumer's stream is one of this device and lives as long as it works on the array.
        unsafe { self.batch.used_on_handle(handle) }.map_err(|error| to_exception(py, &error))
    }
}

#[pymethods]
impl Array {
    /// The shape; the batch dimension comes first.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.shape)
    }

    /// The elements' type by NumPy's name, or bfloat16.
    #[getter]
    fn dtype(&self) -> &'static str {
        self.dtype.name()
    }

    /// The size in bytes.
    #[getter]
    fn nbytes(&self) -> u64 {
        self.shape.iter().product::<u64>() * self.dtype.size_bytes()
    }

    fn __len__(&self) -> usize {
        self.shape.first().and_then(|rows| usize::try_from(*rows).ok()).unwrap_or(0)
    }

    fn __repr__(&self) -> String {
        let shape: Vec<String> = self.shape.iter().map(u64::to_string).collect();
        let (dtype, ordinal) = (self.dtype.name(), self.ordinal);
        format!("<forebay.device.Array of {dtype} ({}) on cuda:{ordinal}>", shape.join(", "))
    }

    /// DLPack's device: (2, the device's index).
    fn __dlpack_device__(&self) -> (i32, i32) {
        (CUDA_DEVICE, self.ordinal)
    }

    /// A DLPack capsule. `stream` waits for the batch's copy: None, 1 or -1 is the legacy default stream, 2 the
    /// per-thread one, a larger number a handle. ValueError for others; BufferError for another device or `copy=True`.
    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__(
        &self,
        py: Python<'_>,
        stream: Option<i64>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Py<PyAny>> {
        let here = self.__dlpack_device__();
        if dl_device.is_some_and(|wanted| wanted != here) || copy == Some(true) {
            return Err(PyBufferError::new_err(format!(
                "the array is on cuda:{} and is exported without a copy; copy it there, or use a loader without a device",
                self.ordinal
            )));
        }
        let handle = match stream {
            None | Some(-1) => LEGACY_STREAM,
            Some(handle) if handle > 0 => usize::try_from(handle).unwrap_or(LEGACY_STREAM),
            Some(other) => {
                return Err(PyValueError::new_err(format!(
                    "stream = {other}; a CUDA stream's handle is positive (1: the default stream), and -1 means that the \
                     caller synchronises"
                )));
            }
        };
        self.use_on(py, handle)?;
        let is_versioned = max_version.is_some_and(|(major, _)| major >= 1);
        let (pointer, name, end): (_, _, unsafe extern "C" fn(*mut ffi::PyObject)) = if is_versioned
        {
            let wrap = |tensor| ManagedVersioned {
                major: 1,
                minor: 0,
                context: std::ptr::null_mut(),
                deleter: Some(free::<ManagedVersioned>),
                flags: 0,
                tensor,
            };
            (self.export(wrap), VERSIONED, end_versioned)
        } else {
            let context = std::ptr::null_mut();
            let wrap = |tensor| Managed { tensor, context, deleter: Some(free::<Managed>) };
            (self.export(wrap), UNVERSIONED, end_unversioned)
        };
        // SAFETY: the pointer is not null, the name is static, and the destructor is the one for this struct. A new
        // reference or null with an exception set.
        unsafe {
            let capsule = ffi::PyCapsule_New(pointer, name.as_ptr(), Some(end));
            if capsule.is_null() {
                if is_versioned {
                    free(pointer.cast::<ManagedVersioned>());
                } else {
                    free(pointer.cast::<Managed>());
                }
            }
            Bound::from_owned_ptr_or_err(py, capsule).map(Bound::unbind)
        }
    }

    /// The CUDA array interface, version 3: the legacy default stream waits for the batch's copy.
    #[getter]
    fn __cuda_array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        if self.dtype == DType::BF16 {
            return Err(PyBufferError::new_err(
                "the CUDA array interface has no bfloat16; use DLPack",
            ));
        }
        self.use_on(py, LEGACY_STREAM)?;
        let dict = PyDict::new(py);
        let order = if self.dtype.size_bytes() == 1 { '|' } else { '<' };
        let typestr = format!("{order}{}{}", codes(self.dtype).1, self.dtype.size_bytes());
        dict.set_item("shape", PyTuple::new(py, &self.shape)?)?;
        dict.set_item("typestr", typestr)?;
        dict.set_item("data", (self.address, false))?;
        dict.set_item("version", 3)?;
        dict.set_item("stream", LEGACY_STREAM)?;
        Ok(dict)
    }
}

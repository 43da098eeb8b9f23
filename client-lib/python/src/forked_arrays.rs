//! The arrays over slots, so that a forked child can replace their contents safely.
//!
//! A slot's memory is not mapped in a forked child, where NumPy's access to it would crash the process (SIGSEGV). Right
//! after a fork by Python (`os.fork`, `multiprocessing`) the child therefore turns each of these arrays into one whose
//! elements are all the same object, which refuses every use (`python/forebay/_forked.py`). Views made of them before,
//! and objects that share their memory outside of NumPy, are not reached.
//!
//! The table is accessed with the GIL held, which the forking thread holds too: its lock is free in the child.

#![allow(unsafe_code)]

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex};

use numpy::npyffi::{
    NPY_ARRAY_UPDATE_ALL, NPY_ARRAY_WRITEABLE, PY_ARRAY_API, PyArray_Descr, PyArrayObject,
};
use numpy::{PyArrayDescr, PyArrayDescrMethods};
use pyo3::prelude::*;
use pyo3::types::{PyWeakrefMethods, PyWeakrefReference};

use crate::shared_source::lock;

/// The arrays over each slot that arrays hold, by the slot object's number.
static ARRAYS: LazyLock<Mutex<HashMap<u64, Vec<Py<PyWeakrefReference>>>>> =
    LazyLock::new(Mutex::default);

/// Records an array over the memory of a slot.
pub(crate) fn note(slot: u64, array: &Bound<'_, PyAny>) -> PyResult<()> {
    let reference = PyWeakrefReference::new(array)?.unbind();
    lock(&ARRAYS).entry(slot).or_default().push(reference);
    Ok(())
}

/// Removes a slot that no array holds any more.
pub(crate) fn forget(slot: u64) {
    let forgotten = lock(&ARRAYS).remove(&slot);
    drop(forgotten);
}

/// Turns all arrays over slots into arrays of one object. Called in a forked child, before anything else runs there.
#[pyfunction]
pub(crate) fn replace_arrays(py: Python<'_>, element: Py<PyAny>) -> PyResult<()> {
    let arrays = std::mem::take(&mut *lock(&ARRAYS));
    if arrays.is_empty() {
        return Ok(());
    }
    // Never freed: the only element of the arrays.
    let data = Box::into_raw(Box::new(element.into_ptr()));
    for reference in arrays.into_values().flatten() {
        let Some(array) = reference.bind(py).upgrade() else { continue };
        let object = PyArrayDescr::new(py, "object")?.into_dtype_ptr().cast::<PyArray_Descr>();
        let array = array.as_ptr().cast::<PyArrayObject>();
        // SAFETY: `array` is a NumPy array, made by `arrays::array`, that lives during this iteration; no other thread
        // runs in the child. It does not own its memory, so that none is freed and no element is released with it. All its
        // elements lie at `data`, which holds a reference that is never released. The array takes over the reference to
        // its new type, and the one to its former type is released.
        unsafe {
            let fields = &mut (*array).fields;
            fields.data = data.cast();
            for dimension in 0..usize::try_from(fields.nd).unwrap_or(0) {
                *fields.strides.add(dimension) = 0;
            }
            let former = std::mem::replace(&mut fields.descr, object);
            fields.flags &= !NPY_ARRAY_WRITEABLE;
            PY_ARRAY_API.PyArray_UpdateFlags(py, array, NPY_ARRAY_UPDATE_ALL);
            drop(Bound::from_owned_ptr(py, former.cast()));
        }
    }
    Ok(())
}

//! The native half of the Python client: `forebay._forebay`.
//!
//! - [`session`]: the session class, and the iterator over one of its epochs.
//! - [`shared_source`]: the session's source with its lock; [`source`]: the kinds of sources; [`device`]: batches on a
//!   GPU.
//! - [`rows`]: the class of a session whose rows are asked for.
//! - [`arrays`]: the dict of NumPy arrays of a batch; [`forked_arrays`]: their replacement in a forked child;
//!   [`dlpack`]: arrays on a GPU. `unsafe` is confined to these and [`device`].
//! - [`errors`]: the Python exception for each error; [`ranks`]: messages for ranks that differ.
//!
//! The public API (`forebay.Loader`, `forebay.Ragged`, `forebay.torch`) is written in Python, in `python/forebay`; none
//! of it runs per batch.

#![deny(unsafe_code)]

mod arrays;
mod device;
mod dlpack;
mod errors;
mod forked_arrays;
mod ranks;
mod rows;
mod session;
mod shared_source;
mod source;

use pyo3::prelude::*;

#[pymodule]
fn _forebay(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("SMALL_FIELD_BYTES", forebay_client::cuda::SMALL_FIELD_BYTES)?;
    module.add_class::<session::Session>()?;
    ranks::register(module)?;
    module.add_class::<session::Epoch>()?;
    module.add_class::<rows::RowSession>()?;
    module.add_class::<arrays::Slot>()?;
    module.add_function(wrap_pyfunction!(forked_arrays::replace_arrays, module)?)?;
    module.add_class::<dlpack::Array>()?;
    Ok(())
}

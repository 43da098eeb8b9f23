//! The Python face of the Forebay client: the native half, `forebay._forebay`.
//!
//! - [`session`]: an attached loader behind a lock, and the iterator over one of its epochs.
//! - [`source`]: where a session's batches come; [`device`]: what is more for those on a GPU.
//! - [`arrays`]: the dict of NumPy arrays over a batch's slot; [`dlpack`]: arrays on a GPU. `unsafe` is in these two and in
//!   [`device`] alone.
//! - [`errors`]: which Python exception each error becomes.
//!
//! What a user sees and reads the documentation of (`forebay.Loader`, `forebay.Ragged`, `forebay.torch`) is written in
//! Python, in `python/forebay`; per batch nothing of it runs.

#![deny(unsafe_code)]

mod arrays;
mod device;
mod dlpack;
mod errors;
mod session;
mod source;

use pyo3::prelude::*;

#[pymodule]
fn _forebay(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<session::Session>()?;
    module.add_class::<session::Epoch>()?;
    module.add_class::<arrays::Slot>()?;
    module.add_class::<dlpack::Array>()?;
    Ok(())
}

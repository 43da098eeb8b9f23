//! Functions of the client for comparing ranks through Python's key-value stores.

use std::time::Duration;

use forebay_client::{State, job};
use forebay_protocol::identity::Identity;
use forebay_protocol::launcher::Environment;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::errors::to_exception;

/// Raises the differences between pairs of rank and identity, if there are any.
#[pyfunction]
fn refuse_differences(py: Python<'_>, members: Vec<(u32, String)>) -> PyResult<()> {
    let members: Result<Vec<(u32, Identity)>, _> =
        members.into_iter().map(|(rank, text)| Ok((rank, text.parse()?))).collect();
    let members = members.map_err(|error: forebay_protocol::identity::IdentityError| {
        PyValueError::new_err(error.to_string())
    })?;
    job::find_differences(&members).map_or(Ok(()), |error| Err(to_exception(py, &error)))
}

/// An identity with the state from which a rank begins: JSON text, or None. A text that is not a state is an entry too,
/// so that it ends all ranks rather than one.
#[pyfunction]
fn with_state(identity: &str, state: Option<&str>) -> PyResult<String> {
    let identity: Identity =
        identity.parse().map_err(|error: forebay_protocol::identity::IdentityError| {
            PyValueError::new_err(error.to_string())
        })?;
    let stated = match state.map(State::from_json) {
        Some(Err(_)) => "not a saved state".to_owned(),
        read => job::describe_state(read.and_then(Result::ok).as_ref()),
    };
    Ok(identity.with(job::STATE_KEY, stated).to_string())
}

/// The warning for ranks that stated nothing within this many seconds.
#[pyfunction]
fn describe_missing(missing: Vec<u32>, seconds: f64) -> String {
    job::describe_missing(&missing, Duration::try_from_secs_f64(seconds).unwrap_or_default())
}

/// How many seconds to wait for other ranks, for a loader with this time-out.
#[pyfunction]
fn wait_limit(py: Python<'_>, timeout: f64) -> PyResult<f64> {
    let timeout = Duration::try_from_secs_f64(timeout).unwrap_or_default();
    let limit = job::wait_limit(&Environment::of_process(), timeout);
    limit.map(|limit| limit.as_secs_f64()).map_err(|error| to_exception(py, &error))
}

/// The number of this process's next loader in a group.
#[pyfunction]
fn next_loader(group: &str) -> u64 {
    job::next_loader(group)
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(refuse_differences, module)?)?;
    module.add_function(wrap_pyfunction!(with_state, module)?)?;
    module.add_function(wrap_pyfunction!(describe_missing, module)?)?;
    module.add_function(wrap_pyfunction!(wait_limit, module)?)?;
    module.add_function(wrap_pyfunction!(next_loader, module)?)
}

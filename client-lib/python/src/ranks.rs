//! What the comparison of ranks through Python's key-value stores shares with the client.

use std::time::Duration;

use forebay_client::job;
use forebay_protocol::identity::Identity;
use forebay_protocol::launcher::Environment;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::errors::to_exception;

/// What differs between pairs of rank and identity; None where nothing does.
#[pyfunction]
fn describe_differences(members: Vec<(u32, String)>) -> PyResult<Option<String>> {
    let members: Result<Vec<(u32, Identity)>, _> =
        members.into_iter().map(|(rank, text)| Ok((rank, text.parse()?))).collect();
    let members = members.map_err(|error: forebay_protocol::identity::IdentityError| {
        PyValueError::new_err(error.to_string())
    })?;
    Ok(job::describe_differences(&members))
}

/// The warning for ranks that stated nothing within so many seconds.
#[pyfunction]
fn describe_missing(missing: Vec<u32>, seconds: f64) -> String {
    job::describe_missing(&missing, Duration::try_from_secs_f64(seconds).unwrap_or_default())
}

/// For how many seconds other ranks are waited for, of a loader with this time-out.
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
    module.add_function(wrap_pyfunction!(describe_differences, module)?)?;
    module.add_function(wrap_pyfunction!(describe_missing, module)?)?;
    module.add_function(wrap_pyfunction!(wait_limit, module)?)?;
    module.add_function(wrap_pyfunction!(next_loader, module)?)
}

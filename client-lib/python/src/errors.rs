//! The Python exception for each error of the client. The classes are defined in Python, `forebay/_exceptions.py`.

use forebay_client::Error;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

/// The exception for an error.
pub(crate) fn to_exception(py: Python<'_>, error: &Error) -> PyErr {
    let name = match error {
        Error::Config(_) | Error::NoSuchTensor(_) => "ConfigError",
        Error::BadSample(_) => "BadSample",
        Error::Stage(_) => "StageError",
        Error::DaemonLost(_) => "DaemonLost",
        Error::Timeout { .. } => "Timeout",
        Error::HoldLimit { .. } | Error::DeviceHoldLimit { .. } => "HoldLimit",
        Error::StateMismatch(_) => "StateMismatch",
        Error::EpochsFinished { .. } => "EpochsFinished",
        _ => "Error",
    };
    let class = py.import("forebay._exceptions").and_then(|module| module.getattr(name));
    match class.and_then(|class| class.call1((error.to_string(),))) {
        Ok(exception) => PyErr::from_value(exception),
        // The package's module cannot be imported: report the error without it.
        Err(_) => PyRuntimeError::new_err(error.to_string()),
    }
}

//! The class of a session whose rows are asked for, which `forebay.Dataset` wraps.

use std::path::PathBuf;
use std::sync::Mutex;

use forebay_client::job::{sample_count, selected_count};
use forebay_client::rows::{RowKey, Rows};
use forebay_client::{Error, Target};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::arrays::Collector;
use crate::errors::to_exception;
use crate::session::{ConfigKeys, builder_of};
use crate::shared_source::{PendingException, lock};

/// A session. A forked child opens another one.
#[pyclass(frozen, module = "forebay._forebay")]
pub(crate) struct RowSession {
    /// `None` once it is closed.
    rows: Mutex<Option<Rows>>,
    pending: PendingException,
    collector: Collector,
    samples: u64,
    ids: u64,
    most_rows: usize,
}

#[pymethods]
impl RowSession {
    /// Attaches. The arguments are those of `Session`.
    #[new]
    #[pyo3(signature = (kind, target, *, timeout, overrides, worker_keys, program, shared=None))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of forebay.Dataset")]
    fn new(
        py: Python<'_>,
        kind: &str,
        target: &str,
        timeout: f64,
        overrides: Vec<(String, String)>,
        worker_keys: Vec<(String, String)>,
        program: Option<PathBuf>,
        shared: Option<&str>,
    ) -> PyResult<Self> {
        let pending = PendingException::default();
        let keys = ConfigKeys { overrides, worker_keys };
        // A running daemon is shared by all that attach to it.
        let is_configured = kind == "json" || matches!(Target::parse(target), Target::Config(_));
        let shared = shared.filter(|_| is_configured);
        // A process's rank has no meaning for rows that it names.
        let builder =
            builder_of((kind, target), timeout, keys, program, shared, &pending)?.rank(0, 1);
        let rows = py.detach(|| builder.attach_rows());
        let rows = rows.map_err(|error| raise(py, &pending, &error))?;
        let terms = rows.terms();
        let collector = Collector::new(py, &terms.tensors, terms.batch_size)?;
        let (samples, most_rows) = (selected_count(terms), rows.most_rows());
        let ids = sample_count(terms);
        Ok(Self { rows: Mutex::new(Some(rows)), pending, collector, samples, ids, most_rows })
    }

    /// The number of samples that are used.
    #[getter]
    fn samples(&self) -> u64 {
        self.samples
    }

    /// The number of all samples, which ids are below.
    #[getter]
    fn ids(&self) -> u64 {
        self.ids
    }

    /// The maximum number of rows of a request.
    #[getter]
    fn most_rows(&self) -> usize {
        self.most_rows
    }

    /// The arrays of a batch with a row for each sample, over the batch's slot. `by_id`: samples are ids, not numbers among
    /// those that are used.
    #[pyo3(signature = (samples, pass, by_id=false))]
    fn get<'py>(
        &self,
        py: Python<'py>,
        samples: Vec<u64>,
        pass: u64,
        by_id: bool,
    ) -> PyResult<Bound<'py, PyDict>> {
        let keys: Vec<_> = samples.into_iter().map(|sample| RowKey { sample, pass }).collect();
        let found = py.detach(|| {
            let mut rows = lock(&self.rows);
            rows.as_mut().map_or(Err(Error::Closed), |rows| match by_id {
                true => rows.get_by_id(&keys),
                false => rows.get(&keys),
            })
        });
        let batch = found.map_err(|error| raise(py, &self.pending, &error))?;
        self.collector.collect(py, batch)
    }

    /// Ends the session.
    fn close(&self, py: Python<'_>) {
        py.detach(|| drop(lock(&self.rows).take()));
    }
}

/// The exception of an error, or the one that a signal handler raised.
fn raise(py: Python<'_>, pending: &PendingException, error: &Error) -> PyErr {
    let interrupted = matches!(error, Error::Interrupted(_));
    let signal = interrupted.then(|| lock(pending).take()).flatten();
    signal.unwrap_or_else(|| to_exception(py, error))
}

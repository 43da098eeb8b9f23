//! An attached loader behind a lock, and the iterator over one of its epochs.
//!
//! The interpreter lock is never held while this side waits, neither for the daemon nor for the session's own lock: a
//! ready batch is taken with a try of the lock; everything else detaches first. While waiting, signals are looked at
//! every 50 ms, so that Ctrl-C ends a waiting `next`.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use forebay_client::{Error, Loader, Next, State, Target};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use crate::arrays::Collector;
use crate::errors::to_exception;

/// The exception that a signal handler raised while this side waited.
type Caught = Arc<Mutex<Option<PyErr>>>;

/// An attached loader. `forebay.Loader` is its face.
#[pyclass(frozen, module = "forebay._forebay")]
pub(crate) struct Session {
    loader: Mutex<Option<Loader>>,
    collector: Collector,
    caught: Caught,
    /// Counts the iterators: only the newest one delivers.
    iteration: AtomicU64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether a signal handler raised something; keeps what it raised.
fn signal_came(caught: &Caught) -> bool {
    // No interpreter any more: give the wait up.
    let raised = Python::try_attach(|py| py.check_signals());
    match raised {
        Some(Ok(())) => false,
        Some(Err(error)) => {
            *lock(caught) = Some(error);
            true
        }
        None => true,
    }
}

impl Session {
    fn raise(&self, py: Python<'_>, error: &Error) -> PyErr {
        if matches!(error, Error::Interrupted(_))
            && let Some(caught) = lock(&self.caught).take()
        {
            return caught;
        }
        to_exception(py, error)
    }

    /// Runs something on the loader without the interpreter lock.
    fn run<R: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut Loader) -> Result<R, Error> + Send,
    ) -> PyResult<R> {
        let result = py.detach(|| {
            let mut guard = lock(&self.loader);
            guard.as_mut().map_or(Err(Error::Closed), work)
        });
        result.map_err(|error| self.raise(py, &error))
    }
}

#[pymethods]
impl Session {
    /// Attaches. `kind` is `word` (file, socket or stream), `json` (a configuration's text) or `first` (a stream of
    /// `forebay run`); overrides are pairs of a dotted key and JSON text; rank pairs are (rank, world size).
    #[new]
    #[pyo3(signature = (kind, target, *, rank, distributed, state, force, timeout, overrides, program))]
    #[expect(clippy::too_many_arguments, reason = "named one by one in forebay.Loader")]
    fn new(
        py: Python<'_>,
        kind: &str,
        target: &str,
        rank: Option<(u32, u32)>,
        distributed: Option<(u32, u32)>,
        state: Option<&str>,
        force: bool,
        timeout: f64,
        overrides: Vec<(String, String)>,
        program: Option<std::path::PathBuf>,
    ) -> PyResult<Self> {
        let target = match kind {
            "json" => Target::json(target, None),
            "first" => Target::Stream(None),
            _ => Target::from_word(target),
        };
        let timeout = Duration::try_from_secs_f64(timeout)
            .map_err(|error| PyValueError::new_err(format!("timeout: {error}")))?;
        let caught = Caught::default();
        let asked = Arc::clone(&caught);
        let mut builder =
            Loader::builder(target).timeout(timeout).interrupt(move || signal_came(&asked));
        if let Some((rank, world_size)) = rank {
            builder = builder.rank(rank, world_size);
        }
        if let Some((rank, world_size)) = distributed {
            builder = builder.distributed(rank, world_size);
        }
        if let Some(text) = state {
            let state = State::from_json(text).map_err(|error| to_exception(py, &error))?;
            builder = builder.state(state, force);
        }
        for (key, json) in overrides {
            builder = builder.override_key(key, json);
        }
        if let Some(program) = program {
            builder = builder.program(program);
        }
        let loader = py.detach(|| builder.attach()).map_err(|error| {
            let interrupted = matches!(error, Error::Interrupted(_));
            let signal = interrupted.then(|| lock(&caught).take()).flatten();
            signal.unwrap_or_else(|| to_exception(py, &error))
        })?;
        Ok(Self {
            collector: Collector::new(py, &loader.terms().tensors)?,
            loader: Mutex::new(Some(loader)),
            caught,
            iteration: AtomicU64::new(0),
        })
    }

    /// Begins the next epoch and gives its iterator.
    fn begin(slf: &Bound<'_, Self>) -> PyResult<Epoch> {
        let session = slf.get();
        session.run(slf.py(), Loader::begin_epoch)?;
        // Relaxed: a number of its own; the interpreter orders who sees it.
        let iteration = session.iteration.fetch_add(1, Ordering::Relaxed) + 1;
        Ok(Epoch { session: slf.clone().unbind(), iteration })
    }

    /// The state as JSON text.
    fn state(&self, py: Python<'_>, held_back: usize) -> PyResult<String> {
        self.run(py, |loader| Ok(loader.state(held_back)?.to_json()))
    }

    /// Goes on where a state stands. Iterators that were begun before end.
    fn load_state(&self, py: Python<'_>, text: &str, force: bool) -> PyResult<()> {
        let state = State::from_json(text).map_err(|error| to_exception(py, &error))?;
        self.run(py, |loader| loader.load_state(&state, force))?;
        // Relaxed: as in `begin`.
        self.iteration.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Goes to an epoch's start unless it is the current one.
    fn set_epoch(&self, py: Python<'_>, epoch: u64) -> PyResult<()> {
        self.run(py, |loader| loader.set_epoch(epoch))
    }

    /// The daemon's figures as JSON text, and the client's own.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<(String, Bound<'py, PyDict>)> {
        let (text, waits, [held, given_up, restarts]) = self.run(py, |loader| {
            let text = loader.stats()?;
            let waits = loader.wait_statistics().clone();
            Ok((text, waits, [loader.held(), loader.given_up(), loader.restarts()]))
        })?;
        let client = PyDict::new(py);
        client.set_item("batches", waits.batches())?;
        client.set_item("batches_waited_for", waits.waited())?;
        client.set_item("bytes", waits.payload_bytes())?;
        client.set_item("held", held)?;
        client.set_item("given_up", given_up)?;
        client.set_item("restarts", restarts)?;
        let wait = PyDict::new(py);
        wait.set_item("total", waits.total().as_secs_f64())?;
        wait.set_item("p50", waits.quantile(0.5).as_secs_f64())?;
        wait.set_item("p99", waits.quantile(0.99).as_secs_f64())?;
        client.set_item("wait_seconds", wait)?;
        Ok((text, client))
    }

    /// What does not change: the terms of the session.
    fn terms<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let (terms, placement) =
            self.run(py, |loader| Ok((loader.terms().clone(), loader.placement())))?;
        let dict = PyDict::new(py);
        dict.set_item("stream", &terms.stream)?;
        dict.set_item("batch_size", terms.batch_size)?;
        dict.set_item("batches_per_epoch", terms.batches_per_epoch)?;
        dict.set_item("samples_per_epoch", terms.samples_per_epoch)?;
        dict.set_item("epochs", terms.epochs)?;
        dict.set_item("slots", terms.slots)?;
        dict.set_item("hold", terms.hold)?;
        dict.set_item("rank", placement.rank)?;
        dict.set_item("world_size", placement.world_size)?;
        dict.set_item("rank_source", placement.source.to_string())?;
        let tensors = PyList::empty(py);
        for spec in &terms.tensors {
            let ragged = matches!(spec.extent, forebay_client::Extent::Ragged { .. });
            tensors.append((
                &spec.name,
                spec.dtype.name(),
                &spec.row_shape,
                ragged,
                spec.channels_last,
            ))?;
        }
        dict.set_item("tensors", tensors)?;
        Ok(dict)
    }

    /// The private daemon's process, if there is one, and how often a daemon was replaced.
    fn daemon(&self, py: Python<'_>) -> PyResult<(Option<u32>, u64)> {
        self.run(py, |loader| Ok((loader.private_process(), loader.restarts())))
    }

    /// The batches given up so far.
    fn given_up(&self, py: Python<'_>) -> PyResult<u64> {
        self.run(py, |loader| Ok(loader.given_up()))
    }

    /// Ends the session. Arrays stay valid for as long as they are held.
    fn close(&self, py: Python<'_>) {
        py.detach(|| drop(lock(&self.loader).take()));
    }
}

/// The batches of one epoch. Ends when a newer iterator is begun.
#[pyclass(frozen, module = "forebay._forebay")]
pub(crate) struct Epoch {
    session: Py<Session>,
    iteration: u64,
}

#[pymethods]
impl Epoch {
    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        let session = self.session.get();
        // Relaxed: as in `Session::begin`.
        if session.iteration.load(Ordering::Relaxed) != self.iteration {
            return Ok(None);
        }
        let ready = match session.loader.try_lock() {
            Ok(mut guard) => guard.as_mut().map_or(Err(Error::Closed), Loader::try_next),
            Err(TryLockError::Poisoned(poisoned)) => {
                poisoned.into_inner().as_mut().map_or(Err(Error::Closed), Loader::try_next)
            }
            Err(TryLockError::WouldBlock) => Ok(Next::Waiting),
        };
        let ready = ready.map_err(|error| session.raise(py, &error))?;
        let next = match ready {
            Next::Waiting => session.run(py, |loader| {
                loop {
                    match loader.try_next()? {
                        Next::Waiting => loader.wait()?,
                        other => return Ok(other),
                    }
                }
            })?,
            other => other,
        };
        match next {
            Next::Batch(batch) => session.collector.collect(py, batch).map(Some),
            _ => Ok(None),
        }
    }
}

//! An attached loader behind a lock, and the iterator over one of its epochs; [`crate::device`] has what is more for
//! batches on a GPU.
//!
//! The interpreter lock is never held while this side waits, neither for the daemon nor for the session's own lock: a
//! ready batch is taken with a try of the lock; everything else detaches first. While waiting, signals are looked at
//! every 50 ms, so that Ctrl-C ends a waiting `next`; while a `next` waits, by a thread that does not hold the session then.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use forebay_client::{Error, Loader, Next, State, Target, Times};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use crate::arrays::Collector;
use crate::device::{DeviceRequest, Given, Owners, Piece};
use crate::errors::to_exception;
use crate::source::Source;

/// The exception that a signal handler raised while this side waited.
type Caught = Arc<Mutex<Option<PyErr>>>;

/// An attached loader. `forebay.Loader` is its face.
#[pyclass(frozen, module = "forebay._forebay")]
pub(crate) struct Session {
    source: Mutex<Option<Source>>,
    /// What keeps the memory on the device that was offered. After the source: it waits for its copies.
    pub(crate) owners: Owners,
    collector: Collector,
    caught: Caught,
    /// Counts the iterators: only the newest one delivers.
    iteration: AtomicU64,
    /// What each `next` that gave the interpreter lock up took to get it back. Used with that lock held.
    regained: Mutex<Times>,
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

thread_local! {
    /// This thread looks at signals between the slices of its wait, when it does not hold the session.
    static LOOKS_BETWEEN: Cell<bool> = const { Cell::new(false) };
}

/// Whether a signal handler raised something; keeps what it raised.
fn signal_came(caught: &Caught) -> bool {
    if LOOKS_BETWEEN.get() {
        return false;
    }
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
    pub(crate) fn raise(&self, py: Python<'_>, error: &Error) -> PyErr {
        if matches!(error, Error::Interrupted(_))
            && let Some(caught) = lock(&self.caught).take()
        {
            return caught;
        }
        to_exception(py, error)
    }

    /// Runs something on the session without the interpreter lock.
    pub(crate) fn run<R: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut Source) -> Result<R, Error> + Send,
    ) -> PyResult<R> {
        self.run_timed(py, work).0
    }

    /// The same; gives besides how long it took, from the end of the work, to get the interpreter lock back.
    fn run_timed<R: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut Source) -> Result<R, Error> + Send,
    ) -> (PyResult<R>, Duration) {
        let (result, ended) = py.detach(|| {
            let mut guard = lock(&self.source);
            let result = guard.as_mut().map_or(Err(Error::Closed), work);
            drop(guard);
            (result, Instant::now())
        });
        let regained = ended.elapsed();
        (self.raised(py, result), regained)
    }

    fn raised<R>(&self, py: Python<'_>, result: Result<R, Error>) -> PyResult<R> {
        let result = result.map_err(|error| self.raise(py, &error))?;
        // Raised by a handler just when the wait ended by itself.
        lock(&self.caught).take().map_or(Ok(result), Err)
    }

    /// Runs something that waits, a slice at a time, until it gives something. Signals are looked at between the slices, so
    /// that a handler may use the session: save its state, or close it.
    pub(crate) fn in_slices<R: Send>(
        &self,
        py: Python<'_>,
        mut slice: impl FnMut(&mut Source) -> Result<Option<R>, Error> + Send,
    ) -> PyResult<R> {
        let mut in_all = Duration::ZERO;
        loop {
            LOOKS_BETWEEN.set(true);
            let (found, regained) = self.run_timed(py, &mut slice);
            LOOKS_BETWEEN.set(false);
            in_all += regained;
            match found? {
                Some(found) => {
                    lock(&self.regained).record(in_all);
                    return Ok(found);
                }
                None => py.check_signals()?,
            }
        }
    }

    /// Runs something that does not wait, with the interpreter lock; `None` when another thread is at the session.
    pub(crate) fn run_at_once<R>(
        &self,
        work: impl FnOnce(&mut Source) -> Result<R, Error>,
    ) -> Option<Result<R, Error>> {
        let mut guard = match self.source.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        Some(guard.as_mut().map_or(Err(Error::Closed), work))
    }

    /// Whether this is the newest iterator.
    pub(crate) fn is_newest(&self, iteration: u64) -> bool {
        // Relaxed: as in `begin`.
        self.iteration.load(Ordering::Relaxed) == iteration
    }

    fn begin_iteration(&self, py: Python<'_>) -> PyResult<u64> {
        self.run(py, Source::begin_epoch)?;
        // Relaxed: a number of its own; the interpreter orders who sees it.
        Ok(self.iteration.fetch_add(1, Ordering::Relaxed) + 1)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // The end waits, for copies and for a private daemon: not with the interpreter's lock.
        let mut source = self.source.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if source.is_some() {
            Python::try_attach(|py| py.detach(|| drop(source.take())));
        }
    }
}

#[pymethods]
impl Session {
    /// Attaches. `device` is a `DeviceRequest` for batches on a GPU. `kind` is `word` (file, socket or stream), `json` (a configuration's text) or `first` (a stream of
    /// `forebay run`); overrides are pairs of a dotted key and JSON text; rank pairs are (rank, world size).
    #[new]
    #[pyo3(signature = (kind, target, *, rank, distributed, state, force, timeout, overrides, program, device=None))]
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
        device: Option<DeviceRequest>,
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
        let attach = || match &device {
            None => Ok(Source::Host(builder.attach()?)),
            Some(request) => request.attach(builder),
        };
        let source = py.detach(attach).map_err(|error| {
            let interrupted = matches!(error, Error::Interrupted(_));
            let signal = interrupted.then(|| lock(&caught).take()).flatten();
            signal.unwrap_or_else(|| to_exception(py, &error))
        })?;
        Ok(Self {
            collector: Collector::new(py, source.specs())?,
            source: Mutex::new(Some(source)),
            owners: Owners::default(),
            caught,
            iteration: AtomicU64::new(0),
            regained: Mutex::default(),
        })
    }

    /// Begins the next epoch and gives its iterator.
    fn begin(slf: &Bound<'_, Self>) -> PyResult<Epoch> {
        let iteration = slf.get().begin_iteration(slf.py())?;
        Ok(Epoch { session: slf.clone().unbind(), iteration })
    }

    /// Begins the next epoch of batches on a device; gives the iterator's number.
    fn begin_on_device(&self, py: Python<'_>) -> PyResult<u64> {
        self.begin_iteration(py)
    }

    /// The pieces of a batch on the device: (tensor, whether it is a ragged one's table, bytes of a full batch, rows of the
    /// table).
    fn regions(&self, py: Python<'_>) -> PyResult<Vec<Piece>> {
        self.device_regions(py)
    }

    /// The handle of the stream that copies are queued on.
    fn side_stream(&self, py: Python<'_>) -> PyResult<usize> {
        self.side_stream_handle(py)
    }

    /// How many offers were not taken yet.
    fn offered(&self) -> usize {
        self.owners.count()
    }

    /// Offers memory on the device for one batch: an address for each region, and what keeps them.
    fn offer(&self, py: Python<'_>, owner: Py<PyAny>, addresses: Vec<u64>) -> PyResult<()> {
        self.offer_memory(py, owner, addresses)
    }

    /// The next batch of this iterator's epoch: what keeps it, its rows, and the bytes of each tensor. The stream of this
    /// handle waits for the copy.
    fn next_on_device(
        &self,
        py: Python<'_>,
        iteration: u64,
        stream: usize,
    ) -> PyResult<Option<Given>> {
        self.take_on_device(py, iteration, stream)
    }

    /// The next batch of this iterator's epoch, as arrays on the device.
    fn next_arrays<'py>(
        &self,
        py: Python<'py>,
        iteration: u64,
    ) -> PyResult<Option<Bound<'py, PyDict>>> {
        self.take_arrays(py, iteration)
    }

    /// The state as JSON text.
    fn state(&self, py: Python<'_>, held_back: usize) -> PyResult<String> {
        self.run(py, |source| Ok(source.state(held_back)?.to_json()))
    }

    /// Goes on where a state stands. Iterators that were begun before end.
    fn load_state(&self, py: Python<'_>, text: &str, force: bool) -> PyResult<()> {
        let state = State::from_json(text).map_err(|error| to_exception(py, &error))?;
        self.run(py, |source| source.load_state(&state, force))?;
        // Relaxed: as in `begin`.
        self.iteration.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Goes to an epoch's start unless it is the current one.
    fn set_epoch(&self, py: Python<'_>, epoch: u64) -> PyResult<()> {
        self.run(py, |source| source.set_epoch(epoch))
    }

    /// The daemon's figures as JSON text, and the client's own.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<(String, Bound<'py, PyDict>)> {
        let (text, waits, [held, given_up, restarts], upload) = self.run(py, |source| {
            let text = source.stats()?;
            let waits = source.wait_statistics().clone();
            let (_, restarts) = source.daemon()?;
            let counts = [source.held(), source.given_up(), restarts];
            Ok((text, waits, counts, source.upload_statistics()))
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
        let regained = lock(&self.regained).clone();
        let interpreter_lock = PyDict::new(py);
        interpreter_lock.set_item("count", regained.count())?;
        interpreter_lock.set_item("total", regained.total().as_secs_f64())?;
        interpreter_lock.set_item("p50", regained.quantile(0.5).as_secs_f64())?;
        interpreter_lock.set_item("p99", regained.quantile(0.99).as_secs_f64())?;
        interpreter_lock.set_item("max", regained.longest().as_secs_f64())?;
        client.set_item("interpreter_lock_seconds", interpreter_lock)?;
        if let Some(upload) = upload {
            client.set_item("upload", upload.to_dict(py)?)?;
        }
        Ok((text, client))
    }

    /// What does not change: the terms of the session.
    fn terms<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let (terms, placement, specs) = self.run(py, |source| {
            Ok((source.terms().clone(), source.placement(), source.specs().to_vec()))
        })?;
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
        for spec in specs.iter() {
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
        self.run(py, Source::daemon)
    }

    /// The batches given up so far.
    fn given_up(&self, py: Python<'_>) -> PyResult<u64> {
        self.run(py, |source| Ok(source.given_up()))
    }

    /// Whether the batch given last was shown again for a measurement.
    fn replaying(&self, py: Python<'_>) -> PyResult<bool> {
        self.run(py, |source| Ok(source.replaying()))
    }

    /// Ends the session. Arrays stay valid for as long as they are held.
    fn close(&self, py: Python<'_>) {
        py.detach(|| drop(lock(&self.source).take()));
        self.owners.clear();
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
        if !session.is_newest(self.iteration) {
            return Ok(None);
        }
        let at_once = session.run_at_once(|source| source.host()?.try_next());
        let at_once = at_once.unwrap_or(Ok(Next::Waiting));
        let next = match at_once.map_err(|error| session.raise(py, &error))? {
            Next::Waiting => session.in_slices(py, |source| {
                let loader = source.host()?;
                let mut found = loader.try_next()?;
                if matches!(found, Next::Waiting) {
                    loader.wait()?;
                    found = loader.try_next()?;
                }
                Ok(Some(found).filter(|found| !matches!(found, Next::Waiting)))
            })?,
            other => other,
        };
        match next {
            Next::Batch(batch) => session.collector.collect(py, batch).map(Some),
            _ => Ok(None),
        }
    }
}

//! The session class of the native module, and the iterator over one of its epochs.
//!
//! A thin layer: [`SharedSource`] has the locks, [`crate::device`] the batches on a GPU.

use std::ffi::OsString;
use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use forebay_client::job::{identity, sample_count, selected_count};
use forebay_client::{Builder, Error, Loader, Next, Position, State, Target};
use numpy::PyArray1;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use crate::arrays::Collector;
use crate::device::{self, DeviceItem, DeviceRequest, Owners, RegionTuple};
use crate::errors::to_exception;
use crate::shared_source::{PendingException, SharedSource, check_signals, lock};
use crate::source::Source;

/// Pairs of a dotted key and JSON text.
pub(crate) struct ConfigKeys {
    pub(crate) overrides: Vec<(String, String)>,
    /// Only for a configuration; the overrides take precedence.
    pub(crate) worker_keys: Vec<(String, String)>,
}

/// The settings that all sessions have, from the arguments of their Python classes.
pub(crate) fn builder_of(
    (kind, target): (&str, &str),
    timeout: f64,
    keys: ConfigKeys,
    program: Option<PathBuf>,
    shared: Option<&str>,
    pending: &PendingException,
) -> PyResult<Builder> {
    let target = match kind {
        "json" => Target::json(target, None),
        "first" => Target::Stream(None),
        _ => Target::parse(target),
    };
    let has_configuration = matches!(target, Target::Config(_));
    let timeout = Duration::try_from_secs_f64(timeout)
        .map_err(|error| PyValueError::new_err(format!("timeout: {error}")))?;
    let raised = Arc::clone(pending);
    let mut builder =
        Loader::builder(target).timeout(timeout).interrupt(move || check_signals(&raised));
    let worker_keys = if has_configuration { keys.worker_keys } else { Vec::new() };
    for (key, json) in worker_keys.into_iter().chain(keys.overrides) {
        builder = builder.override_key(key, json);
    }
    if let Some(name) = shared {
        builder = builder.shared(name);
    }
    if let Some(program) = program {
        builder = builder.program(program);
    }
    Ok(builder)
}

/// An attached loader, which `forebay.Loader` wraps.
#[pyclass(frozen, module = "forebay._forebay")]
pub(crate) struct Session {
    source: SharedSource,
    /// The owners of offered device memory. After the source, whose drop waits for its copies.
    owners: Owners,
    collector: Collector,
}

#[pymethods]
impl Session {
    /// Attaches. `kind` is `word` (file, socket or stream), `json` (a configuration's text) or `first` (a stream of
    /// `forebay run`). `overrides` are pairs of a dotted key and JSON text; `worker_keys` are such pairs that apply
    /// only to a configuration. `rank`, `distributed` and `ray_train` are (rank, world size); `group` is the group of
    /// ranks to compare with outside of Python. `device` is a `DeviceRequest` for batches on a GPU. `object` is the
    /// descriptor of a Dataset object's memory, which the caller still owns. `shared` is the name of the daemon that the
    /// loaders of a configuration share; None: a private one. `trainer` is the trainer's name, and `batch_size` the size of
    /// its batches, if it is not the configured one.
    #[new]
    #[pyo3(signature = (kind, target, *, rank, distributed, ray_train, state, force, timeout, overrides, worker_keys, program, group=None, device=None, object=None, shared=None, trainer="", batch_size=None))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of forebay.Loader")]
    fn new(
        py: Python<'_>,
        kind: &str,
        target: &str,
        rank: Option<(u32, u32)>,
        distributed: Option<(u32, u32)>,
        ray_train: Option<(u32, u32)>,
        state: Option<&str>,
        force: bool,
        timeout: f64,
        overrides: Vec<(String, String)>,
        worker_keys: Vec<(String, String)>,
        program: Option<PathBuf>,
        group: Option<&str>,
        device: Option<DeviceRequest>,
        object: Option<i32>,
        shared: Option<&str>,
        trainer: &str,
        batch_size: Option<u32>,
    ) -> PyResult<Self> {
        let pending = PendingException::default();
        let keys = ConfigKeys { overrides, worker_keys };
        let mut builder = builder_of((kind, target), timeout, keys, program, shared, &pending)?;
        builder = builder.compare_ranks(group).trainer(trainer);
        if let Some(samples) = batch_size {
            builder = builder.batch_size(samples);
        }
        if let Some((rank, world_size)) = rank {
            builder = builder.rank(rank, world_size);
        }
        if let Some((rank, world_size)) = distributed {
            builder = builder.distributed(rank, world_size);
        }
        if let Some((rank, world_size)) = ray_train {
            builder = builder.ray_train(rank, world_size);
        }
        if let Some(text) = state {
            let state = State::from_json(text).map_err(|error| to_exception(py, &error))?;
            builder = builder.state(state, force);
        }
        if let Some(descriptor) = object {
            // A separate open file of the same memory: for reading, and closed by its owner.
            builder = builder.object(File::open(format!("/proc/self/fd/{descriptor}"))?.into());
        }
        let attach = || match &device {
            None => Ok(Source::Host(builder.attach()?)),
            Some(request) => request.attach(builder),
        };
        let source = py.detach(attach).map_err(|error| {
            let interrupted = matches!(error, Error::Interrupted(_));
            let signal = interrupted.then(|| lock(&pending).take()).flatten();
            signal.unwrap_or_else(|| to_exception(py, &error))
        })?;
        let collector = Collector::new(py, source.specs(), source.terms().batch_size)?;
        let source = SharedSource::new(source, pending)?;
        Ok(Self { source, owners: Owners::default(), collector })
    }

    /// Begins the next epoch and returns its iterator.
    fn begin(slf: &Bound<'_, Self>) -> PyResult<Epoch> {
        let iteration = slf.get().source.begin_epoch(slf.py())?;
        Ok(Epoch { session: slf.clone().unbind(), iteration })
    }

    /// Begins the next epoch of batches on a device; returns the iterator's number.
    fn begin_on_device(&self, py: Python<'_>) -> PyResult<u64> {
        self.source.begin_epoch(py)
    }

    /// The regions of a batch on the device.
    fn regions(&self, py: Python<'_>) -> PyResult<Vec<RegionTuple>> {
        self.source.run(py, |source| Ok(device::regions(source.device()?)))
    }

    /// The handle of the stream that copies are queued on.
    fn side_stream(&self, py: Python<'_>) -> PyResult<usize> {
        self.source.run(py, |source| Ok(source.device()?.side_stream().cu_stream() as usize))
    }

    /// The number of offers that are not taken yet.
    fn offered(&self) -> usize {
        self.owners.count()
    }

    /// Offers device memory for one batch: an address for each region, and the object that owns them.
    fn offer(&self, py: Python<'_>, owner: Py<PyAny>, addresses: Vec<u64>) -> PyResult<()> {
        self.source.offer_memory(py, &self.owners, owner, addresses)
    }

    /// The next batch of this iterator's epoch: its owner, its rows, and the bytes of each tensor. The stream with this
    /// handle waits for the copy.
    fn next_on_device(
        &self,
        py: Python<'_>,
        iteration: u64,
        stream: usize,
    ) -> PyResult<Option<DeviceItem>> {
        self.source.take_on_device(py, &self.owners, iteration, stream)
    }

    /// The next batch of this iterator's epoch, as arrays on the device.
    fn next_arrays<'py>(
        &self,
        py: Python<'py>,
        iteration: u64,
    ) -> PyResult<Option<Bound<'py, PyDict>>> {
        self.source.take_arrays(py, iteration)
    }

    /// The state as JSON text.
    fn state(&self, py: Python<'_>, held_back: usize) -> PyResult<String> {
        self.source.run(py, |source| Ok(source.state(held_back)?.to_json()))
    }

    /// Resumes from a state. Ends all iterators.
    fn load_state(&self, py: Python<'_>, text: &str, force: bool) -> PyResult<()> {
        let state = State::from_json(text).map_err(|error| to_exception(py, &error))?;
        self.source.run(py, |source| source.load_state(&state, force))?;
        self.source.end_iterators();
        Ok(())
    }

    /// The position after the last batch handed over: its epoch, and samples over all ranks.
    fn position(&self, py: Python<'_>) -> PyResult<(u64, u64)> {
        self.source.run(py, |source| {
            let Position { epoch, samples } = source.position();
            Ok((epoch, samples))
        })
    }

    /// This rank's batches of a full epoch; with batches by length, of the present one.
    fn batches_per_epoch(&self, py: Python<'_>) -> PyResult<u64> {
        self.source.run(py, |source| Ok(source.batches_per_epoch()))
    }

    /// Seeks to the start of an epoch.
    fn seek_epoch(&self, py: Python<'_>, epoch: u64) -> PyResult<()> {
        self.source.run(py, |source| source.seek(Position { epoch, samples: 0 }))
    }

    /// The daemon's statistics as JSON text, and the client's.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<(String, Bound<'py, PyDict>)> {
        let (text, waits, [held, given_up, restarts], upload) = self.source.run(py, |source| {
            let (text, restarts) =
                source.request(|loader| Ok((loader.stats()?, loader.restarts())))?;
            let waits = source.wait_statistics().clone();
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
        let wait = times(py, waits.total(), |share| waits.quantile(share))?;
        wait.set_item("after_start", waits.after_start().as_secs_f64())?;
        client.set_item("wait_seconds", wait)?;
        let waits = self.source.gil_waits();
        let lock = times(py, waits.total(), |share| waits.quantile(share))?;
        lock.set_item("count", waits.count())?;
        lock.set_item("max", waits.longest().as_secs_f64())?;
        client.set_item("interpreter_lock_seconds", lock)?;
        if let Some(upload) = upload {
            client.set_item("upload", upload.to_dict(py)?)?;
        }
        Ok((text, client))
    }

    /// The terms of the session, which do not change.
    fn terms<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let (terms, placement, specs) = self.source.run(py, |source| {
            Ok((source.terms().clone(), source.placement(), source.specs().to_vec()))
        })?;
        let dict = PyDict::new(py);
        dict.set_item("stream", &terms.stream)?;
        dict.set_item("batch_size", terms.batch_size)?;
        dict.set_item("batches_per_epoch", terms.batches_per_epoch)?;
        dict.set_item("by_length", terms.pools.is_some())?;
        dict.set_item("epochs", terms.epochs)?;
        dict.set_item("samples", sample_count(&terms))?;
        dict.set_item("selected", selected_count(&terms))?;
        dict.set_item("hold", terms.hold)?;
        dict.set_item("identity", identity(&terms, placement.world_size).to_string())?;
        dict.set_item("rank", placement.rank)?;
        dict.set_item("world_size", placement.world_size)?;
        dict.set_item("rank_source", placement.source.to_string())?;
        let tensors = PyList::empty(py);
        for spec in specs.iter() {
            let ragged = matches!(spec.extent, forebay_client::Extent::Ragged { .. });
            let (name, dtype) = (&spec.name, spec.dtype.name());
            tensors.append((name, dtype, &spec.row_shape, ragged, spec.channels_last))?;
        }
        dict.set_item("tensors", tensors)?;
        let padding = specs.iter().filter_map(|spec| {
            let by = spec.padding?;
            Some((spec.name.as_str(), by.multiple_of, f64::from_bits(by.value_bits)))
        });
        dict.set_item("padding", padding.collect::<Vec<_>>())?;
        Ok(dict)
    }

    /// The names of the classes, in label order.
    fn classes(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        self.source.run(py, |source| source.request(Loader::classes))
    }

    /// The label of every sample, by its id.
    fn labels<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyArray1<i64>>> {
        let labels = self.source.run(py, |source| source.request(Loader::labels))?;
        Ok(PyArray1::from_vec(py, labels))
    }

    /// The files of samples, by their ids.
    fn paths(&self, py: Python<'_>, samples: Vec<u64>) -> PyResult<Vec<OsString>> {
        let paths =
            self.source.run(py, |source| source.request(move |loader| loader.paths(&samples)))?;
        Ok(paths.into_iter().map(OsString::from).collect())
    }

    /// The private daemon's process id, if there is one, and how often a dead daemon was replaced.
    fn daemon(&self, py: Python<'_>) -> PyResult<(Option<u32>, u64)> {
        self.source.run(py, |source| {
            source.request(|loader| Ok((loader.private_process(), loader.restarts())))
        })
    }

    /// The epoch that is iterated over, until its end was returned; then the next one.
    fn epoch(&self, py: Python<'_>) -> PyResult<u64> {
        self.source.run(py, |source| Ok(source.epoch()))
    }

    /// The number of batches given up so far.
    fn given_up(&self, py: Python<'_>) -> PyResult<u64> {
        self.source.run(py, |source| Ok(source.given_up()))
    }

    /// Whether the last batch was a replay for a measurement.
    fn replaying(&self, py: Python<'_>) -> PyResult<bool> {
        self.source.run(py, |source| Ok(source.replaying()))
    }

    /// Ends the session. Arrays stay valid for as long as they are held. Does nothing in a forked child.
    fn close(&self, py: Python<'_>) {
        if self.source.close(py) {
            self.owners.clear();
        }
    }
}

/// Total and quantiles of some durations, in seconds.
fn times(
    py: Python<'_>,
    total: Duration,
    quantile: impl Fn(f64) -> Duration,
) -> PyResult<Bound<'_, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("total", total.as_secs_f64())?;
    dict.set_item("p50", quantile(0.5).as_secs_f64())?;
    dict.set_item("p99", quantile(0.99).as_secs_f64())?;
    Ok(dict)
}

/// The iterator over the batches of one epoch. Ends when a newer one begins.
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
        let finished = |next: Next| (!matches!(next, Next::Waiting)).then_some(next);
        let name_holders = |error: Error| match error {
            Error::HoldLimit { held, hold, slots, .. } => {
                let fields = session.collector.holders();
                Error::HoldLimit { held, fields, hold, slots }
            }
            other => other,
        };
        let next = session.source.take(
            py,
            self.iteration,
            |source| Ok(finished(source.host()?.try_next().map_err(name_holders)?)),
            |source| {
                let loader = source.host()?;
                let mut found = loader.try_next().map_err(name_holders)?;
                if matches!(found, Next::Waiting) {
                    loader.wait()?;
                    found = loader.try_next()?;
                }
                Ok(finished(found))
            },
        )?;
        match next {
            Some(Next::Batch(batch)) => session.collector.collect(py, batch).map(Some),
            _ => Ok(None),
        }
    }
}

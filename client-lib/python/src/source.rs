//! The source of a session's batches: in this process's memory, or on a device, with a common interface.

use std::ops::Deref;

use forebay_client::cuda::{Upload, UploadStatistics};
use forebay_client::{DeviceLoader, Error, Loader, Position, SessionStatus, State, TensorSpec};
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// An attached loader, or the upload that owns it.
#[derive(Debug)]
pub(crate) enum Source {
    Host(Loader),
    /// In device memory that the caller offers.
    Device(Upload),
    /// In the client's own memory on the device.
    Pool(DeviceLoader),
}

impl Source {
    /// The loader of a session in this process's memory.
    pub(crate) fn host(&mut self) -> Result<&mut Loader, Error> {
        match self {
            Self::Host(loader) => Ok(loader),
            _ => Err(Error::Config("this session's batches are on a device".into())),
        }
    }

    /// The upload of a session on a device.
    pub(crate) fn device(&mut self) -> Result<&mut Upload, Error> {
        match self {
            Self::Device(upload) => Ok(upload),
            _ => Err(Error::Config("this session does not take offered device memory".into())),
        }
    }

    /// The loader of a session in the client's own memory on a device.
    pub(crate) fn pool(&mut self) -> Result<&mut DeviceLoader, Error> {
        match self {
            Self::Pool(loader) => Ok(loader),
            _ => Err(Error::Config("this session has no device memory of its own".into())),
        }
    }

    /// The schema of the batches that the user gets.
    pub(crate) fn specs(&self) -> &[TensorSpec] {
        match self {
            Self::Host(loader) => &loader.terms().tensors,
            Self::Device(upload) => upload.specs(),
            Self::Pool(loader) => loader.specs(),
        }
    }

    /// Sends a request to the daemon: calls a method of the loader that neither takes a batch nor moves it.
    pub(crate) fn request<R: Send + 'static>(
        &mut self,
        work: impl FnOnce(&mut Loader) -> Result<R, Error> + Send + 'static,
    ) -> Result<R, Error> {
        match self {
            Self::Host(loader) => work(loader),
            Self::Device(upload) => upload.with_loader(work),
            Self::Pool(loader) => loader.with_loader(work),
        }
    }

    pub(crate) fn begin_epoch(&mut self) -> Result<(), Error> {
        match self {
            Self::Host(loader) => loader.begin_epoch(),
            Self::Device(upload) => upload.begin_epoch(),
            Self::Pool(loader) => loader.begin_epoch(),
        }
    }

    pub(crate) fn seek(&mut self, position: Position) -> Result<(), Error> {
        match self {
            Self::Host(loader) => loader.seek(position),
            Self::Device(upload) => upload.seek(position),
            Self::Pool(loader) => loader.seek(position),
        }
    }

    pub(crate) fn load_state(&mut self, state: &State, force: bool) -> Result<(), Error> {
        match self {
            Self::Host(loader) => loader.load_state(state, force),
            Self::Device(upload) => upload.load_state(state, force),
            Self::Pool(loader) => loader.load_state(state, force),
        }
    }

    /// The number of slots that this process holds.
    pub(crate) fn held(&self) -> u64 {
        match self {
            Self::Host(loader) => loader.held(),
            Self::Device(upload) => upload.slots_in_flight(),
            Self::Pool(loader) => loader.slots_in_flight(),
        }
    }

    pub(crate) fn upload_statistics(&self) -> Option<UploadMetrics> {
        match self {
            Self::Host(_) => None,
            Self::Device(upload) => Some(UploadMetrics(upload.upload_statistics())),
            Self::Pool(loader) => Some(UploadMetrics(loader.upload_statistics())),
        }
    }
}

impl Deref for Source {
    type Target = SessionStatus;

    fn deref(&self) -> &SessionStatus {
        match self {
            Self::Host(loader) => loader,
            Self::Device(upload) => upload,
            Self::Pool(loader) => loader,
        }
    }
}

/// The statistics of an upload, for Python.
pub(crate) struct UploadMetrics(UploadStatistics);

impl UploadMetrics {
    pub(crate) fn to_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let dict = PyDict::new(py);
        dict.set_item("path", self.0.path)?;
        dict.set_item("reason", &self.0.reason)?;
        dict.set_item("batches", self.0.batches)?;
        dict.set_item("bytes", self.0.bytes)?;
        dict.set_item("staging_seconds", self.0.staging_time.as_secs_f64())?;
        Ok(dict)
    }
}

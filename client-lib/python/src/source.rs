//! The source of a session's batches: in this process's memory, or on a device, with a common interface.

use std::path::PathBuf;

use forebay_client::cuda::{Upload, UploadStatistics};
use forebay_client::{DeviceLoader, Error, Loader, Placement, State, TensorSpec, WaitStatistics};
use forebay_protocol::frames::Attached;
use forebay_protocol::ids::Position;
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

/// Calls a method on any kind of source; `$upload` borrows the upload of a pool's loader, mutably or not.
macro_rules! with {
    ($source:expr, $upload:ident, $inner:ident => $call:expr) => {
        match $source {
            Source::Host($inner) => $call,
            Source::Device($inner) => $call,
            Source::Pool(loader) => {
                let $inner = loader.$upload();
                $call
            }
        }
    };
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

    /// The upload of a session on a device.
    fn upload(&self) -> Option<&Upload> {
        match self {
            Self::Host(_) => None,
            Self::Device(upload) => Some(upload),
            Self::Pool(loader) => Some(loader.upload()),
        }
    }

    /// The schema of the batches that the user gets.
    pub(crate) fn specs(&self) -> &[TensorSpec] {
        match self {
            Self::Host(loader) => &loader.terms().tensors,
            Self::Device(upload) => upload.specs(),
            Self::Pool(loader) => loader.upload().specs(),
        }
    }

    pub(crate) fn begin_epoch(&mut self) -> Result<(), Error> {
        with!(self, upload_mut, inner => inner.begin_epoch())
    }

    pub(crate) fn state(&self, held_back: usize) -> Result<State, Error> {
        with!(self, upload, inner => inner.state(held_back))
    }

    pub(crate) fn load_state(&mut self, state: &State, force: bool) -> Result<(), Error> {
        with!(self, upload_mut, inner => inner.load_state(state, force))
    }

    pub(crate) fn set_epoch(&mut self, epoch: u64) -> Result<(), Error> {
        with!(self, upload_mut, inner => inner.set_epoch(epoch))
    }

    pub(crate) fn restart_epoch(&mut self) -> Result<(), Error> {
        let start = Position { epoch: self.epoch(), samples: 0 };
        with!(self, upload_mut, inner => inner.seek(start))
    }

    pub(crate) fn stats(&mut self) -> Result<String, Error> {
        with!(self, upload_mut, inner => inner.stats())
    }

    pub(crate) fn classes(&mut self) -> Result<Vec<String>, Error> {
        with!(self, upload_mut, inner => inner.classes())
    }

    pub(crate) fn paths(&mut self, samples: &[u64]) -> Result<Vec<PathBuf>, Error> {
        with!(self, upload_mut, inner => inner.paths(samples))
    }

    pub(crate) fn labels(&mut self) -> Result<Vec<i64>, Error> {
        with!(self, upload_mut, inner => inner.labels())
    }

    pub(crate) fn wait_statistics(&self) -> &WaitStatistics {
        with!(self, upload, inner => inner.wait_statistics())
    }

    pub(crate) fn terms(&self) -> &Attached {
        with!(self, upload, inner => inner.terms())
    }

    pub(crate) fn placement(&self) -> Placement {
        with!(self, upload, inner => inner.placement())
    }

    pub(crate) fn epoch(&self) -> u64 {
        with!(self, upload, inner => inner.epoch())
    }

    pub(crate) fn given_up(&self) -> u64 {
        with!(self, upload, inner => inner.given_up())
    }

    pub(crate) fn replaying(&self) -> bool {
        with!(self, upload, inner => inner.replaying())
    }

    /// The number of slots that this process holds.
    pub(crate) fn held(&self) -> u64 {
        match self {
            Self::Host(loader) => loader.held(),
            Self::Device(upload) => upload.slots_in_flight(),
            Self::Pool(loader) => loader.upload().slots_in_flight(),
        }
    }

    /// The private daemon's process id, and how often a dead daemon was replaced.
    pub(crate) fn daemon(&mut self) -> Result<(Option<u32>, u64), Error> {
        match self {
            Self::Host(loader) => Ok((loader.private_process(), loader.restarts())),
            Self::Device(upload) => upload.daemon(),
            Self::Pool(loader) => loader.upload_mut().daemon(),
        }
    }

    pub(crate) fn upload_statistics(&self) -> Option<UploadMetrics> {
        self.upload().map(|upload| UploadMetrics(upload.upload_statistics()))
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

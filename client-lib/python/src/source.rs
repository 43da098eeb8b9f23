//! Where a session's batches come: in this process's memory, or on a device. What both can do, under one name.

use forebay_client::cuda::{Upload, UploadStatistics};
use forebay_client::{Error, Loader, Placement, State, TensorSpec, WaitStatistics};
use forebay_protocol::frames::Attached;
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// An attached loader, or the upload that has it.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "there is one for each session")]
pub(crate) enum Source {
    Host(Loader),
    Device(Upload),
}

/// Gives the same call to whichever it is.
macro_rules! either {
    ($source:expr, $inner:ident => $call:expr) => {
        match $source {
            Source::Host($inner) => $call,
            Source::Device($inner) => $call,
        }
    };
}

impl Source {
    /// The loader of a session in this process's memory.
    pub(crate) fn host(&mut self) -> Result<&mut Loader, Error> {
        match self {
            Self::Host(loader) => Ok(loader),
            Self::Device(_) => Err(Error::Config("this session's batches are on a device".into())),
        }
    }

    /// The upload of a session on a device.
    pub(crate) fn device(&mut self) -> Result<&mut Upload, Error> {
        match self {
            Self::Device(upload) => Ok(upload),
            Self::Host(_) => Err(Error::Config("this session has no device".into())),
        }
    }

    /// The tensors as the user gets them.
    pub(crate) fn specs(&self) -> &[TensorSpec] {
        match self {
            Self::Host(loader) => &loader.terms().tensors,
            Self::Device(upload) => upload.specs(),
        }
    }

    pub(crate) fn begin_epoch(&mut self) -> Result<(), Error> {
        either!(self, inner => inner.begin_epoch())
    }

    pub(crate) fn state(&self, held_back: usize) -> Result<State, Error> {
        either!(self, inner => inner.state(held_back))
    }

    pub(crate) fn load_state(&mut self, state: &State, force: bool) -> Result<(), Error> {
        either!(self, inner => inner.load_state(state, force))
    }

    pub(crate) fn set_epoch(&mut self, epoch: u64) -> Result<(), Error> {
        either!(self, inner => inner.set_epoch(epoch))
    }

    pub(crate) fn stats(&mut self) -> Result<String, Error> {
        either!(self, inner => inner.stats())
    }

    pub(crate) fn wait_statistics(&self) -> &WaitStatistics {
        either!(self, inner => inner.wait_statistics())
    }

    pub(crate) fn terms(&self) -> &Attached {
        either!(self, inner => inner.terms())
    }

    pub(crate) fn placement(&self) -> Placement {
        either!(self, inner => inner.placement())
    }

    pub(crate) fn given_up(&self) -> u64 {
        either!(self, inner => inner.given_up())
    }

    /// The slots of the ring that this process holds.
    pub(crate) fn held(&self) -> u64 {
        match self {
            Self::Host(loader) => loader.held(),
            Self::Device(upload) => upload.slots_in_flight(),
        }
    }

    /// The private daemon's process, and how often a daemon was replaced.
    pub(crate) fn daemon(&mut self) -> Result<(Option<u32>, u64), Error> {
        match self {
            Self::Host(loader) => Ok((loader.private_process(), loader.restarts())),
            Self::Device(upload) => upload.daemon(),
        }
    }

    pub(crate) fn upload_statistics(&self) -> Option<Figures> {
        match self {
            Self::Host(_) => None,
            Self::Device(upload) => Some(Figures(upload.upload_statistics())),
        }
    }
}

/// An upload's figures, for Python.
pub(crate) struct Figures(UploadStatistics);

impl Figures {
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

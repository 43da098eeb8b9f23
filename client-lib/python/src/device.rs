//! Batches on a GPU for Python: the memory is offered by whoever owns it there (PyTorch's allocator), as objects that keep
//! it and the addresses in it.
//!
//! An offered object is kept here until its batch was handed over, or until the upload has ended and waited for its
//! copies; so the memory never goes while something may be written to it.

#![allow(unsafe_code)]

use std::collections::HashMap;
use std::sync::Mutex;

use forebay_client::cuda::{Device, Part, PinPolicy, Upload, Uploaded};
use forebay_client::{Builder, Error};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::session::{Session, lock};
use crate::source::Source;

/// What was asked for.
pub(crate) struct DeviceRequest {
    pub(crate) ordinal: usize,
    /// The policy's name.
    pub(crate) pin: String,
    /// The handle of the stream that copies are queued on.
    pub(crate) side: usize,
}

impl DeviceRequest {
    /// Attaches and begins to upload.
    pub(crate) fn attach(&self, builder: Builder) -> Result<Source, Error> {
        let pin = PinPolicy::from_name(&self.pin)?;
        let device = Device::open(self.ordinal)?;
        let loader = builder.unfinished(true).attach()?;
        // SAFETY: `forebay.torch` makes the stream, of this device and non-blocking, and keeps it beside the session.
        let upload = unsafe { Upload::start_on_stream(loader, &device, pin, self.side)? };
        Ok(Source::Device(upload))
    }
}

/// The objects that keep the memory which was offered, by the offers' numbers.
#[derive(Debug, Default)]
pub(crate) struct Owners(Mutex<(u64, HashMap<u64, Py<PyAny>>)>);

impl Owners {
    fn add(&self, owner: Py<PyAny>) -> u64 {
        let mut owners = lock(&self.0);
        owners.0 += 1;
        let token = owners.0;
        owners.1.insert(token, owner);
        token
    }

    fn take(&self, token: u64) -> Option<Py<PyAny>> {
        lock(&self.0).1.remove(&token)
    }

    /// Lets go of all of them: the upload has ended.
    pub(crate) fn clear(&self) {
        let owners = std::mem::take(&mut lock(&self.0).1);
        drop(owners);
    }
}

/// A region: its tensor, whether it is a ragged one's table, the bytes of a full batch, the rows of the table.
pub(crate) type Piece = (usize, bool, usize, usize);

/// A batch: its owner, its rows, and the bytes of each tensor.
pub(crate) type Given = (Py<PyAny>, u64, Vec<u64>);

impl Session {
    /// The pieces of a batch on the device.
    pub(crate) fn device_regions(&self, py: Python<'_>) -> PyResult<Vec<Piece>> {
        self.run(py, |source| {
            let regions = source.device()?.regions().iter();
            Ok(regions
                .map(|region| {
                    let is_table = region.part == Part::Table;
                    (region.tensor, is_table, region.bytes, region.table_rows)
                })
                .collect())
        })
    }

    /// Offers memory for one batch: an address for each region, and what keeps them.
    pub(crate) fn offer_memory(
        &self,
        py: Python<'_>,
        owner: Py<PyAny>,
        addresses: Vec<u64>,
    ) -> PyResult<()> {
        let token = self.owners.add(owner);
        let offered = self.run(py, |source| {
            let upload = source.device()?;
            if addresses.len() != upload.regions().len() {
                return Ok(false);
            }
            // SAFETY: `forebay.torch` allocates each region's bytes on the device, and the owner keeps them until the batch
            // was handed over or the upload has ended.
            unsafe { upload.offer(token, addresses) };
            Ok(true)
        });
        match offered {
            Ok(true) => Ok(()),
            other => {
                self.owners.take(token);
                other?;
                Err(PyValueError::new_err("as many addresses as there are regions"))
            }
        }
    }

    /// The next batch of this iterator's epoch: what keeps it, its rows, and the bytes of each tensor. The stream of this
    /// handle waits for the copy.
    pub(crate) fn take_on_device(
        &self,
        py: Python<'_>,
        iteration: u64,
        stream: usize,
    ) -> PyResult<Option<Given>> {
        if !self.is_newest(iteration) {
            return Ok(None);
        }
        let at_once = self.run_at_once(|source| {
            let upload = source.device()?;
            // SAFETY: `forebay.torch` gives its current stream's handle, of the upload's device.
            if upload.is_ready() { unsafe { upload.next(stream) }.map(Some) } else { Ok(None) }
        });
        let next: Option<Uploaded> = match at_once {
            Some(Ok(Some(next))) => next,
            Some(Err(error)) => return Err(self.raise(py, &error)),
            Some(Ok(None)) | None => self.run(py, |source| {
                let upload = source.device()?;
                // SAFETY: as above.
                unsafe { upload.next(stream) }
            })?,
        };
        let Some(uploaded) = next else { return Ok(None) };
        let owner = self.owners.take(uploaded.token);
        let owner = owner.ok_or_else(|| PyValueError::new_err("a batch that nobody keeps"))?;
        Ok(Some((owner, uploaded.rows, uploaded.length_bytes)))
    }
}

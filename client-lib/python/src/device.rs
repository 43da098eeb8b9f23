//! Batches on a GPU for Python: in memory that the caller offers (from PyTorch's allocator), as the object that owns it
//! and addresses in it; or in the client's own memory, as [`Array`]s.
//!
//! An offered object is kept here until its batch is handed over, or until the upload has ended and its copies are
//! complete, so the memory is not freed while a copy may write to it.

#![allow(unsafe_code)]

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use forebay_client::cuda::{Device, DeviceOptions, Part, PinPolicy, Upload};
use forebay_client::{Builder, DType, DeviceBatch, Error, Extent};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::dlpack::Array;
use crate::shared_source::{SharedSource, lock};
use crate::source::Source;

/// The `device` argument of a session.
#[derive(FromPyObject)]
pub(crate) struct DeviceRequest {
    /// The device's index.
    ordinal: usize,
    /// The policy's name.
    pin: String,
    /// For the client's own memory: (batches ahead, batches held).
    pool: Option<(usize, usize)>,
}

impl DeviceRequest {
    /// Attaches and starts the upload. Opens the device first, so that no daemon is started without one.
    pub(crate) fn attach(&self, builder: Builder) -> Result<Source, Error> {
        let pin = PinPolicy::from_name(&self.pin)?;
        let device = Device::open(self.ordinal)?;
        if let Some((ahead, device_hold)) = self.pool {
            let options = DeviceOptions { pin, ahead, device_hold };
            return Ok(Source::Pool(builder.attach_to(&device, options)?));
        }
        let loader = builder.unfinished(true).attach()?;
        Ok(Source::Device(Upload::start(loader, &device, pin)?))
    }
}

/// The owners of offered memory, by token.
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

    /// The number of offers that are not taken.
    pub(crate) fn count(&self) -> usize {
        lock(&self.0).1.len()
    }

    /// Drops all of them after the upload has ended.
    pub(crate) fn clear(&self) {
        let owners = std::mem::take(&mut lock(&self.0).1);
        drop(owners);
    }
}

/// A region: its tensor, whether it is a ragged tensor's table, the bytes of a full batch, the rows of the table.
pub(crate) type RegionTuple = (usize, bool, usize, usize);

/// The regions of a batch on the device.
pub(crate) fn regions(upload: &Upload) -> Vec<RegionTuple> {
    let regions = upload.regions().iter();
    regions.map(|one| (one.tensor, one.part == Part::Table, one.bytes, one.table_rows)).collect()
}

/// A batch: its owner, its rows, and the bytes of each tensor.
pub(crate) type DeviceItem = (Py<PyAny>, u64, Vec<u64>);

impl SharedSource {
    /// Offers memory for one batch: an address for each region, and the object that owns them.
    pub(crate) fn offer_memory(
        &self,
        py: Python<'_>,
        owners: &Owners,
        owner: Py<PyAny>,
        addresses: Vec<u64>,
    ) -> PyResult<()> {
        let token = owners.add(owner);
        let offered = self.run(py, |source| {
            let upload = source.device()?;
            if addresses.len() != upload.regions().len() {
                return Ok(false);
            }
            // SAFETY: `forebay.torch` allocates each region's bytes on the device, and the owner keeps them until the batch
            // is handed over or the upload has ended.
            unsafe { upload.offer(token, addresses) };
            Ok(true)
        });
        match offered {
            Ok(true) => Ok(()),
            other => {
                owners.take(token);
                other?;
                Err(PyValueError::new_err("one address for each region is required"))
            }
        }
    }

    /// The next batch of this iterator's epoch: its owner, its rows, and the bytes of each tensor. The stream with this
    /// handle waits for the copy.
    pub(crate) fn take_on_device(
        &self,
        py: Python<'_>,
        owners: &Owners,
        iteration: u64,
        stream: usize,
    ) -> PyResult<Option<DeviceItem>> {
        let next = self.take(
            py,
            iteration,
            |source| {
                let upload = source.device()?;
                // SAFETY: `forebay.torch` passes its current stream's handle, of the upload's device.
                if upload.is_ready() { unsafe { upload.next(stream) }.map(Some) } else { Ok(None) }
            },
            |source| {
                let upload = source.device()?;
                if !upload.wait()? {
                    return Ok(None);
                }
                // SAFETY: as above.
                unsafe { upload.next(stream) }.map(Some)
            },
        )?;
        let Some(uploaded) = next.flatten() else { return Ok(None) };
        let owner = owners.take(uploaded.token);
        let owner = owner.ok_or_else(|| PyValueError::new_err("a batch without an owner"))?;
        Ok(Some((owner, uploaded.rows, uploaded.length_bytes)))
    }

    /// The next batch of this iterator's epoch, as arrays in the client's own memory on the device.
    pub(crate) fn take_arrays<'py>(
        &self,
        py: Python<'py>,
        iteration: u64,
    ) -> PyResult<Option<Bound<'py, PyDict>>> {
        let next = self.take(
            py,
            iteration,
            |source| {
                let loader = source.pool()?;
                if loader.is_ready() { loader.next_unordered().map(Some) } else { Ok(None) }
            },
            |source| {
                let loader = source.pool()?;
                loader.offer()?;
                // The epoch has ended; the next iterator begins the next one.
                match (loader.wait()?, loader.is_open()) {
                    (false, _) => Ok(None),
                    (true, false) => Ok(Some(None)),
                    (true, true) => loader.next_unordered().map(Some),
                }
            },
        )?;
        next.flatten().map(|batch| to_arrays(py, batch)).transpose()
    }
}

/// A batch's tensors as arrays that keep the batch alive; small ones keep only the batch's small memory alive.
fn to_arrays(py: Python<'_>, batch: DeviceBatch) -> PyResult<Bound<'_, PyDict>> {
    let missing = || PyValueError::new_err("a tensor that the batch does not have");
    let (large, small) = batch.split();
    let (large, small) = (Arc::new(large), Arc::new(small));
    let ragged_class = py.import("forebay._ragged")?.getattr("Ragged")?;
    let dict = PyDict::new(py);
    for spec in large.specs() {
        let batch = if large.bytes(&spec.name).is_some() { &large } else { &small };
        let bytes = batch.bytes(&spec.name).ok_or_else(missing)?;
        let at = DeviceBatch::address(&bytes);
        if matches!(spec.extent, Extent::Ragged { .. }) {
            let (offsets, lengths) = batch.table(&spec.name).ok_or_else(missing)?;
            let elements = bytes.len() as u64 / spec.dtype.size_bytes();
            // Offsets and lengths are far below 2^63, so u64 reads as i64.
            let column = |view| {
                Array::new(batch, DeviceBatch::address(view), DType::I64, vec![batch.rows()])
            };
            let values = Array::new(batch, at, spec.dtype, vec![elements]);
            let parts = (values, column(&offsets), column(&lengths), spec.row_shape.clone());
            let ragged = ragged_class.call1(parts)?;
            dict.set_item(&spec.name, ragged)?;
        } else {
            let mut shape = vec![batch.rows()];
            shape.extend(&spec.row_shape);
            dict.set_item(&spec.name, Array::new(batch, at, spec.dtype, shape))?;
        }
    }
    Ok(dict)
}

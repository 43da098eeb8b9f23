//! Opens a device.

use std::sync::Arc;

use super::driver::Gpu;
use crate::error::Error;

/// A CUDA device, opened: its primary context, which PyTorch and the CUDA runtime use too.
#[derive(Debug, Clone)]
pub struct Device(pub(crate) Arc<Gpu>);

impl Device {
    /// Opens a device by its index among the devices visible to the process (CUDA_VISIBLE_DEVICES, MIG). The calling
    /// thread's current context does not change.
    ///
    /// # Errors
    /// [`Error::Config`] without a driver or such a device, with the remedy; [`Error::Gpu`] when the driver fails.
    pub fn open(ordinal: usize) -> Result<Self, Error> {
        let opening = std::thread::Builder::new()
            .name("forebay-open".into())
            .spawn(move || Gpu::open(ordinal))
            .map_err(|error| {
                Error::Memory(format!("starting a thread to open the device failed: {error}"))
            })?;
        opening
            .join()
            .unwrap_or_else(|_| {
                Err(Error::Gpu(format!(
                    "cuda:{ordinal}: the driver's library lacks a function; update the driver"
                )))
            })
            .map(Self)
    }

    /// The device's index.
    #[must_use]
    pub fn ordinal(&self) -> usize {
        self.0.ordinal()
    }
}

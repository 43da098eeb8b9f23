//! The last step of a field with `on = "gpu"`: its bytes are copied beside the destination, and a kernel on the side stream
//! makes of them what the configuration says, in the destination.
//!
//! The bytes lie in memory of this module's own, one batch's, used by one batch after the other in the stream's order. The
//! values come from the table that the daemon would have used (see [`crate::finish`]), so they are the daemon's to the bit.

use std::sync::Arc;

use cudarc::driver::{CudaSlice, CudaStream, DevicePtr};

use super::driver::{Gpu, Kernel};
use super::regions::Region;
use crate::error::Error;
use crate::finish::FinishPlan;

/// What one field's last step needs on the device.
#[derive(Debug)]
pub(crate) struct Finisher {
    gpu: Arc<Gpu>,
    plan: Arc<FinishPlan>,
    kernel: Kernel,
    raw: CudaSlice<u8>,
    table: CudaSlice<u8>,
}

fn address(memory: &CudaSlice<u8>) -> u64 {
    memory.device_ptr(memory.stream()).0
}

impl Finisher {
    /// Makes everything ready for a region's field; `None` where nothing is left to be done.
    pub(crate) fn of(
        region: &Region,
        gpu: &Arc<Gpu>,
        side: &Arc<CudaStream>,
    ) -> Result<Option<Self>, Error> {
        let Some(plan) = &region.finish else { return Ok(None) };
        let kernel = gpu.kernel(plan.kernel())?;
        let made = gpu.within(|| {
            // SAFETY: both are written to in the side stream's order before the kernel reads them.
            let raw = unsafe { side.alloc::<u8>(region.raw_bytes.max(1))? };
            Ok((raw, side.clone_htod(plan.table())?))
        })?;
        let (raw, table) =
            made.map_err(|error| gpu.failed("allocating memory for finishing a field", error))?;
        Ok(Some(Self { gpu: Arc::clone(gpu), plan: Arc::clone(plan), kernel, raw, table }))
    }

    /// Where the bytes are to be copied to.
    pub(crate) fn raw_address(&self) -> u64 {
        address(&self.raw)
    }

    /// Queues the kernel, behind the copy of so many bytes.
    ///
    /// # Safety
    /// `to` must be device memory for the finished rows, which nobody uses before an event that is recorded next.
    pub(crate) unsafe fn queue(
        &self,
        to: u64,
        raw_bytes: usize,
        side: &CudaStream,
    ) -> Result<(), Error> {
        let pixels = raw_bytes as u64 / u64::from(self.plan.channels());
        if pixels == 0 {
            return Ok(());
        }
        let numbers = [self.raw_address(), to, address(&self.table), pixels];
        let sizes = [
            self.plan.pixels_per_row(),
            self.plan.channels(),
            u32::from(self.plan.channels_first()),
        ];
        // SAFETY: these are the parameters that the kernels' head names; `raw` and `table` are as large as the plan says
        // and live as long as this value, which outlives the stream's work: the reaper waits for it.
        unsafe { self.gpu.launch(&self.kernel, pixels, numbers, sizes, side) }
    }
}

//! Finishes a field with `on = "gpu"`: its raw bytes are copied to an intermediate buffer, and a kernel on the side stream
//! writes the finished field to the destination.
//!
//! The intermediate buffer holds one batch and is reused by each batch in stream order. The values come from the
//! daemon's table (see [`crate::finish`]), so they are bit-identical to the daemon's. If rows are mixed, the batch's
//! mixes precede them in the slot; both are one copy.

use std::sync::Arc;

use cudarc::driver::{CudaSlice, CudaStream, DevicePtr};

use super::driver::{Gpu, Kernel};
use super::regions::Region;
use crate::error::Error;
use crate::finish::FinishPlan;

/// The device memory and the kernel for one field.
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
    /// The finisher of a region's field; `None` if the field needs no finishing.
    pub(crate) fn of(
        region: &Region,
        gpu: &Arc<Gpu>,
        side: &Arc<CudaStream>,
    ) -> Result<Option<Self>, Error> {
        let Some(plan) = &region.finish else { return Ok(None) };
        let kernel = gpu.kernel(plan.kernels(), plan.kernel())?;
        let made = gpu.with_context(|| {
            // SAFETY: both are written before the kernel reads them, in the side stream's order.
            let raw = unsafe { side.alloc::<u8>(region.raw_bytes.max(1))? };
            Ok((raw, side.clone_htod(&*plan.kernel_table())?))
        })?;
        let (raw, table) =
            made.map_err(|error| gpu.failed("allocating memory for finishing a field", error))?;
        Ok(Some(Self { gpu: Arc::clone(gpu), plan: Arc::clone(plan), kernel, raw, table }))
    }

    /// The address of the intermediate buffer.
    pub(crate) fn raw_address(&self) -> u64 {
        address(&self.raw)
    }

    /// Queues the kernel after the copy of `raw_bytes`: the mixes, if there are any, and the rows.
    ///
    /// # Safety
    /// `to` must be device memory for the finished rows that is not used before an event that is recorded afterwards.
    pub(crate) unsafe fn queue(
        &self,
        to: u64,
        raw_bytes: usize,
        side: &CudaStream,
    ) -> Result<(), Error> {
        let plan = &self.plan;
        let (mixes, rows) = (self.raw_address(), self.raw_address() + plan.mixes_bytes() as u64);
        let row_bytes = raw_bytes.saturating_sub(plan.mixes_bytes()) as u64;
        let pixels = row_bytes / u64::from(plan.channels());
        if pixels == 0 {
            return Ok(());
        }
        let mut numbers = vec![rows, to, address(&self.table), pixels];
        let channels_first = u32::from(plan.channels_first());
        let mut sizes = vec![plan.pixels_per_row(), plan.channels(), channels_first];
        if plan.mixes() > 0 {
            numbers.push(mixes);
            sizes.extend([plan.width(), plan.finished().dtype as u32, plan.mixes()]);
        }
        // SAFETY: these are the documented parameters of the kernel; `raw` and `table` have the plan's sizes and live as
        // long as this value, which outlives the stream's work: the reaper waits for it.
        unsafe { self.gpu.launch(&self.kernel, pixels, &mut numbers, &mut sizes, side) }
    }
}

//! The memory of a device loader's batches, free or offered to the upload.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cudarc::driver::CudaSlice;

use super::driver::{Event, Gpu};

/// The location of a region.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    /// The index of the batch's block: 0, or 1 for small fields.
    pub block: usize,
    pub offset: usize,
}

/// Memory of one batch, with the events that must complete before it is overwritten or freed.
#[derive(Debug)]
pub(super) struct Block {
    pub memory: Option<CudaSlice<u8>>,
    pub after: Vec<Arc<Event>>,
    pub gpu: Arc<Gpu>,
}

impl Drop for Block {
    fn drop(&mut self) {
        let Some(memory) = self.memory.take() else { return };
        let side = memory.stream().cu_stream() as usize;
        // SAFETY: the memory holds its stream.
        let is_ordered = self.after.iter().all(|used| unsafe { self.gpu.wait(side, used) }.is_ok());
        if is_ordered {
            // Stream-ordered, after the waits.
            let _ = self.gpu.with_context(|| drop(memory));
        } else {
            // The device has failed: memory that may still be in use is leaked.
            std::mem::forget(memory);
        }
    }
}

/// A batch's two blocks; `None` if the schema has no such fields.
pub(super) type Blocks = [Option<Block>; 2];

/// The free blocks, and the blocks offered to the upload.
#[derive(Debug, Default)]
pub(super) struct Pool {
    pub free: [Vec<Block>; 2],
    pub offered: Vec<(u64, Blocks)>,
    /// The number of batches that the user holds.
    pub held: usize,
}

pub(super) fn lock(pool: &Mutex<Pool>) -> MutexGuard<'_, Pool> {
    pool.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) fn address(memory: &CudaSlice<u8>) -> u64 {
    use cudarc::driver::DevicePtr;
    // The guard would record a use for cudarc's event tracking, which is disabled.
    memory.device_ptr(memory.stream()).0
}

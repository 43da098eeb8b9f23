//! Batches on the GPU: each slot's bytes are copied on a side stream, ahead of the trainer, without blocking other streams
//! or threads.
//!
//! Threads: the **trainer's** takes batches ([`Upload::next`]); the **upload thread** owns the [`Loader`](crate::Loader),
//! takes from the ring and queues copies; the **reaper** waits for each copy and releases its slot; a fourth registers
//! the ring once and ends.
//!
//! The states of a **slot** and their transitions:
//! ```text
//!   taken ──upload thread: copy queued, `copied` recorded──► copying ──reaper: `copied` completed──► returned
//!     └──staged: upload thread copied it into pinned memory──────────────────────────────────────► returned
//! ```
//! A slot is never returned before `copied` has completed, and is then returned without the trainer's participation.
//!
//! The states of a **destination**:
//! ```text
//!   free ──trainer: offer──► offered ──upload thread: side stream waits for `after`, copy queued──► filled
//!    ▲                          ▲                                                                     │
//!    │                          └──a seek discards it: the next copy is ordered after it──────────────┤
//!    │                                                                                                │
//!    └──last view dropped: an event per stream that used it becomes `after`──── held ◄──trainer: next─┘
//!                                                                  (the caller's stream waits for `copied`)
//! ```
//! A block keeps its `after` events until a copy into it is queued after them; if it is freed earlier, the free is
//! ordered after them too. This is [`DeviceLoader`]'s pool. PyTorch's allocator does the same for every tensor:
//! allocated on the side stream and marked by `record_stream`, a block is reused when the events that the allocator
//! records at the last view's end have completed.
//!
//! **Errors.** The loader's errors are returned in order with the batches, and the caller may retry. A driver error ends
//! the upload ([`Error::Gpu`](crate::Error::Gpu)): its slots are returned, the daemon continues, and the state says where
//! to resume. **Shutdown:** the upload thread stops, the reaper waits for every copy, the loader is dropped, and the ring
//! is unregistered and unmapped when the last lease has ended.

#![allow(unsafe_code)]

mod device;
mod device_loader;
mod device_pool;
mod driver;
mod finisher;
mod pin;
mod regions;
mod shared;
mod upload;
mod uploader;

pub use cudarc;
pub use device::Device;
pub use device_loader::{DeviceBatch, DeviceLoader, DeviceOptions, SMALL_FIELD_BYTES};
pub use pin::PinPolicy;
pub use regions::{Part, Region};
pub use upload::{Upload, UploadStatistics, Uploaded};

//! Batches on the GPU: each slot's bytes are copied on a side stream, ahead of the trainer, and nobody waits for a copy
//! who does not need it.
//!
//! Threads: the **trainer's** takes batches ([`Upload::next`]); the **upload thread** holds the [`Loader`](crate::Loader),
//! takes from the ring and queues copies; the **reaper** waits for each copy and lets its slot go; a fourth registers
//! the ring once and ends.
//!
//! A **slot**'s way, and who moves it:
//! ```text
//!   taken ──upload thread: copy queued, `copied` recorded──► copying ──reaper: `copied` completed──► returned
//!     └──staged: upload thread copied it into pinned memory──────────────────────────────────────► returned
//! ```
//! A slot is never returned before `copied` has completed, and needs nobody's help to return then.
//!
//! A **destination**'s way:
//! ```text
//!   free ──trainer: offer──► offered ──upload thread: side stream waits for `after`, copy queued──► filled
//!    ▲                          ▲                                                                     │
//!    │                          └──a jump discards it: the next copy is behind in the same stream─────┤
//!    │                                                                                                │
//!    └──last view dropped: an event per stream that used it becomes `after`──── held ◄──trainer: next─┘
//!                                                                  (the caller's stream waits for `copied`)
//! ```
//! A block keeps its `after` events until a copy into it is queued behind them: freed before that, it is freed behind them.
//! Here the memory is [`DeviceLoader`]'s own pool. Under PyTorch its allocator does the same for every tensor: allocated
//! on the side stream and marked by `record_stream`, a block is given out again when the events that the allocator records
//! at the last view's end have completed.
//!
//! **Errors.** What the loader says comes in the batches' order and the caller may try again. What the driver says ends
//! the upload for good ([`Error::Gpu`](crate::Error::Gpu)), its slots return and the daemon goes on; the state says where
//! to resume. **Order of the end:** the upload thread stops, the reaper has seen every copy, the loader goes, the ring
//! unregisters and is then unmapped when the last lease has gone.

#![allow(unsafe_code)]

mod device;
mod device_loader;
mod driver;
mod finisher;
mod pin;
mod regions;
mod shared;
mod upload;
mod uploader;

pub use cudarc;
pub use device::Device;
pub use device_loader::{DeviceBatch, DeviceLoader, DeviceOptions};
pub use pin::PinPolicy;
pub use regions::{Part, Region};
pub use upload::{Upload, UploadStatistics, Uploaded};

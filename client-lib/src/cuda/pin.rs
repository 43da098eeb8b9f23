//! The path of a batch's bytes to the copy engine: directly from the ring's pinned slots, through pinned staging buffers,
//! or from pageable memory.
//!
//! The ring is registered once, on a separate thread, because pinning runs at one or two GB/s. Until that is done, and
//! if the platform refuses it (confidential computing, a limit of locked memory), batches go through two staging
//! buffers at the cost of one copy by the CPU. The registration ends just before the ring is unmapped: the ring owns
//! it. The daemon that replaces a dead one adopts the same segment, so it is not registered again.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::driver::{Gpu, PinnedMemory};
use crate::error::Error;
use crate::ring::{Registration, Ring};
use crate::supervisor::spawn;

/// How the ring's memory is prepared for the copy engine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum PinPolicy {
    /// Register the ring; use staging buffers until that is done or where it is refused. The default.
    #[default]
    Auto,
    /// Register the ring, or fail.
    Register,
    /// Use pinned staging buffers: for platforms where registering is harmful.
    Stage,
    /// Copy from pageable memory: slow, and synchronous with the caller.
    Off,
}

impl PinPolicy {
    /// The policy of this name: `auto`, `register`, `stage` or `off`.
    ///
    /// # Errors
    /// [`Error::Config`] with the valid names.
    pub fn from_name(name: &str) -> Result<Self, Error> {
        match name {
            "auto" => Ok(Self::Auto),
            "register" => Ok(Self::Register),
            "stage" => Ok(Self::Stage),
            "off" => Ok(Self::Off),
            _ => Err(Error::Config(format!(
                "pin = {name:?}; it is \"auto\", \"register\", \"stage\" or \"off\""
            ))),
        }
    }
}

/// The present path of batches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Path {
    /// From the ring's pinned slots.
    Registered,
    /// Through pinned staging buffers, with the reason.
    Staged(String),
    /// From pageable memory, with the reason.
    Pageable(String),
    /// Registering failed and the policy allows no other path.
    Refused(Error),
}

impl Path {
    /// The path's name in the statistics.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Registered => "registered",
            Self::Staged(_) => "staged",
            Self::Pageable(_) => "pageable",
            Self::Refused(_) => "refused",
        }
    }

    /// Why the ring is not registered.
    pub(crate) fn reason(&self) -> &str {
        match self {
            Self::Registered | Self::Refused(_) => "",
            Self::Staged(reason) | Self::Pageable(reason) => reason,
        }
    }
}

/// The registration of a ring's data segment.
#[derive(Debug)]
struct RingRegistration {
    gpu: Arc<Gpu>,
    start: *mut u8,
}

// SAFETY: the pointer is only passed to the driver, which may be called from any thread.
unsafe impl Send for RingRegistration {}
// SAFETY: as above; nothing is written through it.
unsafe impl Sync for RingRegistration {}

impl Registration for RingRegistration {}

impl Drop for RingRegistration {
    fn drop(&mut self) {
        // SAFETY: `register` was called with this address; the ring drops this value just before it unmaps, which it does
        // when no lease exists, and a lease exists for each pending copy.
        unsafe { self.gpu.unregister(self.start) };
    }
}

/// The present path, shared with the thread that registers.
#[derive(Debug)]
pub(crate) struct Pinning {
    path: Mutex<Path>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Pinning {
    /// Starts preparing the ring.
    pub(crate) fn begin(
        policy: PinPolicy,
        gpu: &Arc<Gpu>,
        ring: &Arc<Ring>,
    ) -> Result<Arc<Self>, Error> {
        let first = match policy {
            PinPolicy::Auto => Path::Staged("the ring is being pinned".into()),
            PinPolicy::Stage => Path::Staged("pin = \"stage\"".into()),
            PinPolicy::Off => Path::Pageable("pin = \"off\"".into()),
            PinPolicy::Register => {
                register(gpu, ring).map_or_else(Path::Refused, |()| Path::Registered)
            }
        };
        if let Path::Refused(error) = first {
            let text =
                format!("{error}; with pin = \"auto\" copies would go through pinned buffers");
            return Err(Error::Gpu(text));
        }
        let pinning = Arc::new(Self { path: Mutex::new(first) });
        if policy == PinPolicy::Auto {
            let (pinning, gpu, ring) = (Arc::clone(&pinning), Arc::clone(gpu), Arc::clone(ring));
            let registering = move || {
                gpu.relax_capture_mode();
                let path = match register(&gpu, &ring) {
                    Ok(()) => Path::Registered,
                    Err(error) => Path::Staged(error.to_string()),
                };
                *lock(&pinning.path) = path;
                drop(ring);
            };
            spawn("forebay-pin", registering)?;
        }
        Ok(pinning)
    }

    /// The present path.
    pub(crate) fn path(&self) -> Path {
        lock(&self.path).clone()
    }

    /// Switches to pageable memory: no pinned memory is available.
    pub(crate) fn fall_back_to_pageable(&self, why: &Error) {
        *lock(&self.path) = Path::Pageable(why.to_string());
    }
}

fn register(gpu: &Arc<Gpu>, ring: &Arc<Ring>) -> Result<(), Error> {
    let (start, bytes) = ring.data().ok_or(Error::Forked)?;
    // SAFETY: the segment is mapped as long as the ring lives, and the registration below ends before that.
    unsafe { gpu.register(start, bytes)? };
    ring.keep_registration(Box::new(RingRegistration { gpu: Arc::clone(gpu), start }));
    Ok(())
}

/// The staging buffers, allocated at first use. A pending copy owns its buffer.
#[derive(Debug, Default)]
pub(crate) struct Staging {
    free: Vec<PinnedMemory>,
    made: usize,
    cpu_time: Duration,
}

/// The maximum number of batches in staging buffers at a time.
const STAGING_BUFFERS: usize = 2;

/// The result of [`Staging::take`].
#[derive(Debug)]
pub(crate) enum Buffer {
    Free(PinnedMemory),
    /// The caller must allocate one more.
    Allocate,
    /// All are in use.
    None,
}

impl Staging {
    /// Takes a free buffer.
    pub(crate) fn take(&mut self) -> Buffer {
        if let Some(buffer) = self.free.pop() {
            return Buffer::Free(buffer);
        }
        if self.made == STAGING_BUFFERS {
            return Buffer::None;
        }
        self.made += 1;
        Buffer::Allocate
    }

    /// Whether all buffers are in use.
    pub(crate) fn is_used_up(&self) -> bool {
        self.free.is_empty() && self.made == STAGING_BUFFERS
    }

    /// Whether copies from buffers are pending.
    pub(crate) fn is_busy(&self) -> bool {
        self.free.len() < self.made
    }

    /// Returns a buffer after its copy.
    pub(crate) fn give_back(&mut self, buffer: PinnedMemory) {
        self.free.push(buffer);
    }

    /// Adds the CPU time of filling a buffer, which began at `begun`.
    pub(crate) fn filled_since(&mut self, begun: Instant) {
        self.cpu_time += begun.elapsed();
    }

    /// The CPU time of all copies into buffers.
    pub(crate) fn cpu_time(&self) -> Duration {
        self.cpu_time
    }
}

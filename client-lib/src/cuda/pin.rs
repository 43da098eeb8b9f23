//! By which way a batch's bytes reach the copy engine: straight from the ring's pinned slots, through pinned memory of the
//! driver's own, or from memory that is not pinned.
//!
//! The ring is registered once, on a thread of its own, since pinning runs at one or two GB/s; until that is done, and
//! where the platform refuses it (confidential computing, a limit of locked memory), batches go through two staging
//! buffers, which costs one copy by the CPU. The registration ends just before the ring is unmapped: the ring keeps it.
//! A daemon that dies and comes back takes the same segment over, so nothing is registered anew.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::driver::{Gpu, PinnedMemory};
use crate::error::Error;
use crate::keeper::spawn;
use crate::ring::{Registration, Ring};

/// How the ring's memory is made ready for the copy engine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum PinPolicy {
    /// Registered, and staged where that is refused and until it is done. The default.
    #[default]
    Auto,
    /// Registered, or an error.
    Register,
    /// Through pinned staging buffers: for platforms where registering does harm.
    Stage,
    /// Straight from memory that is not pinned: the driver copies it by itself, slowly and in step with the caller.
    Off,
}

impl PinPolicy {
    /// The policy of this name: `auto`, `register`, `stage` or `off`.
    ///
    /// # Errors
    /// [`Error::Config`] with the names that there are.
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

/// The way that batches take at present.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Path {
    /// From the ring's slots, which are pinned.
    Registered,
    /// Through pinned memory; why not straight.
    Staged(String),
    /// From memory that is not pinned; why.
    Pageable(String),
    /// The policy allows no other way than the one that was refused.
    Refused(Error),
}

impl Path {
    /// Its name in the statistics.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Registered => "registered",
            Self::Staged(_) => "staged",
            Self::Pageable(_) => "pageable",
            Self::Refused(_) => "refused",
        }
    }

    /// Why it is not the straight one.
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

// SAFETY: the pointer is an address for the driver alone, which may be called from any thread.
unsafe impl Send for RingRegistration {}
// SAFETY: as above; nothing is changed through it.
unsafe impl Sync for RingRegistration {}

impl Registration for RingRegistration {}

impl Drop for RingRegistration {
    fn drop(&mut self) {
        // SAFETY: `register` was called with this address; the ring keeps this value until just before it unmaps, which it
        // does when no lease exists, and a lease exists for each copy on its way.
        unsafe { self.gpu.unregister(self.start) };
    }
}

/// What is known of the way, shared with the thread that registers.
#[derive(Debug)]
pub(crate) struct Pinning {
    path: Mutex<Path>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Pinning {
    /// Begins to make the ring ready.
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
            let text = format!("{error}; pin = \"auto\" copies through pinned buffers then");
            return Err(Error::Gpu(text));
        }
        let pinning = Arc::new(Self { path: Mutex::new(first) });
        if policy == PinPolicy::Auto {
            let (pinning, gpu, ring) = (Arc::clone(&pinning), Arc::clone(gpu), Arc::clone(ring));
            let registering = move || {
                gpu.stay_out_of_captures();
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

    /// The way at present.
    pub(crate) fn path(&self) -> Path {
        lock(&self.path).clone()
    }

    /// From now on straight from memory that is not pinned: no pinned memory is to be had.
    pub(crate) fn give_up(&self, why: &Error) {
        *lock(&self.path) = Path::Pageable(why.to_string());
    }
}

fn register(gpu: &Arc<Gpu>, ring: &Arc<Ring>) -> Result<(), Error> {
    let (start, bytes) = ring.data().ok_or(Error::Forked)?;
    // SAFETY: the segment is mapped for as long as the ring lives, and the registration below ends before.
    unsafe { gpu.register(start, bytes)? };
    ring.keep_registration(Box::new(RingRegistration { gpu: Arc::clone(gpu), start }));
    Ok(())
}

/// The staging buffers, made when they are first needed. Whoever copies from one owns it until the copy is done.
#[derive(Debug, Default)]
pub(crate) struct Staging {
    free: Vec<PinnedMemory>,
    made: usize,
    cpu_time: Duration,
}

/// So many batches may be on their way through pinned memory at a time.
const STAGING_BUFFERS: usize = 2;

/// What a look for a buffer found.
#[derive(Debug)]
pub(crate) enum Buffer {
    Free(PinnedMemory),
    /// One more may be made; whoever is told this makes it, or says that it failed.
    ToMake,
    /// All are in use.
    None,
}

impl Staging {
    /// A buffer, if there is one.
    pub(crate) fn take(&mut self) -> Buffer {
        if let Some(buffer) = self.free.pop() {
            return Buffer::Free(buffer);
        }
        if self.made == STAGING_BUFFERS {
            return Buffer::None;
        }
        self.made += 1;
        Buffer::ToMake
    }

    /// Whether no batch can be staged now.
    pub(crate) fn is_used_up(&self) -> bool {
        self.free.is_empty() && self.made == STAGING_BUFFERS
    }

    /// Whether copies from buffers are on their way.
    pub(crate) fn is_busy(&self) -> bool {
        self.free.len() < self.made
    }

    /// The copy from it is done.
    pub(crate) fn give_back(&mut self, buffer: PinnedMemory) {
        self.free.push(buffer);
    }

    /// Notes what filling a buffer cost, begun at this moment.
    pub(crate) fn filled_since(&mut self, begun: Instant) {
        self.cpu_time += begun.elapsed();
    }

    /// What the CPU's copies cost up to now.
    pub(crate) fn cpu_time(&self) -> Duration {
        self.cpu_time
    }
}

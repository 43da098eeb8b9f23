//! The trainer's side of an upload: offers destinations, takes batches, and sends all other calls to the upload thread,
//! which owns the loader.
//!
//! The loader is ahead of the user by the batches that are uploaded and not handed over yet. The user's position, batches
//! given up and waits are therefore kept here, and a seek ([`commands`]) discards batches uploaded for the old position.

mod commands;

use std::ops::Deref;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use cudarc::driver::CudaStream;
use forebay_protocol::publish::Descriptor;
use forebay_protocol::tensor::TensorSpec;

use super::device::Device;
use super::driver::{Event, Gpu};
use super::finisher::Finisher;
use super::pin::{PinPolicy, Pinning};
use super::regions::{Region, finished_specs, regions_of};
use super::shared::{Destination, Outcome, Ready, Shared};
use super::uploader::Uploader;
use crate::error::Error;
use crate::link::Interrupt;
use crate::loader::Loader;
use crate::ring::Ring;
use crate::session_status::SessionStatus;

/// How often a wait calls the interrupt.
const SLICE: Duration = Duration::from_millis(50);

/// A batch that is handed over, with its destination; the caller's stream already waits for its copies.
#[derive(Debug, Clone)]
pub struct Uploaded {
    /// The destination's token, as it was offered.
    pub token: u64,
    /// The number of samples.
    pub rows: u64,
    /// The size of each tensor on the device, in the order of the schema.
    pub length_bytes: Vec<u64>,
    /// Its number in the session.
    pub number: u64,
    /// The batch's epoch.
    pub epoch: u64,
    /// Whether it is a replay of an earlier batch, for a measurement.
    pub is_replayed: bool,
    /// Recorded after its copies.
    pub(crate) copied: Arc<Event>,
}

/// Statistics of an upload.
#[derive(Debug, Clone)]
pub struct UploadStatistics {
    /// The path that copies take: `registered`, `staged` or `pageable`.
    pub path: &'static str,
    /// Why it is not `registered`.
    pub reason: String,
    /// The number of batches whose copies were queued.
    pub batches: u64,
    /// Their total size.
    pub bytes: u64,
    /// The CPU time of copies into staging buffers.
    pub staging_time: Duration,
}

/// A session whose batches are copied to a device. [`SessionStatus`] has its terms, position and counts.
#[derive(Debug)]
pub struct Upload {
    shared: Arc<Shared>,
    gpu: Arc<Gpu>,
    side: Arc<CudaStream>,
    regions: Arc<[Region]>,
    pinning: Arc<Pinning>,
    thread: Option<JoinHandle<()>>,
    ring: Arc<Ring>,
    status: SessionStatus,
    /// The schema on the device.
    specs: Arc<[TensorSpec]>,
    timeout: Duration,
    interrupt: UserInterrupt,
}

/// The user's interrupt, with a `Debug` implementation.
struct UserInterrupt(Option<Interrupt>);

impl std::fmt::Debug for UserInterrupt {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_tuple("UserInterrupt").field(&self.0.is_some()).finish()
    }
}

impl UserInterrupt {
    fn is_raised(&mut self) -> bool {
        self.0.as_mut().is_some_and(|interrupt| interrupt())
    }
}

impl Upload {
    /// Starts copying a loader's batches on a side stream.
    ///
    /// # Errors
    /// [`Error::Gpu`] when the driver refuses a stream, or the registration under [`PinPolicy::Register`].
    pub fn start(mut loader: Loader, device: &Device, pin: PinPolicy) -> Result<Self, Error> {
        let side = device.0.side_stream()?;
        let gpu = Arc::clone(&device.0);
        let shared = Arc::new(Shared::new()?);
        let regions: Arc<[Region]> = regions_of(loader.terms())?.into();
        let finishers = regions.iter().map(|region| Finisher::of(region, &gpu, &side));
        let finishers = finishers.collect::<Result<Vec<_>, Error>>()?;
        let specs = finished_specs(loader.terms(), &regions).into();
        let ring = Arc::clone(loader.ring());
        let pinning = Pinning::begin(pin, &gpu, &ring)?;
        let asked = Arc::clone(&shared);
        let interrupt =
            loader.read_ahead(move || asked.should_interrupt(), shared.wake_descriptor()?);
        let terms = Arc::clone(&loader.terms);
        let (cursor, epochs) = loader.reached();
        let mut status = SessionStatus::new(terms, loader.placement(), cursor, Vec::new());
        status.epochs = epochs;
        let mut upload = Self {
            shared: Arc::clone(&shared),
            gpu: Arc::clone(&gpu),
            side: Arc::clone(&side),
            regions: Arc::clone(&regions),
            pinning: Arc::clone(&pinning),
            thread: None,
            ring,
            status,
            specs,
            timeout: loader.timeout(),
            interrupt: UserInterrupt(interrupt),
        };
        upload.thread =
            Some(Uploader { loader, gpu, side, regions, finishers, pinning, shared }.start()?);
        Ok(upload)
    }

    /// The regions of a batch, in the order of a destination's addresses.
    #[must_use]
    pub fn regions(&self) -> &[Region] {
        &self.regions
    }

    /// The schema on the device, with finished tensors.
    #[must_use]
    pub fn specs(&self) -> &Arc<[TensorSpec]> {
        &self.specs
    }

    /// The stream that copies are queued on.
    #[must_use]
    pub fn side_stream(&self) -> &Arc<CudaStream> {
        &self.side
    }

    pub(crate) fn regions_shared(&self) -> &Arc<[Region]> {
        &self.regions
    }

    pub(crate) fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }

    /// Offers a destination: an address for each region, with room for a full batch.
    ///
    /// # Safety
    /// Each address must be device memory of its region's size that is not used otherwise until the batch with this token
    /// is handed over or the upload has ended: [`Upload`]'s drop waits for pending copies.
    pub unsafe fn offer(&self, token: u64, addresses: Vec<u64>) {
        self.offer_after(token, addresses, Vec::new());
    }

    /// As [`offer`](Self::offer); the memory is written after these events.
    pub(crate) fn offer_after(&self, token: u64, addresses: Vec<u64>, after: Vec<Arc<Event>>) {
        debug_assert_eq!(addresses.len(), self.regions.len());
        self.shared.notify_uploader(|state| {
            state.destinations.push_back(Destination { token, addresses, after });
        });
    }

    /// Whether [`next`](Self::next) returns without waiting.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        !self.status.is_open || self.shared.lock().has_outcome()
    }

    /// The next batch of the current epoch; `None` at its end. The stream waits for the copy, this thread does not. Blocks
    /// only while no batch is ready, because of the daemon or of work that uses a destination.
    ///
    /// # Safety
    /// `stream` must be a stream of the device's primary context, or 0, 1 or 2.
    ///
    /// # Errors
    /// The errors of [`Loader::next_batch`], and [`Error::Gpu`].
    pub unsafe fn next(&mut self, stream: usize) -> Result<Option<Uploaded>, Error> {
        // SAFETY: as the caller guarantees.
        self.take(|gpu, copied| unsafe { gpu.wait(stream, copied) })
    }

    /// As [`next`](Self::next); `order` orders the caller's work after the copy.
    pub(crate) fn take(
        &mut self,
        order: impl FnOnce(&Gpu, &Event) -> Result<(), Error>,
    ) -> Result<Option<Uploaded>, Error> {
        self.ring.check_process()?;
        if !self.status.is_open {
            return Ok(None);
        }
        let Some(ready) = self.take_outcome()? else {
            self.status.enter_next_epoch();
            return Ok(None);
        };
        if let Err(error) = order(&self.gpu, &ready.copied) {
            // Not handed over: a retry returns it again.
            self.shared.lock().outcomes.push_front(Outcome::Batch(ready));
            return Err(error);
        }
        let Ready { destination, descriptor, batches_left, copied } = *ready;
        self.status.replaying = descriptor.replayed;
        if !descriptor.replayed {
            self.status.cursor.set_batches_left(batches_left + 1);
            self.status.cursor.advance(descriptor.position_after, descriptor.substitutes);
            self.status.note_batch(&descriptor);
        }
        Ok(Some(Uploaded {
            token: destination.token,
            rows: descriptor.rows,
            length_bytes: self.lengths_on_device(&descriptor),
            number: descriptor.sequence.0,
            epoch: descriptor.epoch,
            is_replayed: descriptor.replayed,
            copied,
        }))
    }

    fn lengths_on_device(&self, descriptor: &Descriptor) -> Vec<u64> {
        let mut lengths: Vec<u64> =
            descriptor.tensors.iter().map(|tensor| tensor.length_bytes).collect();
        for region in &*self.regions {
            if let Some(plan) = &region.finish {
                lengths[region.tensor] = descriptor.rows * plan.finished_row_bytes();
            }
        }
        lengths
    }

    /// Waits for the next batch or the epoch's end.
    fn take_outcome(&mut self) -> Result<Option<Box<Ready>>, Error> {
        loop {
            let mut state = self.shared.lock();
            let found = state.outcomes.pop_front();
            let broken = state.failure.clone();
            drop(state);
            match (found, broken) {
                (Some(Outcome::Batch(ready)), _) => {
                    self.status.record_wait(ready.descriptor.payload_bytes, &self.ring);
                    return Ok(Some(ready));
                }
                (Some(Outcome::End), _) => {
                    self.status.waiting_since = None;
                    return Ok(None);
                }
                (Some(Outcome::Failed(error)), _) | (None, Some(error)) => {
                    self.status.waiting_since = None;
                    return Err(error);
                }
                (None, None) => {}
            }
            if !self.wait()? && self.interrupt.is_raised() {
                return Err(Error::Interrupted("the next batch on the device".into()));
            }
        }
    }

    /// Waits for up to 50 ms and returns whether [`next`](Self::next) is ready: for callers that poll something else
    /// between the slices.
    ///
    /// # Errors
    /// [`Error::Timeout`] when the device does not complete copies; the loader's time-out is returned by `next`.
    pub fn wait(&mut self) -> Result<bool, Error> {
        self.ring.check_process()?;
        let mut state = self.shared.lock();
        if !self.status.is_open || state.has_outcome() {
            return Ok(true);
        }
        if !state.is_epoch_open {
            // The caller retries after an error.
            state.is_epoch_open = true;
            drop(state);
            self.shared.notify_uploader(|_| ());
            state = self.shared.lock();
        }
        let begun = *self.status.waiting_since.get_or_insert_with(Instant::now);
        let is_copying = state.in_flight > 0 || state.staging.is_busy();
        if begun.elapsed() > self.timeout + Duration::from_secs(5) && is_copying {
            drop(state);
            self.status.waiting_since = None;
            return Err(Error::Timeout {
                waited: begun.elapsed(),
                waited_for: format!("copies to cuda:{}", self.gpu.ordinal()),
                daemon_says: "the device does not complete them".into(),
            });
        }
        state = self.shared.wait_for_outcome(state, SLICE);
        Ok(state.has_outcome())
    }

    /// Statistics of the upload.
    #[must_use]
    pub fn upload_statistics(&self) -> UploadStatistics {
        let path = self.pinning.path();
        let state = self.shared.lock();
        UploadStatistics {
            path: path.name(),
            reason: path.reason().to_owned(),
            batches: state.counts.batches,
            bytes: state.counts.bytes,
            staging_time: state.staging.cpu_time(),
        }
    }

    /// The number of slots with pending copies.
    #[must_use]
    pub fn slots_in_flight(&self) -> u64 {
        self.shared.lock().in_flight
    }
}

impl Deref for Upload {
    type Target = SessionStatus;

    fn deref(&self) -> &SessionStatus {
        &self.status
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        if !self.ring.is_own_process() {
            // A forked child has neither the threads nor a working driver.
            std::mem::forget(self.thread.take());
            return;
        }
        self.shared.interrupt_uploader(|state| state.stop = true);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

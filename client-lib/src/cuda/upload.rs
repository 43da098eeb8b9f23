//! The trainer's side of an upload: hands destinations in, takes batches out, and sends everything else about the stream
//! to the thread that holds the loader.
//!
//! The loader runs ahead of the user by what is uploaded and not handed over yet. What counts for the user (position,
//! batches given up, time waited) is therefore kept here, and a jump ([`jumps`]) discards what was uploaded for the old
//! place.

mod jumps;

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use cudarc::driver::CudaStream;
use forebay_protocol::frames::Attached;
use forebay_protocol::publish::Descriptor;
use forebay_protocol::tensor::TensorSpec;

use super::device::Device;
use super::driver::{Event, Gpu};
use super::finisher::Finisher;
use super::pin::{PinPolicy, Pinning};
use super::regions::{Region, finished_specs, regions_of};
use super::shared::{Destination, Found, Ready, Shared};
use super::uploader::Uploader;
use crate::error::Error;
use crate::link::Interrupt;
use crate::loader::Loader;
use crate::place::Place;
use crate::rank::Placement;
use crate::ring::Ring;
use crate::statistics::WaitStatistics;

/// How often a wait looks at the interrupt.
const SLICE: Duration = Duration::from_millis(50);

/// A batch that was handed over: where its copies go, and what the caller's stream waits for already.
#[derive(Debug)]
pub struct Uploaded {
    /// The destination's name, as it was offered.
    pub token: u64,
    /// The samples in it.
    pub rows: u64,
    /// Of each tensor the bytes that it has on the device, in the order of the schema.
    pub length_bytes: Vec<u64>,
    /// Its number in the session.
    pub number: u64,
    /// The epoch that it belongs to.
    pub epoch: u64,
    /// Whether it was shown before and comes again for a measurement.
    pub is_replayed: bool,
    /// The end of its copies.
    pub(crate) copied: Arc<Event>,
}

/// What uploading did and cost up to now.
#[derive(Debug, Clone)]
pub struct UploadStatistics {
    /// `registered`, `staged`, `pageable` or `refused`.
    pub path: &'static str,
    /// Why it is not `registered`.
    pub reason: String,
    /// The batches whose copies were queued.
    pub batches: u64,
    /// Their bytes.
    pub bytes: u64,
    /// What copying into staging buffers cost the CPU.
    pub staging_time: Duration,
}

/// A session whose batches are copied to a device.
#[derive(Debug)]
pub struct Upload {
    shared: Arc<Shared>,
    gpu: Arc<Gpu>,
    side: Arc<CudaStream>,
    regions: Arc<[Region]>,
    pinning: Arc<Pinning>,
    thread: Option<JoinHandle<()>>,
    ring: Arc<Ring>,
    terms: Arc<Attached>,
    /// The tensors as they are on the device.
    specs: Arc<[TensorSpec]>,
    placement: Placement,
    place: Place,
    statistics: WaitStatistics,
    given_up: u64,
    /// The batch given last was shown again for a measurement.
    replaying: bool,
    /// An epoch was begun and its end not told.
    is_open: bool,
    waiting_since: Option<Instant>,
    timeout: Duration,
    interrupt: UserInterrupt,
}

/// The user's interrupt; it has no name to print.
struct UserInterrupt(Option<Interrupt>);

impl std::fmt::Debug for UserInterrupt {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_tuple("UserInterrupt").field(&self.0.is_some()).finish()
    }
}

impl UserInterrupt {
    fn asks(&mut self) -> bool {
        self.0.as_mut().is_some_and(|interrupt| interrupt())
    }
}

impl Upload {
    /// Begins to copy a loader's batches over a stream of their own.
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
        let interrupt = loader.read_ahead(move || asked.is_wanted(), shared.wake_descriptor()?);
        let mut upload = Self {
            shared: Arc::clone(&shared),
            gpu: Arc::clone(&gpu),
            side: Arc::clone(&side),
            regions: Arc::clone(&regions),
            pinning: Arc::clone(&pinning),
            thread: None,
            ring,
            terms: Arc::new(loader.terms().clone()),
            specs,
            placement: loader.placement(),
            place: loader.place().clone(),
            statistics: WaitStatistics::default(),
            given_up: 0,
            replaying: false,
            is_open: false,
            waiting_since: None,
            timeout: loader.timeout(),
            interrupt: UserInterrupt(interrupt),
        };
        upload.thread =
            Some(Uploader { loader, gpu, side, regions, finishers, pinning, shared }.start()?);
        Ok(upload)
    }

    /// The pieces of a batch, in the order of a destination's addresses.
    #[must_use]
    pub fn regions(&self) -> &[Region] {
        &self.regions
    }

    /// The tensors as they are on the device: those that it finishes as they are then.
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

    /// Hands in where a batch may go: an address for each region, with room for a full batch.
    ///
    /// # Safety
    /// Each address must be device memory of its region's size that nobody else uses, before the batch of this token was
    /// handed over or the upload has ended: [`Upload`]'s drop waits for the copies on their way.
    pub unsafe fn offer(&self, token: u64, addresses: Vec<u64>) {
        self.offer_after(token, addresses, Vec::new());
    }

    /// As [`offer`](Self::offer), to be written to after these events.
    pub(crate) fn offer_after(&self, token: u64, addresses: Vec<u64>, after: Vec<Arc<Event>>) {
        debug_assert_eq!(addresses.len(), self.regions.len());
        self.shared.tell_thread(|state| {
            state.destinations.push_back(Destination { token, addresses, after });
        });
    }

    /// Whether an epoch was begun and its end not told.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.is_open
    }

    /// Whether [`next`](Self::next) has something to tell without waiting.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        !self.is_open || self.shared.lock().has_news()
    }

    /// The next batch of the epoch begun; `None` at its end. The stream waits for the copy, this thread does not. Waits
    /// only while no batch is ready, whether for the daemon or for a destination's work.
    ///
    /// # Safety
    /// `stream` must be a stream of the device's primary context, or 0, 1 or 2.
    ///
    /// # Errors
    /// Those of [`Loader::next_batch`], and [`Error::Gpu`].
    pub unsafe fn next(&mut self, stream: usize) -> Result<Option<Uploaded>, Error> {
        // SAFETY: the caller's.
        self.take(|gpu, copied| unsafe { gpu.wait(stream, copied) })
    }

    /// As [`next`](Self::next), ordering the caller's work behind the copy in its own way.
    pub(crate) fn take(
        &mut self,
        order: impl FnOnce(&Gpu, &Event) -> Result<(), Error>,
    ) -> Result<Option<Uploaded>, Error> {
        self.check_process()?;
        if !self.is_open {
            return Ok(None);
        }
        let Some(ready) = self.take_found()? else {
            self.is_open = false;
            self.place.enter_next_epoch(self.terms.batches_per_epoch);
            return Ok(None);
        };
        if let Err(error) = order(&self.gpu, &ready.copied) {
            // Not handed over: it comes again when the caller tries again.
            self.shared.lock().found.push_front(Found::Batch(ready));
            return Err(error);
        }
        let Ready { destination, descriptor, batches_left, copied } = *ready;
        self.replaying = descriptor.replayed;
        if !descriptor.replayed {
            self.place.expect(batches_left + 1);
            self.place.advance(descriptor.position_after, descriptor.substitutes);
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
    fn take_found(&mut self) -> Result<Option<Box<Ready>>, Error> {
        loop {
            let mut state = self.shared.lock();
            let found = state.found.pop_front();
            let broken = state.broken.clone();
            drop(state);
            match (found, broken) {
                (Some(Found::Batch(ready)), _) => {
                    let wait = self.waiting_since.take().map(|since| since.elapsed());
                    self.statistics.record(wait, ready.descriptor.payload_bytes);
                    if wait.is_some() {
                        self.ring.show_waited(self.statistics.after_start());
                    }
                    return Ok(Some(ready));
                }
                (Some(Found::End), _) => {
                    self.waiting_since = None;
                    return Ok(None);
                }
                (Some(Found::Failed(error)), _) | (None, Some(error)) => {
                    self.waiting_since = None;
                    return Err(error);
                }
                (None, None) => {}
            }
            if !self.wait()? && self.interrupt.asks() {
                return Err(Error::Interrupted("the next batch on the device".into()));
            }
        }
    }

    /// Waits for one slice of 50 ms, or less when something comes: whether it did. To be called when
    /// [`is_ready`](Self::is_ready) said no, by who has something to look at between the slices.
    ///
    /// # Errors
    /// [`Error::Timeout`] when the device does not complete copies; the daemon's own time-out comes as what is found.
    pub fn wait(&mut self) -> Result<bool, Error> {
        self.check_process()?;
        let mut state = self.shared.lock();
        if !self.is_open || state.has_news() {
            return Ok(true);
        }
        if !state.wants {
            // An error was told; the caller tries again.
            state.wants = true;
            drop(state);
            self.shared.tell_thread(|_| ());
            state = self.shared.lock();
        }
        let begun = *self.waiting_since.get_or_insert_with(Instant::now);
        let is_copying = state.in_flight > 0 || state.staging.is_busy();
        if begun.elapsed() > self.timeout + Duration::from_secs(5) && is_copying {
            drop(state);
            self.waiting_since = None;
            return Err(Error::Timeout {
                waited: begun.elapsed(),
                waited_for: format!("copies to cuda:{}", self.gpu.ordinal()),
                daemon_says: "the device does not complete them".into(),
            });
        }
        state = self.shared.wait_for_news(state, SLICE);
        Ok(state.has_news())
    }

    /// What uploading did and cost.
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

    /// What waiting cost the trainer.
    #[must_use]
    pub fn wait_statistics(&self) -> &WaitStatistics {
        &self.statistics
    }

    /// The terms of the session.
    #[must_use]
    pub fn terms(&self) -> &Attached {
        &self.terms
    }

    /// Which rank of how many this is.
    #[must_use]
    pub fn placement(&self) -> Placement {
        self.placement
    }

    /// The batches that early ends of epochs gave up.
    #[must_use]
    pub fn given_up(&self) -> u64 {
        self.given_up
    }

    /// As [`Loader::replaying`].
    #[must_use]
    pub fn replaying(&self) -> bool {
        self.replaying
    }

    /// The slots of the ring whose copies have not completed.
    #[must_use]
    pub fn slots_in_flight(&self) -> u64 {
        self.shared.lock().in_flight
    }

    fn check_process(&self) -> Result<(), Error> {
        if self.ring.is_own_process() { Ok(()) } else { Err(Error::Forked) }
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        if !self.ring.is_own_process() {
            // A forked child has neither the threads nor a working driver.
            std::mem::forget(self.thread.take());
            return;
        }
        self.shared.interrupt_thread(|state| state.stop = true);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

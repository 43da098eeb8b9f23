//! The two threads of an upload: one takes batches from the ring and queues their copies, one waits for the copies and
//! gives the slots back. Neither ever holds an interpreter's lock, and the trainer waits for neither.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Instant;

use cudarc::driver::CudaStream;

use super::driver::{Event, Gpu, PinnedMemory};
use super::finisher::Finisher;
use super::pin::{Buffer, Path, Pinning};
use super::regions::Region;
use super::shared::{Destination, Found, Ready, Shared, Step};
use crate::batch::Batch;
use crate::error::Error;
use crate::keeper::spawn;
use crate::loader::{Loader, Next};

/// What a copy reads from, kept until it is done.
enum Source {
    Slot(Batch),
    Buffer(PinnedMemory),
}

/// A copy on its way.
struct Copying {
    copied: Arc<Event>,
    source: Source,
}

/// The thread that takes batches and queues their copies.
pub(crate) struct Uploader {
    pub(crate) loader: Loader,
    pub(crate) gpu: Arc<Gpu>,
    pub(crate) side: Arc<CudaStream>,
    pub(crate) regions: Arc<[Region]>,
    /// By region, where the device finishes it.
    pub(crate) finishers: Vec<Option<Finisher>>,
    pub(crate) pinning: Arc<Pinning>,
    pub(crate) shared: Arc<Shared>,
}

/// Tells the trainer's side when the upload thread is gone, also by a panic.
struct Ended(Arc<Shared>);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.end();
    }
}

impl Uploader {
    /// Starts both threads. The first one ends when it is told to stop, and with it the loader; it waits for the second.
    pub(crate) fn start(self) -> Result<JoinHandle<()>, Error> {
        // A ring has fewer slots, so nobody ever waits to send.
        let (to_reaper, copies) = sync_channel(usize::from(self.loader.terms().slots) + 2);
        let shared = Arc::clone(&self.shared);
        let gpu = Arc::clone(&self.gpu);
        let reaper = spawn("forebay-reaper", move || {
            gpu.stay_out_of_captures();
            reap(&copies, &shared);
        })?;
        spawn("forebay-upload", move || {
            self.gpu.stay_out_of_captures();
            let _ended = Ended(Arc::clone(&self.shared));
            let Self { loader, finishers, gpu, .. } = self.run(to_reaper);
            let _ = reaper.join();
            // Every copy is done, and the kernels behind them.
            let _ = gpu.within(|| drop(finishers));
            // Last: every slot has come back, and nothing reads the ring any more.
            drop(loader);
        })
    }

    fn run(mut self, to_reaper: SyncSender<Copying>) -> Self {
        loop {
            // Asked each time: a daemon that came back may hold to other terms.
            let hold = u64::from(self.loader.terms().hold).max(1);
            let is_staged = matches!(self.pinning.path(), Path::Staged(_));
            match self.shared.next_step(hold, is_staged) {
                Step::Stop => return self,
                Step::Run(command) => {
                    command(&mut self.loader);
                    self.shared.lock().cancel = false;
                }
                Step::Take(destination) => self.take(destination, &to_reaper),
            }
        }
    }

    /// Takes the next batch if it is ready, else waits a while for it.
    fn take(&mut self, destination: Destination, to_reaper: &SyncSender<Copying>) {
        let found = match self.loader.try_next() {
            Ok(Next::Batch(batch)) => return self.upload(batch, destination, to_reaper),
            Ok(Next::End) => Some(Found::End),
            Ok(Next::Waiting) => match self.loader.wait() {
                Ok(()) | Err(Error::Interrupted(_)) => None,
                Err(error) => Some(Found::Failed(error)),
            },
            Err(error) => Some(Found::Failed(error)),
        };
        self.shared.tell_trainer(|state| {
            state.destinations.push_front(destination);
            if let Some(found) = found {
                // After an end the next epoch is asked for, after an error the trainer tries again or not.
                state.wants = false;
                state.found.push_back(found);
            }
        });
    }

    fn upload(
        &mut self,
        batch: Batch,
        mut destination: Destination,
        to_reaper: &SyncSender<Copying>,
    ) {
        let descriptor = batch.lease.descriptor().clone();
        let bytes = descriptor.payload_bytes;
        let batches_left = self.loader.place().batches_left();
        match self.queue(batch, &mut destination) {
            Ok(copying) => {
                let copied = Arc::clone(&copying.copied);
                self.shared.tell_trainer(|state| {
                    state.in_flight += u64::from(matches!(copying.source, Source::Slot(_)));
                    state.counts.batches += 1;
                    state.counts.bytes += bytes;
                    state.found.push_back(Found::Batch(Box::new(Ready {
                        destination,
                        descriptor,
                        batches_left,
                        copied,
                    })));
                });
                // The reaper lives as long as this sender.
                let _ = to_reaper.send(copying);
            }
            Err(error) => self.shared.tell_trainer(|state| {
                state.broken.get_or_insert(error);
            }),
        }
    }

    /// Queues a batch's copies on the side stream, behind the work that used the destination before.
    fn queue(&self, batch: Batch, destination: &mut Destination) -> Result<Copying, Error> {
        let buffer = match self.pinning.path() {
            Path::Staged(_) => self.staging_buffer(),
            Path::Refused(error) => return Err(error),
            Path::Registered | Path::Pageable(_) => None,
        };
        let queued = match &buffer {
            Some(buffer) => self.queue_staged(&batch, destination, buffer),
            None => self.queue_slot(&batch, destination),
        };
        let copied = queued.inspect_err(|_| {
            // What was queued may still read slot or buffer, which go now; if this fails too, the device reads nothing.
            let _ = self.gpu.within(|| self.side.synchronize());
        })?;
        let source = buffer.map_or_else(|| Source::Slot(batch), Source::Buffer);
        Ok(Copying { copied: Arc::new(copied), source })
    }

    /// Lets the side stream wait for the work that used a destination before.
    fn wait_for_users(&self, destination: &mut Destination) -> Result<(), Error> {
        for used in destination.after.drain(..) {
            // SAFETY: the side stream lives as long as this thread.
            unsafe { self.gpu.wait(self.side.cu_stream() as usize, &used)? };
        }
        Ok(())
    }

    /// Marks the end of a batch's copies.
    fn mark(&self) -> Result<Event, Error> {
        let copied = self.gpu.event()?;
        // SAFETY: the side stream lives as long as this thread.
        unsafe { copied.record(self.side.cu_stream() as usize)? };
        Ok(copied)
    }

    /// Copies straight from the slot.
    fn queue_slot(&self, batch: &Batch, destination: &mut Destination) -> Result<Event, Error> {
        self.wait_for_users(destination)?;
        for (place, region) in self.regions.iter().enumerate() {
            let (from, bytes) = region.source(batch).ok_or(Error::Forked)?;
            // SAFETY: the region lies inside the slot, which the batch holds until the reaper has seen the mark, or until
            // the stream was synchronised after an error.
            unsafe { self.queue_region(place, destination, from, bytes)? };
        }
        self.mark()
    }

    /// Queues a region's copy, and its last step where the device has to do that.
    ///
    /// # Safety
    /// As [`Gpu::copy`] for `from`. The destination's owner keeps it until the batch was handed over or discarded.
    unsafe fn queue_region(
        &self,
        place: usize,
        destination: &Destination,
        from: *const u8,
        bytes: usize,
    ) -> Result<(), Error> {
        let to = destination.addresses[place];
        let Some(finisher) = &self.finishers[place] else {
            // SAFETY: the caller's; an offer names as many addresses as there are regions, each with room for one.
            return unsafe { self.gpu.copy(to, from, bytes, &self.side) };
        };
        // SAFETY: as above; the finisher's memory has room for the raw region, and the kernel is behind the copy.
        unsafe {
            self.gpu.copy(finisher.raw_address(), from, bytes, &self.side)?;
            finisher.queue(to, bytes, &self.side)
        }
    }

    /// A staging buffer; `None` when none is to be had at all.
    fn staging_buffer(&self) -> Option<PinnedMemory> {
        let mut state = self.shared.lock();
        loop {
            match state.staging.take() {
                Buffer::Free(buffer) => return Some(buffer),
                Buffer::ToMake => break,
                Buffer::None => state = self.shared.wait_for_work(state),
            }
        }
        drop(state);
        // All regions one after the other, each at a multiple of 256 bytes: no more than a slot and that much per region.
        let bytes = self.regions.iter().map(|region| region.raw_bytes.next_multiple_of(256)).sum();
        self.gpu.allocate_pinned(bytes).inspect_err(|error| self.pinning.give_up(error)).ok()
    }

    /// Copies by way of a staging buffer; the slot is free when this returns.
    fn queue_staged(
        &self,
        batch: &Batch,
        destination: &mut Destination,
        buffer: &PinnedMemory,
    ) -> Result<Event, Error> {
        let begun = Instant::now();
        let mut places = Vec::with_capacity(self.regions.len());
        let mut end = 0;
        for region in &*self.regions {
            let (from, bytes) = region.source(batch).ok_or(Error::Forked)?;
            if end + bytes > buffer.bytes() {
                return Err(Error::Protocol("a batch is larger than its layout".into()));
            }
            // SAFETY: both sides are valid for so many bytes, as just checked and by the batch's lease, and apart: the
            // buffer is the driver's own allocation.
            let at = unsafe {
                let at = buffer.start().add(end);
                std::ptr::copy_nonoverlapping(from, at, bytes);
                at
            };
            places.push((at.cast_const(), bytes));
            end = (end + bytes).next_multiple_of(256);
        }
        self.shared.lock().staging.filled_since(begun);
        self.wait_for_users(destination)?;
        for (place, (from, bytes)) in places.into_iter().enumerate() {
            // SAFETY: the buffer is kept until the reaper has seen the mark, or as long as the slot above.
            unsafe { self.queue_region(place, destination, from, bytes)? };
        }
        self.mark()
    }
}

/// Waits for each copy and lets go of what it read.
fn reap(copies: &Receiver<Copying>, shared: &Shared) {
    while let Ok(Copying { copied, source }) = copies.recv() {
        let done = copied.synchronize();
        drop(copied);
        let buffer = match source {
            Source::Slot(batch) => {
                drop(batch);
                None
            }
            Source::Buffer(buffer) => Some(buffer),
        };
        shared.landed(|state| {
            match buffer {
                Some(buffer) => state.staging.give_back(buffer),
                None => state.in_flight -= 1,
            }
            if let Err(error) = done {
                state.broken.get_or_insert(error);
            }
        });
    }
}

//! The two threads of an upload: one takes batches from the ring and queues their copies, one waits for the copies and
//! returns the slots. Neither holds an interpreter's lock.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Instant;

use cudarc::driver::CudaStream;

use super::driver::{Event, Gpu, PinnedMemory};
use super::finisher::Finisher;
use super::pin::{Buffer, Path, Pinning};
use super::regions::Region;
use super::shared::{Destination, Outcome, Ready, Shared, Step};
use crate::batch::Batch;
use crate::error::Error;
use crate::loader::{Loader, Next};
use crate::supervisor::spawn;

/// The source of a copy, kept until it is complete.
enum Source {
    Slot(Batch),
    Buffer(PinnedMemory),
}

/// A pending copy.
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
    /// By region: `None` if the device finishes nothing.
    pub(crate) finishers: Vec<Option<Finisher>>,
    pub(crate) pinning: Arc<Pinning>,
    pub(crate) shared: Arc<Shared>,
}

/// Notifies the trainer's side when the upload thread ends, also by a panic.
struct Ended(Arc<Shared>);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.end();
    }
}

impl Uploader {
    /// Starts both threads. The first ends at `State::stop`, joins the second and drops the loader.
    pub(crate) fn start(self) -> Result<JoinHandle<()>, Error> {
        // A ring has fewer slots, so a send never blocks.
        let (to_reaper, copies) = sync_channel(usize::from(self.loader.terms().slots) + 2);
        let shared = Arc::clone(&self.shared);
        let gpu = Arc::clone(&self.gpu);
        let reaper = spawn("forebay-reaper", move || {
            gpu.relax_capture_mode();
            reap(&copies, &shared);
        })?;
        spawn("forebay-upload", move || {
            self.gpu.relax_capture_mode();
            let _ended = Ended(Arc::clone(&self.shared));
            let Self { loader, finishers, gpu, .. } = self.run(to_reaper);
            let _ = reaper.join();
            // All copies and the kernels after them are complete.
            let _ = gpu.with_context(|| drop(finishers));
            // Last: all slots are returned, and nothing reads the ring any more.
            drop(loader);
        })
    }

    fn run(mut self, to_reaper: SyncSender<Copying>) -> Self {
        loop {
            // Read each time: a restarted daemon may have other terms.
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

    /// Takes the next batch if it is ready, else waits one slice.
    fn take(&mut self, destination: Destination, to_reaper: &SyncSender<Copying>) {
        let found = match self.loader.try_next() {
            Ok(Next::Batch(batch)) => return self.upload(batch, destination, to_reaper),
            Ok(Next::End) => Some(Outcome::End),
            Ok(Next::Waiting) => match self.loader.wait() {
                Ok(()) | Err(Error::Interrupted(_)) => None,
                Err(error) => Some(Outcome::Failed(error)),
            },
            Err(error) => Some(Outcome::Failed(error)),
        };
        self.shared.notify_trainer(|state| {
            state.destinations.push_front(destination);
            if let Some(found) = found {
                // After an end or an error, the trainer decides whether to continue.
                state.is_epoch_open = false;
                state.outcomes.push_back(found);
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
        let batches_left = self.loader.cursor.batches_left();
        match self.queue(batch, &mut destination) {
            Ok(copying) => {
                let copied = Arc::clone(&copying.copied);
                self.shared.notify_trainer(|state| {
                    state.in_flight += u64::from(matches!(copying.source, Source::Slot(_)));
                    state.counts.batches += 1;
                    state.counts.bytes += bytes;
                    state.outcomes.push_back(Outcome::Batch(Box::new(Ready {
                        destination,
                        descriptor,
                        batches_left,
                        copied,
                    })));
                });
                // The reaper lives as long as this sender.
                let _ = to_reaper.send(copying);
            }
            Err(error) => self.shared.notify_trainer(|state| {
                state.failure.get_or_insert(error);
            }),
        }
    }

    /// Queues a batch's copies on the side stream, after the work that used the destination before.
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
            // Queued copies may still read the slot or buffer that is dropped now; if this fails too, the device is lost.
            let _ = self.gpu.with_context(|| self.side.synchronize());
        })?;
        let source = buffer.map_or_else(|| Source::Slot(batch), Source::Buffer);
        Ok(Copying { copied: Arc::new(copied), source })
    }

    /// Makes the side stream wait for the work that used a destination before.
    fn wait_for_users(&self, destination: &mut Destination) -> Result<(), Error> {
        for used in destination.after.drain(..) {
            // SAFETY: the side stream lives as long as this thread.
            unsafe { self.gpu.wait(self.side.cu_stream() as usize, &used)? };
        }
        Ok(())
    }

    /// Records an event after a batch's copies.
    fn record_copied(&self) -> Result<Event, Error> {
        let copied = self.gpu.event()?;
        // SAFETY: the side stream lives as long as this thread.
        unsafe { copied.record(self.side.cu_stream() as usize)? };
        Ok(copied)
    }

    /// Queues copies directly from the slot.
    fn queue_slot(&self, batch: &Batch, destination: &mut Destination) -> Result<Event, Error> {
        self.wait_for_users(destination)?;
        for (index, region) in self.regions.iter().enumerate() {
            let (from, bytes) = region.source(batch).ok_or(Error::Forked)?;
            // SAFETY: the region lies inside the slot, which the batch holds until the reaper has seen the event, or until
            // the stream is synchronised after an error.
            unsafe { self.queue_region(index, destination, from, bytes)? };
        }
        self.record_copied()
    }

    /// Queues a region's copy, and its finishing kernel if it has one.
    ///
    /// # Safety
    /// As [`Gpu::copy`] for `from`. The destination's owner keeps it until the batch is handed over or discarded.
    unsafe fn queue_region(
        &self,
        index: usize,
        destination: &Destination,
        from: *const u8,
        bytes: usize,
    ) -> Result<(), Error> {
        let to = destination.addresses[index];
        let Some(finisher) = &self.finishers[index] else {
            // SAFETY: as the caller guarantees; an offer has an address for each region, with room for it.
            return unsafe { self.gpu.copy(to, from, bytes, &self.side) };
        };
        // SAFETY: as above; the finisher's memory has room for the raw region, and the kernel is queued after the copy.
        unsafe {
            self.gpu.copy(finisher.raw_address(), from, bytes, &self.side)?;
            finisher.queue(to, bytes, &self.side)
        }
    }

    /// A staging buffer; `None` when it cannot be allocated.
    fn staging_buffer(&self) -> Option<PinnedMemory> {
        let mut state = self.shared.lock();
        loop {
            match state.staging.take() {
                Buffer::Free(buffer) => return Some(buffer),
                Buffer::Allocate => break,
                Buffer::None => state = self.shared.wait_for_work(state),
            }
        }
        drop(state);
        // All regions in order, each at a multiple of 256 bytes.
        let bytes = self.regions.iter().map(|region| region.raw_bytes.next_multiple_of(256)).sum();
        self.gpu
            .allocate_pinned(bytes)
            .inspect_err(|error| self.pinning.fall_back_to_pageable(error))
            .ok()
    }

    /// Queues copies through a staging buffer; the slot is no longer needed when this returns.
    fn queue_staged(
        &self,
        batch: &Batch,
        destination: &mut Destination,
        buffer: &PinnedMemory,
    ) -> Result<Event, Error> {
        let begun = Instant::now();
        let mut staged = Vec::with_capacity(self.regions.len());
        let mut end = 0;
        for region in &*self.regions {
            let (from, bytes) = region.source(batch).ok_or(Error::Forked)?;
            if end + bytes > buffer.bytes() {
                return Err(Error::Protocol("a batch is larger than its layout".into()));
            }
            // SAFETY: both sides are valid for `bytes`, as just checked and by the batch's lease, and do not overlap: the
            // buffer is the driver's own allocation.
            let at = unsafe {
                let at = buffer.start().add(end);
                std::ptr::copy_nonoverlapping(from, at, bytes);
                at
            };
            staged.push((at.cast_const(), bytes));
            end = (end + bytes).next_multiple_of(256);
        }
        self.shared.lock().staging.filled_since(begun);
        self.wait_for_users(destination)?;
        for (index, (from, bytes)) in staged.into_iter().enumerate() {
            // SAFETY: the buffer is kept until the reaper has seen the event, or as long as the slot above.
            unsafe { self.queue_region(index, destination, from, bytes)? };
        }
        self.record_copied()
    }
}

/// Waits for each copy and releases its source.
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
        shared.copy_done(|state| {
            match buffer {
                Some(buffer) => state.staging.give_back(buffer),
                None => state.in_flight -= 1,
            }
            if let Err(error) = done {
                state.failure.get_or_insert(error);
            }
        });
    }
}

//! The device loader for Rust: batches in its own device memory, as cudarc's slices.
//!
//! Ownership of a destination: the pool while it is free, the upload from the offer to the hand-over, then the user's
//! [`DeviceBatch`]. Its drop records an event on each stream that was passed to [`DeviceBatch::used_on`], and the pool
//! offers the memory again at once: the side stream, not the host, waits for those events before it copies.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cudarc::driver::{CudaSlice, CudaStream, CudaView, DeviceRepr};
use forebay_protocol::tensor::{DType, TensorSpec};

use super::device::Device;
use super::driver::{Event, Gpu};
use super::pin::PinPolicy;
use super::regions::{Part, Region};
use super::upload::{Upload, UploadStatistics, Uploaded};
use crate::builder::Builder;
use crate::error::Error;
use crate::loader::Loader;
use crate::state::State;

/// The settings of a device loader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceOptions {
    /// How the ring is prepared for the copy engine; default [`PinPolicy::Auto`].
    pub pin: PinPolicy,
    /// The number of batches that are copied ahead of the user; default 2, at least 1.
    pub ahead: usize,
    /// The number of batches that the user may hold; default 6, at least 1.
    pub device_hold: usize,
}

impl Default for DeviceOptions {
    fn default() -> Self {
        Self { pin: PinPolicy::Auto, ahead: 2, device_hold: 6 }
    }
}

/// The memory of one batch, with the events that must complete before it is written again or freed.
#[derive(Debug)]
struct Block {
    memory: Option<CudaSlice<u8>>,
    after: Vec<Arc<Event>>,
    gpu: Arc<Gpu>,
}

impl Drop for Block {
    fn drop(&mut self) {
        let Some(memory) = self.memory.take() else { return };
        let side = memory.stream().cu_stream() as usize;
        // SAFETY: the memory holds its stream.
        let is_ordered = self.after.iter().all(|used| unsafe { self.gpu.wait(side, used) }.is_ok());
        if is_ordered {
            // Stream-ordered, behind the waits.
            let _ = self.gpu.with_context(|| drop(memory));
        } else {
            // The device has failed: memory that may still be in use is leaked.
            std::mem::forget(memory);
        }
    }
}

/// The free blocks, and those offered to the upload.
#[derive(Debug, Default)]
struct Pool {
    free: Vec<Block>,
    offered: Vec<(u64, Block)>,
    /// The number of blocks that the user holds.
    held: usize,
}

/// A session whose batches are in device memory. Created by [`Loader::to_device`].
#[derive(Debug)]
pub struct DeviceLoader {
    // First: its drop waits for the copies into the pool's memory.
    upload: Upload,
    options: DeviceOptions,
    pool: Arc<Mutex<Pool>>,
    /// The offsets of the regions in a block.
    offsets: Arc<[usize]>,
    block_bytes: usize,
    next_token: u64,
}

fn lock(pool: &Mutex<Pool>) -> MutexGuard<'_, Pool> {
    pool.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Loader {
    /// Copies this session's batches to a device from now on, with default settings. For a configuration with
    /// `on = "gpu"`, use [`Builder::attach_to`].
    ///
    /// # Errors
    /// As [`Device::open`] and [`Upload::start`].
    pub fn to_device(self, ordinal: usize) -> Result<DeviceLoader, Error> {
        let device = Device::open(ordinal)?;
        DeviceLoader::new(self, &device, DeviceOptions::default())
    }
}

impl Builder {
    /// Attaches, and copies the session's batches to a device.
    ///
    /// # Errors
    /// As [`Builder::attach`] and [`DeviceLoader::new`].
    pub fn attach_to(self, device: &Device, options: DeviceOptions) -> Result<DeviceLoader, Error> {
        DeviceLoader::new(self.unfinished(true).attach()?, device, options)
    }
}

impl DeviceLoader {
    /// Starts copying.
    ///
    /// # Errors
    /// [`Error::Config`] for options out of range; else as [`Upload::start`].
    pub fn new(loader: Loader, device: &Device, options: DeviceOptions) -> Result<Self, Error> {
        if options.ahead == 0 || options.device_hold == 0 {
            return Err(Error::Config(format!(
                "ahead = {} and device_hold = {}; both are at least 1",
                options.ahead, options.device_hold
            )));
        }
        let upload = Upload::start(loader, device, options.pin)?;
        let mut offsets = Vec::new();
        let mut end = 0usize;
        for region in upload.regions() {
            offsets.push(end);
            end = (end + region.bytes).next_multiple_of(256);
        }
        let pool = Arc::default();
        let block_bytes = end.max(256);
        let offsets = offsets.into();
        Ok(Self { upload, options, pool, offsets, block_bytes, next_token: 0 })
    }

    /// The next batch; `None` at the epoch's end, and the call after that begins the next epoch. `stream` waits for the
    /// copy; this thread waits only while no batch is ready.
    ///
    /// # Errors
    /// As [`Loader::next_batch`]; [`Error::DeviceHoldLimit`] when too many batches are held; [`Error::Gpu`].
    pub fn next_batch(&mut self, stream: &Arc<CudaStream>) -> Result<Option<DeviceBatch>, Error> {
        let user = User { handle: stream.cu_stream() as usize, _stream: Some(Arc::clone(stream)) };
        let handle = user.handle;
        // SAFETY: the stream is held here; one of another device is refused by the driver.
        let batch = self.next_with(|gpu, copied| unsafe { gpu.wait(handle, copied) })?;
        Ok(batch.map(|mut batch| {
            batch.users.get_mut().unwrap_or_else(PoisonError::into_inner).push(user);
            batch
        }))
    }

    /// As [`next_batch`](Self::next_batch), without a stream: no stream waits for the copy until
    /// [`DeviceBatch::used_on`] is called.
    ///
    /// # Errors
    /// As there.
    pub fn next_unordered(&mut self) -> Result<Option<DeviceBatch>, Error> {
        self.next_with(|_, _| Ok(()))
    }

    fn next_with(
        &mut self,
        order: impl FnOnce(&Gpu, &Event) -> Result<(), Error>,
    ) -> Result<Option<DeviceBatch>, Error> {
        self.offer()?;
        if !self.upload.is_open() {
            self.upload.begin_epoch()?;
        }
        let Some(uploaded) = self.upload.take(order)? else { return Ok(None) };
        let mut pool = lock(&self.pool);
        let index = pool.offered.iter().position(|(token, _)| *token == uploaded.token);
        let index = index.ok_or_else(|| Error::Protocol("a batch without a destination".into()))?;
        let (_, mut block) = pool.offered.swap_remove(index);
        // The copy is ordered behind them on the side stream, and so is a later free of the memory.
        block.after.clear();
        pool.held += 1;
        Ok(Some(DeviceBatch {
            block: Some(block),
            pool: Arc::clone(&self.pool),
            gpu: Arc::clone(self.upload.gpu()),
            specs: Arc::clone(self.upload.specs()),
            offsets: Arc::clone(&self.offsets),
            regions: Arc::clone(self.upload.regions_shared()),
            uploaded,
            users: Mutex::default(),
        }))
    }

    /// Whether [`next_unordered`](Self::next_unordered) returns without waiting.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.upload.is_open() && self.upload.is_ready()
    }

    /// Offers the upload `ahead` destinations. [`next_batch`](Self::next_batch) calls this itself.
    ///
    /// # Errors
    /// [`Error::DeviceHoldLimit`], and [`Error::Gpu`] when the device's memory is full.
    pub fn offer(&mut self) -> Result<(), Error> {
        let mut pool = lock(&self.pool);
        if pool.held >= self.options.device_hold {
            let (held, hold) = (pool.held, self.options.device_hold);
            return Err(Error::DeviceHoldLimit { held, hold });
        }
        while pool.offered.len() < self.options.ahead {
            let block = match pool.free.pop() {
                Some(block) => block,
                None => self.allocate()?,
            };
            let start = block.memory.as_ref().map_or(0, address);
            let addresses = self.offsets.iter().map(|offset| start + *offset as u64).collect();
            // Kept in the block, too: it may be freed before a copy is queued.
            let after = block.after.clone();
            let token = self.next_token;
            self.next_token += 1;
            pool.offered.push((token, block));
            self.upload.offer_after(token, addresses, after);
        }
        Ok(())
    }

    fn allocate(&self) -> Result<Block, Error> {
        let gpu = self.upload.gpu();
        let side = self.upload.side_stream();
        // SAFETY: a copy writes the memory before a view of it is returned. Allocation and free are ordered on the side
        // stream, which waits for all other uses.
        let memory = gpu.with_context(|| unsafe { side.alloc::<u8>(self.block_bytes) })?;
        let memory = memory.map_err(|error| gpu.failed("allocating memory for a batch", error))?;
        Ok(Block { memory: Some(memory), after: Vec::new(), gpu: Arc::clone(gpu) })
    }

    /// The stream's state: as [`Loader::state`].
    ///
    /// # Errors
    /// As there.
    pub fn state(&self, held_back: usize) -> Result<State, Error> {
        self.upload.state(held_back)
    }

    /// Resumes from a saved state: as [`Loader::load_state`].
    ///
    /// # Errors
    /// As there.
    pub fn load_state(&mut self, state: &State, force: bool) -> Result<(), Error> {
        self.upload.load_state(state, force)
    }

    /// Seeks to the start of an epoch, unless the position is in that epoch already.
    ///
    /// # Errors
    /// As [`Loader::set_epoch`].
    pub fn set_epoch(&mut self, epoch: u64) -> Result<(), Error> {
        self.upload.set_epoch(epoch)
    }

    /// Statistics of the upload.
    #[must_use]
    pub fn upload_statistics(&self) -> UploadStatistics {
        self.upload.upload_statistics()
    }

    /// The session's upload: terms, waits, statistics.
    #[must_use]
    pub fn upload(&self) -> &Upload {
        &self.upload
    }

    /// As [`upload`](Self::upload), to begin epochs or to query the daemon.
    pub fn upload_mut(&mut self) -> &mut Upload {
        &mut self.upload
    }
}

fn address(memory: &CudaSlice<u8>) -> u64 {
    use cudarc::driver::DevicePtr;
    // The guard would record a use for cudarc's event tracking, which is disabled.
    memory.device_ptr(memory.stream()).0
}

/// A batch on the device. Dropping it returns its memory, ordered behind the work of the streams that used it.
#[derive(Debug)]
pub struct DeviceBatch {
    block: Option<Block>,
    pool: Arc<Mutex<Pool>>,
    gpu: Arc<Gpu>,
    specs: Arc<[TensorSpec]>,
    offsets: Arc<[usize]>,
    regions: Arc<[Region]>,
    uploaded: Uploaded,
    users: Mutex<Vec<User>>,
}

/// A stream that uses a batch.
#[derive(Debug)]
struct User {
    handle: usize,
    _stream: Option<Arc<CudaStream>>,
}

impl DeviceBatch {
    /// The device's index.
    #[must_use]
    pub fn ordinal(&self) -> usize {
        self.gpu.ordinal()
    }

    /// The device address of a view.
    #[must_use]
    pub fn address<T>(view: &CudaView<'_, T>) -> u64 {
        use cudarc::driver::{DevicePtr, DeviceSlice};
        view.device_ptr(view.stream()).0
    }

    /// The number of samples in the batch.
    #[must_use]
    pub fn rows(&self) -> u64 {
        self.uploaded.rows
    }

    /// The batch's number in the session.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.uploaded.number
    }

    /// The batch's epoch.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.uploaded.epoch
    }

    /// The schema, in the order of the tensors.
    #[must_use]
    pub fn specs(&self) -> &[TensorSpec] {
        &self.specs
    }

    /// Registers a stream that uses the batch: the stream waits for the copy, and the memory is not written again before
    /// the work queued on the stream up to the batch's drop is complete. [`DeviceLoader::next_batch`] does this for its
    /// stream.
    ///
    /// # Errors
    /// [`Error::Gpu`].
    pub fn used_on(&self, stream: &Arc<CudaStream>) -> Result<(), Error> {
        let handle = stream.cu_stream() as usize;
        self.add_user(User { handle, _stream: Some(Arc::clone(stream)) })
    }

    /// As [`used_on`](Self::used_on), for a raw stream handle.
    ///
    /// # Safety
    /// `handle` must be a stream of the device's primary context, or 0, 1 or 2, until the batch is dropped.
    ///
    /// # Errors
    /// [`Error::Gpu`].
    pub unsafe fn used_on_handle(&self, handle: usize) -> Result<(), Error> {
        self.add_user(User { handle, _stream: None })
    }

    fn add_user(&self, user: User) -> Result<(), Error> {
        let mut users = self.users.lock().unwrap_or_else(PoisonError::into_inner);
        if users.iter().all(|known| known.handle != user.handle) {
            // SAFETY: `user` holds the stream, or the caller guarantees that it lives.
            unsafe { self.gpu.wait(user.handle, &self.uploaded.copied)? };
            users.push(user);
        }
        Ok(())
    }

    /// A tensor's bytes on the device, rows in row-major order; for a ragged tensor, the region of its rows.
    #[must_use]
    pub fn bytes(&self, name: &str) -> Option<CudaView<'_, u8>> {
        let index = self.specs.iter().position(|spec| spec.name == name)?;
        let bytes = usize::try_from(*self.uploaded.length_bytes.get(index)?).ok()?;
        self.region(index, Part::Rows, bytes)
    }

    /// A ragged tensor's table on the device: u64 offsets and u64 lengths of its rows, in elements.
    #[must_use]
    pub fn table(&self, name: &str) -> Option<(CudaView<'_, u64>, CudaView<'_, u64>)> {
        let index = self.specs.iter().position(|spec| spec.name == name)?;
        let is_table = |region: &&Region| region.tensor == index && region.part == Part::Table;
        let words = self.regions.iter().find(is_table)?.table_rows;
        let bytes = self.region(index, Part::Table, words.checked_mul(16)?)?;
        // SAFETY: regions start at multiples of 256 bytes, and every word is a number.
        let table = unsafe { bytes.transmute::<u64>(words * 2)? };
        let rows = usize::try_from(self.uploaded.rows).ok()?;
        Some((table.try_slice(..rows)?, table.try_slice(words..words + rows)?))
    }

    fn region(&self, tensor: usize, part: Part, bytes: usize) -> Option<CudaView<'_, u8>> {
        let is_it = |region: &Region| region.tensor == tensor && region.part == part;
        let start = *self.offsets.get(self.regions.iter().position(is_it)?)?;
        self.block.as_ref()?.memory.as_ref()?.try_slice(start..start + bytes)
    }

    /// A tensor's elements on the device.
    ///
    /// # Errors
    /// [`Error::NoSuchTensor`] for a name or a type that the batch does not have.
    pub fn view<T: DeviceRepr>(&self, name: &str, dtype: DType) -> Result<CudaView<'_, T>, Error> {
        let spec = self.specs.iter().find(|spec| spec.name == name);
        let fits = spec.is_some_and(|spec| spec.dtype == dtype)
            && dtype.size_bytes() == size_of::<T>() as u64;
        let Some(bytes) = self.bytes(name).filter(|_| fits) else {
            return Err(Error::NoSuchTensor(format!(
                "the batch has no tensor `{name}` of type {} read as {}",
                dtype.name(),
                std::any::type_name::<T>()
            )));
        };
        let elements = bytes.len() / size_of::<T>();
        // SAFETY: the region starts at a multiple of 256 bytes and holds this many elements of this type.
        unsafe { bytes.transmute(elements) }
            .ok_or_else(|| Error::NoSuchTensor(format!("tensor `{name}` is incomplete")))
    }
}

impl Drop for DeviceBatch {
    fn drop(&mut self) {
        let Some(mut block) = self.block.take() else { return };
        let users = std::mem::take(self.users.get_mut().unwrap_or_else(PoisonError::into_inner));
        let mut is_ordered = true;
        for user in users {
            let recorded = self.gpu.event().and_then(|event| {
                // The per-thread default stream differs between threads; the legacy default stream waits for all of them.
                let handle = if user.handle == 2 { 1 } else { user.handle };
                // SAFETY: `user` holds the stream, or the caller of `used_on_handle` guarantees that it lives.
                unsafe { event.record(handle)? };
                Ok(event)
            });
            match recorded {
                Ok(event) => block.after.push(Arc::new(event)),
                Err(_) => is_ordered = false,
            }
        }
        let mut pool = lock(&self.pool);
        pool.held -= 1;
        if is_ordered {
            pool.free.push(block);
        } else {
            // The device has failed: memory that may still be in use is leaked.
            std::mem::forget(block.memory.take());
        }
    }
}

//! The device loader for Rust: batches in its own device memory, as cudarc's slices.
//!
//! Ownership of a destination: the pool while it is free, the upload from the offer to the hand-over, then the user's
//! [`DeviceBatch`]. Its drop records an event on each stream that was passed to [`DeviceBatch::used_on`], and the pool
//! offers the memory again at once: the side stream, not the host, waits for these events before it copies.
//!
//! A batch's small fields are in separate memory, so that [`DeviceBatch::split`] can separate them from the others.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::{CudaStream, CudaView, DeviceRepr};
use forebay_protocol::tensor::{DType, TensorSpec};

use super::device::Device;
use super::device_pool::{Block, Blocks, Place, Pool, address, lock};
use super::driver::{Event, Gpu};
use super::pin::PinPolicy;
use super::regions::{Part, Region};
use super::upload::{Upload, Uploaded};
use crate::builder::Builder;
use crate::error::Error;
use crate::loader::Loader;

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

/// A field of at most this size in a full batch is small: programs keep labels and ids for a whole epoch.
pub const SMALL_FIELD_BYTES: u64 = 64 << 10;

/// A session whose batches are in device memory. Created by [`Loader::to_device`]. [`Upload`] has its epochs, position,
/// state and requests to the daemon.
#[derive(Debug)]
pub struct DeviceLoader {
    // First: its drop waits for the copies into the pool's memory.
    upload: Upload,
    options: DeviceOptions,
    pool: Arc<Mutex<Pool>>,
    places: Arc<[Place]>,
    /// The size of each block; 0: there is none.
    block_bytes: [usize; 2],
    next_token: u64,
}

impl Loader {
    /// Starts copying this session's batches to a device, with default settings. For a configuration with `on = "gpu"`,
    /// use [`Builder::attach_to`].
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
        let regions = upload.regions();
        let is_small = |tensor| {
            let own = regions.iter().filter(|region| region.tensor == tensor);
            own.map(|region| region.bytes as u64).sum::<u64>() <= SMALL_FIELD_BYTES
        };
        let mut block_bytes = [0_usize; 2];
        let places = regions.iter().map(|region| {
            let block = usize::from(is_small(region.tensor));
            let offset = block_bytes[block];
            // Never empty, so that every region has an address.
            block_bytes[block] = (offset + region.bytes.max(1)).next_multiple_of(256);
            Place { block, offset }
        });
        let (places, pool) = (places.collect(), Arc::default());
        Ok(Self { upload, options, pool, places, block_bytes, next_token: 0 })
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
    /// As [`next_batch`](Self::next_batch).
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
        let (_, mut blocks) = pool.offered.swap_remove(index);
        // The copy is ordered after them on the side stream, and so is a later free of the memory.
        blocks.iter_mut().flatten().for_each(|block| block.after.clear());
        pool.held += 1;
        Ok(Some(DeviceBatch {
            blocks,
            is_counted: true,
            most_free: self.options.ahead + self.options.device_hold,
            pool: Arc::clone(&self.pool),
            gpu: Arc::clone(self.upload.gpu()),
            specs: Arc::clone(self.upload.specs()),
            places: Arc::clone(&self.places),
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
            let mut blocks = [None, None];
            for (place, block) in blocks.iter_mut().enumerate() {
                if self.block_bytes[place] > 0 {
                    let free = pool.free[place].pop();
                    *block = Some(free.map_or_else(|| self.allocate(place), Ok)?);
                }
            }
            let starts = blocks.each_ref().map(|block| {
                block.as_ref().and_then(|block| block.memory.as_ref()).map_or(0, address)
            });
            let addresses = self.places.iter().map(|at| starts[at.block] + at.offset as u64);
            let addresses = addresses.collect();
            // Kept in the blocks, too: they may be freed before a copy is queued.
            let after = blocks.iter().flatten().flat_map(|block| block.after.clone()).collect();
            let token = self.next_token;
            self.next_token += 1;
            pool.offered.push((token, blocks));
            self.upload.offer_after(token, addresses, after);
        }
        Ok(())
    }

    fn allocate(&self, block: usize) -> Result<Block, Error> {
        let gpu = self.upload.gpu();
        let side = self.upload.side_stream();
        // SAFETY: a copy writes the memory before a view of it is returned. Allocation and free are ordered on the side
        // stream, which waits for all other uses.
        let memory = gpu.with_context(|| unsafe { side.alloc::<u8>(self.block_bytes[block]) })?;
        let memory = memory.map_err(|error| gpu.failed("allocating memory for a batch", error))?;
        Ok(Block { memory: Some(memory), after: Vec::new(), gpu: Arc::clone(gpu) })
    }
}

impl Deref for DeviceLoader {
    type Target = Upload;

    fn deref(&self) -> &Upload {
        &self.upload
    }
}

impl DerefMut for DeviceLoader {
    fn deref_mut(&mut self) -> &mut Upload {
        &mut self.upload
    }
}

/// A batch on the device. Dropping it returns its memory, ordered after the work of the streams that used it.
#[derive(Debug)]
pub struct DeviceBatch {
    blocks: Blocks,
    /// Whether it is one of the batches that the user may hold.
    is_counted: bool,
    /// The maximum number of free blocks of each kind that are kept for later batches.
    most_free: usize,
    pool: Arc<Mutex<Pool>>,
    gpu: Arc<Gpu>,
    specs: Arc<[TensorSpec]>,
    places: Arc<[Place]>,
    regions: Arc<[Region]>,
    uploaded: Uploaded,
    users: Mutex<Vec<User>>,
}

/// A stream that uses a batch.
#[derive(Debug, Clone)]
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

    /// Splits the batch's fields: fields larger than [`SMALL_FIELD_BYTES`], and the small ones, which have separate
    /// memory. Both parts have the whole schema, and no views of each other's fields. Only the first counts for
    /// [`DeviceOptions::device_hold`].
    #[must_use]
    pub fn split(mut self) -> (Self, Self) {
        let users = std::mem::take(self.users.get_mut().unwrap_or_else(PoisonError::into_inner));
        let small = Self {
            blocks: [None, self.blocks[1].take()],
            is_counted: false,
            most_free: self.most_free,
            pool: Arc::clone(&self.pool),
            gpu: Arc::clone(&self.gpu),
            specs: Arc::clone(&self.specs),
            places: Arc::clone(&self.places),
            regions: Arc::clone(&self.regions),
            uploaded: self.uploaded.clone(),
            users: Mutex::new(users.clone()),
        };
        self.users = Mutex::new(users);
        (self, small)
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
        let Place { block, offset } = *self.places.get(self.regions.iter().position(is_it)?)?;
        self.blocks[block].as_ref()?.memory.as_ref()?.try_slice(offset..offset + bytes)
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
        let users = std::mem::take(self.users.get_mut().unwrap_or_else(PoisonError::into_inner));
        let mut after = Vec::new();
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
                Ok(event) => after.push(Arc::new(event)),
                Err(_) => is_ordered = false,
            }
        }
        let mut pool = lock(&self.pool);
        pool.held -= usize::from(self.is_counted);
        for (place, block) in self.blocks.iter_mut().enumerate() {
            let Some(mut block) = block.take() else { continue };
            block.after.clone_from(&after);
            if !is_ordered {
                // The device has failed: memory that may still be in use is leaked.
                std::mem::forget(block.memory.take());
            } else if pool.free[place].len() < self.most_free {
                pool.free[place].push(block);
            }
        }
    }
}

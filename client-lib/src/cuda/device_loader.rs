//! The loader for Rust: batches in device memory of its own, as cudarc's slices.
//!
//! Who owns a destination: the pool while it is free, the upload from the offer to the hand-over, then the user's
//! [`DeviceBatch`]. Its drop records an event on each stream that [`DeviceBatch::used_on`] named, and the pool offers the
//! memory again at once: the side stream waits for those events before it copies, the host never does.

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

/// How batches come to the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceOptions {
    /// How the ring is made ready for the copy engine; default [`PinPolicy::Auto`].
    pub pin: PinPolicy,
    /// Batches that are copied ahead of the user; default 2, at least 1.
    pub ahead: usize,
    /// Batches that the user may hold; default 6, at least 1.
    pub device_hold: usize,
}

impl Default for DeviceOptions {
    fn default() -> Self {
        Self { pin: PinPolicy::Auto, ahead: 2, device_hold: 6 }
    }
}

/// One batch's memory, with the events that must complete before it is written to again, or freed.
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
            // In the side stream's order, behind the waits.
            let _ = self.gpu.within(|| drop(memory));
        } else {
            // The device has failed: memory that may be in use still is not given to anyone.
            std::mem::forget(memory);
        }
    }
}

/// The blocks that are nobody's, and the ones that the upload has.
#[derive(Debug, Default)]
struct Pool {
    free: Vec<Block>,
    offered: Vec<(u64, Block)>,
    /// With the user.
    held: usize,
}

/// A session whose batches come in device memory. Made by [`Loader::to_device`].
#[derive(Debug)]
pub struct DeviceLoader {
    // First: its drop waits for the copies into the pool's memory.
    upload: Upload,
    options: DeviceOptions,
    pool: Arc<Mutex<Pool>>,
    /// Where the regions lie in a block.
    offsets: Arc<[usize]>,
    block_bytes: usize,
    next_token: u64,
}

fn lock(pool: &Mutex<Pool>) -> MutexGuard<'_, Pool> {
    pool.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Loader {
    /// Copies this session's batches to a device from now on, with every default. Where the device shall finish fields
    /// (`on = "gpu"`), attach by [`Builder::attach_to`].
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
    /// Begins to copy.
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

    /// The next batch; `None` at the epoch's end, and the call after that begins the next one. `stream` waits for the
    /// copy; this thread waits only while nothing is ready.
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

    /// As [`next_batch`](Self::next_batch) for a stream that is not known yet: nothing waits for the copy before
    /// [`DeviceBatch::used_on`] was called.
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
        let place = pool.offered.iter().position(|(token, _)| *token == uploaded.token);
        let place = place.ok_or_else(|| Error::Protocol("a batch without a destination".into()))?;
        let (_, mut block) = pool.offered.swap_remove(place);
        // The copy is behind them on the side stream, and so is whatever frees the memory.
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

    /// Whether [`next_unordered`](Self::next_unordered) has something to tell without waiting.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.upload.is_open() && self.upload.is_ready()
    }

    /// Hands the upload as many destinations as it may be ahead by. [`next_batch`](Self::next_batch) does it by itself.
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
            // Kept in the block, too: it may be freed before a copy comes.
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
        // SAFETY: the memory is written to by a copy before a view of it is given out. Allocated and freed in the order of
        // the side stream, which waits for all other uses.
        let memory = gpu.within(|| unsafe { side.alloc::<u8>(self.block_bytes) })?;
        let memory = memory.map_err(|error| gpu.failed("allocating memory for a batch", error))?;
        Ok(Block { memory: Some(memory), after: Vec::new(), gpu: Arc::clone(gpu) })
    }

    /// The place in the stream: as [`Loader::state`].
    ///
    /// # Errors
    /// As there.
    pub fn state(&self, held_back: usize) -> Result<State, Error> {
        self.upload.state(held_back)
    }

    /// Goes on where a saved state stands: as [`Loader::load_state`].
    ///
    /// # Errors
    /// As there.
    pub fn load_state(&mut self, state: &State, force: bool) -> Result<(), Error> {
        self.upload.load_state(state, force)
    }

    /// Does nothing when the epoch is the current or the loaded one, else goes to its start.
    ///
    /// # Errors
    /// As [`Loader::set_epoch`].
    pub fn set_epoch(&mut self, epoch: u64) -> Result<(), Error> {
        self.upload.set_epoch(epoch)
    }

    /// What uploading did and cost.
    #[must_use]
    pub fn upload_statistics(&self) -> UploadStatistics {
        self.upload.upload_statistics()
    }

    /// The session behind it: terms, waits, figures.
    #[must_use]
    pub fn upload(&self) -> &Upload {
        &self.upload
    }

    /// As [`upload`](Self::upload), to begin epochs or to ask the daemon.
    pub fn upload_mut(&mut self) -> &mut Upload {
        &mut self.upload
    }
}

fn address(memory: &CudaSlice<u8>) -> u64 {
    use cudarc::driver::DevicePtr;
    // The guard would record a use for cudarc's own tracking, which is off.
    memory.device_ptr(memory.stream()).0
}

/// A batch on the device. Dropping it gives its memory back, behind the work of the streams that used it.
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
    /// The device's number.
    #[must_use]
    pub fn ordinal(&self) -> usize {
        self.gpu.ordinal()
    }

    /// Where a view of it lies on the device.
    #[must_use]
    pub fn address<T>(view: &CudaView<'_, T>) -> u64 {
        use cudarc::driver::{DevicePtr, DeviceSlice};
        view.device_ptr(view.stream()).0
    }

    /// The samples in the batch.
    #[must_use]
    pub fn rows(&self) -> u64 {
        self.uploaded.rows
    }

    /// The batch's number in the session.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.uploaded.number
    }

    /// The epoch that it belongs to.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.uploaded.epoch
    }

    /// The schema, in the order of the tensors.
    #[must_use]
    pub fn specs(&self) -> &[TensorSpec] {
        &self.specs
    }

    /// Lets a stream use the batch: it waits for the copy, and the memory is not written to again before what the stream was
    /// given up to the batch's drop is done. [`DeviceLoader::next_batch`] has done it for its stream.
    ///
    /// # Errors
    /// [`Error::Gpu`].
    pub fn used_on(&self, stream: &Arc<CudaStream>) -> Result<(), Error> {
        let handle = stream.cu_stream() as usize;
        self.add_user(User { handle, _stream: Some(Arc::clone(stream)) })
    }

    /// As [`used_on`](Self::used_on), for a stream of someone else's.
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
            // SAFETY: the stream is held by the user, or the caller vouches for it.
            unsafe { self.gpu.wait(user.handle, &self.uploaded.copied)? };
            users.push(user);
        }
        Ok(())
    }

    /// A tensor's bytes on the device, rows in row-major order; of a ragged one the region that its rows lie in.
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
        // SAFETY: the region starts at a multiple of 256 bytes and holds so many elements of this type.
        unsafe { bytes.transmute(elements) }
            .ok_or_else(|| Error::NoSuchTensor(format!("tensor `{name}` is not whole")))
    }
}

impl Drop for DeviceBatch {
    fn drop(&mut self) {
        let Some(mut block) = self.block.take() else { return };
        let users = std::mem::take(self.users.get_mut().unwrap_or_else(PoisonError::into_inner));
        let mut is_ordered = true;
        for user in users {
            let recorded = self.gpu.event().and_then(|event| {
                // The thread's default stream is another one on another thread; the legacy one waits for all of them.
                let handle = if user.handle == 2 { 1 } else { user.handle };
                // SAFETY: the stream is held here, or whoever named it vouches for it.
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
            // The device has failed: memory that may be in use still is not used again.
            std::mem::forget(block.memory.take());
        }
    }
}

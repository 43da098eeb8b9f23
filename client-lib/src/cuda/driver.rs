//! The driver API calls of an upload, with errors that name the remedy. All calls of this folder into the driver are here,
//! except the device loader's views of device memory.
//!
//! Owned here: the device's primary context (which PyTorch and the runtime use too; it is never reset), events with a free
//! list, pinned staging memory. Not owned: the user's streams, and memory that was not allocated here.
//!
//! The current context of a foreign thread changes only for the duration of a call: the runtime derives the current device
//! from the current context, and a trainer on another device would continue on the wrong one.

use std::ffi::{CString, c_uint, c_void};
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::{CudaContext, CudaStream, DriverError, result, sys};

use crate::error::Error;

/// An open device.
#[derive(Debug)]
pub(crate) struct Gpu {
    context: Arc<CudaContext>,
    ordinal: usize,
    events: Mutex<Vec<RawEvent>>,
    /// The modules of kernels by their text, each loaded at first use.
    modules: Mutex<Vec<(&'static str, Module)>>,
    /// All side streams; unused ones are reused. Never destroyed: stream-ordered memory may outlive an upload.
    side_streams: Mutex<Vec<Arc<CudaStream>>>,
}

#[derive(Debug, Clone, Copy)]
struct Module(sys::CUmodule);

// SAFETY: a module's handle may be used from any thread.
unsafe impl Send for Module {}

/// A kernel, loaded until the process ends.
#[derive(Debug)]
pub(crate) struct Kernel(sys::CUfunction);

// SAFETY: a function's handle may be used from any thread.
unsafe impl Send for Kernel {}
// SAFETY: as above.
unsafe impl Sync for Kernel {}

/// The threads per block, and the maximum number of blocks: enough to fill a device; each thread loops over pixels.
const BLOCK_THREADS: u32 = 256;
const MAX_BLOCKS: u64 = 2048;

/// An unused event.
#[derive(Debug)]
struct RawEvent(sys::CUevent);

// SAFETY: an event's handle may be used from any thread (CUDA Driver API, "Event Management"; the driver locks).
unsafe impl Send for RawEvent {}
// SAFETY: as above.
unsafe impl Sync for RawEvent {}

/// A guard: the device's context is the calling thread's current one until it is dropped.
#[derive(Debug)]
struct Entered {
    is_pushed: bool,
}

impl Drop for Entered {
    fn drop(&mut self) {
        if self.is_pushed {
            let mut popped = std::ptr::null_mut();
            // SAFETY: this thread pushed a context in `enter`, and guards are dropped in the order of a stack.
            let _ = unsafe { sys::cuCtxPopCurrent_v2(&raw mut popped) };
        }
    }
}

/// The error of a driver call, with its remedy.
fn gpu_error(ordinal: usize, doing: &str, error: DriverError) -> Error {
    use sys::cudaError_enum as E;
    let remedy = match error.0 {
        E::CUDA_ERROR_OUT_OF_MEMORY => {
            "the device's memory is full: use a smaller `batch.size`, hold fewer batches, or lower `ahead`"
        }
        E::CUDA_ERROR_ILLEGAL_ADDRESS
        | E::CUDA_ERROR_LAUNCH_FAILED
        | E::CUDA_ERROR_ASSERT
        | E::CUDA_ERROR_MISALIGNED_ADDRESS
        | E::CUDA_ERROR_CONTEXT_IS_DESTROYED
        | E::CUDA_ERROR_ECC_UNCORRECTABLE
        | E::CUDA_ERROR_UNKNOWN => {
            "the device's context is lost, which any kernel of this process may have caused: restart the process \
             (CUDA_LAUNCH_BLOCKING=1 finds the kernel; `dmesg` shows a failed device)"
        }
        E::CUDA_ERROR_NOT_INITIALIZED => {
            "CUDA does not work in a process that was forked after its parent had used it: start the process with `spawn`"
        }
        _ => "`nvidia-smi` shows whether the device works",
    };
    let name = format!("{:?}", error.0);
    Error::Gpu(format!("cuda:{ordinal}: {doing} failed: {name}; {remedy}"))
}

/// The error of opening a device, with its remedy.
fn open_error(ordinal: usize, error: DriverError) -> Error {
    use sys::cudaError_enum as E;
    let visible = std::env::var("CUDA_VISIBLE_DEVICES")
        .map_or_else(|_| "is not set".to_owned(), |value| format!("is {value:?}"));
    match error.0 {
        E::CUDA_ERROR_STUB_LIBRARY => Error::Config(format!(
            "cuda:{ordinal}: the libcuda.so that was found is a toolkit's stub and not the driver; remove its folder \
             from LD_LIBRARY_PATH"
        )),
        E::CUDA_ERROR_NO_DEVICE | E::CUDA_ERROR_INVALID_DEVICE => {
            let count = CudaContext::device_count().unwrap_or(0);
            Error::Config(format!(
                "cuda:{ordinal}: this process sees {count} device{} (CUDA_VISIBLE_DEVICES {visible}); choose one of \
                 them, or omit the device for tensors in CPU memory",
                if count == 1 { "" } else { "s" }
            ))
        }
        _ => gpu_error(ordinal, "opening the device", error),
    }
}

impl Gpu {
    /// Opens a device and makes its context current on the calling thread, which must be a thread of this library. It stays
    /// open until the process ends, as with the runtime API.
    pub(crate) fn open(ordinal: usize) -> Result<Arc<Self>, Error> {
        static OPENED: Mutex<Vec<Arc<Gpu>>> = Mutex::new(Vec::new());
        let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(gpu) = opened.iter().find(|gpu| gpu.ordinal == ordinal) {
            let bound = gpu.context.bind_to_thread();
            return bound.map(|()| Arc::clone(gpu)).map_err(|error| open_error(ordinal, error));
        }
        let gpu = Self::open_first(ordinal)?;
        opened.push(Arc::clone(&gpu));
        Ok(gpu)
    }

    fn open_first(ordinal: usize) -> Result<Arc<Self>, Error> {
        // SAFETY: loads the driver's library, whose initialisers every CUDA program runs.
        if !unsafe { sys::is_culib_present() } {
            return Err(Error::Config(format!(
                "cuda:{ordinal}: no NVIDIA driver was found (libcuda.so.1); install it, or omit the device for tensors \
                 in CPU memory"
            )));
        }
        let context = CudaContext::new(ordinal).map_err(|error| open_error(ordinal, error))?;
        // SAFETY: only this crate creates slices, and it orders their use on other streams with its own events. With
        // tracking, the creation of the first stream would wait for all work of the device.
        unsafe { context.disable_event_tracking() };
        Ok(Arc::new(Self {
            context,
            ordinal,
            events: Mutex::default(),
            modules: Mutex::default(),
            side_streams: Mutex::default(),
        }))
    }

    /// The device's index among the devices visible to this process.
    pub(crate) fn ordinal(&self) -> usize {
        self.ordinal
    }

    pub(crate) fn failed(&self, doing: &str, error: DriverError) -> Error {
        gpu_error(self.ordinal, doing, error)
    }

    fn check(&self, doing: &str, status: sys::CUresult) -> Result<(), Error> {
        status.result().map_err(|error| self.failed(doing, error))
    }

    fn enter(&self) -> Result<Entered, Error> {
        let current = result::ctx::get_current()
            .map_err(|error| self.failed("asking for the context", error))?;
        if current == Some(self.context.cu_ctx()) {
            return Ok(Entered { is_pushed: false });
        }
        // SAFETY: the context is retained for as long as `self` lives.
        self.check("entering the context", unsafe {
            sys::cuCtxPushCurrent_v2(self.context.cu_ctx())
        })?;
        Ok(Entered { is_pushed: true })
    }

    /// Runs `work` with the device's context as the current one.
    pub(crate) fn with_context<R>(&self, work: impl FnOnce() -> R) -> Result<R, Error> {
        let _entered = self.enter()?;
        Ok(work())
    }

    /// A non-blocking stream for an upload's copies. PyTorch's stream pool is not suitable: it shares 32 streams round
    /// robin, so that other code might capture or compute on the same stream.
    pub(crate) fn side_stream(&self) -> Result<Arc<CudaStream>, Error> {
        let mut made = self.side_streams.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(free) = made.iter().find(|stream| Arc::strong_count(stream) == 1) {
            return Ok(Arc::clone(free));
        }
        let _entered = self.enter()?;
        let stream = self.context.new_stream();
        let stream = stream.map_err(|error| self.failed("making a stream", error))?;
        made.push(Arc::clone(&stream));
        Ok(stream)
    }

    /// Sets the calling thread's capture mode to relaxed, so that its calls are allowed while another thread captures a
    /// graph. Without this, the calls and a capture in the default mode make each other fail.
    pub(crate) fn relax_capture_mode(&self) {
        let mut mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: `mode` is valid for one value. A driver without this call has no graph capture.
        let _ =
            self.with_context(|| unsafe { sys::cuThreadExchangeStreamCaptureMode(&raw mut mode) });
    }

    /// A new or reused event.
    pub(crate) fn event(self: &Arc<Self>) -> Result<Event, Error> {
        let spare = self.events.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let raw = match spare {
            Some(raw) => raw,
            None => {
                let _entered = self.enter()?;
                let mut raw = std::ptr::null_mut();
                let flags = sys::CUevent_flags::CU_EVENT_BLOCKING_SYNC as c_uint
                    | sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as c_uint;
                // SAFETY: `raw` is valid for one handle.
                self.check("making an event", unsafe { sys::cuEventCreate(&raw mut raw, flags) })?;
                RawEvent(raw)
            }
        };
        Ok(Event { raw: Some(raw), gpu: Arc::clone(self) })
    }

    /// Makes a stream, not the host, wait for an event.
    ///
    /// # Safety
    /// The handle must be a stream of this device's primary context, or 0, 1 or 2 (the default streams).
    pub(crate) unsafe fn wait(&self, stream: usize, event: &Event) -> Result<(), Error> {
        let _entered = self.enter()?;
        // SAFETY: the caller guarantees that the stream is valid, and the event lives.
        self.check("making a stream wait for the copy", unsafe {
            sys::cuStreamWaitEvent(stream as sys::CUstream, event.handle(), 0)
        })
    }

    /// Queues a copy from this process's memory to the device's.
    ///
    /// # Safety
    /// `from` must be valid for `bytes` and `to` be that many bytes of device memory, both until an event that is recorded
    /// on the stream afterwards has completed; `from` must not be written and `to` not used meanwhile.
    pub(crate) unsafe fn copy(
        &self,
        to: u64,
        from: *const u8,
        bytes: usize,
        stream: &CudaStream,
    ) -> Result<(), Error> {
        let _entered = self.enter()?;
        // SAFETY: as the caller guarantees.
        self.check("copying a batch", unsafe {
            sys::cuMemcpyHtoDAsync_v2(to, from.cast(), bytes, stream.cu_stream())
        })
    }

    /// One of the kernels of a text in PTX; the driver compiles them for the device.
    pub(crate) fn kernel(&self, text: &'static str, name: &str) -> Result<Kernel, Error> {
        let _entered = self.enter()?;
        let failed = |error| self.failed("loading the kernel that finishes a field", error);
        let mut modules = self.modules.lock().unwrap_or_else(PoisonError::into_inner);
        let known = modules.iter().find(|(of, _)| *of == text).map(|(_, module)| *module);
        let Module(loaded) = match known {
            Some(loaded) => loaded,
            None => {
                let zero_ended = CString::new(text).unwrap_or_default();
                // SAFETY: PTX that ends in a zero.
                let loaded = unsafe { result::module::load_data(zero_ended.as_ptr().cast()) };
                let loaded = Module(loaded.map_err(failed)?);
                modules.push((text, loaded));
                loaded
            }
        };
        let name = CString::new(name).unwrap_or_default();
        // SAFETY: the module is never unloaded.
        unsafe { result::module::get_function(loaded, name) }.map(Kernel).map_err(failed)
    }

    /// Queues a kernel over `pixels` pixels.
    ///
    /// # Safety
    /// `numbers` and then `sizes` must be all parameters as the kernel's head names them, over memory that lives until an
    /// event that is recorded on the stream afterwards has completed.
    pub(crate) unsafe fn launch(
        &self,
        kernel: &Kernel,
        pixels: u64,
        numbers: &mut [u64],
        sizes: &mut [u32],
        stream: &CudaStream,
    ) -> Result<(), Error> {
        let _entered = self.enter()?;
        let blocks = pixels.div_ceil(BLOCK_THREADS.into()).clamp(1, MAX_BLOCKS);
        let blocks = u32::try_from(blocks).unwrap_or(1);
        let numbers = numbers.iter_mut().map(|number| std::ptr::from_mut(number).cast::<c_void>());
        let sizes = sizes.iter_mut().map(|size| std::ptr::from_mut(size).cast::<c_void>());
        let mut parameters: Vec<*mut c_void> = numbers.chain(sizes).collect();
        let (grid, block) = ((blocks, 1, 1), (BLOCK_THREADS, 1, 1));
        let stream = stream.cu_stream();
        // SAFETY: the parameters have the kernel's types and are read before the call returns; the rest is as the
        // caller guarantees.
        unsafe { result::launch_kernel(kernel.0, grid, block, 0, stream, &mut parameters) }
            .map_err(|error| self.failed("finishing a field", error))
    }

    /// Pins memory for the copy engine, in all contexts of the process.
    ///
    /// # Safety
    /// The memory must be mapped, and stay so until [`unregister`](Self::unregister).
    pub(crate) unsafe fn register(&self, start: *mut u8, bytes: usize) -> Result<(), Error> {
        let _entered = self.enter()?;
        let flags = sys::CU_MEMHOSTREGISTER_PORTABLE;
        // SAFETY: as the caller guarantees.
        self.check("pinning the ring", unsafe {
            sys::cuMemHostRegister_v2(start.cast(), bytes, flags)
        })
    }

    /// Ends a registration.
    ///
    /// # Safety
    /// The memory must have been registered by [`register`](Self::register) and still be mapped, without a pending copy
    /// from it.
    pub(crate) unsafe fn unregister(&self, start: *mut u8) {
        if let Ok(_entered) = self.enter() {
            // SAFETY: as the caller guarantees. After an error the pages stay pinned until the process ends.
            let _ = unsafe { sys::cuMemHostUnregister(start.cast()) };
        }
    }

    /// Allocates pinned memory from the driver.
    pub(crate) fn allocate_pinned(self: &Arc<Self>, bytes: usize) -> Result<PinnedMemory, Error> {
        let _entered = self.enter()?;
        let mut start: *mut c_void = std::ptr::null_mut();
        // SAFETY: `start` is valid for one pointer.
        self.check("allocating pinned memory", unsafe {
            sys::cuMemHostAlloc(&raw mut start, bytes, sys::CU_MEMHOSTALLOC_PORTABLE)
        })?;
        Ok(PinnedMemory { start: start.cast(), bytes, gpu: Arc::clone(self) })
    }
}

/// An event: a point in a stream's work. After its drop it is reused; a stream that waits for it waits for the work
/// recorded at the time of the call.
#[derive(Debug)]
pub(crate) struct Event {
    raw: Option<RawEvent>,
    gpu: Arc<Gpu>,
}

impl Event {
    fn handle(&self) -> sys::CUevent {
        self.raw.as_ref().map_or(std::ptr::null_mut(), |raw| raw.0)
    }

    /// Records the event after the work queued on the stream so far.
    ///
    /// # Safety
    /// As [`Gpu::wait`].
    pub(crate) unsafe fn record(&self, stream: usize) -> Result<(), Error> {
        let _entered = self.gpu.enter()?;
        // SAFETY: the caller guarantees that the stream is valid, and the event lives.
        self.gpu.check("recording an event", unsafe {
            sys::cuEventRecord(self.handle(), stream as sys::CUstream)
        })
    }

    /// Blocks until the recorded work is complete.
    pub(crate) fn synchronize(&self) -> Result<(), Error> {
        let _entered = self.gpu.enter()?;
        // SAFETY: the event lives.
        self.gpu.check("a copy to the device", unsafe { sys::cuEventSynchronize(self.handle()) })
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if let Some(raw) = self.raw.take() {
            self.gpu.events.lock().unwrap_or_else(PoisonError::into_inner).push(raw);
        }
    }
}

/// Pinned staging memory from the driver.
#[derive(Debug)]
pub(crate) struct PinnedMemory {
    start: *mut u8,
    bytes: usize,
    gpu: Arc<Gpu>,
}

// SAFETY: plain memory that this value owns exclusively.
unsafe impl Send for PinnedMemory {}

impl PinnedMemory {
    /// The address of the first byte.
    pub(crate) fn start(&self) -> *mut u8 {
        self.start
    }

    /// The size.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for PinnedMemory {
    fn drop(&mut self) {
        let _ = self.gpu.with_context(|| {
            // SAFETY: allocated in `allocate_pinned`, and its owners wait for copies from it.
            let _ = unsafe { sys::cuMemFreeHost(self.start.cast()) };
        });
    }
}

//! Measures the latency of taking a batch on the GPU, and checks that memory reused in random order stays intact; for
//! `scripts/gpu-check`.
//!
//! - `device latency CONFIG [TAKES] [PAUSE_MS]` measures only `next_batch`, on one thread, for batches that were ready:
//!   the pause before each take lets the ring fill, as a training step does.
//! - `device reuse CONFIG [STEPS]` takes batches on alternating streams, reads them after other work on the stream,
//!   drops some at once and others many steps later, and compares their contents with a second session on the CPU. The
//!   fields of the configuration must be dense.
//!
//! Each prints one JSON object. The configuration must be unlimited or long enough.

use std::collections::VecDeque;
use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_client::cuda::cudarc::driver::{
    CudaContext, CudaEvent, CudaSlice, CudaStream, DevicePtr, result, sys,
};
use forebay_client::cuda::{Device, DeviceLoader, DeviceOptions};
use forebay_client::{Batch, DeviceBatch, Loader};

type Answer<T> = Result<T, Box<dyn Error>>;

/// Bytes that are copied within the device to keep a stream busy: tens of microseconds each time.
const BURDEN_BYTES: usize = 64 << 20;
const STREAMS: usize = 3;
const HOLD: usize = 6;
/// Maximum number of pending reads, each into separate pinned memory.
const READS: usize = 12;

fn main() -> Answer<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |place: usize, default: usize| -> Answer<usize> {
        Ok(arguments.get(place).map_or(Ok(default), |text| text.parse())?)
    };
    match (arguments.first().map(String::as_str), arguments.get(1)) {
        (Some("latency"), Some(config)) => latency(config, number(2, 1_000)?, number(3, 5)?),
        (Some("reuse"), Some(config)) => reuse(config, number(2, 10_000)?),
        _ => {
            Err("usage: device latency CONFIG [TAKES] [PAUSE_MS] | device reuse CONFIG [STEPS]"
                .into())
        }
    }
}

fn latency(config: &str, takes: usize, pause_ms: usize) -> Answer<()> {
    let device = Device::open(0)?;
    let stream = CudaContext::new(0)?.new_stream()?;
    let mut loader = DeviceLoader::new(Loader::attach(config)?, &device, DeviceOptions::default())?;
    let pause = Duration::from_millis(pause_ms as u64);
    let mut times: Vec<Duration> = Vec::with_capacity(takes);
    let mut waits = 0;
    while times.len() < takes && waits < takes {
        std::thread::sleep(pause);
        let waited = loader.wait_statistics().waited();
        let begin = Instant::now();
        let batch = loader.next_batch(&stream)?;
        let time = begin.elapsed();
        if batch.is_some() && loader.wait_statistics().waited() == waited {
            times.push(time);
        } else {
            waits += 1;
        }
    }
    times.sort_unstable();
    let at = |share: usize| times.get(times.len() * share / 100).map_or(0, Duration::as_nanos);
    println!(
        "{{\"batches\": {}, \"waited\": {waits}, \"median_nanoseconds\": {}, \"p99_nanoseconds\": {}, \
         \"path\": \"{}\"}}",
        times.len(),
        at(50),
        at(99),
        loader.upload_statistics().path
    );
    Ok(())
}

/// Pinned memory, so that copies to it are asynchronous. cudarc's type has an event that is not needed here.
struct Pinned {
    start: *mut u8,
    bytes: usize,
}

impl Pinned {
    fn allocate(context: &Arc<CudaContext>, bytes: usize) -> Answer<Self> {
        context.bind_to_thread()?;
        // SAFETY: the context is this thread's; `drop` frees it.
        let start = unsafe { result::malloc_host(bytes, sys::CU_MEMHOSTALLOC_PORTABLE)? }.cast();
        // SAFETY: this many bytes were allocated just now.
        unsafe { std::ptr::write_bytes(start, 0, bytes) };
        Ok(Self { start, bytes })
    }

    fn all(&self) -> &[u8] {
        // SAFETY: allocated and initialised; no copy into it is pending when it is read.
        unsafe { std::slice::from_raw_parts(self.start, self.bytes) }
    }

    fn all_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.bytes) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // SAFETY: allocated by the driver, and every copy into it was waited for.
        let _ = unsafe { result::free_host(self.start.cast()) };
    }
}

/// A batch's contents on their way to pinned memory, and the expected contents.
struct Read {
    step: usize,
    memory: Pinned,
    bytes: usize,
    expected: Arc<Vec<u8>>,
    done: CudaEvent,
}

/// Pending reads, and the results of the comparison.
struct Reader {
    context: Arc<CudaContext>,
    burden: (CudaSlice<u8>, CudaSlice<u8>),
    free: Vec<Pinned>,
    under_way: VecDeque<Read>,
    compared: usize,
    wrong: Vec<usize>,
}

impl Reader {
    /// Keeps the stream busy, then copies the batch's contents; waits for neither.
    fn read(
        &mut self,
        step: usize,
        batch: &DeviceBatch,
        expected: &Arc<Vec<u8>>,
        stream: &Arc<CudaStream>,
        burdens: usize,
    ) -> Answer<()> {
        self.context.bind_to_thread()?;
        for _ in 0..burdens {
            let (from, _from) = self.burden.0.device_ptr(stream);
            let (to, _to) = self.burden.1.device_ptr(stream);
            // SAFETY: both have this length, and their content is not used.
            unsafe { result::memcpy_dtod_async(to, from, BURDEN_BYTES, stream.cu_stream())? };
        }
        while self.under_way.len() >= READS {
            self.compare_oldest()?;
        }
        let mut memory = match self.free.pop() {
            Some(memory) if memory.bytes >= expected.len() => memory,
            _ => Pinned::allocate(&self.context, expected.len())?,
        };
        let target = memory.all_mut();
        let mut end = 0;
        for spec in batch.specs() {
            let view = batch.bytes(&spec.name).ok_or("a tensor without bytes")?;
            let room =
                target.get_mut(end..end + view.len()).ok_or("a longer batch than the CPU's")?;
            end += view.len();
            let (address, _guard) = view.device_ptr(stream);
            // SAFETY: the pinned memory stays with `Read` until the event after the copy has completed.
            unsafe { result::memcpy_dtoh_async(room, address, stream.cu_stream())? };
        }
        let done = stream.record_event(None)?;
        let expected = Arc::clone(expected);
        self.under_way.push_back(Read { step, memory, bytes: end, expected, done });
        Ok(())
    }

    fn compare_oldest(&mut self) -> Answer<()> {
        let Some(read) = self.under_way.pop_front() else { return Ok(()) };
        read.done.synchronize()?;
        self.compared += 1;
        if read.memory.all()[..read.bytes] != read.expected[..] {
            self.wrong.push(read.step);
        }
        self.free.push(read.memory);
        Ok(())
    }
}

fn bytes_of(batch: &Batch) -> Vec<u8> {
    batch.tensors().flat_map(|tensor| tensor.bytes().iter().copied()).collect()
}

fn next_on_host(loader: &mut Loader) -> Answer<Batch> {
    // The call after an epoch's end begins the next epoch.
    for _ in 0..2 {
        if let Some(batch) = loader.next_batch()? {
            return Ok(batch);
        }
    }
    Err("an epoch without a batch".into())
}

fn next_on_device(loader: &mut DeviceLoader, stream: &Arc<CudaStream>) -> Answer<DeviceBatch> {
    for _ in 0..2 {
        if let Some(batch) = loader.next_batch(stream)? {
            return Ok(batch);
        }
    }
    Err("an epoch without a batch".into())
}

fn reuse(config: &str, steps: usize) -> Answer<()> {
    let device = Device::open(0)?;
    let context = CudaContext::new(0)?;
    let streams = (0..STREAMS).map(|_| context.new_stream()).collect::<Result<Vec<_>, _>>()?;
    let options = DeviceOptions { device_hold: HOLD, ..DeviceOptions::default() };
    let mut loader = DeviceLoader::new(Loader::attach(config)?, &device, options)?;
    let mut host = Loader::attach(config)?;
    // SAFETY: the contents are only copied, never interpreted.
    let allocate = || unsafe { streams[0].alloc::<u8>(BURDEN_BYTES) };
    let burden = (allocate()?, allocate()?);
    streams[0].synchronize()?;
    let mut reader = Reader {
        context: Arc::clone(&context),
        burden,
        free: Vec::new(),
        under_way: VecDeque::new(),
        compared: 0,
        wrong: Vec::new(),
    };
    // Knuth's MMIX generator: the same steps on every machine.
    let mut state = 17u64;
    let mut draw = |below: usize| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(state >> 33).unwrap_or(0) % below
    };
    let mut held: Vec<(usize, DeviceBatch, Arc<Vec<u8>>)> = Vec::new();
    for step in 0..steps {
        let taker = &streams[draw(STREAMS)];
        let batch = next_on_device(&mut loader, taker)?;
        let expected = Arc::new(bytes_of(&next_on_host(&mut host)?));
        let other = &streams[draw(STREAMS)];
        batch.used_on(other)?;
        reader.read(step, &batch, &expected, other, draw(4))?;
        if draw(2) == 0 {
            held.push((step, batch, expected));
        } else {
            // Early: the reads of it have hardly begun.
            drop(batch);
        }
        while held.len() >= HOLD - 1 || (!held.is_empty() && draw(3) == 0) {
            let (step, batch, expected) = held.swap_remove(draw(held.len()));
            let late = &streams[draw(STREAMS)];
            batch.used_on(late)?;
            reader.read(step, &batch, &expected, late, draw(2))?;
        }
    }
    drop(held);
    while !reader.under_way.is_empty() {
        reader.compare_oldest()?;
    }
    println!(
        "{{\"steps\": {steps}, \"compared\": {}, \"wrong\": {}, \"first_wrong\": {}, \"path\": \"{}\"}}",
        reader.compared,
        reader.wrong.len(),
        reader.wrong.first().map_or("null".to_owned(), ToString::to_string),
        loader.upload_statistics().path
    );
    if reader.wrong.is_empty() { Ok(()) } else { Err("batches held wrong bytes".into()) }
}

//! Samples the functions that this process's threads execute, with the kernel's perf events.
//!
//! A dedicated thread opens a CPU-time event for every thread of the process and reads the records of the kernel:
//! address, thread, time. No signal interrupts a thread and no stack is walked: code in a handler, or a walk along a
//! broken frame pointer, could crash the process. If the kernel or a container refuses, there are no samples, and
//! [`Sampling::end`] returns the reason. The timestamps are the kernel's: tests cannot replace that clock.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use perf_event::data::Record;
use perf_event::events::Software;
use perf_event::{Builder, Clock, SampleFlag, Sampler};

/// The maximum number of samples; 24 bytes each.
const MAX_SAMPLES: usize = 200_000;
/// The maximum number of sampled threads: each needs a descriptor and three pages of kernel memory.
const MAX_THREADS: usize = 256;
/// The kernel's buffer for the samples of a thread between two readings.
const BUFFER_BYTES: usize = 8192;
/// The time between two readings: a thread's buffer has space for about 200 samples.
const READING_PERIOD: Duration = Duration::from_millis(50);
/// Readings between two scans for new threads.
const READINGS_PER_SCAN: u32 = 4;

/// One sample.
#[derive(Debug, Clone, Copy)]
pub struct Sample {
    /// In the process's memory.
    pub address: u64,
    /// On the monotonic clock.
    pub at_ns: u64,
    /// The kernel's thread id.
    pub thread: u32,
}

/// The result of sampling.
#[derive(Debug, Default)]
pub struct Samples {
    /// All samples.
    pub samples: Vec<Sample>,
    /// The names of the threads by thread id.
    pub threads: BTreeMap<u32, String>,
    /// Samples dropped because the buffer was full.
    pub dropped: u64,
    /// Threads that the kernel refused to sample although it allowed others.
    pub refused: u64,
}

/// Sampling in progress. Dropping it ends it.
#[derive(Debug)]
pub struct Sampling {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<Samples, String>>>,
}

impl Sampling {
    /// Starts sampling, with `hertz` samples per second of each thread's CPU time.
    ///
    /// # Errors
    /// No thread can be started. A refusal by the kernel is reported at the [end](Self::end).
    pub fn start(hertz: u32) -> io::Result<Self> {
        let is_over = Arc::new(AtomicBool::new(false));
        let asked = Arc::clone(&is_over);
        let thread = std::thread::Builder::new()
            .name("forebay-record".to_owned())
            .spawn(move || sample(hertz, &asked))?;
        Ok(Self { is_over, thread: Some(thread) })
    }

    /// Ends it and returns the samples, or the reason why there are none. Waits for one reading.
    pub fn end(mut self) -> Result<Samples, String> {
        self.is_over.store(true, Ordering::Relaxed);
        let Some(thread) = self.thread.take() else {
            return Err("sampling has ended before".to_owned());
        };
        thread.thread().unpark();
        thread.join().unwrap_or_else(|_| Err("the sampling thread panicked".to_owned()))
    }
}

impl Drop for Sampling {
    fn drop(&mut self) {
        // Relaxed: the thread polls it.
        self.is_over.store(true, Ordering::Relaxed);
    }
}

fn sample(hertz: u32, is_over: &AtomicBool) -> Result<Samples, String> {
    let own = own_thread_id();
    let max_threads = max_threads();
    if max_threads == 0 {
        return Err("not enough free file descriptors; raise the limit of open files (ulimit -n)"
            .to_owned());
    }
    let mut samplers: BTreeMap<u32, Option<Sampler>> = BTreeMap::new();
    let mut found = Samples::default();
    let mut readings = 0;
    loop {
        if readings % READINGS_PER_SCAN == 0 {
            let threads = threads().map_err(|error| format!("/proc/self/task: {error}"))?;
            // The last samples of ended threads have been read.
            samplers.retain(|thread, _| threads.iter().any(|(known, _)| known == thread));
            for (thread, name) in threads {
                if Some(thread) == own
                    || samplers.contains_key(&thread)
                    || samplers.len() >= max_threads
                {
                    continue;
                }
                match open(thread, hertz) {
                    Ok(sampler) => {
                        samplers.insert(thread, Some(sampler));
                        found.threads.insert(thread, name);
                    }
                    // The thread may have ended meanwhile.
                    Err(error)
                        if error.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error()) => {
                    }
                    Err(error) if samplers.is_empty() => return Err(error.to_string()),
                    // The kernel limits the memory for this per user: other threads are sampled.
                    Err(_) => {
                        samplers.insert(thread, None);
                        found.refused += 1;
                    }
                }
            }
        }
        readings += 1;
        let was_over = is_over.load(Ordering::Relaxed);
        for (thread, sampler) in &mut samplers {
            if let Some(sampler) = sampler {
                read(*thread, sampler, &mut found);
            }
        }
        if was_over {
            return Ok(found);
        }
        std::thread::park_timeout(READING_PERIOD);
    }
}

/// A quarter of the free descriptors: reads and clients need the rest.
fn max_threads() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let used = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
    let limit = limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
    (limit.saturating_sub(used) / 4).min(MAX_THREADS)
}

fn own_thread_id() -> Option<u32> {
    u32::try_from(rustix::thread::gettid().as_raw_pid()).ok()
}

/// The threads of this process, with their names.
fn threads() -> io::Result<Vec<(u32, String)>> {
    let entries = std::fs::read_dir("/proc/self/task")?.flatten();
    let named = entries.filter_map(|entry| {
        let number = entry.file_name().to_str()?.parse().ok()?;
        let name = std::fs::read_to_string(entry.path().join("comm")).ok()?;
        Some((number, name.trim().to_owned()))
    });
    Ok(named.collect())
}

fn open(thread: u32, hertz: u32) -> io::Result<Sampler> {
    let thread = i32::try_from(thread).map_err(io::Error::other)?;
    let mut counter = Builder::new(Software::CPU_CLOCK)
        .observe_pid(thread)
        .any_cpu()
        .exclude_kernel(true)
        .exclude_hv(true)
        .sample(SampleFlag::IP | SampleFlag::TID | SampleFlag::TIME)
        .sample_frequency(hertz.into())
        .clockid(Clock::MONOTONIC)
        .build()?;
    counter.enable()?;
    counter.sampled(BUFFER_BYTES)
}

fn read(thread: u32, sampler: &mut Sampler, found: &mut Samples) {
    while let Some(record) = sampler.next_record() {
        let Ok(Record::Sample(sample)) = record.parse_record() else {
            continue;
        };
        let (Some(address), Some(at_ns)) = (sample.ip(), sample.time()) else {
            continue;
        };
        if found.samples.len() < MAX_SAMPLES {
            found.samples.push(Sample { address, at_ns, thread });
        } else {
            found.dropped += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn busy_thread_is_sampled_or_the_reason_is_returned() {
        let is_over = Arc::new(AtomicBool::new(false));
        let asked = Arc::clone(&is_over);
        // A thread has its name only when it runs.
        let (begun, has_begun) = std::sync::mpsc::sync_channel(1);
        let busy = std::thread::Builder::new()
            .name("busy-one".to_owned())
            .spawn(move || {
                begun.send(()).unwrap();
                let mut turns = 0_u64;
                while !asked.load(Ordering::Relaxed) {
                    turns = std::hint::black_box(turns.wrapping_mul(31) + 1);
                }
            })
            .unwrap();
        has_begun.recv().unwrap();
        let begun = Instant::now();
        let sampling = Sampling::start(500).unwrap();
        // With other tests in parallel it gets only a part of a core.
        std::thread::sleep(Duration::from_millis(1200));
        let ended = sampling.end();
        is_over.store(true, Ordering::Relaxed);
        busy.join().unwrap();
        match ended {
            Err(reason) => assert!(!reason.is_empty()),
            Ok(found) => {
                assert!(
                    found.threads.values().any(|name| name == "busy-one"),
                    "{:?}",
                    found.threads
                );
                let of_busy = found.samples.iter().filter(|sample| {
                    found.threads.get(&sample.thread).is_some_and(|name| name == "busy-one")
                });
                assert!(of_busy.count() > 5, "{} samples", found.samples.len());
                let now_ns = forebay_protocol::clock::monotonic_ns();
                let earliest = now_ns - u64::try_from(begun.elapsed().as_nanos()).unwrap();
                let times = found.samples.iter().map(|sample| sample.at_ns);
                assert!(times.clone().min() >= Some(earliest) && times.max() <= Some(now_ns));
            }
        }
    }
}

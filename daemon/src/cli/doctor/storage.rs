//! Measures random reads of samples, with one thread, the configured number and twice that. The page cache of a file is
//! dropped first where the kernel allows it. A storage that answers requests is measured by [`requests`].

mod requests;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use forebay_protocol::ids::SampleId;
use rustix::fs::{Advice, fadvise};

use super::finding::{Finding, Weight};
use forebay_config::DatasetConfig;
use forebay_engine::Stream;
use forebay_observe::TimeHistogram;
use forebay_observe::format_bytes;

/// Results.
#[derive(Debug, Default)]
pub(super) struct Reading {
    pub(super) findings: Vec<Finding>,
    /// The mean; 0 where nothing was read.
    pub(super) bytes_per_sample: u64,
}

/// The gain from which twice the concurrency is recommended.
const WORTHWHILE: f64 = 1.2;

/// Reads for `seconds` at each concurrency.
pub(super) fn measure(stream: &Stream, seconds: f64) -> Reading {
    let Ok(time) = Duration::try_from_secs_f64(seconds) else { return Reading::default() };
    if time.is_zero() {
        return Reading::default();
    }
    let (configured, most) = stream.config().reads();
    let turn = AtomicU64::new(0);
    if stream.requests().is_some() {
        return requests::measure(stream, time, &turn);
    }
    let rates: Vec<Rate> =
        [1, configured, configured * 2].map(|at_once| read(stream, at_once, time, &turn)).into();
    let [one, now, twice] = &rates[..] else { return Reading::default() };
    let Some(bytes_per_sample) = now.bytes.checked_div(now.samples) else {
        return unreadable(&rates);
    };
    let state = format!(
        "a read of {} takes {:.2} ms; one at a time gives {:.0} samples/s, {configured} at once {:.0} ({}/s)",
        format_bytes(bytes_per_sample),
        one.mean_seconds * 1e3,
        one.per_second(),
        now.per_second(),
        format_bytes(now.bytes_per_second())
    );
    // "auto" tries that by itself.
    let finding = if configured * 2 > most && twice.per_second() > now.per_second() * WORTHWHILE {
        Finding::new(
            Weight::Minor,
            "storage",
            format!("{state}; {} at once give {:.0}", configured * 2, twice.per_second()),
            format!(
                "if `storage` is the limit: [[stage]] name = \"fetch\", concurrency = {}",
                configured * 2
            ),
        )
    } else {
        Finding::good("storage", state)
    };
    Reading { findings: vec![finding], bytes_per_sample }
}

/// Nothing could be read.
fn unreadable(rates: &[Rate]) -> Reading {
    let error = rates.iter().find_map(|rate| rate.error.clone());
    let reason = format!("cannot read any sample: {}", error.unwrap_or_default());
    let finding = Finding::new(Weight::Broken, "storage", reason, "make the samples readable");
    Reading { findings: vec![finding], bytes_per_sample: 0 }
}

#[derive(Debug)]
struct Rate {
    samples: u64,
    bytes: u64,
    seconds: f64,
    mean_seconds: f64,
    /// What ended a thread's reading, the first of them.
    error: Option<String>,
}

#[expect(clippy::cast_precision_loss, reason = "figures")]
impl Rate {
    fn per_second(&self) -> f64 {
        self.samples as f64 / self.seconds.max(1e-9)
    }

    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a figure")]
    fn bytes_per_second(&self) -> u64 {
        (self.bytes as f64 / self.seconds.max(1e-9)) as u64
    }
}

/// `turn` counts through the dataset in large steps, so that no sample is read twice soon.
fn read(stream: &Stream, at_once: u32, time: Duration, turn: &AtomicU64) -> Rate {
    let times = TimeHistogram::default();
    let (samples, bytes) = (AtomicU64::new(0), AtomicU64::new(0));
    let failed = OnceLock::new();
    let begin = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..at_once {
            scope.spawn(|| {
                let mut buffer = Vec::new();
                while begin.elapsed() < time {
                    // Relaxed, all of them: figures.
                    let step = turn.fetch_add(1, Ordering::Relaxed);
                    let sample = step.wrapping_mul(0x9E37_79B9_7F4A_7C15) % stream.sample_count();
                    let started = Instant::now();
                    match read_one(stream, SampleId(sample), &mut buffer) {
                        Ok(length) => {
                            times.record(started.elapsed());
                            samples.fetch_add(1, Ordering::Relaxed);
                            bytes.fetch_add(length, Ordering::Relaxed);
                        }
                        Err(error) => {
                            failed.get_or_init(|| error.to_string());
                            return;
                        }
                    }
                }
            });
        }
    });
    Rate {
        samples: samples.into_inner(),
        bytes: bytes.into_inner(),
        seconds: begin.elapsed().as_secs_f64(),
        mean_seconds: times.mean_seconds(),
        error: failed.into_inner(),
    }
}

fn read_one(stream: &Stream, id: SampleId, buffer: &mut Vec<u8>) -> std::io::Result<u64> {
    if stream.config().datasets().any(DatasetConfig::is_remote) {
        return stream.read_bytes(id, buffer).map_err(std::io::Error::other);
    }
    let (path, range) = stream.sample_place(id);
    let file = File::open(path)?;
    let length = match range.length {
        Some(length) => length,
        None => file.metadata()?.len().saturating_sub(range.offset),
    };
    // Cached data says nothing of the disk. Where the cache cannot be dropped, it is measured too.
    let _ = fadvise(&file, range.offset, std::num::NonZeroU64::new(length), Advice::DontNeed);
    buffer.resize(usize::try_from(length).unwrap_or(0), 0);
    file.read_exact_at(buffer, range.offset)?;
    Ok(length)
}

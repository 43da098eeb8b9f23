//! Reads samples with several threads, and counts them.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use forebay_protocol::ids::SampleId;
use rustix::fs::{Advice, fadvise};

use crate::cli::doctor::finding::{Finding, Weight};
use forebay_config::DatasetConfig;
use forebay_engine::Stream;
use forebay_observe::TimeHistogram;
use forebay_storage::RetryClass;
use forebay_storage::location::ByteRange;

/// The results of reading.
#[derive(Debug, Default)]
pub(in crate::cli::doctor) struct Reading {
    pub(in crate::cli::doctor) findings: Vec<Finding>,
    /// The mean; 0 if nothing was read.
    pub(in crate::cli::doctor) bytes_per_sample: u64,
}

/// The pause after a temporary error.
const PAUSE: Duration = Duration::from_millis(20);
/// The gain from which twice the concurrency is recommended.
pub(super) const WORTHWHILE: f64 = 1.2;

/// The result if nothing could be read.
pub(super) fn unreadable(rates: &[Rate]) -> Reading {
    let error = rates.iter().find_map(|rate| rate.error.clone());
    let reason = format!("cannot read any sample: {}", error.unwrap_or_default());
    let finding = Finding::new(Weight::Broken, "storage", reason, "make the samples readable");
    Reading { findings: vec![finding], bytes_per_sample: 0 }
}

#[derive(Debug)]
pub(super) struct Rate {
    pub(super) samples: u64,
    pub(super) bytes: u64,
    pub(super) seconds: f64,
    pub(super) mean_seconds: f64,
    /// The first error that ended a thread's reading.
    pub(super) error: Option<String>,
}

#[expect(clippy::cast_precision_loss, reason = "figures")]
impl Rate {
    pub(super) fn per_second(&self) -> f64 {
        self.samples as f64 / self.seconds.max(1e-9)
    }

    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a figure")]
    pub(super) fn bytes_per_second(&self) -> u64 {
        (self.bytes as f64 / self.seconds.max(1e-9)) as u64
    }
}

/// Reads samples for `time`. `turn` steps through the dataset in large steps, so that no sample is read twice within a
/// short time.
pub(super) fn read(stream: &Stream, at_once: u32, time: Duration, turn: &AtomicU64) -> Rate {
    let times = TimeHistogram::default();
    let (samples, bytes) = (AtomicU64::new(0), AtomicU64::new(0));
    let failed = OnceLock::new();
    let begin = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..at_once {
            scope.spawn(|| {
                let mut buffer = Vec::new();
                while begin.elapsed() < time {
                    // Relaxed, here and below: metrics.
                    let step = turn.fetch_add(1, Ordering::Relaxed);
                    let number = step.wrapping_mul(0x9E37_79B9_7F4A_7C15) % stream.kept_count();
                    let started = Instant::now();
                    match read_one(stream, stream.kept_at(number), &mut buffer) {
                        Ok(length) => {
                            times.record(started.elapsed());
                            samples.fetch_add(1, Ordering::Relaxed);
                            bytes.fetch_add(length, Ordering::Relaxed);
                        }
                        Err((may_pass, reason)) => {
                            failed.get_or_init(|| reason);
                            if !may_pass {
                                return;
                            }
                            std::thread::sleep(PAUSE);
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

/// Reads a sample. The error has a flag for temporary errors, and the reason.
fn read_one(stream: &Stream, id: SampleId, buffer: &mut Vec<u8>) -> Result<u64, (bool, String)> {
    if stream.config().datasets().any(DatasetConfig::is_remote) {
        let read = stream.read_bytes(id, buffer);
        return read.map_err(|error| (error.class() == RetryClass::Outage, error.to_string()));
    }
    let read = |(path, range): (PathBuf, ByteRange)| {
        read_part(&path, range, buffer)
            .map_err(|error| (false, format!("{}: {error}", path.display())))
    };
    stream.sample_parts(id).into_iter().map(read).sum()
}

fn read_part(path: &Path, range: ByteRange, buffer: &mut Vec<u8>) -> std::io::Result<u64> {
    let file = File::open(path)?;
    let length = match range.length {
        Some(length) => length,
        None => file.metadata()?.len().saturating_sub(range.offset),
    };
    // Cached data does not measure the disk. If the page cache cannot be dropped, it is measured too.
    let _ = fadvise(&file, range.offset, std::num::NonZeroU64::new(length), Advice::DontNeed);
    buffer.resize(usize::try_from(length).unwrap_or(0), 0);
    file.read_exact_at(buffer, range.offset)?;
    Ok(length)
}

//! Learns a dataset's JPEG files before any run, for `forebay index --jpeg`.

use std::thread;
use std::time::Duration;

use forebay_dataset::FieldValue;
use forebay_jpeg_index::JpegIndex;
use forebay_media::jpeg::JpegLearner;
use forebay_protocol::sync::{AtomicU64, Ordering};
use forebay_storage::location::SampleBytes;

use crate::ground::stream::{ReadScratch, Stream};

/// Maximal time to read an existing index.
const LONGEST_READ: Duration = Duration::from_secs(600);
const LAST_WAIT: Duration = Duration::from_secs(60);
/// Pause before a record is offered again after the index had no room for it.
const PAUSE: Duration = Duration::from_millis(5);

/// Progress of a run.
#[derive(Debug, Default)]
pub struct Learning {
    samples: AtomicU64,
    skipped: AtomicU64,
}

impl Learning {
    /// Samples that were processed.
    pub fn samples(&self) -> u64 {
        // Relaxed, here and below: statistics.
        self.samples.load(Ordering::Relaxed)
    }

    /// Samples that could not be read or decoded.
    pub fn skipped(&self) -> u64 {
        self.skipped.load(Ordering::Relaxed)
    }

    /// Learns all files of a stream's samples on `threads` threads. Blocks.
    ///
    /// # Errors
    /// Why nothing can be saved.
    pub fn run(&self, stream: &Stream, threads: u32) -> Result<(), String> {
        let index = stream.jpeg_index.get().map_err(|why| match why.is_empty() {
            true => "the dataset has no images".to_owned(),
            false => why.clone(),
        })?;
        index.start().map_err(|error| format!("a thread cannot be started: {error}"))?;
        if !index.wait_until_read(LONGEST_READ) {
            return Err(format!("{} cannot be read", index.path().display()));
        }
        let next = AtomicU64::new(0);
        thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| self.learn(stream, index, &next));
            }
        });
        index.finish(LAST_WAIT);
        index.figures().stopped.map_or(Ok(()), Err)
    }

    fn learn(&self, stream: &Stream, index: &JpegIndex, next: &AtomicU64) {
        let (mut learner, mut scratch) = (JpegLearner::default(), ReadScratch::default());
        let mut bytes = Vec::new();
        while index.figures().stopped.is_none() {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= stream.kept_count() {
                return;
            }
            let sample = stream.kept_at(number);
            bytes.clear();
            let read = stream
                .open_sample((sample, 0), &mut scratch)
                .and_then(|_| stream.read_sample(&mut scratch, &mut bytes));
            let mut values = Vec::new();
            let fetched = SampleBytes::new(&bytes, &scratch.part_ends);
            if read.is_err() || stream.dataset.read(sample, fetched, &mut values).is_err() {
                self.skipped.fetch_add(1, Ordering::Relaxed);
            }
            for value in &values {
                if let FieldValue::EncodedImage(file) = value {
                    while !learner.learn(file, index) && index.figures().stopped.is_none() {
                        thread::sleep(PAUSE);
                    }
                }
            }
            self.samples.fetch_add(1, Ordering::Relaxed);
        }
    }
}

//! Learning a dataset's JPEG files before any run, for `forebay index --jpeg`.

use std::thread;
use std::time::Duration;

use forebay_jpeg_index::JpegIndex;
use forebay_pipeline::JpegLearner;
use forebay_protocol::ids::SampleId;
use forebay_protocol::sync::{AtomicU64, Ordering};
use forebay_source::dataset::FieldValue;
use forebay_source::location::SampleBytes;

use super::stream::{ReadScratch, Stream};

/// How long a large index is read at most.
const LONGEST_READ: Duration = Duration::from_secs(600);
const LAST_WAIT: Duration = Duration::from_secs(60);
/// How soon a record is offered again for which there was no room.
const PAUSE: Duration = Duration::from_millis(5);

/// How far it has come.
#[derive(Debug, Default)]
pub struct Learning {
    samples: AtomicU64,
    skipped: AtomicU64,
}

impl Learning {
    /// Samples that were looked at.
    pub fn samples(&self) -> u64 {
        // Relaxed, here and below: figures.
        self.samples.load(Ordering::Relaxed)
    }

    /// Of these, those that could not be read or hold no sample.
    pub fn skipped(&self) -> u64 {
        self.skipped.load(Ordering::Relaxed)
    }

    /// Learns all files of a stream's samples on so many threads. Blocks.
    ///
    /// # Errors
    /// Why nothing can be kept.
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
            let sample = SampleId(next.fetch_add(1, Ordering::Relaxed));
            if sample.0 >= stream.sample_count() {
                return;
            }
            bytes.clear();
            let read = stream
                .open_sample(sample, &mut scratch)
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

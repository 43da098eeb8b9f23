//! Generates data for demonstrations and benchmarks: JPEGs in class folders that resemble photographs in their decoding
//! cost, and NumPy arrays. Used by `forebay demo` and the standard workload of the benchmark.
//!
//! The same options give the same bytes on every machine and with any number of threads. A complete set is not
//! generated again; a folder with other content is refused and never overwritten. `picture` determines the images,
//! `arrays` the arrays, and `marker` records a folder's content.

#![forbid(unsafe_code)]

pub mod array_record;
mod arrays;
pub mod arrow;
mod class_folders;
mod error;
pub mod lance;
mod marker;
pub mod parquet;
mod picture;
mod scene;
pub mod shards;
pub mod tar;
#[cfg(test)]
mod tests;
pub mod tfrecord;

pub use arrays::{ArrayContainer, ArrayOptions, generate_arrays};
pub use error::GenerateError;
pub use scene::scene;

use jpeg_encoder::{ChromaSubsamplingMethod, ColorType, Encoder, SamplingFactor};
use marker::Found;
use picture::Randomness;
use serde_json::json;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

/// Raised whenever the same options give other bytes, so that a set of an older release is not reused.
const GENERATOR_VERSION: u32 = 1;

/// Parameters of the images. [`Default`] is the standard workload: 4,000 JPEGs of about 500×375 pixels and 110 kB, 100
/// classes.
#[derive(Clone, Debug)]
pub struct GenerateOptions {
    /// The number of images; image *i* has class *i* modulo `classes`. Default 4,000.
    pub images: u64,
    /// The number of class folders, at most `images` and 10,000. Default 100.
    pub classes: u32,
    /// The mean width in pixels, 16 to 16,384. Default 500. Every fourth image is in portrait format: its sides are
    /// swapped.
    pub width: u16,
    /// The mean height in pixels, 16 to 16,384. Default 375.
    pub height: u16,
    /// The maximal deviation of each side from its mean, in percent, at most 50. Default 20.
    pub size_variation_percent: u8,
    /// The seed of the images. Default 17.
    pub seed: u64,
    /// JPEG quality as libjpeg counts it, 1 to 100. Default 94. Chroma is halved in both directions (4:2:0).
    pub quality: u8,
    /// The number of threads; 0, the default, uses as many as this process may use. The bytes do not depend on it.
    pub threads: usize,
}

impl Default for GenerateOptions {
    fn default() -> Self {
        Self {
            images: 4000,
            classes: 100,
            width: 500,
            height: 375,
            size_variation_percent: 20,
            seed: 17,
            quality: 94,
            threads: 0,
        }
    }
}

/// The result of a generation.
#[derive(Clone, Copy, Debug)]
pub struct GenerateReport {
    /// The samples in the set.
    pub samples: u64,
    /// The sum of their files' sizes.
    pub bytes: u64,
    /// The time it took.
    pub elapsed: Duration,
    /// The complete set existed already, and nothing was generated.
    pub reused: bool,
}

/// Generates the images of `options` in `folder` as `class-007/00000107.jpg`, or finds them complete.
///
/// `progress` is called on this thread with (images done, images in total), from time to time and at the end.
///
/// # Errors
/// An option is out of range, the folder has other content, or a file cannot be written. After an error or a kill the
/// same call starts over.
pub fn generate_images(
    folder: &Path,
    options: &GenerateOptions,
    progress: &dyn Fn(u64, u64),
) -> Result<GenerateReport, GenerateError> {
    check_options(options)?;
    let described = json!({
        "kind": "images", "version": GENERATOR_VERSION, "images": options.images, "classes": options.classes,
        "width": options.width, "height": options.height, "size_variation_percent": options.size_variation_percent,
        "seed": options.seed, "quality": options.quality,
    });
    generate(folder, described, (options.images, options.images), || {
        make_class_folders(folder, options.classes)?;
        let threads = thread_count(options.threads);
        on_threads(options.images, threads, progress, || {
            let mut painter = Painter { folder, options, rgb: Vec::new(), jpeg: Vec::new() };
            move |index| painter.make(index)
        })
    })
}

/// Generates a set of samples in files, or finds it complete. `make` returns the bytes of all files.
fn generate(
    folder: &Path,
    described: serde_json::Value,
    (samples, files): (u64, u64),
    make: impl FnOnce() -> Result<u64, GenerateError>,
) -> Result<GenerateReport, GenerateError> {
    let started = Instant::now();
    let (bytes, reused) = match marker::open(folder, described, files)? {
        Found::Finished { bytes } => (bytes, true),
        Found::Unfinished(marker) => {
            let bytes = make()?;
            marker.finish(bytes)?;
            (bytes, false)
        }
    };
    Ok(GenerateReport { samples, bytes, elapsed: started.elapsed(), reused })
}

fn make_class_folders(folder: &Path, classes: u32) -> Result<(), GenerateError> {
    (0..classes).map(|class| class_folder(folder, class, classes)).try_for_each(|path| {
        fs::create_dir_all(&path).map_err(GenerateError::file(&path, "make the folder"))
    })
}

fn check_options(options: &GenerateOptions) -> Result<(), GenerateError> {
    let check = |option, value: u64, range: std::ops::RangeInclusive<u64>, expected| {
        if range.contains(&value) {
            Ok(())
        } else {
            Err(GenerateError::Option { option, value, expected })
        }
    };
    check("images", options.images, 1..=100_000_000, "must be 1 to 100,000,000")?;
    check("classes", options.classes.into(), 1..=10_000, "must be 1 to 10,000")?;
    check(
        "classes",
        options.classes.into(),
        1..=options.images,
        "every class needs an image: raise images",
    )?;
    check("width", options.width.into(), 16..=16_384, "must be 16 to 16,384 pixels")?;
    check("height", options.height.into(), 16..=16_384, "must be 16 to 16,384 pixels")?;
    check(
        "size variation",
        options.size_variation_percent.into(),
        0..=50,
        "must be at most 50 percent",
    )?;
    check("quality", options.quality.into(), 1..=100, "must be 1 to 100")
}

/// The names sort like the classes: as many digits as the last class needs, at least three.
fn class_folder(folder: &Path, class: u32, classes: u32) -> PathBuf {
    let digits = classes.saturating_sub(1).max(100).ilog10() as usize + 1;
    folder.join(format!("class-{class:0digits$}"))
}

fn class_of(index: u64, classes: u32) -> u32 {
    u32::try_from(index % u64::from(classes)).unwrap_or(0)
}

fn thread_count(asked: usize) -> usize {
    if asked == 0 { std::thread::available_parallelism().map_or(1, usize::from) } else { asked }
}

/// Generates the images of one thread; the buffers are reused.
struct Painter<'a> {
    folder: &'a Path,
    options: &'a GenerateOptions,
    rgb: Vec<u8>,
    jpeg: Vec<u8>,
}

impl Painter<'_> {
    /// Generates image `index` and returns its size in bytes.
    fn make(&mut self, index: u64) -> Result<u64, GenerateError> {
        let class = class_of(index, self.options.classes);
        let path =
            class_folder(self.folder, class, self.options.classes).join(format!("{index:08}.jpg"));
        let mut randomness = Randomness::new(self.options.seed, index);
        let (width, height) = self.size(&mut randomness);
        picture::paint(
            &mut randomness,
            class,
            self.options.classes,
            (width, height),
            &mut self.rgb,
        );
        self.jpeg.clear();
        let mut encoder = Encoder::new(&mut self.jpeg, self.options.quality);
        encoder.set_sampling_factor(SamplingFactor::R_4_2_0);
        encoder.set_chroma_subsampling_method(ChromaSubsamplingMethod::Average);
        encoder.encode(&self.rgb, width, height, ColorType::Rgb).map_err(|reason| {
            GenerateError::Encode { path: path.clone(), reason: reason.to_string() }
        })?;
        fs::write(&path, &self.jpeg).map_err(GenerateError::file(&path, "write the file"))?;
        Ok(self.jpeg.len() as u64)
    }

    fn size(&self, randomness: &mut Randomness) -> (u16, u16) {
        let variation = i32::from(self.options.size_variation_percent);
        let mut vary = |mean: u16| {
            let percent = 100 + randomness.between(-variation, variation);
            u16::try_from(i32::from(mean) * percent / 100).unwrap_or(mean)
        };
        let (width, height) = (vary(self.options.width), vary(self.options.height));
        if randomness.between(0, 3) == 0 { (height, width) } else { (width, height) }
    }
}

/// Runs `make` for every index below `count` on `threads` threads and adds up its results. The first error stops all.
fn on_threads<Make>(
    count: u64,
    threads: usize,
    progress: &dyn Fn(u64, u64),
    new_worker: impl Fn() -> Make,
) -> Result<u64, GenerateError>
where
    Make: FnMut(u64) -> Result<u64, GenerateError> + Send,
{
    let next = AtomicU64::new(0);
    let stop = AtomicBool::new(false);
    let (sender, receiver) = sync_channel(2 * threads);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            let (sender, next, stop, mut make) = (sender.clone(), &next, &stop, new_worker());
            scope.spawn(move || {
                // Relaxed: the counter only assigns indexes and the flag only saves work; nothing is read through them.
                while !stop.load(Ordering::Relaxed) {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    if index >= count || sender.send(make(index)).is_err() {
                        break;
                    }
                }
            });
        }
        drop(sender);
        let (mut done, mut bytes, mut first_error) = (0, 0, None);
        let step = (count / 100).max(1);
        for made in receiver {
            match made {
                Ok(size) => {
                    done += 1;
                    bytes += size;
                    if done % step == 0 || done == count {
                        progress(done, count);
                    }
                }
                Err(error) => {
                    stop.store(true, Ordering::Relaxed);
                    first_error.get_or_insert(error);
                }
            }
        }
        first_error.map_or(Ok(bytes), Err)
    })
}

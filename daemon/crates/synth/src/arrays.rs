//! Generates NumPy arrays whose class a small model can learn: each class has a pattern, hidden in noise.
//!
//! There are three kinds, one per dataset format: one `.npy` file per sample, one `.npy` file whose first axis is the
//! samples, and one `.npz` file per sample with the members `features` and `target`.

use super::picture::Randomness;
use super::{
    GENERATOR_VERSION, GenerateError, GenerateReport, class_folder, class_of, generate,
    make_class_folders, on_threads, thread_count,
};
use npyz::WriterBuilder;
use serde_json::json;
use std::fs;
use std::io::{self, BufWriter, Cursor, Write};
use std::path::Path;
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

/// How the arrays are stored in files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArrayContainer {
    /// `class-003/00000103.npy`: one float32 array of the options' shape per file, in class folders.
    NpyFiles,
    /// `samples.npy`: one float32 array, (samples, …shape).
    NpyStack,
    /// `00000103.npz`: `features` (float32, the options' shape) and `target` (int64, no axes), deflated, in one flat folder.
    NpzFiles,
}

/// Parameters of the arrays. [`Default`] is a thousand arrays of 3×32×32 in ten classes.
#[derive(Clone, Debug)]
pub struct ArrayOptions {
    /// How the arrays are stored in files. Default `NpyFiles`.
    pub container: ArrayContainer,
    /// The number of samples; sample *i* has class *i* modulo `classes`. Default 1,000.
    pub samples: u64,
    /// The number of classes, at most `samples` and 10,000. Default 10.
    pub classes: u32,
    /// The shape of one sample, 1 to 2²⁴ elements. Default `[3, 32, 32]`.
    pub shape: Vec<u64>,
    /// The seed of the values. Default 17.
    pub seed: u64,
    /// The number of threads; 0, the default, uses as many as this process may use. A stack is made on one thread.
    pub threads: usize,
}

impl Default for ArrayOptions {
    fn default() -> Self {
        Self {
            container: ArrayContainer::NpyFiles,
            samples: 1000,
            classes: 10,
            shape: vec![3, 32, 32],
            seed: 17,
            threads: 0,
        }
    }
}

/// Generates the arrays of `options` in `folder`, or finds them complete; `progress` as for [`super::generate_images`].
///
/// # Errors
/// An option is out of range, the folder has other content, or a file cannot be written.
pub fn generate_arrays(
    folder: &Path,
    options: &ArrayOptions,
    progress: &dyn Fn(u64, u64),
) -> Result<GenerateReport, GenerateError> {
    check_options(options)?;
    let described = json!({
        "kind": format!("{:?}", options.container), "version": GENERATOR_VERSION, "samples": options.samples,
        "classes": options.classes, "shape": options.shape, "seed": options.seed,
    });
    let is_stack = options.container == ArrayContainer::NpyStack;
    let files = if is_stack { 1 } else { options.samples };
    generate(folder, described, (options.samples, files), || {
        if is_stack {
            return write_stack(&folder.join("samples.npy"), options, progress);
        }
        if options.container == ArrayContainer::NpyFiles {
            make_class_folders(folder, options.classes)?;
        }
        on_threads(options.samples, thread_count(options.threads), progress, || {
            |index| write_sample(folder, options, index)
        })
    })
}

fn check_options(options: &ArrayOptions) -> Result<(), GenerateError> {
    let refuse = |option, value, expected| Err(GenerateError::Option { option, value, expected });
    if options.samples == 0 || options.samples > 100_000_000 {
        return refuse("samples", options.samples, "must be 1 to 100,000,000");
    }
    let classes = u64::from(options.classes);
    if classes == 0 || classes > options.samples || classes > 10_000 {
        return refuse("classes", classes, "must be 1 to 10,000 and at most the number of samples");
    }
    let elements = options.shape.iter().try_fold(1_u64, |product, &axis| product.checked_mul(axis));
    match elements {
        Some(1..=0x0100_0000) => Ok(()),
        Some(elements) => refuse("shape", elements, "a sample has 1 to 16,777,216 elements"),
        None => refuse("shape", u64::MAX, "a sample has 1 to 16,777,216 elements"),
    }
}

/// The elements of sample `index`: its class's pattern of ±0.5 and uniform noise of ±1. Multiples of 1/256, so exact.
fn features(options: &ArrayOptions, index: u64) -> impl Iterator<Item = f32> + use<> {
    let class = class_of(index, options.classes);
    let mut pattern = Randomness::new(options.seed, u64::MAX - u64::from(class));
    let mut noise = Randomness::new(options.seed, index);
    let elements = options.shape.iter().product::<u64>();
    (0..elements).map(move |_| {
        let sign = pattern.between(0, 1) * 256 - 128;
        let steps = i16::try_from(sign + noise.between(-256, 256)).unwrap_or(0);
        f32::from(steps) / 256.0
    })
}

fn write_npy(
    writer: impl Write,
    shape: &[u64],
    values: impl Iterator<Item = f32>,
) -> io::Result<()> {
    let mut array =
        npyz::WriteOptions::new().default_dtype().shape(shape).writer(writer).begin_nd()?;
    array.extend(values)?;
    array.finish()
}

fn write_sample(folder: &Path, options: &ArrayOptions, index: u64) -> Result<u64, GenerateError> {
    let class = class_of(index, options.classes);
    let mut bytes = Vec::new();
    let (path, made) = if options.container == ArrayContainer::NpzFiles {
        let made = npz_bytes(options, index, i64::from(class));
        (folder.join(format!("{index:08}.npz")), made.map(|made| bytes = made))
    } else {
        let made = write_npy(&mut bytes, &options.shape, features(options, index));
        (class_folder(folder, class, options.classes).join(format!("{index:08}.npy")), made)
    };
    made.and_then(|()| fs::write(&path, &bytes))
        .map_err(GenerateError::file(&path, "write the file"))?;
    Ok(bytes.len() as u64)
}

fn npz_bytes(options: &ArrayOptions, index: u64, target: i64) -> io::Result<Vec<u8>> {
    // The date is fixed, so that the same options always give the same bytes.
    let member = SimpleFileOptions::default()
        .compression_method(CompressionMethod::Deflated)
        .last_modified_time(zip::DateTime::default());
    let mut archive = ZipWriter::new(Cursor::new(Vec::new()));
    archive.start_file("features.npy", member)?;
    write_npy(&mut archive, &options.shape, features(options, index))?;
    archive.start_file("target.npy", member)?;
    let mut scalar =
        npyz::WriteOptions::new().default_dtype().shape(&[]).writer(&mut archive).begin_nd()?;
    scalar.push(&target)?;
    scalar.finish()?;
    Ok(archive.finish()?.into_inner())
}

fn write_stack(
    path: &Path,
    options: &ArrayOptions,
    progress: &dyn Fn(u64, u64),
) -> Result<u64, GenerateError> {
    let shape: Vec<u64> =
        std::iter::once(options.samples).chain(options.shape.iter().copied()).collect();
    let step = (options.samples / 100).max(1);
    let values = (0..options.samples).flat_map(|index| {
        if index % step == 0 {
            progress(index, options.samples);
        }
        features(options, index)
    });
    let made = fs::File::create(path).and_then(|file| {
        let mut writer = BufWriter::new(file);
        write_npy(&mut writer, &shape, values)?;
        writer.flush()
    });
    let size = made
        .and_then(|()| fs::metadata(path))
        .map_err(GenerateError::file(path, "write the file"))?
        .len();
    progress(options.samples, options.samples);
    Ok(size)
}

//! `forebay show`: a page with samples as the trainer receives them, next to their files; or, with `--operations`, an
//! image with the effect of each operation.

mod operations;
mod sample;
mod sheet;

use forebay_protocol::counted::counted;
use std::fs::{self, File};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use clap::Args;
use forebay_client::{Batch, DType, Loader};
use forebay_config::{Config, Override};
use forebay_inspect::output::print_line;
use forebay_inspect::report::{ReportFile, samples_page};

use super::config_arguments::ConfigArguments;
use super::{logging, samples};

/// The maximum size of a file that is shown next to its sample; the page contains both.
const MAX_FILE_BYTES: u64 = 2 << 20;

/// Arguments of `forebay show`.
#[derive(Debug, Args)]
pub(super) struct ShowArguments {
    #[command(flatten)]
    config: ConfigArguments,
    /// How many samples: the first of the first batch.
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=256))]
    count: u32,
    /// The page; default: the stream's name and `-samples.html`, in the working directory. With several configurations each
    /// has its default. With --operations the JPEG; default: `operations.jpg`.
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Draw one picture of what each operation does, in place of samples: before it, and two draws.
    #[arg(long, conflicts_with_all = ["configs", "set", "count"])]
    operations: bool,
    /// With --operations: the picture that they change, of any kind that is read; default: a drawn house.
    #[arg(long, value_name = "FILE", requires = "operations")]
    picture: Option<PathBuf>,
}

/// `forebay show`.
pub(super) fn show(arguments: &ShowArguments) -> anyhow::Result<ExitCode> {
    let _logging = logging::start("warn");
    if arguments.operations {
        let default = || PathBuf::from("operations.jpg");
        let sheet = arguments.output.clone().unwrap_or_else(default);
        let count = operations::draw(arguments.picture.as_deref(), &sheet)?;
        print_line(format_args!("{count} operations: {}", sheet.display()))?;
        return Ok(ExitCode::SUCCESS);
    }
    let configs = arguments.config.read()?;
    let overrides = arguments.config.overrides()?;
    if configs.len() > 1 && arguments.output.is_some() {
        anyhow::bail!(
            "--output names one page and {} configurations are given; leave it out",
            configs.len()
        );
    }
    for config in &configs {
        let default = || PathBuf::from(format!("{}-samples.html", config.name));
        let path = arguments.output.clone().unwrap_or_else(default);
        let page = ReportFile::create(&path)?;
        let mut loader = samples::attach(config, &overrides, arguments.count, &[])?;
        let mut batch = samples::first_batch(&mut loader)?;
        if let Some((other, bytes)) = as_bytes(config, &overrides, arguments.count, &batch) {
            (loader, batch) = (other, bytes);
        }
        let names = loader.classes()?;
        let classes = sample::Classes::new(&names, config);
        let ids = samples::ids(&batch)?;
        let paths = loader.paths(&ids)?;
        let found: Vec<_> = (ids.iter().zip(&paths).enumerate())
            .map(|(row, (id, path))| {
                serde_json::json!({
                    "id": id,
                    "path": path.to_string_lossy(),
                    "file": picture_file(path).map(|bytes| BASE64_STANDARD.encode(bytes)),
                    "fields": sample::fields(&batch, row, &classes),
                })
            })
            .collect();
        let found = serde_json::json!({
            "samples": found,
            "of": loader.terms().samples_per_epoch,
            "classes": names.len(),
        });
        page.finish(&samples_page(&config.name, found, &config.resolved_toml()))?;
        print_line(format_args!(
            "{} of {}: {}",
            counted(ids.len(), "sample"),
            config.name,
            path.display()
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The same batch with its normalised images as bytes: their normalisation is left to a GPU, which is absent here.
/// `None` if no image is normalised, or the configuration does not support this; then float images are drawn from their
/// minimum to their maximum.
fn as_bytes(
    config: &Config,
    overrides: &[Override],
    count: u32,
    batch: &Batch,
) -> Option<(Loader, Batch)> {
    let specs = batch.specs().iter();
    let floats: Vec<(String, String)> = specs
        .filter(|spec| spec.row_shape.len() == 3 && spec.finish.is_none())
        .filter(|spec| matches!(spec.dtype, DType::F16 | DType::BF16 | DType::F32))
        .map(|spec| (format!("output.{}.on", spec.name), "\"gpu\"".to_owned()))
        .collect();
    if floats.is_empty() {
        return None;
    }
    let mut loader = samples::attach(config, overrides, count, &floats).ok()?;
    let batch = samples::first_batch(&mut loader).ok()?;
    Some((loader, batch))
}

/// The file, if a browser can draw it.
fn picture_file(path: &Path) -> Option<Vec<u8>> {
    let extension = path.extension()?.to_str()?.to_ascii_lowercase();
    if !matches!(extension.as_str(), "jpg" | "jpeg" | "png" | "webp" | "gif" | "bmp") {
        return None;
    }
    // Only regular files are opened: opening another one may block until there is a writer.
    let size = fs::metadata(path).ok().filter(fs::Metadata::is_file)?.len();
    let mut bytes = Vec::new();
    File::open(path).ok()?.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes).ok()?;
    (size <= MAX_FILE_BYTES && bytes.len() as u64 <= MAX_FILE_BYTES).then_some(bytes)
}

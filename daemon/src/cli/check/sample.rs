//! `forebay check --sample`: runs some samples through the whole configuration and reports the values.

use forebay_client::{Batch, Tensor};
use forebay_config::{Config, Override};
use forebay_protocol::counted::counted;
use forebay_protocol::tensor::TensorSpec;

use super::figures::Figures;
use crate::cli::samples;

/// The values of a tensor in the sampled rows.
struct Sampled {
    line: String,
    /// Rows of an image with a constant value in each channel; empty for other tensors.
    flat_rows: Vec<usize>,
    rows: usize,
}

/// Runs up to `count` samples of a stream through its stages.
///
/// # Errors
/// The errors that a trainer would get; also images of a constant value, from which a model learns nothing.
pub(super) fn sample(
    config: &Config,
    overrides: &[Override],
    count: u32,
) -> anyhow::Result<String> {
    let mut loader = samples::attach(config, overrides, count, &[])?;
    let batch = samples::first_batch(&mut loader)?;
    let mut lines =
        vec![format!("# {} of stream {}", counted(batch.rows(), "sample"), config.name)];
    let found: Vec<Sampled> = batch.tensors().map(|tensor| look_at(&batch, &tensor)).collect();
    lines.extend(found.iter().map(|sampled| sampled.line.clone()));
    for (tensor, sampled) in batch.tensors().zip(&found) {
        let Some(first) = sampled.flat_rows.first() else { continue };
        let sample = samples::ids(&batch)?.get(*first).copied().unwrap_or(0);
        let message = format!(
            "`{}` is all of one value in {} of {}, such as sample {sample} ({}); look at that file, and at mean, \
             std and dtype of output.{}",
            tensor.name(),
            sampled.flat_rows.len(),
            counted(sampled.rows, "sample"),
            loader.path(sample)?.display(),
            tensor.name()
        );
        if sampled.flat_rows.len() == sampled.rows {
            println_all(&lines)?;
            anyhow::bail!("{}: {message}", config.source);
        }
        lines.push(format!("  warning: {message}"));
    }
    lines.push(String::new());
    Ok(lines.join("\n"))
}

fn println_all(lines: &[String]) -> anyhow::Result<()> {
    forebay_inspect::output::print_line(lines.join("\n"))?;
    Ok(())
}

fn look_at(batch: &Batch, tensor: &Tensor<'_>) -> Sampled {
    let spec = batch.specs().iter().find(|spec| spec.name == tensor.name());
    let rows = usize::try_from(batch.rows()).unwrap_or(0);
    let flat_rows = match spec {
        Some(spec) if tensor.row_shape().len() == 3 && !tensor.is_ragged() => {
            flat_rows(tensor, spec)
        }
        _ => Vec::new(),
    };
    let values = Figures::of(tensor, spec, rows).to_string();
    Sampled { line: format!("  {:<20}{values}", tensor.name()), flat_rows, rows }
}

/// The rows in which every channel is constant: a normalized black image has a different value in each channel.
fn flat_rows(tensor: &Tensor<'_>, spec: &TensorSpec) -> Vec<usize> {
    let size = |extent: u64| usize::try_from(extent).unwrap_or(0);
    let element = size(spec.dtype.size_bytes());
    let row_shape = tensor.row_shape();
    let row_bytes = row_shape.iter().map(|extent| size(*extent)).product::<usize>() * element;
    let channels = size(if spec.channels_last { row_shape[2] } else { row_shape[0] });
    // The unit that repeats in memory: the channels of a pixel, or the pixels of a channel.
    let (planes, unit) =
        if spec.channels_last { (1, channels * element) } else { (channels, element) };
    if row_bytes == 0 || row_bytes / planes <= unit {
        return Vec::new();
    }
    let is_flat = |row: &[u8]| {
        row.chunks_exact(row_bytes / planes).all(|plane| {
            let first = &plane[..unit];
            plane.chunks_exact(unit).all(|value| value == first)
        })
    };
    let rows = tensor.bytes().chunks_exact(row_bytes).enumerate();
    rows.filter(|(_, row)| is_flat(row)).map(|(number, _)| number).collect()
}

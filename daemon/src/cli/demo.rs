//! `forebay demo`: bulk loading of generated data, with a report at the end.

use forebay_protocol::counted::counted;
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::Args;

use super::bench::{BenchOptions, describe, measure};
use forebay_inspect::bench_report::BenchReport;
use forebay_inspect::output::print_line;
use forebay_inspect::stats::verdict_lines;
use forebay_observe::format_bytes;
use forebay_synth::{GenerateOptions, generate_images};

/// Arguments of `forebay demo`.
#[derive(Debug, Args)]
pub(super) struct DemoArguments {
    /// Folder for the data; default: in the user's cache. An existing complete set is reused.
    #[arg(long, value_name = "FOLDER")]
    data: Option<PathBuf>,
    /// Images to generate.
    #[arg(long, default_value_t = 1_500)]
    images: u64,
    /// Class folders to spread them over.
    #[arg(long, default_value_t = 10)]
    classes: u32,
    /// Their mean width in pixels.
    #[arg(long, default_value_t = GenerateOptions::default().width)]
    width: u16,
    /// Their mean height in pixels.
    #[arg(long, default_value_t = GenerateOptions::default().height)]
    height: u16,
    /// Only generate the images, into this folder.
    #[arg(long, value_name = "FOLDER", conflicts_with = "data")]
    generate: Option<PathBuf>,
}

/// `forebay demo`.
pub(super) fn demo(arguments: &DemoArguments) -> anyhow::Result<ExitCode> {
    let only_data = arguments.generate.is_some();
    let folder = match arguments.generate.clone().or_else(|| arguments.data.clone()) {
        Some(folder) => folder,
        None => cache_folder()?.join(format!(
            "demo-{}-{}-{}x{}",
            arguments.images, arguments.classes, arguments.width, arguments.height
        )),
    };
    make_data(&folder, arguments)?;
    if only_data {
        return Ok(ExitCode::SUCCESS);
    }
    let config = folder.with_extension("toml");
    let text = format!(
        "preset = \"imagenet-train\"\ndataset.path = {:?}\nbatch.size = 64\norder.epochs = 2\n",
        folder.display().to_string()
    );
    std::fs::write(&config, &text).with_context(|| format!("writing {}", config.display()))?;
    print_line(format_args!("\nThe configuration, {}:\n\n{}", config.display(), indented(&text)))?;
    run_all(&config)?;
    print_line(format_args!(
        "\nUse it from Python:\n\n    import forebay\n    loader = forebay.Loader({:?})\n    for batch in loader: ...   \
         # batch[\"image\"], batch[\"label\"], batch[\"index\"]\n\nOr print the plan:  forebay check {}",
        config.display().to_string(),
        config.display()
    ))?;
    Ok(ExitCode::SUCCESS)
}

fn make_data(folder: &Path, arguments: &DemoArguments) -> anyhow::Result<()> {
    let options = GenerateOptions {
        images: arguments.images,
        classes: arguments.classes,
        width: arguments.width,
        height: arguments.height,
        ..GenerateOptions::default()
    };
    print_line(format_args!(
        "Data: {} in {}, {}",
        counted(options.images, "photograph-like JPEG"),
        counted(options.classes, "class"),
        folder.display()
    ))?;
    let shows = std::io::IsTerminal::is_terminal(&std::io::stderr());
    let report = generate_images(folder, &options, &|done, all| {
        if shows && (done % 50 == 0 || done == all) {
            eprint!("\r  {done} of {all} ");
        } else if !shows && done % all.div_ceil(4).max(1) == 0 {
            // A log gets a line from time to time.
            eprintln!("  {done} of {all}");
        }
    })?;
    if shows {
        eprint!("\r\x1b[K");
    }
    let how = if report.reused { "there already" } else { "made" };
    print_line(format_args!(
        "  {} {how} in {:.1} s, {}",
        report.samples,
        report.elapsed.as_secs_f64(),
        format_bytes(report.bytes)
    ))?;
    Ok(())
}

fn run_all(config: &Path) -> anyhow::Result<()> {
    print_line("1. Two epochs as fast as they come: random-resized-crop, flip, batches of 64.\n")?;
    let mut seen: Vec<HashSet<i64>> = vec![HashSet::new(), HashSet::new()];
    let mut repeated = 0u64;
    let fast = run_one(config, &[], &mut |batch, _| {
        let epoch = usize::try_from(batch.epoch()).unwrap_or(usize::MAX);
        let ids = batch
            .tensor("index")
            .and_then(|index| index.as_slice::<i64>().ok().map(<[i64]>::to_vec));
        for id in ids.unwrap_or_default() {
            repeated += u64::from(!seen.get_mut(epoch).is_some_and(|seen| seen.insert(id)));
        }
    })?;
    print_line(indented(&describe(&fast)))?;
    if repeated > 0 {
        bail!("bug: {repeated} samples came twice");
    }
    print_line(format_args!(
        "   No sample repeated within an epoch ({} and {} ids); the order depends only on the seed.",
        seen[0].len(),
        seen[1].len()
    ))?;
    print_line("\n2. The same with one work thread: other timing, the same bytes.\n")?;
    let slow = run_one(config, &[("stage.preprocess.concurrency", "1")], &mut |_, _| {})?;
    print_line(format_args!(
        "   {:>6.0} samples/s  digest {}",
        fast.samples_per_second,
        short(&fast)
    ))?;
    print_line(format_args!(
        "   {:>6.0} samples/s  digest {}",
        slow.samples_per_second,
        short(&slow)
    ))?;
    if fast.digest != slow.digest {
        bail!("bug: the digests differ");
    }
    print_line("\n3. A trainer whose step takes 100 ms: is loading its limit?\n")?;
    let step = Duration::from_millis(100);
    let trained = run_one(config, &[("order.epochs", "1")], &mut |_, _| std::thread::sleep(step))?;
    print_line(format_args!(
        "   wait for a batch: p50 {:.3} ms, p99 {:.3} ms",
        trained.wait_seconds.p50 * 1e3,
        trained.wait_seconds.p99 * 1e3
    ))?;
    print_line(indented(&verdict_lines(&trained.verdict)))?;
    Ok(())
}

fn run_one(
    config: &Path,
    overrides: &[(&str, &str)],
    each: &mut dyn FnMut(&forebay_client::Batch, u64),
) -> anyhow::Result<BenchReport> {
    let overrides: Vec<(String, String)> =
        overrides.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    let epochs = if overrides.iter().any(|(key, _)| key == "order.epochs") { 1 } else { 2 };
    measure(
        config,
        Some(epochs),
        BenchOptions {
            overrides,
            batches: None,
            position: forebay_client::Position::default(),
            digest: true,
            each,
            series: None,
        },
    )
}

fn short(report: &BenchReport) -> String {
    report.digest.as_deref().unwrap_or("").chars().take(16).collect()
}

fn indented(text: &str) -> String {
    text.lines().map(|line| format!("   {line}\n")).collect()
}

fn cache_folder() -> anyhow::Result<PathBuf> {
    let variable =
        |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    variable("XDG_CACHE_HOME")
        .or_else(|| variable("HOME").map(|home| home.join(".cache")))
        .map(|cache| cache.join("forebay"))
        .context("neither XDG_CACHE_HOME nor HOME is set; name a folder with --data")
}

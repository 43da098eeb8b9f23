//! What the index of a folder costs: `cargo run --release --example index_figures [SAMPLES | FOLDER]` (default 10,000,000
//! samples). A folder is a real image folder, opened twice: scanned, then from its saved index.
//!
//! Without one, the folder is made up in memory, so the figures are the scan's own work without a disk's; the index is laid out,
//! checked and asked for random samples.

use std::hint::black_box;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use forebay::config::{DatasetConfig, Limits};
use forebay::dataset::folder::generated::{GeneratedFolder, NameRule};
use forebay::dataset::folder::index::{FolderIndex, IndexBytes};
use forebay::dataset::folder::layout::IndexOrigin;
use forebay::dataset::folder::scan::{FolderFormat, scan_folder};
use forebay::dataset::folder::select::Selection;
use forebay::dataset::{build_index, no_progress};
use forebay_protocol::ids::SampleId;

const FORMAT: FolderFormat = FolderFormat {
    name: "figures",
    extensions: &[".jpg", ".jpeg", ".png", ".webp"],
    flat_is_valid: true,
};
const LOCATED: u64 = 2_000_000;

fn main() -> anyhow::Result<()> {
    let samples: u64 = match std::env::args().nth(1) {
        Some(folder) if Path::new(&folder).is_dir() => return print_real_folder(&folder),
        Some(samples) => samples.parse().context("neither a number nor a folder")?,
        None => 10_000_000,
    };
    println!("{samples} samples");
    println!(
        "names, folders                     bytes/sample  scan s  index s  open s  locate ns  label ns"
    );
    for (title, rule, classes) in [
        ("n00000012_1234.JPEG, 1000 classes", NameRule::ImageNet, 1000),
        ("img_00001234.jpg, 1000 classes", NameRule::Counted, 1000),
        ("img_00001234.jpg, one flat folder", NameRule::Counted, 0),
        ("9f86d081884c7d65.jpg, 1000 classes", NameRule::Hashed, 1000),
    ] {
        let folder = GeneratedFolder { classes, files_per_class: samples / classes.max(1), rule };
        print_figures(title, folder)?;
    }
    Ok(())
}

fn print_real_folder(folder: &str) -> anyhow::Result<()> {
    let private = std::env::temp_dir().join(format!("forebay-figures-{}", std::process::id()));
    let config = DatasetConfig {
        format: "image-folder".to_owned(),
        path: folder.into(),
        classes: None,
        ids: None,
        limit: None,
        index: Some(private.join("figures.index")),
        limits: Limits::default(),
        read_timeout: Duration::from_secs(60),
        kept_index: None,
    };
    for _ in 0..2 {
        let report = build_index(&config, &no_progress)?;
        println!("{report:?}");
    }
    std::fs::remove_dir_all(&private)?;
    Ok(())
}

fn print_figures(title: &str, folder: GeneratedFolder) -> anyhow::Result<()> {
    let root = Path::new("/generated");
    let started = Instant::now();
    let scanned = scan_folder(&folder, root, FORMAT, &no_progress)?;
    let scan_seconds = started.elapsed().as_secs_f64();

    let started = Instant::now();
    let selected = Selection::default().apply(scanned, root, FORMAT)?;
    let origin =
        IndexOrigin { identity: [0; 32], options: [0; 32], scan_started_seconds: 0, skipped: 0 };
    let bytes = FolderIndex::build(&selected, origin, FORMAT.extensions);
    drop(selected);
    let index_seconds = started.elapsed().as_secs_f64();

    let started = Instant::now();
    let index = FolderIndex::open(IndexBytes::Owned(bytes), FORMAT.extensions)
        .map_err(|fault| anyhow!("the index is {fault:?}"))?;
    let open_seconds = started.elapsed().as_secs_f64();

    let count = index.sample_count();
    let mut path = Vec::with_capacity(256);
    // Weyl's sequence by an odd multiplier: every sample in turn, neighbours far apart.
    let ids =
        || (0..LOCATED).map(|step| SampleId(step.wrapping_mul(0x9E37_79B9_7F4A_7C15) % count));
    let nanoseconds_each =
        |started: Instant| started.elapsed().as_secs_f64() * 1e9 / LOCATED as f64;
    let started = Instant::now();
    for id in ids() {
        path.clear();
        index.append_path(id, &mut path);
        black_box(&path);
    }
    let locate_ns = nanoseconds_each(started);
    let started = Instant::now();
    for id in ids() {
        black_box(index.label(id));
    }
    let label_ns = nanoseconds_each(started);
    let bytes_per_sample = index.size_bytes() as f64 / count as f64;
    println!(
        "{title:<36}{bytes_per_sample:>11.2}{scan_seconds:>8.2}{index_seconds:>9.2}{open_seconds:>8.3}{locate_ns:>11.0}{label_ns:>10.0}"
    );
    Ok(())
}

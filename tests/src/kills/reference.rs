//! What an undisturbed run delivers, by epoch and place.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use forebay_client::Loader;
use forebay_synth::{array_record, arrow, lance, parquet, shards, tar, tfrecord};

use crate::{Taken, TestDir, data, test_dir};

/// Samples of the data set; the last global batch of an epoch is short.
const SAMPLES: u64 = 202;

/// The variable that names the format of the data; left out: images in class folders. With `.gz` behind it files are
/// compressed and unpacked into a cache; `parquet.pages` has compressed pages; `mixture` is images in class folders beside
/// archives of the same, by weights that change; `lengths` is images in class folders in batches by length; `texts` is tokens of texts;
/// `windows` is windows of arrays, and `windows.parquet` of tables and `windows.hdf5` of HDF5;
/// `videos` is clips that separate processes decode, which are smaller than the rest, and `videos.sounds` is sounds of AAC.
pub const FORMAT: &str = "FOREBAY_TEST_KILLS_FORMAT";

/// A configuration and what it delivers.
#[derive(Debug)]
pub struct Reference {
    /// The configuration: batches of 4 over 202 JPEGs of which one is broken, endless, a ring of 4 slots.
    pub config: PathBuf,
    epochs: BTreeMap<u64, Vec<Taken>>,
    loader: Loader,
}

impl Reference {
    /// Makes data and configuration in a place.
    pub fn new(dir: &TestDir) -> Self {
        match std::env::var(FORMAT).as_deref() {
            Ok("texts") => return Self::of(texts(dir)),
            Ok("windows") => return Self::of(windows(dir)),
            Ok("windows.hdf5") => return Self::of(windows_of_hdf5(dir)),
            Ok("windows.parquet") => return Self::of(windows_of_tables(dir)),
            Ok("videos") => return Self::of(videos(dir, false)),
            Ok("videos.tar") => return Self::of(videos(dir, true)),
            Ok("videos.sounds") => return Self::of(sounds(dir)),
            _ => {}
        }
        let mut images = dir.path("images");
        data::images(&images, SAMPLES, 4);
        std::fs::write(images.join("class-001/00000005.jpg"), "no image").unwrap();
        let keys = "ring.slots = 4\nbatch.last = \"short\"\norder.seed = 11\nerrors.on_bad_sample = \"substitute\"";
        let named = std::env::var(FORMAT).ok();
        let format = named.as_deref().map(|name| name.split('.').next().unwrap_or(name));
        let packed = dir.path("packed");
        if let Some(format) = format {
            let pack = |writer| shards::pack_classes(&images, &packed, 50, writer);
            match format {
                "webdataset" => tar::pack_classes(&images, &packed, 50).map(drop),
                "tfrecord" => tfrecord::pack_classes(&images, &packed, 50),
                "arrayrecord" => array_record::pack_classes(&images, &packed, 50),
                "mds" => pack(shards::Writer::Mosaic),
                "litdata" => pack(shards::Writer::Lit),
                "lance" => lance::pack_classes(&images, &packed, 50),
                "arrow" => arrow::pack_classes(&images, &packed, 50),
                "parquet" => {
                    let is_packed = named.as_deref() == Some("parquet.pages");
                    parquet::pack_classes(&images, &packed, 50, is_packed)
                }
                "mixture" => tar::pack_classes(&images, &packed, 50).map(drop),
                _ => Ok(()),
            }
            .unwrap();
            images = match format {
                "manifest" => manifest_of(&images),
                "mixture" | "lengths" | "balance" | "group" => images,
                _ => packed.clone(),
            };
        }
        let mut text =
            data::image_config(&images, keys).replace("batch.size = 8", "batch.size = 4");
        if named.as_deref().is_some_and(|name| name.ends_with(".gz")) {
            compress(&images);
            let cache = dir.path("cache");
            text = format!(
                "cache = {{ path = {:?}, keep_free = 0 }}\n{text}",
                cache.display().to_string()
            );
        }
        if format == Some("lengths") {
            text = text.replace(
                "batch.size = 4",
                "batch.budget = { bytes = 12_000 }\nbatch.max_rows = 8\norder.pool = 60",
            );
            text = text.replace("batch.last = \"short\"", "");
        }
        match format {
            // Draws that fill no round of the classes.
            Some("balance") => {
                let keys =
                    format!("order.balance = \"label\"\norder.samples_per_epoch = {SAMPLES}");
                text = format!("{keys}\n{text}");
            }
            Some("group") => {
                text = format!("order.group = {{ by = \"label\", size = 2 }}\n{text}");
                text = text.replace("batch.last = \"short\"", "batch.last = \"pad\"");
            }
            _ => {}
        }
        if format == Some("mixture") {
            // 202 samples an epoch, of which changes fall into the first, the third and between others.
            let datasets = [
                (
                    "image-folder",
                    images,
                    "[2, { from = 77, weight = 1 }, { from = 606, weight = 3 }]",
                ),
                (
                    "webdataset",
                    packed,
                    "[1, { from = 477, weight = 0 }, { from = 606, weight = 2 }]",
                ),
            ];
            let (_, rest) = text.split_once('\n').unwrap();
            text = format!("order.samples_per_epoch = {SAMPLES}\n{rest}");
            for (format, path, weight) in datasets {
                let (path, index) = (path.display(), dir.path(&format!("{format}.index")));
                text += &format!(
                    "[[dataset]]\nformat = {format:?}\npath = \"{path}\"\nindex = {index:?}\nweight = {weight}\n"
                );
            }
        } else if let Some(format) = format
            && !["lengths", "balance", "group"].contains(&format)
        {
            text = format!("dataset.format = {format:?}\n{text}");
        }
        let mut config = dir.config("train.toml", &text);
        if format == Some("mixture") {
            // Each of its datasets names an index of its own.
            config = dir.path("mixture.toml");
            std::fs::write(&config, format!("cpu.policy = \"normal\"\n{text}")).unwrap();
        }
        Self::of(config)
    }

    /// What a configuration delivers.
    pub fn of(config: PathBuf) -> Self {
        Self::of_rank(config, 0, 1)
    }

    /// What a configuration delivers to a rank of so many.
    pub fn of_rank(config: PathBuf, rank: u32, world_size: u32) -> Self {
        let loader = test_dir::loader(config.as_path(), rank, world_size).attach().unwrap();
        Self { config, epochs: BTreeMap::new(), loader }
    }

    /// The batches of an epoch.
    pub fn epoch(&mut self, epoch: u64) -> &[Taken] {
        let loader = &mut self.loader;
        self.epochs.entry(epoch).or_insert_with(|| {
            loader.set_epoch(epoch).unwrap();
            let mut batches = Vec::new();
            loop {
                match loader.next_batch() {
                    Ok(Some(batch)) => batches.push(Taken::of(&batch)),
                    Ok(None) => return batches,
                    Err(error) => panic!("{error}; the daemon says {:?}", loader.stats()),
                }
            }
        })
    }

    /// Takes the index away: the next daemon scans the folder and writes it again.
    pub fn forget_index(&self) {
        let _ = std::fs::remove_file(self.config.with_extension("index"));
    }

    /// What an epoch delivers once.
    pub fn samples(&self) -> u64 {
        SAMPLES
    }
}

/// Texts of one character, each of which becomes a token and a row.
fn texts(dir: &TestDir) -> PathBuf {
    let path = dir.path("texts.jsonl");
    let lines = ('a'..='z').cycle().take(usize::try_from(SAMPLES).unwrap());
    let lines = lines.map(|text| format!("{{\"text\": \"{text}\"}}\n"));
    std::fs::write(&path, lines.collect::<String>()).unwrap();
    let tokenizer =
        concat!(env!("CARGO_MANIFEST_DIR"), "/../daemon/crates/text/fixtures/byte-level.json");
    let keys = format!(
        "ring.slots = 4\nbatch = {{ size = 4, last = \"short\" }}\norder.seed = 11\ncache.path = {:?}\n\
         dataset = {{ path = {path:?}, format = \"manifest\", index = {:?}, fields = {{ text = {{ from = \"text\", as = \"text\" }} }}, \
         tokens = {{ tokenizer = {tokenizer:?}, length = 1, labels = \"none\", add_special_tokens = false }} }}\n\
         stage = [{{ name = \"copy\", operations = [] }}]\ncpu.policy = \"normal\"\n",
        dir.path("tokens"),
        dir.path("train.index"),
    );
    let config = dir.path("train.toml");
    std::fs::write(&config, keys).unwrap();
    config
}

/// Overlapping windows of the rows of two arrays in step, cut into episodes by one of them.
fn windows(dir: &TestDir) -> PathBuf {
    let path = dir.path("rows");
    std::fs::create_dir(&path).unwrap();
    let rows = SAMPLES + 6;
    let array = |name: &str, value: fn(u64) -> u64| {
        let head = format!("{{'descr': '<u8', 'fortran_order': False, 'shape': ({rows},), }}");
        let mut bytes = b"\x93NUMPY\x01\0\x76\0".to_vec();
        bytes.extend(format!("{head:<117}\n").into_bytes());
        bytes.extend((0..rows).map(value).flat_map(u64::to_le_bytes));
        std::fs::write(path.join(name), bytes).unwrap();
    };
    array("step.npy", |row| row);
    array("episode.npy", |row| row / 70);
    let keys = format!(
        "ring.slots = 4\nbatch = {{ size = 4, last = \"short\" }}\norder.seed = 11\n\
         dataset = {{ path = {path:?}, format = \"npy\", index = {:?}, windows = {{ length = 3, stride = 1, by = \"episode\" }} }}\n\
         stage = [{{ name = \"copy\", operations = [] }}]\ncpu.policy = \"normal\"\n",
        dir.path("train.index"),
    );
    let config = dir.path("train.toml");
    std::fs::write(&config, keys).unwrap();
    config
}

/// Overlapping windows of the rows of tables, whose arrays are made in a cache when they are first opened.
fn windows_of_tables(dir: &TestDir) -> PathBuf {
    let (images, path) = (dir.path("images"), dir.path("tables"));
    data::images(&images, SAMPLES, 4);
    parquet::pack_classes(&images, &path, 50, true).unwrap();
    let keys = format!(
        "ring.slots = 4\nbatch = {{ size = 4, last = \"short\" }}\norder.seed = 11\ncache.path = {:?}\n\
         dataset = {{ path = {path:?}, format = \"parquet\", \
         windows = {{ length = 3, stride = 1, pad = \"repeat\", fields = {{ label = {{}} }} }} }}\n\
         stage = [{{ name = \"copy\", operations = [] }}]\ncpu.policy = \"normal\"\n",
        dir.path("cache"),
    );
    let config = dir.path("train.toml");
    std::fs::write(&config, keys).unwrap();
    config
}

/// Overlapping windows of the rows of compressed datasets in step, cut into episodes by one of them.
fn windows_of_hdf5(dir: &TestDir) -> PathBuf {
    let path = dir.path("rows.h5");
    let bytes = include_bytes!("../../../daemon/crates/formats/fixtures/hdf5/rows.h5");
    std::fs::write(&path, bytes).unwrap();
    let keys = format!(
        "ring.slots = 4\nbatch = {{ size = 4, last = \"short\" }}\norder.seed = 11\n\
         stage = [{{ name = \"copy\", operations = [] }}]\ncpu.policy = \"normal\"\n\
         [dataset]\npath = {path:?}\nformat = \"hdf5\"\nindex = {:?}\n\
         windows = {{ length = 3, stride = 1, by = \"episode\", fields = {{ step = {{}}, x = {{ from = \"gzip/x\" }} }} }}\n",
        dir.path("train.index"),
    );
    let config = dir.path("train.toml");
    std::fs::write(&config, keys).unwrap();
    config
}

/// Clips at random places of a few small videos, one of which is cut off: in a folder, or in an archive.
fn videos(dir: &TestDir, in_archive: bool) -> PathBuf {
    const VIDEOS: [(&str, &[u8]); 4] = [
        ("mp4", include_bytes!("../../../daemon/crates/video/fixtures/h264-b.mp4")),
        ("mp4", include_bytes!("../../../daemon/crates/video/fixtures/hevc.mp4")),
        ("webm", include_bytes!("../../../daemon/crates/video/fixtures/vp9.webm")),
        ("mov", include_bytes!("../../../daemon/crates/video/fixtures/rotated-270.mov")),
    ];
    let path = dir.path("videos");
    std::fs::create_dir(&path).unwrap();
    let mut files = Vec::new();
    for number in 0..10 {
        for (kind, (suffix, bytes)) in VIDEOS.iter().enumerate() {
            let end = if (number, kind) == (3, 0) { bytes.len() / 2 } else { bytes.len() };
            files.push((format!("{number}-{kind}.{suffix}"), &bytes[..end]));
        }
    }
    let clip = "frames = 3, stride = 2";
    let dataset = if in_archive {
        let members: Vec<_> = files.iter().map(|(name, bytes)| (&name[..], *bytes)).collect();
        std::fs::write(path.join("videos.tar"), forebay_synth::tar::archive(&members)).unwrap();
        let from = "from = [\"mp4\", \"webm\", \"mov\"], as = \"video\", times = \"times\"";
        format!("format = \"webdataset\", fields = {{ video = {{ {from}, {clip} }} }}")
    } else {
        for (name, bytes) in &files {
            std::fs::write(path.join(name), bytes).unwrap();
        }
        format!("format = \"video-folder\", {clip}")
    };
    let keys = format!(
        "ring.slots = 4\nbatch = {{ size = 4, last = \"short\" }}\norder.seed = 11\n\
         errors.on_bad_sample = \"substitute\"\n\
         dataset = {{ path = {path:?}, index = {:?}, {dataset} }}\n\
         stage = [{{ name = \"decode\", operations = [{{ op = \"decode-video\" }}, \
         {{ op = \"random-resized-crop\", size = [24, 32] }}] }}]\ncpu.policy = \"normal\"\n",
        dir.path("train.index"),
    );
    let config = dir.path("train.toml");
    std::fs::write(&config, keys).unwrap();
    config
}

/// Small sounds of AAC, one of which is cut off.
fn sounds(dir: &TestDir) -> PathBuf {
    const SOUNDS: [(&str, &[u8]); 4] = [
        ("m4a", include_bytes!("../../../fuzz/corpus/sound_lossy/aac")),
        ("m4a", include_bytes!("../../../fuzz/corpus/sound_lossy/aac-fragments")),
        ("m4a", include_bytes!("../../../fuzz/corpus/sound_lossy/aac-he")),
        ("aac", include_bytes!("../../../fuzz/corpus/sound_lossy/adts")),
    ];
    /// What the fuzzer chooses by, before each file.
    const CHOICES: usize = 3;
    let path = dir.path("sounds");
    std::fs::create_dir(&path).unwrap();
    for number in 0..10 {
        for (kind, (suffix, bytes)) in SOUNDS.iter().enumerate() {
            let end = if (number, kind) == (3, 0) { bytes.len() / 2 } else { bytes.len() };
            std::fs::write(path.join(format!("{number}-{kind}.{suffix}")), &bytes[CHOICES..end])
                .unwrap();
        }
    }
    let keys = format!(
        "ring.slots = 4\nbatch = {{ size = 4, last = \"short\" }}\norder.seed = 11\n\
         errors.on_bad_sample = \"substitute\"\n\
         dataset = {{ path = {path:?}, index = {:?}, format = \"audio-folder\", rate = 8000 }}\n\
         stage = [{{ name = \"read\", operations = [] }}]\ncpu.policy = \"normal\"\n\
         output.audio = {{ ragged = true, max_bytes = \"64KiB\" }}\n",
        dir.path("train.index"),
    );
    let config = dir.path("train.toml");
    std::fs::write(&config, keys).unwrap();
    config
}

/// Compresses each file of a folder, in its place.
fn compress(folder: &Path) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let done = std::process::Command::new("gzip").arg(entry.unwrap().path()).status().unwrap();
        assert!(done.success(), "gzip: {done}");
    }
}

/// Writes a manifest of class folders beside them.
fn manifest_of(images: &Path) -> PathBuf {
    let mut text = "file_name,label\n".to_owned();
    let names = |folder: &Path| {
        let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let mut names: Vec<_> = entries.collect();
        names.sort_unstable();
        names
    };
    let classes: Vec<_> = names(images).into_iter().filter(|class| class.is_dir()).collect();
    for (label, class) in classes.iter().enumerate() {
        for file in names(class) {
            let file = file.strip_prefix(images).unwrap();
            text += &format!("images/{},{label}\n", file.display());
        }
    }
    let path = images.with_file_name("images.csv");
    std::fs::write(&path, text).unwrap();
    path
}

//! Test helpers for datasets: folders of files, bytes of `.npy` and `.npz` files, configurations.

mod blocks;
mod fixed;

pub use blocks::BlockFolder;
pub(super) use blocks::open as open_blocks;
pub(super) use fixed::Fixed;

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use zip::CompressionMethod;
use zip::write::SimpleFileOptions;

use forebay_config::{CacheConfig, DatasetConfig, Limits};
use forebay_keys::{Section, Value};
use forebay_protocol::ids::SampleId;
use forebay_protocol::tensor::DType;

pub use forebay_dataset::testing::{npy_bytes, npy_with_text};
use forebay_dataset::{ArrayValue, DatasetError, FieldValue, OpenOptions, Opened};
use forebay_storage::location::SampleBytes;
use forebay_storage_remote::testing::Server;
use half::f16;

/// A configuration whose index is next to the dataset's folder, so that only the test's folder is modified.
pub fn config_for(format: &str, path: &Path) -> DatasetConfig {
    let mut index = path.as_os_str().to_owned();
    index.push(".index");
    DatasetConfig {
        name: None,
        repeat: None,
        weight: None,
        format: format.to_owned(),
        path: path.to_owned(),
        ids: None,
        condition: None,
        split: None,
        limit: None,
        index: Some(index.into()),
        limits: Limits::default(),
        read_timeout: std::time::Duration::from_secs(60),
        outage_timeout: std::time::Duration::from_secs(1800),
        opening_memory: None,
        jpeg_index: forebay_config::JpegIndexing::Auto,
        jpeg_index_bytes: 4 << 30,
        own: Section::default(),
        storage: Section::default(),
        cache: Default::default(),
        object: None,
    }
}

/// Opens a dataset on disk, or the same folder by a URL.
pub type Opener = fn(&DatasetConfig, OpenOptions<'_>) -> Result<Opened, DatasetError>;

/// On disk, in a bucket, and on a web server.
pub const EVERYWHERE: [Opener; 3] = [
    crate::open,
    |config, options| open_behind("s3", config, options),
    |config, options| open_behind("http", config, options),
];

/// The same for an order in blocks, without and with a disk cache next to the data.
pub const IN_BLOCKS_EVERYWHERE: [Opener; 6] = [
    |config, options| EVERYWHERE[0](config, in_blocks(options)),
    |config, options| EVERYWHERE[1](config, in_blocks(options)),
    |config, options| EVERYWHERE[2](config, in_blocks(options)),
    |config, options| CACHED_EVERYWHERE[0](config, in_blocks(options)),
    |config, options| CACHED_EVERYWHERE[1](config, in_blocks(options)),
    |config, options| CACHED_EVERYWHERE[2](config, in_blocks(options)),
];

const fn in_blocks(options: OpenOptions<'_>) -> OpenOptions<'_> {
    OpenOptions { by_blocks: true, ..options }
}

/// As [`EVERYWHERE`], with a disk cache next to the data.
pub const CACHED_EVERYWHERE: [Opener; 3] = [
    |config, options| EVERYWHERE[0](&cached(config), options),
    |config, options| EVERYWHERE[1](&cached(config), options),
    |config, options| EVERYWHERE[2](&cached(config), options),
];

fn cached(config: &DatasetConfig) -> DatasetConfig {
    let folder = config.path.ancestors().find(|folder| folder.join("data").is_dir());
    let path = folder.unwrap_or(&config.path).join("cache");
    let cache = CacheConfig { path: Some(path), size: None, keep_free: Some(0) };
    DatasetConfig { cache, ..config.clone() }
}

/// Compresses the files whose names end in `ending`, and renames them.
pub fn compress_files(root: &Path, ending: &str, rename: impl Fn(&str) -> String) {
    let mut paths: Vec<_> =
        std::fs::read_dir(root).unwrap().map(|one| one.unwrap().path()).collect();
    paths.sort();
    for path in paths {
        let name = path.file_name().unwrap().to_str().unwrap();
        if !name.ends_with(ending) {
            continue;
        }
        let bytes = std::fs::read(&path).unwrap();
        let new = rename(name);
        let packed = if new.ends_with("gz") {
            let mut encoder =
                flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            encoder.write_all(&bytes).unwrap();
            encoder.finish().unwrap()
        } else {
            zstd::bulk::compress(&bytes, 1).unwrap()
        };
        std::fs::remove_file(&path).unwrap();
        write_aged(&root.join(new), &packed);
    }
}

fn open_behind(
    scheme: &str,
    config: &DatasetConfig,
    options: OpenOptions<'_>,
) -> Result<Opened, DatasetError> {
    static SERVERS: Mutex<BTreeMap<PathBuf, Server>> = Mutex::new(BTreeMap::new());
    // A folder's server runs until the tests end: its port is part of the URL, which identifies an index.
    let mut servers = SERVERS.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = config.path.ancestors().find(|folder| folder.join("data").is_dir()).unwrap();
    let server = servers.entry(folder.to_owned()).or_insert_with(|| Server::of(folder));
    let mut config = config.clone();
    let name = config.path.strip_prefix(folder).unwrap().to_str().unwrap().to_owned();
    server.lead(&mut config.path, &mut config.storage, &server.url(scheme, &name));
    drop(servers);
    crate::open(&config, options)
}

/// A format's key with a text as its value.
pub fn own_key(key: &str, text: &str) -> Section {
    own_value(key, Value::String(text.to_owned()))
}

/// A format's key with the value `true`.
pub fn own_flag(key: &str) -> Section {
    own_value(key, Value::Bool(true))
}

/// Parses a format's keys from TOML.
pub fn own_keys(text: &str) -> Section {
    let head =
        "dataset.path = \"/x\"\nbatch.size = 1\nstage = [{ name = \"x\", operations = [] }]\n";
    let text = format!("{head}dataset.format = \"x\"\n{text}");
    forebay_config::Config::from_text("test.toml", Path::new("/"), &text, &[]).unwrap().dataset.own
}

fn own_value(key: &str, value: Value) -> Section {
    let table = Value::Table(vec![(key.to_owned(), value.into())]);
    Section::new("dataset", table.into(), Path::new("/")).unwrap()
}

/// Creates files with the same bytes below a folder, and their parent folders.
pub fn make_files(root: &Path, paths: &[&str], bytes: &[u8]) {
    for path in paths {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
}

/// Sets the modification times of all directories back by an hour, as if the dataset were old.
pub fn age_directories(root: &Path) {
    let then = std::time::SystemTime::now() - std::time::Duration::from_secs(3600);
    for entry in fs::read_dir(root).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.is_symlink() {
            age_directories(&path);
        }
    }
    fs::File::open(root).unwrap().set_modified(then).unwrap();
}

/// A `.npz` file with these members.
pub fn npz_bytes(members: &[(&str, &[u8])], method: CompressionMethod) -> Vec<u8> {
    let mut writer = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    for (name, bytes) in members {
        let options = SimpleFileOptions::default().compression_method(method);
        writer.start_file(*name, options).unwrap();
        writer.write_all(bytes).unwrap();
    }
    writer.finish().unwrap().into_inner()
}

/// Writes a file with a modification time one hour ago.
pub fn write_aged(path: &Path, bytes: &[u8]) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, bytes).unwrap();
    let then = std::time::SystemTime::now() - std::time::Duration::from_secs(3600);
    fs::File::options().write(true).open(path).unwrap().set_modified(then).unwrap();
}

/// The names of all samples.
pub fn names(opened: &Opened) -> Vec<String> {
    let name = |id| {
        let mut name = Vec::new();
        opened.dataset.append_name(SampleId(id), &mut name);
        String::from_utf8(name).unwrap()
    };
    (0..opened.dataset.sample_count()).map(name).collect()
}

/// Reads a sample, and passes its values to `take`.
///
/// # Errors
/// The sample cannot be opened, or its defect.
///
/// # Panics
/// Its bytes cannot be read.
pub fn with_values<T>(
    opened: &Opened,
    id: u64,
    take: impl FnOnce(&[FieldValue<'_>]) -> T,
) -> Result<T, String> {
    let Opened { dataset, storage, .. } = opened;
    let (mut locations, mut parts) = (Vec::new(), Vec::new());
    let (mut bytes, mut ends, mut values) = (Vec::new(), Vec::new(), Vec::new());
    dataset.locate(SampleId(id), &mut locations);
    storage
        .open_all(dataset.as_ref(), &locations, 1 << 30, &mut parts)
        .map_err(|error| error.to_string())?;
    storage.read_all(dataset.as_ref(), &mut parts, &mut bytes, &mut ends).unwrap();
    let read = dataset.read(SampleId(id), SampleBytes::new(&bytes, &ends), &mut values);
    read.map_err(|defect| defect.0)?;
    Ok(take(&values))
}

/// A sample's values as text, or its defect.
pub fn sample(opened: &Opened, id: u64) -> Result<Vec<String>, String> {
    with_values(opened, id, |values| values.iter().map(text).collect())
}

fn text(value: &FieldValue<'_>) -> String {
    match value {
        FieldValue::EncodedImage(bytes) => format!("image {}", bytes.len()),
        FieldValue::EncodedImages(files) => {
            let file = |file: &&[u8]| {
                let sum: u64 = file.iter().map(|byte| u64::from(*byte)).sum();
                format!(" {}:{sum}", file.len())
            };
            format!("images{}", files.iter().map(file).collect::<String>())
        }
        FieldValue::Text(text) => format!("{text:?}"),
        FieldValue::Bytes(bytes) => format!("{bytes:?}"),
        FieldValue::Integer(value) => value.to_string(),
        FieldValue::Float(value) => value.to_string(),
        FieldValue::Array(array) if array.shape.is_empty() => number(array),
        FieldValue::Array(array) => format!("{:?} {:?}", array.dtype, array.shape),
        FieldValue::Sound(sound) => format!("sound {}", sound.file.len()),
        FieldValue::Video(clip) => format!("video {:?}", clip.wanted),
        FieldValue::InPlace => "in place".to_owned(),
    }
}

/// A single number with its type.
fn number(array: &ArrayValue<'_>) -> String {
    let bytes = &array.bytes;
    match array.dtype {
        DType::F32 => format!("{} F32", f32::from_le_bytes(*bytes.first_chunk().unwrap())),
        DType::F16 => {
            format!("{} F16", f16::from_le_bytes(*bytes.first_chunk().unwrap()))
        }
        DType::Bool => format!("{}", bytes[0] != 0),
        dtype => format!("{bytes:?} {dtype:?}"),
    }
}

//! Writes all samples of a dataset, in the order of ids, into shards of another layout.
//!
//! [`pack`] reads and re-encodes on several threads, and writes on one, so that the result does not depend on their number.
//! `layout` has the layouts, `folder` the result while it is made and how an interrupted run goes on, `verify` reads the
//! result back through Forebay's own reader, `config_file` writes the configuration for it.
//!
//! Samples are read through [`Dataset`](forebay_dataset::Dataset), from id 0 to its number of samples: what selects samples does so below it.

#![forbid(unsafe_code)]

mod config_file;
mod error;
mod folder;
mod layout;
mod names;
mod npy;
mod pictures;
mod reading;
mod sample;
mod space;
#[cfg(test)]
mod tests;
mod verify;
mod writing;

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use forebay_config::{Config, Shuffle};
use forebay_dataset::Opened;
use forebay_storage::{Patience, PatientStorage, Storage};
use serde_json::json;

pub use self::config_file::CONFIG_FILE;
pub use self::error::PackError;
use self::folder::{Place, Unfinished};
pub use self::layout::{LayoutChoice, words};
use self::layout::{Stored, TableOf, is_class};
pub use self::names::Names;
pub use self::pictures::Recoding;
use self::reading::Reading;

/// What is written, and how.
#[derive(Debug)]
pub struct Request<'a> {
    /// The configuration of the source.
    pub config: &'a Config,
    /// Its dataset, opened.
    pub source: &'a Opened,
    /// How long to wait for its storage if that is away; `None`: no waiting.
    pub patience: Option<&'a Patience>,
    /// The folder of the result.
    pub output: &'a Path,
    /// The layout of the result.
    pub layout: LayoutChoice,
    /// What becomes of names.
    pub names: Names,
    /// What becomes of pictures.
    pub recoding: Recoding,
    /// The field that is re-encoded; `None`: the only field of pictures.
    pub picture: Option<&'a str>,
    /// A shard ends with the sample that reaches so many bytes.
    pub shard_bytes: u64,
    /// The number of reading threads.
    pub threads: usize,
}

/// The progress of a run.
#[derive(Debug, Clone, Copy)]
pub struct PackProgress {
    /// Whether the result is being read back.
    pub verifies: bool,
    /// The number of samples so far, with those of an interrupted run.
    pub done: u64,
    /// The number of all samples.
    pub all: u64,
    /// Written so far.
    pub bytes: u64,
    /// The remaining time, extrapolated; `None`: unknown.
    pub left: Option<Duration>,
}

/// Called several times a second; `Break` interrupts the run.
pub type OnProgress<'a> = &'a dyn Fn(PackProgress) -> ControlFlow<()>;

/// What was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packed {
    /// The number of samples.
    pub samples: u64,
    /// The number of shards.
    pub shards: u64,
    /// The size of the shards.
    pub bytes: u64,
    /// The samples that an interrupted run had made.
    pub resumed: u64,
    /// The configuration that reads the result.
    pub config: PathBuf,
    /// What differs from the source, a sentence each.
    pub notes: Vec<String>,
}

/// Makes the result, or goes on with it.
///
/// # Errors
/// See [`PackError`]. What is complete of the result is kept.
pub fn pack(request: &Request<'_>, progress: OnProgress<'_>) -> Result<Packed, PackError> {
    let dataset = request.source.dataset.as_ref();
    let all = dataset.kept_count();
    let most = request.layout.0.max_shard_bytes();
    if request.shard_bytes > most {
        return Err(PackError::Refused(format!(
            "--shard-bytes is {}, and a shard of {} has at most {most}",
            request.shard_bytes,
            request.layout.0.word()
        )));
    }
    let storage = request.source.storage.as_ref();
    let patient = request.patience.map(|patience| PatientStorage { storage, patience });
    let storage: &dyn Storage = match &patient {
        Some(patient) => patient,
        None => storage,
    };
    let reading = Reading::new(request, storage)?;
    let columns = request.layout.0.columns(dataset.fields()).map_err(PackError::Refused)?;
    let classes = dataset.classes().to_vec();
    // A form that is not stored, such as a mask of outlines, is named before anything is made.
    if all > 0 {
        reading.thread().sample(0)?;
    }
    let mut table = TableOf { columns, has_names: reading.has_names(), classes };
    let place = Place::open(request.output, &identity(request, &reading))?;
    let result = |folder: &Path, resumed| {
        let (shards, bytes) = sizes(folder, request.layout);
        let (config, notes) = (request.output.join(CONFIG_FILE), notes(request, &reading));
        Packed { samples: all, shards, bytes, resumed, config, notes }
    };
    let mut folder = match place {
        Place::Whole => return Ok(result(request.output, all)),
        Place::Unfinished(folder) => folder,
    };
    // What a sound is decoded to is known from its value alone.
    let sounds = reading.sounds()?;
    for (column, form) in table.columns.iter_mut().zip(sounds) {
        if let (Stored::Sound(stored), Some(form)) = (&mut column.stored, form) {
            *stored = form;
        }
    }
    let text = config_file::text(request, &table)?;
    let resumed = folder.samples();
    if resumed > all {
        return Err(differs(&folder, format!("it has {resumed} samples, and the source {all}")));
    }
    if resumed < all {
        space::check(&reading, &folder, all)?;
    }
    let mut clock = Clock { begun: Instant::now(), from: resumed, all, verifies: false, progress };
    writing::write(&reading, &table, &mut folder, &clock)?;
    let finished = request.layout.0.finish(&table, folder.path(), &folder.shards);
    finished.map_err(PackError::write(folder.path()))?;
    folder.write_beside(CONFIG_FILE, &text)?;
    clock = Clock { begun: Instant::now(), from: 0, verifies: true, ..clock };
    verify::verify(&reading, &table, &folder, &clock)?;
    let packed = result(folder.path(), resumed);
    folder.finish()?;
    Ok(packed)
}

/// What determines the bytes of a result, by the words of the command line.
fn identity(
    request: &Request<'_>,
    reading: &Reading<'_>,
) -> serde_json::Map<String, serde_json::Value> {
    let dataset = request.source.dataset.as_ref();
    let mut hasher = blake3::Hasher::new();
    hasher.update(&dataset.fingerprint());
    hasher.update(&reading.index_digest());
    for field in dataset.fields() {
        hasher.update(format!("{field:?}\0").as_bytes());
    }
    let source = hasher.finalize().to_hex();
    let entries = [
        ("source", json!(source.as_str())),
        ("number of samples", json!(dataset.kept_count())),
        ("--to", json!(request.layout.0.word())),
        ("--names", json!(request.names == Names::Keep)),
        ("--shard-bytes", json!(request.shard_bytes)),
        ("--resize-shorter", json!(request.recoding.shorter)),
        ("--jpeg-quality", json!(request.recoding.quality)),
        ("--picture", json!(reading.picture())),
        ("version of forebay", json!(env!("CARGO_PKG_VERSION"))),
    ];
    entries.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

fn notes(request: &Request<'_>, reading: &Reading<'_>) -> Vec<String> {
    let mut notes = Vec::new();
    if let Some(field) = reading.picture() {
        notes.push(format!(
            "pictures of `{field}` that were encoded anew are upright RGB, without EXIF data and colour profiles"
        ));
    }
    let dataset = request.source.dataset.as_ref();
    // Parquet declares the names for a column of one class each.
    let has_column = dataset.fields().iter().any(is_class);
    let is_parquet = request.layout.0.word() == "parquet";
    let are_names_kept = has_column && is_parquet;
    if !dataset.classes().is_empty() && !are_names_kept {
        let remedy = if has_column { "; --to parquet keeps the names" } else { "" };
        notes.push(format!("names of classes are not stored, and labels are numbers{remedy}"));
    }
    if request.config.order.shuffle == Shuffle::Blocks {
        notes.push(
            "order.shuffle = \"blocks\" makes its blocks of the stored files, which are others here: the same seed gives another order"
                .to_owned(),
        );
    }
    notes
}

/// The number of shards in a folder, and their size.
fn sizes(folder: &Path, layout: LayoutChoice) -> (u64, u64) {
    let bytes = |shard| std::fs::metadata(folder.join(layout.0.file_name(shard))).ok();
    let found = (0..).map_while(bytes);
    found.fold((0, 0), |(shards, bytes), file| (shards + 1, bytes + file.len()))
}

fn differs(folder: &Unfinished, reason: String) -> PackError {
    PackError::Differs { folder: folder.path().to_owned(), reason }
}

/// Reports the progress of a pass.
struct Clock<'a> {
    begun: Instant,
    /// Samples that were there when it began.
    from: u64,
    all: u64,
    verifies: bool,
    progress: OnProgress<'a>,
}

impl Clock<'_> {
    fn report(&self, done: u64, bytes: u64) -> ControlFlow<()> {
        let made = done.saturating_sub(self.from);
        let left = (made > 0).then(|| {
            #[expect(clippy::cast_precision_loss, reason = "an estimate")]
            let share = self.all.saturating_sub(done) as f64 / made as f64;
            self.begun.elapsed().mul_f64(share)
        });
        let Self { verifies, all, .. } = *self;
        (self.progress)(PackProgress { verifies, done, all, bytes, left })
    }
}

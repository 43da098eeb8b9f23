//! A stream's part in what is learned of JPEG files: whether and where it is kept, its memory, its figures.
//!
//! The file is opened with the stream, before the process gives up its rights over files; the thread that reads and writes
//! it is started when these are gone. In between nothing is found and nothing is learned.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use forebay_config::{DatasetConfig, JpegIndexing};
use forebay_jpeg_index::{JpegIndex, Terms};
use forebay_observe::JpegIndexReport;
use forebay_source::dataset::{Dataset, FieldKind, open_beside, path_beside};

/// How long an ending daemon waits for what was learned to be written.
const LAST_WAIT: Duration = Duration::from_secs(1);
const SUFFIX: &str = ".jpeg";

/// What is learned of a stream's JPEG files.
#[derive(Debug)]
pub struct StreamIndex(Result<Arc<JpegIndex>, String>);

impl StreamIndex {
    /// Opens the file beside the dataset's index, where there are images and something is to be kept.
    pub(super) fn open(
        config: &DatasetConfig,
        dataset: &dyn Dataset,
        index: Option<&Path>,
    ) -> Self {
        Self(open(config, dataset, index))
    }

    /// The index, or why nothing is kept; empty where there are no images.
    pub(super) const fn get(&self) -> Result<&Arc<JpegIndex>, &String> {
        self.0.as_ref()
    }

    /// The memory that it takes; 0 where nothing is kept.
    pub(super) fn memory_bytes(&self) -> u64 {
        self.0.as_ref().map_or(0, |index| index.terms().memory_bytes())
    }

    /// Begins to use and to learn it, on the rights that this thread has left. `planned_bytes` is what the memory plan has
    /// for it; none: it is left out.
    pub fn start(&self, planned_bytes: u64) {
        self.begin(planned_bytes, JpegIndex::start);
    }

    /// Reads what is known, for its figures alone.
    pub fn look(&self, planned_bytes: u64) {
        self.begin(planned_bytes, |index| index.look());
    }

    fn begin(&self, planned_bytes: u64, begin: impl FnOnce(&Arc<JpegIndex>) -> io::Result<()>) {
        let Ok(index) = &self.0 else { return };
        if planned_bytes == 0 {
            index.stop("ring.memory has no room for it beside the rest; raise it".to_owned());
        } else if let Err(error) = begin(index) {
            index.stop(error.to_string());
        }
    }

    /// Writes what was learned, for a bounded time: the process is about to end.
    pub(super) fn finish(&self) {
        if let Ok(index) = &self.0 {
            index.finish(LAST_WAIT);
        }
    }

    /// In figures; none for a dataset without images.
    #[must_use]
    pub fn report(&self) -> Option<JpegIndexReport> {
        let index = match &self.0 {
            Ok(index) => index,
            Err(why) if why.is_empty() => return None,
            Err(why) => {
                return Some(JpegIndexReport {
                    off: Some(why.clone()),
                    ..JpegIndexReport::default()
                });
            }
        };
        let figures = index.figures();
        let may_write = index.terms().may_write;
        Some(JpegIndexReport {
            path: index.path().display().to_string(),
            images: index.terms().images,
            known: figures.records,
            bytes: figures.bytes,
            limit_bytes: index.terms().limit_bytes,
            decodes_with: figures.found,
            decodes_without: figures.missed,
            dropped: figures.dropped,
            off: figures.stopped.or((!may_write).then(|| "the file can only be read".to_owned())),
        })
    }
}

/// Opens the file beside the dataset's index.
///
/// # Errors
/// Why nothing is kept; empty where there are no images.
fn open(
    config: &DatasetConfig,
    dataset: &dyn Dataset,
    index: Option<&Path>,
) -> Result<Arc<JpegIndex>, String> {
    let fields = dataset.fields().iter();
    let images = fields.filter(|field| field.kind == FieldKind::EncodedImage).count() as u64;
    if images == 0 {
        return Err(String::new());
    }
    if config.jpeg_index == JpegIndexing::Off {
        return Err("dataset.jpeg_index is \"off\"".to_owned());
    }
    let Some(index) = index else {
        return Err("the dataset's index is not kept in a file".to_owned());
    };
    let path = path_beside(index, SUFFIX);
    let (file, may_write) = open_beside(&path, config.index.is_some())
        .map_err(|error| format!("{} cannot be used: {error}", path.display()))?;
    let images = dataset.sample_count().saturating_mul(images);
    let terms = Terms { limit_bytes: config.jpeg_index_bytes, images, may_write };
    Ok(Arc::new(JpegIndex::new(file, &path, terms)))
}

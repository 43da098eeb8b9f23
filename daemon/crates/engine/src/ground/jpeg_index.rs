//! A stream's JPEG index: whether and where it is saved, its memory, its metrics.
//!
//! The file is opened with the stream, before the process drops its file permissions; the thread that reads and writes
//! it is started afterwards. In between nothing is looked up and nothing is learned.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use forebay_config::{DatasetConfig, JpegIndexing};
use forebay_dataset::{Dataset, FieldKind, open_beside, path_beside};
use forebay_jpeg_index::{JpegIndex, Terms};
use forebay_observe::JpegIndexReport;

/// Maximal time for which an ending daemon waits until learned records are written.
const LAST_WAIT: Duration = Duration::from_secs(1);
const SUFFIX: &str = ".jpeg";

/// The JPEG index of a stream.
#[derive(Debug)]
pub struct StreamIndex(Result<Arc<JpegIndex>, String>);

impl StreamIndex {
    /// Opens the file next to the dataset's index, if there are images and the index is enabled.
    pub(crate) fn open(
        config: &DatasetConfig,
        dataset: &dyn Dataset,
        index: Option<&Path>,
    ) -> Self {
        Self(open(config, dataset, index))
    }

    /// The index, or why there is none; the reason is empty if there are no images.
    pub(crate) const fn get(&self) -> Result<&Arc<JpegIndex>, &String> {
        self.0.as_ref()
    }

    /// The index's memory, in bytes; 0 without an index.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.0.as_ref().map_or(0, |index| index.terms().memory_bytes())
    }

    /// Starts looking up and learning, with the calling thread's remaining permissions. `planned_bytes`: the index's
    /// part of the memory plan; 0: the index is disabled.
    pub fn start(&self, planned_bytes: u64) {
        self.begin(planned_bytes, JpegIndex::start);
    }

    /// Reads the saved records, for metrics only.
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

    /// Writes the learned records, with a time limit. Called before the process ends.
    pub(crate) fn finish(&self) {
        if let Ok(index) = &self.0 {
            index.finish(LAST_WAIT);
        }
    }

    /// The metrics; `None` for a dataset without images.
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

/// Opens the file next to the dataset's index.
///
/// # Errors
/// Why there is no index; empty if there are no images.
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

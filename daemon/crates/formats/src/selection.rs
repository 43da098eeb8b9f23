//! Which samples of an open dataset are used: `dataset.where` and `dataset.split`, evaluated once at opening.
//!
//! A condition's columns are those of the files, if the files are tables; otherwise the dataset's fields, for which samples
//! are read by several threads ([`pass`]). The sample's name, label, class and size come from the index. The result is saved
//! beside the index, and a start that finds it reads no file of the dataset.

mod judge;
mod pass;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_config::DatasetConfig;
use forebay_dataset::error::DatasetError;
use forebay_dataset::opening::OpenOptions;
use forebay_dataset::progress::ScanProgress;
use forebay_dataset::{
    Dataset, FileKey, Selected, file_key, path_beside, read_checked, save_checked,
};
use forebay_index::row_index::RowIndex;
use forebay_index::saved_index::open_file;
use forebay_index::stored_file::StoredFile;
use forebay_protocol::ids::SampleId;
use forebay_select::{Subset, SubsetBuilder};
use forebay_storage::{Storage, StorageError};

use self::judge::Judge;

/// The first bytes of the file of kept samples: its name and the layout's number.
const MAGIC: [u8; 8] = *b"FBSLCT\0\x01";
/// The samples between two reports of progress.
const SAMPLES_PER_REPORT: u64 = 4096;

/// The dataset with the samples that its configuration selects, and a sentence that counts them; the dataset itself if it has
/// no selection. `index`: the file of its index, beside which the kept samples are saved.
///
/// # Errors
/// The condition does not fit the dataset, a value is of another type, a file cannot be read, or no sample is kept.
pub(super) fn select(
    config: &DatasetConfig,
    dataset: Arc<dyn Dataset>,
    storage: &dyn Storage,
    index: Option<&Path>,
    options: OpenOptions<'_>,
) -> Result<(Arc<dyn Dataset>, Option<String>), DatasetError> {
    if config.condition.is_none() && config.split.is_none() {
        return Ok((dataset, None));
    }
    let words = judge::words(config);
    let saved = Saved::new(config, &words, dataset.as_ref(), index);
    let kept = match saved.as_ref().and_then(|saved| saved.read(dataset.sample_count())) {
        Some(kept) => kept,
        None => {
            let judge = Judge::new(config, dataset.as_ref(), storage)?;
            let kept = keep(&judge, dataset.as_ref(), storage, options)?;
            if let Some(saved) = &saved {
                saved.write(&kept, config);
            }
            kept
        }
    };
    let samples = kept.samples();
    if kept.kept() == 0 {
        return Err(judge::keeps_none(config, samples).into());
    }
    let counted =
        format!("kept {} of {} samples by {words}", grouped(kept.kept()), grouped(samples));
    let selected = Selected::new(dataset, Arc::new(kept), counted.clone());
    Ok((Arc::new(selected), Some(counted)))
}

/// The file of the kept samples, for as long as the index is used: a start reads it in place of the columns.
struct Saved {
    path: PathBuf,
    key: FileKey,
    is_configured: bool,
}

impl Saved {
    /// `None`: the index is not saved.
    fn new(
        config: &DatasetConfig,
        words: &str,
        dataset: &dyn Dataset,
        index: Option<&Path>,
    ) -> Option<Self> {
        let index = index?;
        let source = format!("{}\0{words}", config.condition.as_deref().unwrap_or(""));
        let key = file_key(index, &dataset.fingerprint(), &source)?;
        let name = blake3::hash(source.as_bytes()).to_hex();
        let path = path_beside(index, &format!(".selected-{}", &name[..16]));
        Some(Self { path, key, is_configured: config.index.is_some() })
    }

    fn read(&self, samples: u64) -> Option<Subset> {
        let bytes = usize::try_from(Subset::bytes_of(samples)).ok()?;
        let found = read_checked(&self.path, (MAGIC, &self.key), bytes..=bytes, self.is_configured);
        Subset::from_bytes(samples, &found.ok()??)
    }

    fn write(&self, kept: &Subset, config: &DatasetConfig) {
        if let Err(error) = save_checked(&self.path, (MAGIC, &self.key), &kept.to_bytes()) {
            tracing::warn!(
                path = %config.path.display(),
                "the selected samples cannot be saved at {}, so the next start evaluates the selection again: {error}",
                self.path.display()
            );
        }
    }
}

/// The samples that a selection keeps.
fn keep(
    judge: &Judge<'_>,
    dataset: &dyn Dataset,
    storage: &dyn Storage,
    options: OpenOptions<'_>,
) -> Result<Subset, DatasetError> {
    let report = |samples: u64| match (options.progress)(ScanProgress {
        samples,
        ..ScanProgress::default()
    }) {
        seen if seen.is_break() => Err(DatasetError::Cancelled),
        _ => Ok(()),
    };
    let samples = dataset.sample_count();
    let mut builder = SubsetBuilder::default();
    if let Some(columns) = judge.file_columns() {
        let mut scratch = judge.scratch();
        dataset.visit_columns(storage, &columns, &mut |id, values| {
            if id.0.is_multiple_of(SAMPLES_PER_REPORT) {
                report(id.0)?;
            }
            builder.push(judge.keeps(id, values, &mut scratch)?);
            Ok(())
        })?;
    } else if judge.reads_samples() {
        return pass::keep(judge, dataset, storage, &report);
    } else {
        let mut scratch = judge.scratch();
        for id in (0..samples).map(SampleId) {
            if id.0.is_multiple_of(SAMPLES_PER_REPORT) {
                report(id.0)?;
            }
            builder.push(judge.keeps(id, &[], &mut scratch)?);
        }
    }
    Ok(builder.build())
}

/// Opens a file to read columns of its indexed rows.
///
/// # Errors
/// The file is not the indexed one, or an error of the storage.
pub(crate) fn open_indexed<'f>(
    index: &'f RowIndex,
    place: usize,
    files: &'f dyn Storage,
) -> Result<StoredFile<'f>, DatasetError> {
    let path = index.manifest_path(place);
    let file = open_file(files, path)?;
    let indexed = index.manifest_stamp(place).unwrap_or_default();
    if file.stamp == indexed {
        return Ok(file);
    }
    let bytes = file.stamp.bytes;
    let what = match bytes == indexed.bytes {
        true => format!("its {bytes} bytes have another time or tag (ETag) now"),
        false => format!("it had {} bytes and has {bytes}", indexed.bytes),
    };
    Err(StorageError::Replaced { path: files.full_path(path), what }.into())
}

/// The error for an indexed file that ends before its last row.
pub(crate) fn too_few_rows(file: &StoredFile<'_>) -> DatasetError {
    let remedy = "run `forebay index`, which lists the dataset again";
    file.fault(format!("it has fewer rows than its index; {remedy}"))
}

/// A number with commas between its thousands.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

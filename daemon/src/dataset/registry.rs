//! The formats by name, and opening one. A further format is one file and one line in `FORMATS`.

use std::ops::ControlFlow;
use std::sync::Arc;

use super::error::DatasetError;
use super::folder::IndexReport;
use super::folder::scan::{ProgressCallback, ScanProgress};
use super::{Dataset, image_folder, npy, npz};
use crate::config::DatasetConfig;
use crate::config::nearest;

/// An open dataset, and what opening it did.
#[derive(Debug)]
pub struct Opened {
    /// Shared by all threads.
    pub dataset: Arc<dyn Dataset>,
    /// For the log, and for `forebay index`.
    pub report: IndexReport,
}

type Opener = fn(&DatasetConfig, ProgressCallback<'_>) -> Result<Opened, DatasetError>;

/// Name and opener.
const FORMATS: [(&str, Opener); 3] = [
    (image_folder::FORMAT.name, image_folder::open),
    (npy::FORMAT.name, npy::open),
    (npz::FORMAT.name, npz::open),
];

/// The names that `dataset.format` may have.
pub fn format_names() -> impl Iterator<Item = &'static str> {
    FORMATS.iter().map(|(name, _)| *name)
}

/// A progress callback for those who do not care.
pub fn no_progress(_: ScanProgress) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

/// Opens a dataset, and logs the report's warnings.
///
/// # Errors
/// An unknown format, or a dataset that cannot be used as configured.
pub fn open(
    config: &DatasetConfig,
    progress: ProgressCallback<'_>,
) -> Result<Arc<dyn Dataset>, DatasetError> {
    let Opened { dataset, report } = open_with_report(config, progress)?;
    for warning in &report.warnings {
        tracing::warn!(path = %config.path.display(), "{warning}");
    }
    Ok(dataset)
}

/// Opens a dataset for its index alone: what `forebay index` does. A saved index that is still true is kept.
///
/// # Errors
/// As [`open`].
pub fn build_index(
    config: &DatasetConfig,
    progress: ProgressCallback<'_>,
) -> Result<IndexReport, DatasetError> {
    open_with_report(config, progress).map(|opened| opened.report)
}

/// Opens a dataset and says what that did; logs nothing.
///
/// # Errors
/// As [`open`].
pub fn open_with_report(
    config: &DatasetConfig,
    progress: ProgressCallback<'_>,
) -> Result<Opened, DatasetError> {
    match FORMATS.iter().find(|(name, _)| *name == config.format) {
        Some((_, opener)) => opener(config, progress),
        None => Err(DatasetError::UnknownFormat {
            given: config.format.clone(),
            hint: nearest(&config.format, format_names())
                .map(|name| format!("; did you mean {name:?}?"))
                .unwrap_or_default(),
            known: format_names().collect::<Vec<_>>().join(", "),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::{build_index, no_progress, open};
    use crate::dataset::DatasetError;
    use crate::dataset::testing::config_for;

    #[test]
    fn an_unknown_format_names_the_nearest_and_all() {
        let folder = tempfile::tempdir().unwrap();
        let mut config = config_for("image-foldr", folder.path());
        let message = open(&config, &no_progress).unwrap_err().to_string();
        assert_eq!(
            message,
            "unknown dataset.format \"image-foldr\"; did you mean \"image-folder\"?; the formats are image-folder, npy, npz"
        );
        config.format = "parquet".to_owned();
        let message = open(&config, &no_progress).unwrap_err().to_string();
        assert!(!message.contains("did you mean"), "{message}");
    }

    #[test]
    fn a_path_that_is_missing_or_of_the_wrong_kind_is_named_for_every_format() {
        let folder = tempfile::tempdir().unwrap();
        for format in super::format_names() {
            let config = config_for(format, &folder.path().join("absent"));
            let error = build_index(&config, &no_progress).unwrap_err();
            assert!(matches!(error, DatasetError::Missing { .. }), "{format}: {error}");
            assert!(error.to_string().contains("absent"));
        }
        std::fs::write(folder.path().join("file.txt"), b"x").unwrap();
        for format in super::format_names() {
            let config = config_for(format, &folder.path().join("file.txt"));
            let error = build_index(&config, &no_progress).unwrap_err();
            assert!(matches!(error, DatasetError::WrongKind { .. }), "{format}: {error}");
        }
    }
}

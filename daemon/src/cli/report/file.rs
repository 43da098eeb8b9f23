//! The file that a report goes to: made before the long run, so that a place that cannot be written is told of at once;
//! written beside its place and renamed, so that nobody meets half of one.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;

/// A report to come. Dropped without [`Self::finish`] it leaves nothing behind, and what lay there before as it was.
#[derive(Debug)]
pub(in crate::cli) struct ReportFile {
    place: PathBuf,
    beside: PathBuf,
    file: fs::File,
}

impl ReportFile {
    /// Makes the file that is renamed in the end.
    ///
    /// # Errors
    /// Where the place cannot be written.
    pub(in crate::cli) fn create(place: &Path) -> anyhow::Result<Self> {
        let cannot = || format!("the report {} cannot be written", place.display());
        if place.is_dir() {
            anyhow::bail!(
                "the report {} cannot be written: it is a folder; name a file in it",
                place.display()
            );
        }
        let name = place.file_name().with_context(cannot)?.to_string_lossy();
        let beside = place.with_file_name(format!(".{name}.{}.tmp", std::process::id()));
        let file = fs::File::create(&beside).with_context(cannot)?;
        Ok(Self { place: place.to_owned(), beside, file })
    }

    /// Writes the page and puts it in its place, over what lay there.
    ///
    /// # Errors
    /// What the system says.
    pub(in crate::cli) fn finish(mut self, page: &str) -> anyhow::Result<()> {
        let cannot = || format!("the report {} cannot be written", self.place.display());
        self.file.write_all(page.as_bytes()).with_context(cannot)?;
        fs::rename(&self.beside, &self.place).with_context(cannot)
    }
}

impl Drop for ReportFile {
    fn drop(&mut self) {
        // Gone already where it was renamed.
        let _ = fs::remove_file(&self.beside);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_replaces_the_one_before_and_leaves_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("out.html");
        fs::write(&place, "before").unwrap();
        drop(ReportFile::create(&place).unwrap());
        assert_eq!(fs::read_to_string(&place).unwrap(), "before");
        ReportFile::create(&place).unwrap().finish("after").unwrap();
        assert_eq!(fs::read_to_string(&place).unwrap(), "after");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_place_that_cannot_be_written_is_an_error_at_once() {
        let folder = tempfile::tempdir().unwrap();
        for place in [folder.path().to_owned(), folder.path().join("no/such/out.html")] {
            let error = ReportFile::create(&place).unwrap_err().to_string();
            assert!(
                error.contains("cannot be written") && error.contains(place.to_str().unwrap()),
                "{error}"
            );
        }
    }
}

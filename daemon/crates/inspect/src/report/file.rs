//! The report's file: created before the run, so that an unwritable path fails early; written under a temporary name and
//! renamed, so that it is never partial.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;

/// A report to be written. If it is dropped without [`Self::finish`], the temporary file is removed and an earlier
/// report is kept.
#[derive(Debug)]
pub struct ReportFile {
    path: PathBuf,
    temporary: PathBuf,
    file: fs::File,
}

impl ReportFile {
    /// Creates the temporary file.
    ///
    /// # Errors
    /// If the path cannot be written.
    pub fn create(path: &Path) -> anyhow::Result<Self> {
        let cannot = || format!("cannot write the report {}", path.display());
        if path.is_dir() {
            anyhow::bail!("{}: it is a directory; name a file in it", cannot());
        }
        let name = path.file_name().with_context(cannot)?.to_string_lossy();
        let temporary = path.with_file_name(format!(".{name}.{}.tmp", std::process::id()));
        let file = fs::File::create(&temporary).with_context(cannot)?;
        Ok(Self { path: path.to_owned(), temporary, file })
    }

    /// Writes the page and renames the file, over an earlier report.
    ///
    /// # Errors
    /// Writing or renaming fails.
    pub fn finish(mut self, page: &str) -> anyhow::Result<()> {
        let cannot = || format!("cannot write the report {}", self.path.display());
        self.file.write_all(page.as_bytes()).with_context(cannot)?;
        fs::rename(&self.temporary, &self.path).with_context(cannot)
    }
}

impl Drop for ReportFile {
    fn drop(&mut self) {
        // Fails after a successful rename.
        let _ = fs::remove_file(&self.temporary);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_replaces_the_previous_one_and_leaves_no_other_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out.html");
        fs::write(&path, "before").unwrap();
        drop(ReportFile::create(&path).unwrap());
        assert_eq!(fs::read_to_string(&path).unwrap(), "before");
        ReportFile::create(&path).unwrap().finish("after").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "after");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn unwritable_path_fails_at_creation() {
        let folder = tempfile::tempdir().unwrap();
        for path in [folder.path().to_owned(), folder.path().join("no/such/out.html")] {
            let error = ReportFile::create(&path).unwrap_err().to_string();
            assert!(
                error.contains("cannot write") && error.contains(path.to_str().unwrap()),
                "{error}"
            );
        }
    }
}

//! The files of a folder of class folders.

use std::fs;
use std::io;
use std::path::Path;

/// Each file's class as a number, and its path; in the order of the paths.
///
/// # Errors
/// A system error.
pub(crate) fn files(folder: &Path) -> io::Result<Vec<(usize, String)>> {
    let names = |folder: &Path| -> io::Result<Vec<String>> {
        let entries = fs::read_dir(folder)?.map(|entry| Ok(entry?.file_name().into_string()));
        let mut names: Vec<_> =
            entries.collect::<io::Result<Vec<_>>>()?.into_iter().flatten().collect();
        names.sort_unstable();
        Ok(names)
    };
    let mut files = Vec::new();
    let mut classes = names(folder)?;
    // The marker file next to them is not a class.
    classes.retain(|class| folder.join(class).is_dir());
    for (label, class) in classes.into_iter().enumerate() {
        files.extend(
            names(&folder.join(&class))?.into_iter().map(|name| (label, format!("{class}/{name}"))),
        );
    }
    Ok(files)
}

//! The marker file that says what a generated folder holds, so that a finished set is not made twice and a person's own
//! files are never written over.
//!
//! The marker is locked (`flock`) while the set is made: a second generator waits and then finds the set finished. The
//! kernel drops the lock when a generator dies; the marker then says "not finished" and the next one makes the set anew.

use super::GenerateError;
use rustix::fs::{FlockOperation, flock};
use serde_json::{Value, json};
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};

/// The marker's name. It begins with a dot, so that no dataset format takes it for a sample.
pub(super) const MARKER_NAME: &str = ".forebay-generated.json";

/// The locked marker of one folder.
pub(super) struct Marker {
    file: File,
    path: PathBuf,
    options: Value,
}

/// What a folder holds before the work.
pub(super) enum Found {
    /// The finished set, with the bytes that its samples take.
    Finished {
        /// The sum of the sizes of all samples' files.
        bytes: u64,
    },
    /// Nothing, or a part of the set that is asked for.
    Unfinished(Marker),
}

/// Makes `folder` where it is missing, locks its marker and compares what it says with `options`.
///
/// `files_expected` is how many sample files a finished set has; a set that has lost some is made again.
pub(super) fn open(
    folder: &Path,
    options: Value,
    files_expected: u64,
) -> Result<Found, GenerateError> {
    fs::create_dir_all(folder).map_err(GenerateError::file(folder, "make the folder"))?;
    let path = folder.join(MARKER_NAME);
    if !path.exists() {
        let mut entries =
            fs::read_dir(folder).map_err(GenerateError::file(folder, "list the folder"))?;
        // A second generator may have made the marker in between; then the folder is not a stranger's.
        if entries.next().is_some() && !path.exists() {
            return Err(GenerateError::NotOurs { folder: folder.to_path_buf() });
        }
    }
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(&path)
        .map_err(GenerateError::file(&path, "open the marker"))?;
    flock(&file, FlockOperation::LockExclusive)
        .map_err(|errno| GenerateError::file(&path, "lock the marker")(errno.into()))?;
    let mut text = String::new();
    file.read_to_string(&mut text).map_err(GenerateError::file(&path, "read the marker"))?;
    let found: Value = serde_json::from_str(&text).unwrap_or(Value::Null);
    // A marker that is empty or cut short is that of a generator that died while writing it.
    let same = found.get("options").is_none_or(|found| *found == options);
    if !same {
        return Err(GenerateError::OtherOptions {
            folder: folder.to_path_buf(),
            found: found["options"].to_string(),
            asked: options.to_string(),
        });
    }
    if found["finished"] == Value::Bool(true) && count_files(folder)? == files_expected {
        return Ok(Found::Finished { bytes: found["bytes"].as_u64().unwrap_or(0) });
    }
    let mut marker = Marker { file, path, options };
    marker.write(false, 0)?;
    Ok(Found::Unfinished(marker))
}

impl Marker {
    /// Says that the set is complete, and drops the lock.
    pub(super) fn finish(mut self, bytes: u64) -> Result<(), GenerateError> {
        self.write(true, bytes)
    }

    fn write(&mut self, finished: bool, bytes: u64) -> Result<(), GenerateError> {
        let text = format!(
            "{}\n",
            json!({ "options": self.options, "finished": finished, "bytes": bytes })
        );
        let written = self
            .file
            .rewind()
            .and_then(|()| self.file.set_len(0))
            .and_then(|()| self.file.write_all(text.as_bytes()));
        written.map_err(GenerateError::file(&self.path, "write the marker"))
    }
}

/// The files in `folder` and in the folders directly below it, without names that begin with a dot.
fn count_files(folder: &Path) -> Result<u64, GenerateError> {
    let mut count = 0;
    let mut waiting = vec![(folder.to_path_buf(), 0)];
    while let Some((folder, depth)) = waiting.pop() {
        for entry in
            fs::read_dir(&folder).map_err(GenerateError::file(&folder, "list the folder"))?
        {
            let entry = entry.map_err(GenerateError::file(&folder, "list the folder"))?;
            let kind = entry.file_type().map_err(GenerateError::file(&entry.path(), "look at"))?;
            if kind.is_dir() && depth == 0 {
                waiting.push((entry.path(), depth + 1));
            } else if kind.is_file() && !entry.file_name().as_encoded_bytes().starts_with(b".") {
                count += 1;
            }
        }
    }
    Ok(count)
}

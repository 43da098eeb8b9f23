//! The marker file that records the content of a generated folder, so that a complete set is not generated twice and a
//! user's files are never overwritten.
//!
//! The marker is locked (`flock`) during the generation: a second generator waits and then finds the set complete. The
//! kernel releases the lock when a generator dies; the marker then still contains "not finished" and the next generator
//! starts over.

use super::GenerateError;
use rustix::fs::{FlockOperation, flock};
use serde_json::{Value, json};
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};

/// The marker's name. It begins with a dot, so that dataset formats ignore it.
pub(super) const MARKER_NAME: &str = ".forebay-generated.json";

/// The locked marker of one folder.
pub(super) struct Marker {
    file: File,
    path: PathBuf,
    options: Value,
}

/// The content of a folder before the generation.
pub(super) enum Found {
    /// The complete set, with the size of its samples.
    Finished {
        /// The sum of the sizes of all samples' files.
        bytes: u64,
    },
    /// Nothing, or a part of the requested set.
    Unfinished(Marker),
}

/// Creates `folder` if it is missing, locks its marker and compares it with `options`.
///
/// `files_expected` is the number of sample files in a complete set; a set with missing files is generated again.
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
        // A second generator may have created the marker in between; then the folder is not a user's.
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
    // An empty or truncated marker comes from a generator that died while writing it.
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
    /// Records that the set is complete, and releases the lock.
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

/// The number of files in `folder` and in its direct subfolders, without names that begin with a dot.
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

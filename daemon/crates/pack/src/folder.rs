//! The folder of a result while it is made, and its end.
//!
//! ```text
//! OUT.partial/                   until the result is whole and verified
//!   shard-000000.tar             complete
//!   shard-000001.tar.tmp         in the making
//! OUT.packing/                   what is known of it
//!   begun.json                   what is made of what; locked by the process that writes
//!   000000.json                  written last of a shard: with it, the shard is complete
//!   000000.digests               a digest of each of its samples
//! OUT/                           OUT.partial, renamed; then OUT.packing is removed, begun.json last
//! ```
//! States of a run, from each of which the next run goes on: nothing; `begun.json`; complete shards; all shards and what is
//! beside them; renamed; done. Where a shard ends depends on the samples and the options only, so shards are the same bytes
//! wherever a run was interrupted.

use std::fs::{self, File, TryLockError};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use serde::{Deserialize, Serialize};

use crate::error::PackError;
use crate::sample::Digest;

const BEGUN: &str = "begun.json";

/// A complete shard.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ShardRecord {
    /// The name of its file.
    pub(crate) file: String,
    pub(crate) samples: u64,
    pub(crate) bytes: u64,
}

/// The folders of an unfinished result, locked.
#[derive(Debug)]
pub(crate) struct Unfinished {
    path: PathBuf,
    own: PathBuf,
    target: PathBuf,
    /// Holds the lock.
    _begun: File,
    /// The complete shards, in order.
    pub(crate) shards: Vec<ShardRecord>,
}

/// What a run finds.
#[derive(Debug)]
pub(crate) enum Place {
    /// The result is to be made.
    Unfinished(Unfinished),
    /// A run was interrupted after it renamed the whole result.
    Whole,
}

impl Place {
    /// Opens the folders for a result at `target`, or goes on with one. `identity`: what determines the result, by name.
    pub(crate) fn open(
        target: &Path,
        identity: &serde_json::Map<String, serde_json::Value>,
    ) -> Result<Self, PackError> {
        let name = target.file_name().ok_or_else(|| {
            PackError::Refused(format!("--output {} names no folder", target.display()))
        })?;
        let beside = |ending: &str| {
            let mut beside = name.to_owned();
            beside.push(ending);
            target.with_file_name(beside)
        };
        let (path, own) = (beside(".partial"), beside(".packing"));
        let begun = own.join(BEGUN);
        let exists = |path: &Path| fs::symlink_metadata(path).is_ok();
        if exists(target) {
            let is_ours = || fs::read(&begun).is_ok_and(|begun| begun == text_of(identity));
            if exists(&path) || !is_ours() {
                return Err(PackError::Exists(target.to_owned()));
            }
            // A run that is still removing it holds the lock.
            let file = File::open(&begun).map_err(PackError::write(&begun))?;
            if let Err(TryLockError::WouldBlock) = file.try_lock() {
                return Err(PackError::InUse(path));
            }
            remove(&own)?;
            return Ok(Self::Whole);
        }
        // Folders that no run has begun are someone else's.
        let is_taken =
            |folder: &Path| fs::read_dir(folder).is_ok_and(|mut all| all.next().is_some());
        if let Some(taken) = [&path, &own].into_iter().find(|it| is_taken(it) && !exists(&begun)) {
            return Err(PackError::Exists(taken.clone()));
        }
        for folder in [&own, &path] {
            fs::create_dir_all(folder).map_err(PackError::write(folder))?;
        }
        let mut file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&begun)
            .map_err(PackError::write(&begun))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(PackError::InUse(path)),
            // A file system without locks.
            Err(TryLockError::Error(_)) => {}
        }
        let mut before = Vec::new();
        file.read_to_end(&mut before).map_err(PackError::write(&begun))?;
        // A run that was killed while it wrote this has made nothing else.
        let before: serde_json::Map<_, _> = serde_json::from_slice(&before).unwrap_or_default();
        if before.is_empty() {
            let written = file.set_len(0).and_then(|()| {
                io::Seek::rewind(&mut file)?;
                file.write_all(&text_of(identity))?;
                file.sync_all()
            });
            written.map_err(PackError::write(&begun))?;
        } else if before != *identity {
            let differs = |key: &&String| before.get(*key) != identity.get(*key);
            let what: Vec<_> = identity.keys().filter(differs).map(String::as_str).collect();
            return Err(PackError::OtherBegun { folder: path, what: what.join(", ") });
        }
        remove_unfinished(&path)?;
        let shards = complete_shards(&path, &own);
        let target = target.to_owned();
        Ok(Self::Unfinished(Unfinished { path, own, target, _begun: file, shards }))
    }
}

/// Removes what an interrupted run had not completed.
fn remove_unfinished(folder: &Path) -> Result<(), PackError> {
    for entry in fs::read_dir(folder).map_err(PackError::write(folder))? {
        let path = entry.map_err(PackError::write(folder))?.path();
        if path.extension().is_some_and(|extension| extension == "tmp") {
            fs::remove_file(&path).map_err(PackError::write(&path))?;
        }
    }
    Ok(())
}

/// The complete shards of a folder, up to the first that is not.
fn complete_shards(folder: &Path, own: &Path) -> Vec<ShardRecord> {
    let shard = |number: u64| {
        let record = fs::read(own_file(own, number, "json")).ok()?;
        let record: ShardRecord = serde_json::from_slice(&record).ok()?;
        let bytes = |path: &Path| fs::metadata(path).ok().map(|file| file.len());
        let digests = record.samples.checked_mul(size_of::<Digest>() as u64);
        let is_whole = bytes(&folder.join(&record.file)) == Some(record.bytes)
            && bytes(&own_file(own, number, "digests")) == digests;
        is_whole.then_some(record)
    };
    (0..).map_while(shard).collect()
}

fn own_file(own: &Path, shard: u64, ending: &str) -> PathBuf {
    own.join(format!("{shard:06}.{ending}"))
}

/// Removes the folder of what is known, [`BEGUN`] last: an interrupted removal is ended by the next run.
fn remove(own: &Path) -> Result<(), PackError> {
    let removed = fs::read_dir(own).and_then(|entries| {
        for entry in entries {
            let path = entry?.path();
            if path.file_name().is_none_or(|name| name != BEGUN) {
                fs::remove_file(path)?;
            }
        }
        fs::remove_file(own.join(BEGUN))?;
        fs::remove_dir(own)
    });
    removed.map_err(PackError::write(own))
}

fn text_of(identity: &serde_json::Map<String, serde_json::Value>) -> Vec<u8> {
    // Texts and numbers: serialization cannot fail.
    serde_json::to_vec(identity).unwrap_or_default()
}

/// Writes a file that exists as a whole or not at all.
fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), PackError> {
    let mut unfinished = path.as_os_str().to_owned();
    unfinished.push(".tmp");
    let written = File::create(&unfinished).and_then(|mut file| {
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&unfinished, path)
    });
    written.map_err(PackError::write(path))
}

impl Unfinished {
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The folder for files that are removed at the end.
    pub(crate) fn own(&self) -> &Path {
        &self.own
    }

    /// The number of samples in complete shards.
    pub(crate) fn samples(&self) -> u64 {
        self.shards.iter().map(|shard| shard.samples).sum()
    }

    /// The number of bytes in complete shards.
    pub(crate) fn bytes(&self) -> u64 {
        self.shards.iter().map(|shard| shard.bytes).sum()
    }

    /// Creates the file of the next shard, which has no name yet.
    pub(crate) fn begin(&self, file_name: &str) -> Result<(File, PathBuf), PackError> {
        let path = self.path.join(format!("{file_name}.tmp"));
        let file = File::create(&path).map_err(PackError::write(&path))?;
        Ok((file, path))
    }

    /// Completes a shard.
    pub(crate) fn complete(
        &mut self,
        file: &File,
        unfinished: &Path,
        file_name: String,
        digests: &[Digest],
    ) -> Result<(), PackError> {
        let number = self.shards.len() as u64;
        let path = self.path.join(&file_name);
        let bytes = file.sync_all().and_then(|()| file.metadata()).map(|file| file.len());
        let bytes = bytes.map_err(PackError::write(unfinished))?;
        write_whole(&own_file(&self.own, number, "digests"), digests.as_flattened())?;
        fs::rename(unfinished, &path).map_err(PackError::write(&path))?;
        let record = ShardRecord { file: file_name, samples: digests.len() as u64, bytes };
        let text = serde_json::to_vec(&record).unwrap_or_default();
        write_whole(&own_file(&self.own, number, "json"), &text)?;
        self.shards.push(record);
        Ok(())
    }

    /// The digests of a shard's samples.
    pub(crate) fn digests(&self, shard: u64) -> Result<Vec<Digest>, PackError> {
        let path = own_file(&self.own, shard, "digests");
        let bytes = fs::read(&path).map_err(PackError::write(&path))?;
        Ok(bytes.as_chunks().0.to_vec())
    }

    /// Writes a file beside the shards.
    pub(crate) fn write_beside(&self, name: &str, text: &str) -> Result<(), PackError> {
        write_whole(&self.path.join(name), text.as_bytes())
    }

    /// Renames the folder to its name, unless something has it.
    pub(crate) fn finish(self) -> Result<(), PackError> {
        let Self { path, own, target, .. } = self;
        let synced = File::open(&path).and_then(|folder| folder.sync_all());
        synced.map_err(PackError::write(&path))?;
        match renameat_with(CWD, &path, CWD, &target, RenameFlags::NOREPLACE) {
            Ok(()) => {}
            Err(rustix::io::Errno::EXIST) => return Err(PackError::Exists(target)),
            // A file system that does not know the flag. A folder with files is not replaced by a plain rename either.
            Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOSYS) => {
                if fs::symlink_metadata(&target).is_ok() {
                    return Err(PackError::Exists(target));
                }
                fs::rename(&path, &target).map_err(PackError::write(&target))?;
            }
            Err(error) => return Err(PackError::write(&target)(error.into())),
        }
        remove(&own)
    }
}

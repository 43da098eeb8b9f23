//! Administration of a cache, for `forebay cache`.

use std::path::Path;
use std::sync::Arc;

use forebay_config::CacheConfig;
use rustix::io::Errno;

use super::digest::digest_of;
use super::folder::CacheFolder;
use super::space::Space;
use super::sweep::{remove_gone, remove_unused};
use forebay_storage::Storage;

/// An open cache.
#[derive(Debug)]
pub struct CacheAdmin {
    folder: CacheFolder,
    space: Space,
}

/// A dataset's entries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CachedDataset {
    /// Its URL or path.
    pub title: String,
    /// Number of entries.
    pub entries: u64,
    /// Their size on the disk.
    pub bytes: u64,
    /// Whether a process uses it.
    pub is_used: bool,
    /// Whether it belongs to the storages passed in.
    pub is_own: bool,
}

/// The result of reading all entries.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Verified {
    /// Entries that were read.
    pub entries: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Damaged entries, which were removed.
    pub damaged: u64,
}

/// The folders' names of these storages' datasets.
fn own_names(own: &[Arc<dyn Storage>]) -> Vec<String> {
    let scopes = own.iter().filter_map(|storage| storage.cache_scope());
    scopes.map(|scope| CacheFolder::dataset_name(&digest_of(&scope.name))).collect()
}

impl CacheAdmin {
    /// Opens the configured cache.
    ///
    /// # Errors
    /// No cache is configured, or it cannot be used; the reason.
    pub fn open(config: &CacheConfig) -> Result<Self, String> {
        let Some(path) = &config.path else {
            return Err("the configuration has no cache; set cache.path to a folder".to_owned());
        };
        let folder = CacheFolder::open(path)?;
        let failed = |errno: Errno| format!("{}: {errno}", folder.path().display());
        let file = folder.file("space").map_err(failed)?;
        let count_lock = folder.file("count").map_err(failed)?;
        let space = Space::open(file, count_lock, None, config).map_err(failed)?;
        Ok(Self { folder, space })
    }

    /// The folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// The maximal size of all entries, in bytes.
    #[must_use]
    pub const fn limit_bytes(&self) -> u64 {
        self.space.limit_bytes()
    }

    fn words(&self, errno: Errno) -> String {
        format!("{}: {errno}", self.path().display())
    }

    /// The datasets in the cache, least recently used first. `own`: the caller's storages.
    ///
    /// # Errors
    /// The system's error, as text.
    pub fn datasets(&self, own: &[Arc<dyn Storage>]) -> Result<Vec<CachedDataset>, String> {
        let own = own_names(own);
        let names = self.folder.datasets().map_err(|errno| self.words(errno))?;
        let describe = |name: &String| {
            let (title, is_used) = self.folder.describe(name);
            let is_own = own.contains(name);
            let mut found = CachedDataset { title, entries: 0, bytes: 0, is_used, is_own };
            let counted = self.folder.visit(name, &mut |file| {
                found.entries += 1;
                found.bytes += Space::cost(file.bytes);
                true
            });
            counted.map(|()| found).map_err(|errno| self.words(errno))
        };
        names.iter().map(describe).collect()
    }

    /// Removes unused datasets except those of `own` and returns the freed bytes.
    ///
    /// # Errors
    /// The system's error, as text.
    pub fn trim(&self, own: &[Arc<dyn Storage>]) -> Result<u64, String> {
        remove_unused(&self.folder, &self.space, u64::MAX, &own_names(own))
            .and_then(|freed| {
                let mut left = 0;
                remove_gone(&self.folder, &mut |file| left += Space::cost(file))?;
                let _ = self.space.release(left);
                Ok(freed + left)
            })
            .map_err(|errno| self.words(errno))
    }

    /// Reads every entry and removes the damaged ones. `progress` returns whether to go on.
    ///
    /// # Errors
    /// The system's error, as text.
    pub fn verify(&self, progress: &mut dyn FnMut(&Verified) -> bool) -> Result<Verified, String> {
        let mut verified = Verified::default();
        let mut buffer = Vec::new();
        let mut goes_on = true;
        for name in self.folder.datasets().map_err(|errno| self.words(errno))? {
            let mut fault = None;
            let visited = self.folder.visit(&name, &mut |file| {
                match self.folder.is_whole(&name, &file, &mut buffer) {
                    Ok(true) | Err(Errno::NOENT) => {}
                    Ok(false) => {
                        verified.damaged += 1;
                        fault = self.folder.remove_entry(&name, &file).err();
                        let _ = self.space.release(Space::cost(file.bytes));
                    }
                    Err(errno) => fault = Some(errno),
                }
                verified.entries += 1;
                verified.bytes += file.bytes;
                goes_on = fault.is_none() && progress(&verified);
                goes_on
            });
            if let Some(errno) = visited.err().or(fault) {
                return Err(self.words(errno));
            }
            if !goes_on {
                break;
            }
        }
        Ok(verified)
    }
}

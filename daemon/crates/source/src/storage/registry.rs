//! The kinds of storage: which one a dataset's path names.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_config::{CacheConfig, ConfigError, DatasetConfig, Keys, Section, Table, is_url};

use super::cache;
use super::remote::{self, RemoteKeys, RemoteObjects};
use super::{LocalFiles, Storage, StorageError};

/// Opens the storage that a dataset's path names; `keys` are those of `[storage]`.
///
/// # Errors
/// It does not exist or may not be searched.
pub fn open(path: &Path, keys: &Section) -> Result<Arc<dyn Storage>, StorageError> {
    Ok(match is_url(path) {
        true => Arc::new(RemoteObjects::open(path, keys)?),
        false => Arc::new(LocalFiles::open(path)?),
    })
}

/// Puts the configured cache on disk in front of a storage. Where none is configured, or it cannot be used, which is said,
/// the storage is given back.
pub fn with_cache(storage: Arc<dyn Storage>, config: &CacheConfig) -> Arc<dyn Storage> {
    cache::in_front_of(storage, config)
}

/// Reads the keys of `[storage]` and leaves them resolved, where there are any or a URL needs them.
///
/// # Errors
/// A key that the storage does not know, or whose value it does not take.
pub fn resolve_keys(config: &mut DatasetConfig) -> Result<(), ConfigError> {
    if config.is_remote() || !config.storage.entries().is_empty() {
        config.storage.resolve::<RemoteKeys>()?;
    }
    Ok(())
}

/// The keys of `[storage]`, for the reference.
#[must_use]
pub fn storage_table() -> Table {
    RemoteKeys::TABLE
}

/// The files and folders of this machine that reading behind URLs needs while it lasts: credentials that are renewed, and
/// how names are resolved.
#[must_use]
pub fn remote_files() -> Vec<PathBuf> {
    remote::needed_files()
}

/// `forebay credential-process`: runs a profile's command for the daemon whose socket is the standard input.
///
/// # Errors
/// The standard input is no socket of a daemon's.
pub fn serve_credential_process() -> std::io::Result<std::process::ExitCode> {
    remote::serve_credential_process()
}

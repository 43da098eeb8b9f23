//! Selects the storage for a dataset's path.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_config::{CacheConfig, DatasetConfig};
use forebay_keys::{ConfigError, Section, Table, is_url};
use forebay_storage::{LocalFiles, Storage, StorageError};

#[cfg(feature = "remote")]
use forebay_keys::Keys;
#[cfg(not(feature = "remote"))]
use forebay_storage::{RemoteFailure, RetryClass};
#[cfg(feature = "remote")]
use forebay_storage_remote::{self as remote, RemoteKeys, RemoteObjects};

/// The error if a URL or a key of `[storage]` is given to a program without the feature.
#[cfg(not(feature = "remote"))]
const NO_REMOTE: &str = "this program is built without `remote`, which reads behind URLs";

/// Opens the storage of a dataset's path; `keys` are the resolved keys of `[storage]`.
///
/// # Errors
/// The path does not exist or is not searchable, or it is a URL and this program is built without `remote`.
pub fn open(path: &Path, keys: &Section) -> Result<Arc<dyn Storage>, StorageError> {
    match is_url(path) {
        true => open_url(path, keys),
        false => Ok(Arc::new(LocalFiles::open(path)?)),
    }
}

#[cfg(feature = "remote")]
fn open_url(url: &Path, keys: &Section) -> Result<Arc<dyn Storage>, StorageError> {
    Ok(Arc::new(RemoteObjects::open(url, keys)?))
}

/// `dataset.root` may be a URL even if `dataset.path` is not; [`resolve_keys`] does not refuse that.
#[cfg(not(feature = "remote"))]
fn open_url(url: &Path, _keys: &Section) -> Result<Arc<dyn Storage>, StorageError> {
    let failure = RemoteFailure {
        action: "opening",
        what: NO_REMOTE.to_owned(),
        class: RetryClass::Never,
        retry_after: None,
    };
    Err(StorageError::Remote { path: url.to_owned(), failure: Box::new(failure) })
}

/// Puts the configured disk cache in front of a storage. Without a configured cache, or if it is unusable, which is
/// reported, returns the storage itself.
pub fn with_cache(storage: Arc<dyn Storage>, config: &CacheConfig) -> Arc<dyn Storage> {
    forebay_cache::in_front_of(storage, config)
}

/// Reads and resolves the keys of `[storage]`, if there are any or a URL needs them.
///
/// # Errors
/// An unknown key or an invalid value; or a URL or any key, if this program is built without `remote`.
pub fn resolve_keys(config: &mut DatasetConfig) -> Result<(), ConfigError> {
    #[cfg(feature = "remote")]
    if config.is_remote() || !config.storage.entries().is_empty() {
        config.storage.resolve::<RemoteKeys>()?;
    }
    #[cfg(not(feature = "remote"))]
    if config.is_remote() {
        let url = config.path.display();
        return Err(config
            .storage
            .error(format!("`dataset.path` is the URL {url}, and {NO_REMOTE}")));
    }
    #[cfg(not(feature = "remote"))]
    if let Some((key, located)) = config.storage.entries().first() {
        return Err(ConfigError::new(
            &located.location,
            format!("`storage.{key}` is set, and {NO_REMOTE}"),
        ));
    }
    Ok(())
}

/// The keys of `[storage]`, for the reference; `None`: this program is built without `remote`.
#[must_use]
pub fn storage_table() -> Option<Table> {
    #[cfg(feature = "remote")]
    return Some(RemoteKeys::TABLE);
    #[cfg(not(feature = "remote"))]
    None
}

/// The files and folders of this machine that remote reading needs at run time: credentials that are renewed, and the
/// configuration of name resolution.
#[must_use]
pub fn remote_files() -> Vec<PathBuf> {
    #[cfg(feature = "remote")]
    return remote::needed_files();
    #[cfg(not(feature = "remote"))]
    Vec::new()
}

/// Implements `forebay credential-process`: runs a profile's command for the daemon whose socket is the standard input.
///
/// # Errors
/// The standard input is not a daemon's socket, or this program is built without `remote`.
pub fn serve_credential_process() -> std::io::Result<std::process::ExitCode> {
    #[cfg(feature = "remote")]
    return remote::serve_credential_process();
    #[cfg(not(feature = "remote"))]
    Err(std::io::Error::other(NO_REMOTE))
}

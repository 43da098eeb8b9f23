//! The kinds of storage: which one a dataset's path names.

use std::path::Path;
use std::sync::Arc;

use super::{LocalFiles, Storage, StorageError};

/// Opens the storage that a dataset's path names.
///
/// # Errors
/// It does not exist or may not be searched.
pub fn open(path: &Path) -> Result<Arc<dyn Storage>, StorageError> {
    Ok(Arc::new(LocalFiles::open(path)?))
}

//! Where bytes come from. One file a kind of storage.
//!
//! This folder is the registry: a new storage is one file here that offers what [`local::LocalFiles`] offers (open a
//! located file and say its length, then read it), and one line below. A storage knows nothing of samples or formats.

pub mod error;
pub mod local;
#[cfg(test)]
mod stalling;

pub use error::StorageError;
pub use local::{LocalFiles, OpenFile};
#[cfg(test)]
pub(crate) use stalling::{SlowFolder, StalledFile};

//! Saved indexes: the samples of a dataset and the locations of their bytes.
//!
//! [`index_file`] is the file of every index: header, checksum, sections. [`folder`] has the index of a file tree, and
//! the location and lock of all indexes; [`shards`] indexes files of many samples, [`row_index`] the rows of tables and
//! manifests. [`saved_index`] opens a saved index, checks it against the files ([`stored_file`], [`changes`]) and rebuilds
//! it if they changed. The formats define the contents of their indexes; this crate does not depend on a format.

#![forbid(unsafe_code)]

pub mod changes;
pub mod file_list;
pub mod folder;
pub mod index_file;
pub mod row_index;
pub mod saved_index;
pub mod shard_paths;
pub mod shards;
pub mod stored_file;
pub mod window;

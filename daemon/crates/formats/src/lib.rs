//! The storage formats of samples: one file or folder per format, and one line in `registry`.
//!
//! A format reads the files below a dataset's path to build an index (the crate `index`), and splits the bytes of a
//! sample into its fields ([`Dataset`](forebay_dataset::Dataset)). `storages` selects the storage by the scheme of a
//! path.

#![forbid(unsafe_code)]

mod array_record;
mod arrow;
mod audio_folder;
mod columns;
#[cfg(any(test, feature = "testing"))]
#[doc(hidden)]
pub mod conformance;
mod draft;
mod examples;
mod fields;
mod file_groups;
mod file_samples;
#[doc(hidden)]
pub mod fuzzing;
mod hdf5;
mod image_folder;
pub mod in_order;
mod indexed;
mod labels;
mod lance;
mod layouts;
mod lerobot;
mod litdata;
mod made_files;
mod manifest;
mod mds;
mod npy;
mod npz;
mod number_lists;
mod object;
mod parquet;
mod parts;
mod propose;
mod records;
mod registry;
pub mod sample_reader;
mod selection;
pub mod storages;
mod tables;
#[cfg(any(test, feature = "testing"))]
#[doc(hidden)]
pub mod testing;
#[cfg(test)]
mod tests;
mod texts;
mod tfrecord;
mod tokens;
mod video_fields;
mod video_folder;
mod webdataset;
mod windows;
mod zarr;

pub use draft::{Draft, Epochs};
pub use layouts::{Layout, find_layout};
pub use propose::{
    Proposal, build_index, open, open_configured, propose, recognize, settle_format,
};
pub use registry::{format_names, format_tables, makes_files, resolve_keys, root_of, roots_of};

//! Tests of lower crates that need an opened dataset.

mod elsewhere;
mod folder;
mod joined;
mod stored_files;

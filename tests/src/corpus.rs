//! Broken files of every format, made by a fixed program from good ones: the same on every machine and in every run.
//!
//! The good files are those that the fuzzers start from (`fuzz/corpus`). Each broken one is named after its good file and
//! what was done to it, so that a failing test says what to look at. All of them are refused; what is odd and still read
//! has no place here.

mod archives;
mod arrays;
mod broken_file;
mod bytes;
mod jpeg;
mod others;
mod png;
mod webp;

use broken_file::seed;
pub use broken_file::{BrokenFile, INFLATED_BYTES};
pub use bytes::crc32;

/// A format of datasets with its good file and its broken ones.
#[derive(Debug)]
pub struct Corpus {
    /// As `dataset.format` names it.
    pub format: &'static str,
    /// The name and the bytes of a file that is read; those that it is compared with have its type and shape.
    pub good: (&'static str, Vec<u8>),
    /// Files that are refused.
    pub broken: Vec<BrokenFile>,
}

/// Images, `.npy` and `.npz` files.
pub fn all() -> [Corpus; 3] {
    let mut images = jpeg::broken();
    images.extend(png::broken());
    images.extend(webp::broken());
    images.extend(others::broken());
    [
        Corpus {
            format: "image-folder",
            good: ("good.jpg", seed("jpeg_markers/baseline")),
            broken: images,
        },
        Corpus { format: "npy", good: ("good.npy", arrays::good()), broken: arrays::broken() },
        Corpus { format: "npz", good: ("good.npz", archives::good()), broken: archives::broken() },
    ]
}

//! Broken files of every format, made by a fixed program from good ones: the same on every machine and in every run.
//!
//! The good files are those that the fuzzers start from (`fuzz/corpus`). Each broken one is named after its good file and
//! what was done to it, so that a failing test says what to look at. All of them are refused; what is odd and still read
//! has no place here.

mod archives;
mod arrays;
mod bytes;
mod jpeg;
mod png;
mod webp;

use std::path::{Path, PathBuf};

/// One file that must be refused.
#[derive(Debug, Clone)]
pub struct BrokenFile {
    /// What it is, as a file's name without folder, with the extension of its format.
    pub name: String,
    /// All of it.
    pub bytes: Vec<u8>,
}

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
#[must_use]
pub fn all() -> [Corpus; 3] {
    let mut images = jpeg::broken();
    images.extend(png::broken());
    images.extend(webp::broken());
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

/// The most that a member of the corpus's archives may inflate to; some announce and hold more.
pub const INFLATED_BYTES: u64 = 1 << 20;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus")
}

/// A file that the fuzzers start from.
fn seed(name: &str) -> Vec<u8> {
    std::fs::read(folder().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// A picture that the fuzzers start from, without the bytes before it that choose how it is decoded.
fn picture(name: &str) -> Vec<u8> {
    seed(name).split_off(5)
}

/// What breaks a file of any format.
fn broken_in_any_format(name: &str, extension: &str, good: &[u8]) -> Vec<BrokenFile> {
    let length = good.len();
    let mut reversed = good.to_vec();
    reversed.reverse();
    let mut first_lost = good.to_vec();
    first_lost[0] = 0;
    let ways: [(&str, Vec<u8>); 11] = [
        ("empty", Vec::new()),
        ("one-byte", good[..1].to_vec()),
        ("four-bytes", good[..4].to_vec()),
        ("cut-in-header", good[..length.min(18)].to_vec()),
        ("cut-in-half", good[..length / 2].to_vec()),
        ("cut-at-end", good[..length - 2].to_vec()),
        ("zeros", vec![0; length]),
        ("ones", vec![0xff; length]),
        ("reversed", reversed),
        ("first-byte-lost", first_lost),
        ("line-break-before", [b"\r\n", good].concat()),
    ];
    ways.into_iter()
        .map(|(way, bytes)| BrokenFile { name: format!("{name}-{way}.{extension}"), bytes })
        .collect()
}

/// Files that are something else than their name says.
fn misnamed(extension: &str) -> Vec<BrokenFile> {
    let others: [(&str, Vec<u8>); 4] = [
        ("is-a-web-page", b"<!DOCTYPE html><html><title>404 Not Found</title></html>".to_vec()),
        ("is-a-pointer", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n".to_vec()),
        ("is-a-gif", b"GIF89a\x01\0\x01\0\0\0\0;".to_vec()),
        ("is-gzip", b"\x1f\x8b\x08\0\0\0\0\0\0\x03\x03\0\0\0\0\0\0\0\0\0".to_vec()),
    ];
    others
        .into_iter()
        .map(|(what, bytes)| BrokenFile { name: format!("{what}.{extension}"), bytes })
        .collect()
}

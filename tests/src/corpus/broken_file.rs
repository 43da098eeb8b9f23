//! What the broken files of all formats share: the type, where good files lie, and the ways to break any file.

use std::path::{Path, PathBuf};

/// One file that must be refused.
#[derive(Debug, Clone)]
pub struct BrokenFile {
    /// What it is, as a file's name without folder, with the extension of its format.
    pub name: String,
    /// All of it.
    pub bytes: Vec<u8>,
}

/// The most that a member of the corpus's archives may inflate to; some announce and hold more.
pub const INFLATED_BYTES: u64 = 1 << 20;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus")
}

/// A file that the fuzzers start from.
pub(super) fn seed(name: &str) -> Vec<u8> {
    std::fs::read(folder().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// A picture that the fuzzers start from, without the bytes before it that choose how it is decoded.
pub(super) fn picture(name: &str) -> Vec<u8> {
    seed(name).split_off(5)
}

/// What breaks a file of any format.
pub(super) fn broken_in_any_format(name: &str, extension: &str, good: &[u8]) -> Vec<BrokenFile> {
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
pub(super) fn misnamed(extension: &str) -> Vec<BrokenFile> {
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

//! The fuzzers' way to the array files' and the index's parsers. See `forebay::fuzzing`.

use std::borrow::Cow;

use forebay_protocol::ids::SampleId;

use super::ArrayValue;
use super::folder::index::{FolderIndex, IndexBytes};
use super::folder::layout;
use super::image_folder;
use super::npy_header::{ArrayHeader, header_bytes, read_array};
use super::{fields, npz, tokens, webdataset};

/// The most that a target lets an archive inflate to.
const INFLATED_BYTES: u64 = 1 << 20;

/// A `.npy` file, and its header alone.
///
/// # Panics
/// When an array has not exactly the bytes of its shape.
pub fn npy(bytes: &[u8]) {
    let _ = header_bytes(bytes);
    let _ = ArrayHeader::parse(bytes);
    if let Ok(array) = read_array(bytes) {
        check_array(&array);
    }
}

/// A `.npz` file.
///
/// # Panics
/// When an array has not exactly the bytes of its shape, or the members inflate beyond their limit.
pub fn npz(bytes: &[u8]) {
    let Ok(members) = npz::read_all_members(bytes, INFLATED_BYTES) else {
        return;
    };
    let mut inflated = 0;
    for (_, array) in &members {
        check_array(array);
        if let Cow::Owned(bytes) = &array.bytes {
            inflated += bytes.len() as u64;
        }
    }
    assert!(inflated <= INFLATED_BYTES, "{inflated}");
}

/// A tar archive: its members lie in it, one behind the other.
///
/// # Panics
/// When they do not.
pub fn tar(bytes: &[u8]) {
    let mut before = 0;
    let _ = webdataset::walk_for_fuzzing(bytes, |name, offset, size| {
        assert!(offset >= before + 512 && offset % 512 == 0, "{offset} after {before}");
        assert!(offset + size <= bytes.len() as u64 && name.len() <= usize::from(u16::MAX));
        before = offset + size;
    });
}

/// A saved index of archives. The checksum, which hides the rest from a fuzzer, is set right first.
///
/// # Panics
/// When an index that opens cannot be walked.
pub fn tar_index(bytes: &[u8]) {
    let mut sealed = bytes.to_vec();
    if bytes.len() >= layout::HEADER_BYTES {
        layout::seal(&mut sealed, [0; 32]);
    }
    webdataset::check_index(sealed);
}

/// A JSON member, of which one key is read.
pub fn json_key(bytes: &[u8]) {
    fields::read_json_key(bytes);
}

/// The start of a file of tokens, or of Megatron's index.
///
/// # Panics
/// When what it announces does not fit the file.
pub fn token_file(bytes: &[u8]) {
    tokens::fuzzing::start(bytes);
}

/// A saved index of documents of tokens.
///
/// # Panics
/// When a row has more tokens than it may have.
pub fn token_index(bytes: &[u8]) {
    tokens::fuzzing::index(bytes);
}

fn check_array(array: &ArrayValue<'_>) {
    let elements: u64 = array.shape.iter().product();
    assert_eq!(elements * array.dtype.size_bytes(), array.bytes.len() as u64, "{:?}", array.shape);
}

/// A saved index. The checksum, which hides the rest from a fuzzer, is set right first.
///
/// # Panics
/// When an index that opens cannot be walked.
pub fn index(bytes: &[u8]) {
    let extensions = image_folder::FORMAT.extensions;
    let open = |bytes: Vec<u8>| FolderIndex::open(IndexBytes::Owned(bytes), extensions);
    let _ = open(bytes.to_vec());
    if bytes.len() < layout::HEADER_BYTES {
        return;
    }
    let mut sealed = bytes.to_vec();
    layout::seal(&mut sealed, [0; 32]);
    let Ok(index) = open(sealed) else {
        return;
    };
    let samples = index.sample_count();
    let ends = (0..64).chain(samples.saturating_sub(64)..samples);
    let mut path = Vec::new();
    for id in ends.filter(|id| *id < samples) {
        path.clear();
        index.append_path(SampleId(id), &mut path);
        let _ = index.label(SampleId(id));
    }
    for place in 0..index.directory_count().min(64) {
        let _ = index.directory(place);
    }
}

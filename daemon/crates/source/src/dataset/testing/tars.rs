//! For tests: tar archives in memory.

use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime};

/// A ustar header.
pub fn tar_header(name: &str, size: u64, kind: u8) -> [u8; 512] {
    let mut block = [0; 512];
    block[..name.len()].copy_from_slice(name.as_bytes());
    block[100..108].copy_from_slice(b"0000644\0");
    block[124..136].copy_from_slice(format!("{size:011o}\0").as_bytes());
    block[156] = kind;
    block[257..265].copy_from_slice(b"ustar\x0000");
    seal_header(&mut block);
    block
}

/// Sets a header's checksum right.
pub fn seal_header(block: &mut [u8]) {
    block[148..156].fill(b' ');
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    block[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
}

/// A member with its padding.
pub fn tar_member(name: &str, data: &[u8], kind: u8) -> Vec<u8> {
    let mut bytes = tar_header(name, data.len() as u64, kind).to_vec();
    bytes.extend_from_slice(data);
    bytes.resize(bytes.len().next_multiple_of(512), 0);
    bytes
}

/// A whole archive.
pub fn tar_bytes(members: &[(&str, &[u8])]) -> Vec<u8> {
    let mut bytes: Vec<u8> =
        members.iter().flat_map(|(name, data)| tar_member(name, data, b'0')).collect();
    bytes.resize(bytes.len() + 1024, 0);
    bytes
}

/// Writes a file as if an hour ago.
pub fn write_aged(path: &Path, bytes: &[u8]) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, bytes).unwrap();
    let then = SystemTime::now() - Duration::from_secs(3600);
    fs::File::options().write(true).open(path).unwrap().set_modified(then).unwrap();
}

//! Minimal tar archives in ustar form.

use std::fs;
use std::io;
use std::path::Path;

/// A ustar header.
///
/// # Panics
/// The name has more than 100 bytes.
#[must_use]
pub fn header(name: &str, size: u64, kind: u8) -> [u8; 512] {
    let mut block = [0; 512];
    block[..name.len()].copy_from_slice(name.as_bytes());
    block[100..108].copy_from_slice(b"0000644\0");
    block[124..136].copy_from_slice(format!("{size:011o}\0").as_bytes());
    block[156] = kind;
    block[257..265].copy_from_slice(b"ustar\x0000");
    seal(&mut block);
    block
}

/// Updates a header's checksum.
pub fn seal(block: &mut [u8]) {
    block[148..156].fill(b' ');
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    block[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
}

/// A member with its padding.
#[must_use]
pub fn member(name: &str, data: &[u8], kind: u8) -> Vec<u8> {
    let mut bytes = header(name, data.len() as u64, kind).to_vec();
    bytes.extend_from_slice(data);
    bytes.resize(bytes.len().next_multiple_of(512), 0);
    bytes
}

/// A complete archive.
#[must_use]
pub fn archive(members: &[(&str, &[u8])]) -> Vec<u8> {
    let mut bytes: Vec<u8> =
        members.iter().flat_map(|(name, data)| member(name, data, b'0')).collect();
    bytes.resize(bytes.len() + 1024, 0);
    bytes
}

/// Packs a folder of class folders into archives of `files_each` files, in webdataset's form: `CLASS/NAME.jpg` and
/// `CLASS/NAME.cls`, the class's number. Returns the number of archives.
///
/// # Errors
/// A system error.
pub fn pack_classes(folder: &Path, target: &Path, files_each: usize) -> io::Result<usize> {
    fs::create_dir_all(target)?;
    let files = crate::class_folders::files(folder)?;
    let archives = files.chunks(files_each.max(1));
    let count = archives.len();
    for (number, files) in archives.enumerate() {
        let mut bytes = Vec::new();
        for (label, name) in files {
            let key = name.rsplit_once('.').map_or(name.as_str(), |(key, _)| key);
            bytes.append(&mut member(&format!("{key}.cls"), label.to_string().as_bytes(), b'0'));
            bytes.append(&mut member(name, &fs::read(folder.join(name))?, b'0'));
        }
        bytes.resize(bytes.len() + 1024, 0);
        fs::write(target.join(format!("{number:05}.tar")), bytes)?;
    }
    Ok(count)
}

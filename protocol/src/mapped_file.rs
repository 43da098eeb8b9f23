//! A file mapped read-only; all processes that map it share its pages.
//!
//! The mapping owns its address range, not the file: a writer must replace such a file with a rename and never change or
//! truncate it in place. The contents are not checked.

#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::ops::Deref;

/// The bytes of a mapped file. Dropping it unmaps and closes the file.
#[derive(Debug)]
pub struct MappedFile {
    mapping: memmap2::Mmap,
    file: File,
}

impl MappedFile {
    /// The file, for another process that maps it too.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.file
    }
}

/// Maps a whole file read-only. It stays open for [`MappedFile::file`].
///
/// Use it only for files that are replaced with a rename: if a mapped file is truncated in place, access to the lost
/// pages raises SIGBUS.
///
/// # Errors
/// The errors of `mmap`: an empty file, not a regular file, no memory for the mapping.
pub fn map_file_read_only(file: File) -> io::Result<MappedFile> {
    // SAFETY: the mapping is private to this wrapper, read-only, and as long as the file is now. `Mmap` keeps the
    // address range mapped until it is dropped, and slices borrow it. The file's bytes must not change while they are
    // borrowed: the contract above requires that of the writer. Readers decode plain bytes (every bit pattern is valid),
    // so a violation yields wrong bytes, or the SIGBUS named above.
    let mapping = unsafe { memmap2::MmapOptions::new().map(&file)? };
    Ok(MappedFile { mapping, file })
}

impl Deref for MappedFile {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.mapping
    }
}

#[cfg(test)]
mod tests {
    use super::map_file_read_only;

    #[test]
    fn mapping_keeps_the_bytes_after_the_file_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let [path, next] = ["file", "next"].map(|name| folder.path().join(name));
        std::fs::write(&path, b"first contents").unwrap();
        let mapping = map_file_read_only(std::fs::File::open(&path).unwrap()).unwrap();
        std::fs::write(&next, b"others").unwrap();
        std::fs::rename(&next, &path).unwrap();
        assert_eq!(&*mapping, b"first contents");
    }
}

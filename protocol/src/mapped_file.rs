//! A file of this host, mapped read-only and shared by all processes that map it.
//!
//! The mapping owns its pages' addresses, not the file: whoever writes such files must replace them by a rename and
//! never change or shorten them in place. It checks nothing about the contents.

#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::ops::Deref;

/// The bytes of a mapped file. Dropping it unmaps and closes.
#[derive(Debug)]
pub struct MappedFile {
    mapping: memmap2::Mmap,
    file: File,
}

impl MappedFile {
    /// The file, for another process that maps the same.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.file
    }
}

/// Maps all of a file read-only. It stays open for [`MappedFile::file`].
///
/// Use it only for files that their writer replaces by a rename: where a mapped file is shortened in place, touching
/// the lost pages kills the process (SIGBUS).
///
/// # Errors
/// What the system says: an empty file, no regular file, no memory for the mapping.
pub fn map_file_read_only(file: File) -> io::Result<MappedFile> {
    // SAFETY: the mapping is private to this wrapper, read-only, and as long as the file is now. `Mmap` keeps the
    // address range mapped until it is dropped, and slices borrow it. What remains is that the file's bytes must not
    // change while they are borrowed; the contract above gives that to the writer, and every reader of such a file
    // decodes plain bytes (no type has invalid values here), so a broken promise gives wrong bytes and no more, but
    // for the SIGBUS named above.
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
    use std::io::Write;

    #[test]
    fn a_mapping_shows_the_files_bytes_after_the_file_is_replaced() {
        let folder = std::env::temp_dir().join(format!("forebay-mapped-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("file");
        let mut file = std::fs::File::create(&path).unwrap();
        file.write_all(b"first contents").unwrap();
        drop(file);
        let mapping = map_file_read_only(std::fs::File::open(&path).unwrap()).unwrap();
        std::fs::write(folder.join("next"), b"others").unwrap();
        std::fs::rename(folder.join("next"), &path).unwrap();
        assert_eq!(&*mapping, b"first contents");
        std::fs::remove_dir_all(&folder).unwrap();
    }
}

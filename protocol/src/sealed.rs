//! Immutable bytes in a sealed memfd, passed between processes.
//!
//! A private daemon writes its resolved plan (and an index that is not saved in a file) into one and sends it to its
//! client, which sends it to the next daemon after a crash. The reader checks the seals and does not trust the sender.

use std::fs::File;
use std::io::{self, BufWriter, Read, Seek, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};

/// Creates a sealed copy of the bytes. `name` is visible in /proc only.
///
/// # Errors
/// When there is not enough memory.
pub fn seal_bytes(name: &str, bytes: &[u8]) -> io::Result<OwnedFd> {
    seal_written(name, |file| file.write_all(bytes))
}

/// As [`seal_bytes`], for bytes that `write` produces.
///
/// # Errors
/// The errors of `write`, or there is not enough memory.
pub fn seal_written(
    name: &str,
    write: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>,
) -> io::Result<OwnedFd> {
    let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    let mut writer = BufWriter::new(File::from(memfd_create(name, flags)?));
    write(&mut writer)?;
    let mut file = writer.into_inner().map_err(io::IntoInnerError::into_error)?;
    file.rewind()?;
    fcntl(&file, FcntlArg::F_ADD_SEALS(all_seals()))?;
    Ok(file.into())
}

fn all_seals() -> SealFlag {
    SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_WRITE | SealFlag::F_SEAL_SEAL
}

/// Whether the descriptor is sealed memory: its bytes and its size are immutable.
#[must_use]
pub fn is_sealed(descriptor: BorrowedFd<'_>) -> bool {
    fcntl(descriptor, FcntlArg::F_GET_SEALS)
        .is_ok_and(|seals| SealFlag::from_bits_retain(seals).contains(all_seals()))
}

/// Reads sealed memory of at most `max_bytes`.
///
/// # Errors
/// When the descriptor is not sealed memory, or is larger than `max_bytes`.
pub fn read_sealed(descriptor: OwnedFd, max_bytes: u64) -> io::Result<Vec<u8>> {
    if !is_sealed(descriptor.as_fd()) {
        return Err(io::Error::other("it is not sealed memory"));
    }
    let mut file = File::from(descriptor);
    let length = file.metadata()?.len();
    if length > max_bytes {
        return Err(io::Error::other(format!(
            "it has {length} bytes, and at most {max_bytes} are accepted"
        )));
    }
    // The sender shares the file offset.
    file.rewind()?;
    let mut bytes = Vec::new();
    file.take(max_bytes).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sealed_bytes_round_trip_and_are_immutable() {
        let sealed = seal_bytes("forebay-test", b"plan").unwrap();
        let mut file = File::from(sealed.try_clone().unwrap());
        assert!(file.write_all(b"other").is_err() && file.set_len(1).is_err());
        assert_eq!(read_sealed(sealed.try_clone().unwrap(), 4).unwrap(), b"plan");
        // A second reader gets all of it too.
        assert_eq!(read_sealed(sealed.try_clone().unwrap(), 4).unwrap(), b"plan");
        assert!(read_sealed(sealed, 3).unwrap_err().to_string().contains("4 bytes"));
    }

    #[test]
    fn unsealed_files_are_refused() {
        let open = memfd_create("forebay-test", MFdFlags::MFD_ALLOW_SEALING).unwrap();
        assert!(read_sealed(open, 4).unwrap_err().to_string().contains("sealed"));
        let file = tempfile::tempfile().unwrap();
        assert!(read_sealed(file.into(), 4).is_err());
    }
}

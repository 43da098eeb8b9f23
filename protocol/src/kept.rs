//! Bytes that one process keeps for another: a sealed memfd that nobody can change any more.
//!
//! A private daemon writes its resolved plan (and an index that lies in no file) into one and gives it to its client,
//! which hands it to the daemon that takes its place. The reader believes the seals, never the sender.

use std::fs::File;
use std::io::{self, BufWriter, Read, Seek, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};

/// Makes a sealed copy of the bytes. `name` shows in /proc alone.
///
/// # Errors
/// When the machine does not grant the memory.
pub fn keep_bytes(name: &str, bytes: &[u8]) -> io::Result<OwnedFd> {
    keep_written(name, |file| file.write_all(bytes))
}

/// The same for bytes that are written one after the other.
///
/// # Errors
/// Those of the writer, or when the machine does not grant the memory.
pub fn keep_written(
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

/// Whether the descriptor is memory that nobody can change or shorten any more.
#[must_use]
pub fn is_kept(descriptor: BorrowedFd<'_>) -> bool {
    fcntl(descriptor, FcntlArg::F_GET_SEALS)
        .is_ok_and(|seals| SealFlag::from_bits_retain(seals).contains(all_seals()))
}

/// Reads what [`keep_bytes`] wrote.
///
/// # Errors
/// When the descriptor is no sealed memory, or holds more than `most_bytes`.
pub fn read_kept(descriptor: OwnedFd, most_bytes: u64) -> io::Result<Vec<u8>> {
    if !is_kept(descriptor.as_fd()) {
        return Err(io::Error::other("it is no sealed memory"));
    }
    let mut file = File::from(descriptor);
    let length = file.metadata()?.len();
    if length > most_bytes {
        return Err(io::Error::other(format!(
            "it has {length} bytes, and at most {most_bytes} are read"
        )));
    }
    // The sender shares the file's place.
    file.rewind()?;
    let mut bytes = Vec::new();
    file.take(most_bytes).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kept_bytes_are_read_back_and_can_no_longer_be_changed() {
        let kept = keep_bytes("forebay-test", b"plan").unwrap();
        let mut file = File::from(kept.try_clone().unwrap());
        assert!(file.write_all(b"other").is_err() && file.set_len(1).is_err());
        assert_eq!(read_kept(kept.try_clone().unwrap(), 4).unwrap(), b"plan");
        // A second reader finds all of it too.
        assert_eq!(read_kept(kept.try_clone().unwrap(), 4).unwrap(), b"plan");
        assert!(read_kept(kept, 3).unwrap_err().to_string().contains("4 bytes"));
    }

    #[test]
    fn what_can_still_change_is_refused() {
        let open = memfd_create("forebay-test", MFdFlags::MFD_ALLOW_SEALING).unwrap();
        assert!(read_kept(open, 4).unwrap_err().to_string().contains("sealed"));
        let file = tempfile::tempfile().unwrap();
        assert!(read_kept(file.into(), 4).is_err());
    }
}

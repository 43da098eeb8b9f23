//! Memory that another process may write at any time, mapped for copying in and out.
//!
//! Nothing is borrowed from it: a copy may contain anything and is checked after it was made. Its size is sealed, so
//! that the other process cannot remove pages during an access; pages that it punches out read as zero.

#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};

use memmap2::{MmapOptions, MmapRaw};
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};

/// Creates memory whose size never changes; pages are allocated on writes.
///
/// # Errors
/// The kernel refuses.
pub fn create_sealed(name: &str, bytes: u64) -> io::Result<File> {
    let file: File =
        memfd_create(name, MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING)?.into();
    file.set_len(bytes)?;
    let size = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
    fcntl(&file, FcntlArg::F_ADD_SEALS(size))?;
    Ok(file)
}

/// A part of such memory in this process. Unmapped when dropped.
#[derive(Debug)]
pub struct Window {
    map: MmapRaw,
}

impl Window {
    /// Maps `bytes` bytes from `start` on, a multiple of the page size.
    ///
    /// # Errors
    /// The memory is too short, or not sealed against shrinking, so that access to it could fault. Or the kernel
    /// refuses.
    pub fn new(memory: impl AsFd, start: u64, bytes: usize) -> io::Result<Self> {
        let memory = memory.as_fd();
        let seals = SealFlag::from_bits_truncate(fcntl(memory, FcntlArg::F_GET_SEALS)?);
        let length = u64::try_from(nix::sys::stat::fstat(memory)?.st_size).unwrap_or(0);
        let is_within = start.checked_add(bytes as u64).is_some_and(|end| end <= length);
        if !seals.contains(SealFlag::F_SEAL_SHRINK) || !is_within {
            return Err(io::Error::other("the memory is not sealed, or too short"));
        }
        let map = MmapOptions::new().offset(start).len(bytes).map_raw(memory.as_raw_fd())?;
        Ok(Self { map })
    }

    /// The number of mapped bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.map.len()
    }

    /// Copies bytes from `at` on; false: they are not all in the window.
    #[must_use]
    pub fn copy_out(&self, at: usize, to: &mut [u8]) -> bool {
        let is_within = at.checked_add(to.len()).is_some_and(|end| end <= self.map.len());
        if is_within {
            // SAFETY: the bytes are in the mapping, whose pages exist as long as `self` (the file cannot shrink), and
            // this process owns `to`. The other process may write at the same time: the copy then has some bytes or
            // others, all of them valid as u8, and no reference to the mapping is formed.
            unsafe { self.map.as_ptr().add(at).copy_to_nonoverlapping(to.as_mut_ptr(), to.len()) };
        }
        is_within
    }

    /// Copies bytes to `at`; false: they would not all be in the window.
    #[must_use]
    pub fn copy_in(&self, at: usize, from: &[u8]) -> bool {
        let is_within = at.checked_add(from.len()).is_some_and(|end| end <= self.map.len());
        if is_within {
            // SAFETY: as in `copy_out`; the mapping is writable, and no reference to it is formed.
            unsafe {
                self.map.as_mut_ptr().add(at).copy_from_nonoverlapping(from.as_ptr(), from.len())
            };
        }
        is_within
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    const BYTES: usize = 1 << 16;
    const PAGE: u64 = BYTES as u64;

    #[test]
    fn bytes_are_copied_both_ways_within_the_window_only() {
        let memory = create_sealed("window", 3 * PAGE).unwrap();
        let window = Window::new(&memory, PAGE, BYTES).unwrap();
        assert!(window.copy_in(5, b"seven"));
        let mut found = [0; 5];
        memory.read_exact_at(&mut found, PAGE + 5).unwrap();
        assert_eq!(&found, b"seven");
        memory.write_all_at(b"eight", PAGE + 10).unwrap();
        assert!(window.copy_out(10, &mut found));
        assert_eq!(&found, b"eight");
        let end = window.bytes();
        assert!(window.copy_in(end - 5, b"seven") && window.copy_out(end - 5, &mut found));
        for at in [end - 4, end, usize::MAX - 2] {
            assert!(!window.copy_in(at, b"seven") && !window.copy_out(at, &mut found), "{at}");
        }
    }

    #[test]
    fn pages_cannot_be_removed() {
        let memory = create_sealed("window", PAGE).unwrap();
        assert!(memory.set_len(0).is_err() && memory.set_len(2 * PAGE).is_err());
        let window = Window::new(&memory, 0, BYTES).unwrap();
        assert!(window.copy_in(0, b"seven"));
        let holes = nix::fcntl::FallocateFlags::FALLOC_FL_PUNCH_HOLE
            | nix::fcntl::FallocateFlags::FALLOC_FL_KEEP_SIZE;
        nix::fcntl::fallocate(&memory, holes, 0, i64::try_from(PAGE).unwrap()).unwrap();
        let mut found = [1; 5];
        assert!(window.copy_out(0, &mut found));
        assert_eq!(found, [0; 5]);
    }

    #[test]
    fn memory_that_can_shrink_or_is_too_short_is_refused() {
        let open: File = memfd_create("window", MFdFlags::MFD_ALLOW_SEALING).unwrap().into();
        open.set_len(PAGE).unwrap();
        assert!(Window::new(&open, 0, BYTES).is_err());
        let memory = create_sealed("window", PAGE).unwrap();
        assert!(Window::new(&memory, 0, BYTES + 1).is_err());
        assert!(Window::new(&memory, u64::MAX - PAGE + 1, BYTES).is_err());
    }
}

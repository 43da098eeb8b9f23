//! Removes unused datasets and counts the used bytes.

use std::time::Duration;

use rustix::io::Errno;

use super::folder::CacheFolder;
use super::space::{Refusal, Space};

/// Attempts to take a lock that is held for a moment only.
const LOCK_TRIES: u32 = 100;

/// Removes unused datasets except some, least recently used first, until enough space is free; the freed bytes.
pub(super) fn remove_unused(
    folder: &CacheFolder,
    space: &Space,
    wanted: u64,
    but: &[String],
) -> Result<u64, Errno> {
    let mut freed = 0;
    for name in folder.datasets()? {
        if freed >= wanted {
            break;
        }
        if but.contains(&name) {
            continue;
        }
        if let Some(gone) = folder.take_away(&name)? {
            let mut bytes = 0;
            let removed = folder.remove(&gone, &mut |file| bytes += Space::cost(file));
            // If the lock is held for long, the next count corrects the number.
            for _ in 0..LOCK_TRIES {
                if space.release(bytes) != Err(Refusal::NotNow) {
                    break;
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            freed += bytes;
            removed?;
        }
    }
    Ok(freed)
}

pub(super) fn remove_gone(folder: &CacheFolder, removed: &mut dyn FnMut(u64)) -> Result<(), Errno> {
    for gone in folder.gone()? {
        match folder.remove(&gone, removed) {
            // Another process removes it, too.
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

pub(super) fn total(folder: &CacheFolder) -> Result<u64, Errno> {
    let mut bytes = 0;
    for name in folder.datasets()? {
        folder.visit(&name, &mut |file| {
            bytes += Space::cost(file.bytes);
            true
        })?;
    }
    Ok(bytes)
}

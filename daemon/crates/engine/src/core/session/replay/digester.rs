//! Computes digests of slots as the client sees them, on separate threads: a slot may hold a hundred megabytes.
//!
//! The threads read the segment through its descriptor, not through a mapping: no reference is formed over memory that
//! a client may be writing, and pages that the client gave up read as zeros. They live as long as the [`Digester`],
//! which a session has only during a replay.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};

use forebay_protocol::ids::{Generation, SlotIndex};

use crate::ground::waker::Waker;

/// One thread computes while the other reads; the trainer waits for neither if a step takes longer than one digest.
const THREADS: usize = 2;
const CHUNK_BYTES: usize = 256 << 10;

/// The digest of a slot.
#[derive(Debug)]
pub(super) struct Digested {
    pub(super) slot: SlotIndex,
    pub(super) generation: Generation,
    pub(super) digest: io::Result<[u8; 32]>,
}

/// See the module's head.
#[derive(Debug)]
pub(super) struct Digester {
    jobs: SyncSender<(SlotIndex, Generation)>,
    done: Receiver<Digested>,
}

impl Digester {
    /// Starts the threads. At most one digest of each of the `slots` may be in progress.
    ///
    /// # Errors
    /// No thread can be started.
    pub(super) fn start(
        data: &Arc<File>,
        slot_bytes: u64,
        slots: u16,
        waker: &Arc<Waker>,
    ) -> io::Result<Self> {
        let (jobs, waiting) = sync_channel::<(SlotIndex, Generation)>(slots.into());
        let (finished, done) = sync_channel(slots.into());
        // Held by one of these threads while it waits; no other thread locks it.
        let waiting = Arc::new(Mutex::new(waiting));
        for _ in 0..THREADS {
            let (data, waker) = (Arc::clone(data), Arc::clone(waker));
            let (waiting, finished) = (Arc::clone(&waiting), finished.clone());
            std::thread::Builder::new().name("forebay-digest".to_owned()).spawn(move || {
                loop {
                    let job = waiting.lock().unwrap_or_else(PoisonError::into_inner).recv();
                    let Ok((slot, generation)) = job else { return };
                    let digest = digest(&data, u64::from(slot.0) * slot_bytes, slot_bytes);
                    if finished.send(Digested { slot, generation, digest }).is_err() {
                        return;
                    }
                    waker.wake();
                }
            })?;
        }
        Ok(Self { jobs, done })
    }

    /// Requests a digest. False: more are in progress than there are slots, which callers prevent.
    pub(super) fn ask(&self, slot: SlotIndex, generation: Generation) -> bool {
        self.jobs.try_send((slot, generation)).is_ok()
    }

    /// A finished digest.
    pub(super) fn take(&self) -> Option<Digested> {
        self.done.try_recv().ok()
    }
}

fn digest(data: &File, offset: u64, bytes: u64) -> io::Result<[u8; 32]> {
    let mut hasher = blake3::Hasher::new();
    let mut chunk = vec![0; CHUNK_BYTES];
    let mut done = 0;
    while done < bytes {
        let length = usize::try_from(bytes - done).unwrap_or(usize::MAX).min(CHUNK_BYTES);
        data.read_exact_at(&mut chunk[..length], offset + done)?;
        hasher.update(&chunk[..length]);
        done += length as u64;
    }
    Ok(*hasher.finalize().as_bytes())
}

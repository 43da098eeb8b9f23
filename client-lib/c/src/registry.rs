//! The objects that handles refer to.
//!
//! A handle is a unique number in a pointer type; no memory is at its address. It is looked up here and never dereferenced,
//! so a handle that is null, released or of another kind is an error. Two tables own the objects, a third the texts that
//! were returned; each has a lock that is held for a lookup only. A loader also has its own lock, held for the duration of
//! a call.
//!
//! **After a fork** the child must not take these locks: another thread may have held one at the fork. A [`ForkMark`]
//! detects, before any lock, that a handle belongs to the parent. The child's first `forebay_loader_open` installs new
//! tables; the parent's are leaked in the child, so nothing in them is dropped there.

#![allow(unsafe_code)]

use std::collections::HashMap;
use std::ffi::CString;
use std::sync::atomic::{AtomicPtr, AtomicUsize};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use forebay_client::{Batch, Error, Loader};
use forebay_protocol::segment::ForkMark;
use forebay_protocol::sync::{AtomicBool, Ordering};

use crate::status::{Failure, Status};

/// The tables of one process.
pub(crate) struct Registry {
    mark: ForkMark,
    /// Handles below this were created before the fork of this process; 0 without a fork.
    first_handle: usize,
    loaders: Mutex<HashMap<usize, Arc<Session>>>,
    batches: Mutex<HashMap<usize, Batch>>,
    /// By address.
    texts: Mutex<HashMap<usize, CString>>,
}

/// The tables of this process, or of the one that it was forked from; null before the first loader. Never freed.
static CURRENT: AtomicPtr<Registry> = AtomicPtr::new(std::ptr::null_mut());
/// A multiple of 16, as addresses of allocated memory are; a fork copies it, so a child's handles are new as well.
static NEXT_HANDLE: AtomicUsize = AtomicUsize::new(HANDLE_STEP);
const HANDLE_STEP: usize = 16;

/// Locks a table. It is consistent even when the lock is poisoned: every change is a single map operation.
fn table<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn stored() -> Option<&'static Registry> {
    // Acquire: with the exchange in `for_opening`, whose registry is read whole.
    // SAFETY: null, or what `for_opening` leaked; it is never freed and never borrowed mutably.
    unsafe { CURRENT.load(Ordering::Acquire).as_ref() }
}

fn forked() -> Failure {
    Failure::from(Error::Forked)
}

impl Registry {
    /// The tables for a new loader: this process's own, made if there are none.
    pub(crate) fn for_opening() -> Result<&'static Self, Failure> {
        loop {
            let seen = stored();
            if let Some(registry) = seen.filter(|registry| registry.mark.is_own_process()) {
                return Ok(registry);
            }
            let mark = ForkMark::new().map_err(|error| Failure {
                status: Status::Memory,
                message: format!("mapping the fork mark failed (MADV_WIPEONFORK): {error}"),
            })?;
            let fresh = Box::into_raw(Box::new(Self {
                mark,
                // Relaxed: in a forked process no handle has been given since the fork.
                first_handle: seen.map_or(0, |_| NEXT_HANDLE.load(Ordering::Relaxed)),
                loaders: Mutex::default(),
                batches: Mutex::default(),
                texts: Mutex::default(),
            }));
            let old = seen.map_or(std::ptr::null_mut(), |old| std::ptr::from_ref(old).cast_mut());
            // AcqRel: with the load in `stored`.
            if CURRENT.compare_exchange(old, fresh, Ordering::AcqRel, Ordering::Acquire).is_err() {
                // SAFETY: allocated above and not shared.
                drop(unsafe { Box::from_raw(fresh) });
            }
        }
    }

    /// The tables that a handle is in, if it is of this process.
    fn of_handle(kind: &str, handle: usize) -> Result<&'static Self, Failure> {
        if handle == 0 {
            return Err(Failure::argument(format!("the {kind} is null")));
        }
        let registry = stored().ok_or_else(|| stale(kind))?;
        if !registry.mark.is_own_process() || handle < registry.first_handle {
            return Err(forked());
        }
        Ok(registry)
    }

    /// Gives a handle to a loader.
    pub(crate) fn add_loader(&self, session: Session) -> usize {
        let handle = new_handle();
        table(&self.loaders).insert(handle, Arc::new(session));
        handle
    }

    /// Gives a handle to a batch.
    pub(crate) fn add_batch(&self, batch: Batch) -> usize {
        let handle = new_handle();
        table(&self.batches).insert(handle, batch);
        handle
    }

    /// Keeps a text until it is freed; returns its address.
    pub(crate) fn add_text(&self, text: CString) -> *mut std::ffi::c_char {
        // Moving the string into the table does not move its bytes.
        let address = text.as_ptr().cast_mut();
        table(&self.texts).insert(address.addr(), text);
        address
    }
}

fn new_handle() -> usize {
    // Relaxed: only a unique number; the tables' locks order access to the objects.
    NEXT_HANDLE.fetch_add(HANDLE_STEP, Ordering::Relaxed)
}

fn stale(kind: &str) -> Failure {
    let end = if kind == "loader" { "closed" } else { "released" };
    Failure::argument(format!(
        "the {kind} is none of this library, or was {end} before: each handle is {end} once and not used after"
    ))
}

/// The loader of a handle.
pub(crate) fn session(handle: usize) -> Result<(&'static Registry, Arc<Session>), Failure> {
    let registry = Registry::of_handle("loader", handle)?;
    let found = table(&registry.loaders).get(&handle).cloned();
    found.map(|session| (registry, session)).ok_or_else(|| stale("loader"))
}

/// Takes a loader's handle back.
pub(crate) fn remove_session(handle: usize) -> Result<Arc<Session>, Failure> {
    let registry = Registry::of_handle("loader", handle)?;
    table(&registry.loaders).remove(&handle).ok_or_else(|| stale("loader"))
}

/// The batch of a handle: a separate lease, so that it outlives a release by another thread.
pub(crate) fn batch(handle: usize) -> Result<(&'static Registry, Batch), Failure> {
    let registry = Registry::of_handle("batch", handle)?;
    let found = table(&registry.batches).get(&handle).cloned();
    found.map(|batch| (registry, batch)).ok_or_else(|| stale("batch"))
}

/// Takes a batch's handle back.
pub(crate) fn remove_batch(handle: usize) -> Result<Batch, Failure> {
    let registry = Registry::of_handle("batch", handle)?;
    table(&registry.batches).remove(&handle).ok_or_else(|| stale("batch"))
}

/// Frees a text.
pub(crate) fn remove_text(address: usize) -> Result<(), Failure> {
    let registry = stored().ok_or_else(|| stale("text"))?;
    if !registry.mark.is_own_process() {
        return Err(forked());
    }
    table(&registry.texts).remove(&address).map(drop).ok_or_else(|| stale("text"))
}

/// An open loader.
pub(crate) struct Session {
    loader: Mutex<Option<Loader>>,
    /// Set while a thread closes the loader: a waiting call on it returns.
    closing: Arc<AtomicBool>,
}

impl Session {
    pub(crate) fn new(loader: Loader, closing: Arc<AtomicBool>) -> Self {
        Self { loader: Mutex::new(Some(loader)), closing }
    }

    /// Runs `work` on the loader, after the calls of other threads.
    pub(crate) fn run<R>(
        &self,
        work: impl FnOnce(&mut Loader) -> Result<R, Error>,
    ) -> Result<R, Failure> {
        let mut guard = self.loader.lock().map_err(|_| poisoned())?;
        self.run_locked(&mut guard, work)
    }

    /// As [`run`](Self::run), or `None` when another thread is in a call.
    pub(crate) fn try_run<R>(
        &self,
        work: impl FnOnce(&mut Loader) -> Result<R, Error>,
    ) -> Result<Option<R>, Failure> {
        match self.loader.try_lock() {
            Ok(mut guard) => self.run_locked(&mut guard, work).map(Some),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Poisoned(_)) => Err(poisoned()),
        }
    }

    fn run_locked<R>(
        &self,
        loader: &mut Option<Loader>,
        work: impl FnOnce(&mut Loader) -> Result<R, Error>,
    ) -> Result<R, Failure> {
        let result = loader.as_mut().map_or(Err(Error::Closed), work);
        result.map_err(|error| match error {
            // Relaxed: the flag publishes nothing else.
            Error::Interrupted(_) if self.closing.load(Ordering::Relaxed) => Error::Closed.into(),
            error => error.into(),
        })
    }

    /// Ends the session after the current call has returned.
    pub(crate) fn close(&self) {
        // Relaxed: as above.
        self.closing.store(true, Ordering::Relaxed);
        drop(self.loader.lock().unwrap_or_else(PoisonError::into_inner).take());
    }
}

/// A call panicked and may have left the loader in an inconsistent state.
fn poisoned() -> Failure {
    Failure {
        status: Status::Internal,
        message: "an earlier call on this loader failed with an internal error; close it and open another from its last \
                  saved state"
            .into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_handles_are_refused() {
        Registry::for_opening().unwrap();
        for handle in [0, 1, usize::MAX - 15] {
            for failure in [
                session(handle).err(),
                remove_session(handle).err(),
                batch(handle).err(),
                remove_batch(handle).err(),
            ] {
                let failure = failure.expect("no such handle");
                assert_eq!(failure.status, Status::Argument, "{}", failure.message);
            }
        }
    }

    #[test]
    fn text_can_be_freed_once() {
        let registry = Registry::for_opening().unwrap();
        let address = registry.add_text(c"text".into());
        // SAFETY: the table holds the text.
        assert_eq!(unsafe { std::ffi::CStr::from_ptr(address) }, c"text");
        remove_text(address.addr()).unwrap();
        assert_eq!(remove_text(address.addr()).unwrap_err().status, Status::Argument);
    }
}

//! A session's source with its lock, shared by the threads of a Python program.
//!
//! The interpreter lock (GIL) is never held during a wait, neither for the daemon nor for the source's lock: a ready
//! batch is taken with `try_lock`; everything else detaches from the interpreter first. During a wait, signals are
//! checked every 50 ms, so that Ctrl-C ends a waiting `next`; the checking thread does not hold the source's lock then.
//!
//! In a forked child the lock may be held forever by a thread that waited in `next` at the fork and does not exist
//! there, and the source may be inconsistent. The fork mark is therefore checked before the lock: in a child every call
//! is an error, and `close` and the drop do nothing.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use forebay_client::{DurationHistogram, Error};
use forebay_protocol::segment::ForkMark;
use pyo3::prelude::*;

use crate::errors::to_exception;
use crate::source::Source;

/// The exception that a signal handler raised during a wait.
pub(crate) type PendingException = Arc<Mutex<Option<PyErr>>>;

/// The source, the numbers of its iterators and the exception of a signal handler.
pub(crate) struct SharedSource {
    fork_mark: ForkMark,
    source: Mutex<Option<Source>>,
    pending: PendingException,
    /// Counts the iterators: only the newest one yields batches.
    iteration: AtomicU64,
    /// How long each waiting `next` took to reacquire the GIL. Accessed with the GIL held.
    gil_waits: Mutex<DurationHistogram>,
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

thread_local! {
    /// This thread checks signals between the slices of its wait, without the source's lock.
    static CHECKS_BETWEEN_SLICES: Cell<bool> = const { Cell::new(false) };
}

/// Whether a signal handler raised an exception, which is kept in `pending`. The interrupt of a loader.
pub(crate) fn check_signals(pending: &PendingException) -> bool {
    if CHECKS_BETWEEN_SLICES.get() {
        return false;
    }
    match Python::try_attach(|py| py.check_signals()) {
        Some(Ok(())) => false,
        Some(Err(error)) => {
            *lock(pending) = Some(error);
            true
        }
        // The interpreter is shut down: end the wait.
        None => true,
    }
}

impl SharedSource {
    /// Wraps an attached source; its interrupt is [`check_signals`] with the same `pending`.
    ///
    /// # Errors
    /// When the kernel has no room for the fork mark.
    pub(crate) fn new(source: Source, pending: PendingException) -> std::io::Result<Self> {
        let (iteration, gil_waits) = (AtomicU64::new(0), Mutex::default());
        let fork_mark = ForkMark::new()?;
        Ok(Self { fork_mark, source: Mutex::new(Some(source)), pending, iteration, gil_waits })
    }

    /// The exception for an error; for an interrupted wait, the signal handler's.
    pub(crate) fn raise(&self, py: Python<'_>, error: &Error) -> PyErr {
        if matches!(error, Error::Interrupted(_))
            && let Some(pending) = lock(&self.pending).take()
        {
            return pending;
        }
        to_exception(py, error)
    }

    /// Runs `work` on the source without the GIL.
    pub(crate) fn run<R: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut Source) -> Result<R, Error> + Send,
    ) -> PyResult<R> {
        self.run_timed(py, work).0
    }

    /// As [`run`](Self::run); also returns how long it took to reacquire the GIL after `work`.
    fn run_timed<R: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut Source) -> Result<R, Error> + Send,
    ) -> (PyResult<R>, Duration) {
        if !self.fork_mark.is_own_process() {
            return (Err(self.raise(py, &Error::Forked)), Duration::ZERO);
        }
        let (result, ended) = py.detach(|| {
            let mut guard = lock(&self.source);
            let result = guard.as_mut().map_or(Err(Error::Closed), work);
            drop(guard);
            (result, Instant::now())
        });
        let gil_wait = ended.elapsed();
        let result = result.map_err(|error| self.raise(py, &error));
        // A handler may have raised just when the wait ended by itself.
        (result.and_then(|value| lock(&self.pending).take().map_or(Ok(value), Err)), gil_wait)
    }

    /// The next item of an iterator's epoch, or `None` when a newer iterator has begun: by `ready`, which does not block, with
    /// the GIL; if that has none, by `wait`.
    pub(crate) fn take<R: Send>(
        &self,
        py: Python<'_>,
        iteration: u64,
        ready: impl FnOnce(&mut Source) -> Result<Option<R>, Error>,
        wait: impl FnMut(&mut Source) -> Result<Option<R>, Error> + Send,
    ) -> PyResult<Option<R>> {
        // Relaxed: an independent count; the GIL orders its readers.
        if self.iteration.load(Ordering::Relaxed) != iteration {
            return Ok(None);
        }
        match self.try_run(ready) {
            Some(Ok(Some(found))) => Ok(Some(found)),
            Some(Err(error)) => Err(self.raise(py, &error)),
            Some(Ok(None)) | None => self.wait_in_slices(py, wait).map(Some),
        }
    }

    /// Runs a wait, one slice at a time, until it returns a value. Signals are checked between the slices, so that a handler
    /// may use the session: save its state, or close it.
    fn wait_in_slices<R: Send>(
        &self,
        py: Python<'_>,
        mut slice: impl FnMut(&mut Source) -> Result<Option<R>, Error> + Send,
    ) -> PyResult<R> {
        let mut total = Duration::ZERO;
        loop {
            CHECKS_BETWEEN_SLICES.set(true);
            let (found, gil_wait) = self.run_timed(py, &mut slice);
            CHECKS_BETWEEN_SLICES.set(false);
            total += gil_wait;
            match found? {
                Some(found) => {
                    lock(&self.gil_waits).record(total);
                    return Ok(found);
                }
                None => py.check_signals()?,
            }
        }
    }

    /// Runs non-blocking `work` with the GIL; `None` when another thread uses the source.
    fn try_run<R>(
        &self,
        work: impl FnOnce(&mut Source) -> Result<R, Error>,
    ) -> Option<Result<R, Error>> {
        if !self.fork_mark.is_own_process() {
            return Some(Err(Error::Forked));
        }
        let mut guard = match self.source.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        Some(guard.as_mut().map_or(Err(Error::Closed), work))
    }

    /// Begins the next epoch; returns the iterator's number.
    pub(crate) fn begin_epoch(&self, py: Python<'_>) -> PyResult<u64> {
        self.run(py, Source::begin_epoch)?;
        Ok(self.end_iterators())
    }

    /// Ends all iterators; returns the number of the next one.
    pub(crate) fn end_iterators(&self) -> u64 {
        // Relaxed: as in `take`.
        self.iteration.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// How long each waiting `next` took to reacquire the GIL.
    pub(crate) fn gil_waits(&self) -> DurationHistogram {
        lock(&self.gil_waits).clone()
    }

    /// Ends the session. False: it belongs to the parent process.
    pub(crate) fn close(&self, py: Python<'_>) -> bool {
        let is_own = self.fork_mark.is_own_process();
        if is_own {
            py.detach(|| drop(lock(&self.source).take()));
        }
        is_own
    }
}

impl Drop for SharedSource {
    fn drop(&mut self) {
        // The end waits for copies and for a private daemon: without the GIL.
        let mut source = self.source.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if !self.fork_mark.is_own_process() {
            std::mem::forget(source);
            return;
        }
        if source.is_some() {
            Python::try_attach(|py| py.detach(|| drop(source.take())));
        }
    }
}

//! Lines to a server: each a runtime, a client and its connections, lent to one thread at a time.
//!
//! A call runs wholly on the thread that makes it, sockets and TLS included: so it has that thread's scheduling class and
//! is confined as it is, and no other thread is woken for it. There are as many lines as threads read at once. The one used
//! last is lent first, so that its connection is warm.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};

use super::stores::{Store, Stores};
use super::trace::Trace;

/// The thread that looks names up ends soon: a later one has the rights of its own thread's time.
const LOOKUP_KEEP_ALIVE: Duration = Duration::from_millis(100);

/// See the module's head.
#[derive(Debug)]
pub(super) struct Lines {
    stores: Stores,
    idle: Mutex<Vec<Line>>,
}

/// One line.
#[derive(Debug)]
pub(super) struct Line {
    // Dropped first: its connections belong to the runtime.
    store: Store,
    runtime: Option<Runtime>,
}

impl Lines {
    pub(super) fn new(stores: Stores) -> Self {
        Self { stores, idle: Mutex::default() }
    }

    /// Whose credentials are used.
    pub(super) fn identity(&self) -> &str {
        &self.stores.identity
    }

    /// The server says that the keys have expired that a request was signed with.
    pub(super) fn refused(&self, trace: &Trace) {
        if let Some(process) = &self.stores.process {
            process.refused(trace.keys_number);
        }
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Line>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A line, to be [given back](Self::give_back).
    ///
    /// # Errors
    /// A new one cannot be made.
    pub(super) fn take(&self) -> Result<Line, String> {
        if let Some(line) = self.idle().pop() {
            return Ok(line);
        }
        let runtime = Builder::new_current_thread()
            .enable_all()
            .thread_keep_alive(LOOKUP_KEEP_ALIVE)
            .build()
            .map_err(|error| format!("no runtime for a connection: {error}"))?;
        let store = {
            let _entered = runtime.enter();
            self.stores.make()?
        };
        Ok(Line { store, runtime: Some(runtime) })
    }

    pub(super) fn give_back(&self, line: Line) {
        self.idle().push(line);
    }
}

impl Line {
    /// Runs a call to its end on this thread; also gives what its last request met.
    pub(super) fn run<T>(
        &self,
        limit_bytes: u64,
        call: impl AsyncFnOnce(&Store) -> T,
    ) -> (T, Trace) {
        match &self.runtime {
            Some(runtime) => runtime.block_on(Trace::of(limit_bytes, call(&self.store))),
            None => unreachable!("a line has its runtime until it is dropped"),
        }
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        // Not waited for: a name's look-up may hang.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

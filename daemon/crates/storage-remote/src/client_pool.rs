//! A pool of HTTP clients, each with a runtime and connections, lent to one thread at a time.
//!
//! A call runs wholly on the calling thread, sockets and TLS included: it has that thread's scheduling class and
//! confinement, and wakes no other thread. There are as many clients as threads that read at once. The one used last is
//! lent first: its connection is still warm.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};

use super::hub::Repository;
use super::stores::{Store, Stores};
use super::trace::Trace;

/// The thread that resolves names ends soon: a later one gets the rights that its creator has then.
const LOOKUP_KEEP_ALIVE: Duration = Duration::from_millis(100);

/// See the module's head.
#[derive(Debug)]
pub(super) struct ClientPool {
    stores: Stores,
    idle: Mutex<Vec<PooledClient>>,
}

/// A client of the pool.
#[derive(Debug)]
pub(super) struct PooledClient {
    // Dropped first: its connections belong to the runtime.
    store: Store,
    runtime: Option<Runtime>,
}

impl ClientPool {
    pub(super) fn new(stores: Stores) -> Self {
        Self { stores, idle: Mutex::default() }
    }

    /// Whose credentials are used.
    pub(super) fn identity(&self) -> &str {
        &self.stores.identity
    }

    /// The hub's repository, if these clients read it.
    pub(super) const fn repository(&self) -> Option<&Arc<Repository>> {
        self.stores.repository()
    }

    /// Reports that the server refused a request because its keys have expired.
    pub(super) fn refused(&self, trace: &Trace) {
        if let Some(process) = &self.stores.process {
            process.refused(trace.keys_number);
        }
    }

    fn idle(&self) -> MutexGuard<'_, Vec<PooledClient>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A client, to be [given back](Self::give_back).
    ///
    /// # Errors
    /// A new client cannot be made.
    pub(super) fn take(&self) -> Result<PooledClient, String> {
        match self.idle().pop() {
            Some(client) => Ok(client),
            None => self.make(),
        }
    }

    /// A new client, which has no connection yet.
    ///
    /// # Errors
    /// It cannot be made.
    pub(super) fn make(&self) -> Result<PooledClient, String> {
        let runtime = Builder::new_current_thread()
            .enable_all()
            .thread_keep_alive(LOOKUP_KEEP_ALIVE)
            .build()
            .map_err(|error| format!("creating a runtime failed: {error}"))?;
        let store = {
            let _entered = runtime.enter();
            self.stores.make()?
        };
        Ok(PooledClient { store, runtime: Some(runtime) })
    }

    pub(super) fn give_back(&self, client: PooledClient) {
        self.idle().push(client);
    }
}

impl PooledClient {
    /// Runs a call to its end on this thread and returns the trace of its last request, too.
    pub(super) fn run<T>(
        &self,
        limit_bytes: u64,
        call: impl AsyncFnOnce(&Store) -> T,
    ) -> (T, Trace) {
        match &self.runtime {
            Some(runtime) => runtime.block_on(Trace::of(limit_bytes, call(&self.store))),
            None => unreachable!("a client has its runtime until it is dropped"),
        }
    }
}

impl Drop for PooledClient {
    fn drop(&mut self) {
        // Not awaited: resolving a name may hang.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

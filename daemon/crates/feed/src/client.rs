//! The daemon's side: connects to feeders, asks them for rows, and writes what arrives into the rows of batches.
//!
//! It runs on a thread of its own, which never blocks the engine. The states of a feeder:
//! ```text
//!   Known ─connects─► Connecting ─GetFlightInfo: the same rows─► Serving ─the connection is lost, or drains─► Waits
//!     ▲                   │ cannot be reached, or refuses                                                      │
//!     │                   ▼                                                                                    │
//!     └── back-off ───  Waits ◄────────────────────────────────────────────────────────────────────────────────┘
//!   Serving ─a row of it differs from the one made here─► SetAside, until its address is no longer listed
//! ```
//! The engine's thread chooses the feeder of a row under a short lock ([`table`]); a connection's task sends the
//! requests ([`connection`]).

mod answer;
mod connection;
mod table;

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use forebay_engine::{EngineWaker, RowAsked, RowColumn, RowTaker, Stream, Supplier, feeder_window};
use forebay_observe::SupplyReport;
use tokio::sync::Notify;

use self::table::Table;
use crate::buffers::Buffers;
use crate::discovery::{Discovery, Sources, look_up};
use crate::spread::choose;
use crate::ticket::{IdentityDigest, digest_of};
use crate::tls::ClientTls;

/// How often addresses are looked at.
const LOOK_PERIOD: Duration = Duration::from_millis(500);

/// Where feeders are, and how they are reached.
#[derive(Debug)]
pub struct ClientOptions {
    /// Where their addresses come from.
    pub sources: Sources,
    /// The most that are connected.
    pub spread: usize,
    /// The most that there are, which share the memory of answers that wait.
    pub most: usize,
    /// Encrypts connections; `None`: they are plain.
    pub tls: Option<ClientTls>,
    /// Whether plain connections may lead to other hosts.
    pub allow_plain: bool,
    /// A number of this daemon, by which it chooses among many feeders.
    pub daemon: u64,
}

/// What all tasks share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) table: Mutex<Table>,
    waker: EngineWaker,
    pub(crate) stream: String,
    pub(crate) identity: String,
    pub(crate) digest: IdentityDigest,
    pub(crate) columns: Vec<RowColumn>,
    /// The most bytes of a message with a single row.
    pub(crate) row_bytes: usize,
    pub(crate) tls: Option<ClientTls>,
    pub(crate) allow_plain: bool,
    /// Bytes of answers that a feeder may send ahead: the plan of memory has them.
    pub(crate) window: u32,
    /// The memory of answers.
    pub(crate) buffers: Arc<Buffers>,
    ends: Notify,
}

/// The feeders of a stream, as the engine's [`Supplier`].
#[derive(Debug)]
pub struct Feeders(Arc<Shared>);

impl Shared {
    pub(crate) fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells the engine that there is room, or that a feeder can be reached or not.
    pub(crate) fn wake_engine(&self) {
        self.waker.wake();
    }
}

impl Feeders {
    /// Starts to connect, on a thread of its own.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start(stream: &Stream, options: ClientOptions, waker: EngineWaker) -> io::Result<Self> {
        let identity = stream.row_identity().to_string();
        let bytes = |column: &RowColumn| column.max_row_bytes.unwrap_or(column.unit_bytes);
        let row_bytes: u64 = stream.columns().iter().map(bytes).sum();
        let ClientOptions { sources, spread, most, tls, allow_plain, daemon } = options;
        let shared = Arc::new(Shared {
            table: Mutex::default(),
            waker,
            stream: stream.name().to_owned(),
            digest: digest_of(&identity),
            identity,
            columns: stream.columns().to_vec(),
            row_bytes: usize::try_from(row_bytes).unwrap_or(usize::MAX),
            tls,
            allow_plain,
            window: u32::try_from(feeder_window(most)).unwrap_or(u32::MAX),
            buffers: Arc::default(),
            ends: Notify::new(),
        });
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let of_thread = Arc::clone(&shared);
        let run = move || {
            let (work, ended) =
                (discover(&of_thread, sources, spread, daemon), of_thread.ends.notified());
            runtime.block_on(async {
                tokio::select! { () = work => {}, () = ended => {} }
            });
            runtime.shutdown_background();
        };
        std::thread::Builder::new().name("forebay-feeders".to_owned()).spawn(run)?;
        Ok(Self(shared))
    }
}

impl Drop for Feeders {
    fn drop(&mut self) {
        self.0.ends.notify_one();
    }
}

impl Supplier for Feeders {
    fn room(&self) -> usize {
        self.0.table().room()
    }

    fn is_reachable(&self) -> bool {
        self.0.table().is_reachable()
    }

    fn supply(&self, rows: &[RowAsked], is_urgent: bool, taker: RowTaker) {
        let mut table = self.0.table();
        let places: Vec<Option<usize>> = rows.iter().map(|row| table.place(row.unit)).collect();
        for feeder in 0..table.len() {
            let of_feeder: Vec<usize> =
                (0..rows.len()).filter(|row| places[*row] == Some(feeder)).collect();
            let most = table.most_rows(feeder);
            for chunk in of_feeder.chunks(most) {
                let keys = chunk.iter().map(|row| rows[*row].key).collect();
                table.send(&self.0, feeder, keys, is_urgent, taker.split(chunk));
            }
        }
    }

    fn supply_again(&self, row: RowAsked, first: u64, taker: RowTaker) -> bool {
        let mut table = self.0.table();
        let Some(feeder) = table.place_besides(first) else { return false };
        table.send(&self.0, feeder, vec![row.key], true, taker)
    }

    fn set_aside(&self, feeder: u64, reason: &str) {
        self.0.table().set_aside(feeder, reason);
    }

    fn report(&self) -> SupplyReport {
        SupplyReport { feeders: self.0.table().report(), ..SupplyReport::default() }
    }
}

/// Follows the lists of addresses: starts a task for each feeder that comes, and ends those of feeders that leave.
async fn discover(shared: &Arc<Shared>, sources: Sources, spread: usize, daemon: u64) {
    let mut discovery = Discovery::new(sources);
    let mut generation = None;
    loop {
        for name in discovery.poll(Instant::now()) {
            let asked = name.clone();
            let found = tokio::task::spawn_blocking(move || look_up(&asked)).await;
            let found = found.unwrap_or_else(|error| Err(io::Error::other(error.to_string())));
            discovery.looked_up(&name, found, Instant::now());
        }
        if generation != Some(discovery.generation()) {
            generation = Some(discovery.generation());
            let chosen = choose(discovery.feeders(), daemon, spread);
            let new = shared.table().follow(&chosen);
            for feeder in new {
                tokio::spawn(connection::keep(Arc::clone(shared), feeder));
            }
            shared.wake_engine();
        }
        tokio::time::sleep(LOOK_PERIOD).await;
    }
}

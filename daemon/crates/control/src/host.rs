//! State that the connections of one daemon share: its engine, and how a daemon that a loader has started creates it.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use forebay_protocol::frames::{Fault, Restart, RestartPolicy, Start};

use super::fair_share::FairShares;
use super::restart_state::RestartState;
use forebay_config::DatasetObject;
use forebay_engine::SharedEngine;

/// What the loader that started a daemon requests it to serve.
pub enum Opening {
    /// A configuration, and the Dataset object that came with it, if there was one.
    Start(Start, Option<DatasetObject>),
    /// The plan and the index of a dead daemon, as saved by its client.
    Restart(Restart, Vec<OwnedFd>),
}

/// Opened streams, and the restart state for the client.
pub type Opened = (SharedEngine, Option<RestartState>);

/// Opens the streams for the loader that started the daemon. The number changes as long as there is progress or an announced wait.
pub(crate) type Opener =
    Box<dyn Fn(Opening, Arc<AtomicU64>) -> Pin<Box<dyn Future<Output = Result<Opened, Fault>>>>>;

/// How long a client may block its connection before it is disconnected.
#[derive(Debug, Clone, Copy)]
pub(super) struct Patience {
    /// For its first frame.
    pub(super) greeting: Duration,
    /// For space in its socket.
    pub(super) sending: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self { greeting: Duration::from_secs(10), sending: Duration::from_secs(5) }
    }
}

/// State that the connections of one daemon share.
pub struct Host {
    pub(super) engine: RefCell<Option<SharedEngine>>,
    /// Of a daemon that a loader has started.
    pub(super) opener: Option<Opener>,
    pub(super) restart_policy: RestartPolicy,
    /// Sent before each session of a daemon that its clients restart, once the streams are open.
    pub(super) restart_state: RefCell<Option<Rc<RestartState>>>,
    /// Whether clients may attach; otherwise they may only observe.
    pub(super) takes_clients: bool,
    pub(super) connections: Cell<usize>,
    /// Connections that may be those of loaders: they have asked for nothing that an observer asks for.
    pub(super) loaders: Cell<usize>,
    numbers: Cell<u64>,
    pub(super) shares: FairShares,
    pub(super) patience: Patience,
}

impl Host {
    /// For a daemon whose streams are open, and how it is restarted.
    pub fn serving(engine: SharedEngine, restart_policy: RestartPolicy) -> Self {
        let engine = RefCell::new(Some(engine));
        let (connections, patience) = (Cell::new(0), Patience::default());
        let numbers = Cell::new(0);
        Self {
            engine,
            opener: None,
            restart_policy,
            restart_state: RefCell::new(None),
            takes_clients: true,
            connections,
            loaders: Cell::new(0),
            numbers,
            shares: FairShares::default(),
            patience,
        }
    }

    /// For observers of a private daemon.
    pub fn observed(engine: SharedEngine) -> Self {
        Self { takes_clients: false, ..Self::serving(engine, RestartPolicy::ByClient) }
    }

    /// For a private daemon, which is configured by its first frame.
    pub fn private(opener: Opener) -> Self {
        Self {
            engine: RefCell::new(None),
            opener: Some(opener),
            restart_policy: RestartPolicy::ByClient,
            restart_state: RefCell::new(None),
            takes_clients: true,
            connections: Cell::new(0),
            loaders: Cell::new(0),
            numbers: Cell::new(0),
            shares: FairShares::default(),
            patience: Patience::default(),
        }
    }

    /// For a daemon that loaders share, which is configured by the first frame of the loader that started it.
    pub fn shared(opener: Opener) -> Self {
        Self { restart_policy: RestartPolicy::ByClients, ..Self::private(opener) }
    }

    /// A unique number for a connection of this daemon, of clients or observers.
    pub(super) fn next_number(&self) -> u64 {
        self.numbers.set(self.numbers.get() + 1);
        // Observers of a private daemon have another host than its client.
        self.numbers.get() << 1 | u64::from(self.takes_clients)
    }

    /// Whether a loader is connected, attached or not: one may be busy for long before it attaches again.
    pub fn has_loaders(&self) -> bool {
        self.loaders.get() > 0
    }

    /// The engine, once it exists.
    pub fn engine(&self) -> Option<SharedEngine> {
        self.engine.borrow().clone()
    }
}

//! What the connections of one daemon share: its engine, and how a private one comes by it.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use forebay_protocol::frames::{Fault, Restart, RestartPolicy, Start};

use super::fair_share::FairShares;
use super::restart_state::RestartState;
use forebay_engine::SharedEngine;

/// What a private daemon is asked to serve.
pub enum Opening {
    /// A configuration.
    Start(Start),
    /// The plan and the index of a daemon that died, as its client kept them.
    Restart(Restart, Vec<OwnedFd>),
}

/// Streams that were opened, and what the client keeps of them.
pub type Opened = (SharedEngine, Option<RestartState>);

/// Opens the streams of a private daemon. The number changes as long as that makes progress, or waits and says so.
pub(crate) type Opener =
    Box<dyn Fn(Opening, Arc<AtomicU64>) -> Pin<Box<dyn Future<Output = Result<Opened, Fault>>>>>;

/// How long a client may keep its connection waiting before it is cut off.
#[derive(Debug, Clone, Copy)]
pub(super) struct Patience {
    /// For its first frame.
    pub(super) greeting: Duration,
    /// For room in its socket.
    pub(super) sending: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self { greeting: Duration::from_secs(10), sending: Duration::from_secs(5) }
    }
}

/// What the connections of one daemon share.
pub struct Host {
    pub(super) engine: RefCell<Option<SharedEngine>>,
    /// Private daemons only.
    pub(super) opener: Option<Opener>,
    pub(super) restart_policy: RestartPolicy,
    /// Whether clients may attach; else they may only look.
    pub(super) takes_clients: bool,
    pub(super) connections: Cell<usize>,
    numbers: Cell<u64>,
    pub(super) shares: FairShares,
    pub(super) patience: Patience,
}

impl Host {
    /// A daemon whose streams are open, and who starts it again.
    pub fn serving(engine: SharedEngine, restart_policy: RestartPolicy) -> Self {
        let engine = RefCell::new(Some(engine));
        let (connections, patience) = (Cell::new(0), Patience::default());
        let numbers = Cell::new(0);
        Self {
            engine,
            opener: None,
            restart_policy,
            takes_clients: true,
            connections,
            numbers,
            shares: FairShares::default(),
            patience,
        }
    }

    /// A private daemon's for those who look into it.
    pub fn observed(engine: SharedEngine) -> Self {
        Self { takes_clients: false, ..Self::serving(engine, RestartPolicy::ByClient) }
    }

    /// A private daemon that is told by its first frame what to serve.
    pub fn private(opener: Opener) -> Self {
        Self {
            engine: RefCell::new(None),
            opener: Some(opener),
            restart_policy: RestartPolicy::ByClient,
            takes_clients: true,
            connections: Cell::new(0),
            numbers: Cell::new(0),
            shares: FairShares::default(),
            patience: Patience::default(),
        }
    }

    /// A number for a connection that no other one of this daemon has, of clients or of those who look in.
    pub(super) fn next_number(&self) -> u64 {
        self.numbers.set(self.numbers.get() + 1);
        // Whoever looks into a private daemon comes by another host than its client.
        self.numbers.get() << 1 | u64::from(self.takes_clients)
    }

    /// The engine, once there is one.
    pub fn engine(&self) -> Option<SharedEngine> {
        self.engine.borrow().clone()
    }
}

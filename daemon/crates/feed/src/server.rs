//! The feeder's side: answers daemons that ask for rows, over Arrow Flight.
//!
//! It runs on a thread of its own. It owns the connections and their limits; rows are made by the engine, which it asks
//! through a channel. States of a connection:
//! ```text
//!   Accepted ─handshake within a limit─► Serving ─SIGTERM: GOAWAY─► Draining ─last answer sent, or a limit─► closed
//! ```
//! A request that its daemon gives up resets its stream, which drops the answer: rows that no thread has begun are not
//! made. [`turns`] decides whose request is made next; a peer that does not read its answers loses its connection
//! ([`sending`]).

mod calls;
mod sending;
mod turns;

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use forebay_engine::{FeedRequest, Stream};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};

use self::calls::Calls;
use self::sending::Answers;
use self::turns::Turns;
use crate::buffers::Buffers;
use crate::ipc;
use crate::messages::StreamInfo;
use crate::sockets::{Connection, PING_LIMIT, PING_PERIOD, prepare};
use crate::ticket::{IdentityDigest, digest_of};
use crate::tls::ServerTls;

/// How long a peer may take to prove who it is.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// How long answers may take that are under way when the feeder is told to end.
const DRAIN: Duration = Duration::from_secs(20);
/// How long a peer may leave an answer unread, and how long while others wait for the places that it has.
const UNREAD: Duration = Duration::from_secs(10);
const UNREAD_BESIDE_OTHERS: Duration = Duration::from_secs(2);
/// How often it is looked whether it does.
const LOOK_PERIOD: Duration = Duration::from_millis(250);
/// Bytes of requests that a peer may send ahead: tickets are small.
const RECEIVE_WINDOW: u32 = 256 << 10;
/// Bytes of answers that wait in a connection's buffers.
const SEND_BUFFER: usize = 1 << 20;
const MAX_HEADER_BYTES: u32 = 16 << 10;
/// Connections of one address.
const MAX_OF_AN_ADDRESS: usize = 32;

/// A stream that a feeder serves.
#[derive(Debug)]
pub struct ServedStream {
    pub(crate) info: StreamInfo,
    pub(crate) digest: IdentityDigest,
    pub(crate) samples: u64,
    pub(crate) schema: Bytes,
    /// Gets the requests.
    pub(crate) rows: mpsc::Sender<FeedRequest>,
}

impl ServedStream {
    /// `cores`: its work threads; `most_rows`: of a request; `requests`: those that are in the making, and that one daemon
    /// may have under way; `rows` gets them.
    #[must_use]
    pub fn new(
        stream: &Stream,
        cores: u32,
        most_rows: u32,
        requests: u32,
        rows: mpsc::Sender<FeedRequest>,
    ) -> Self {
        let identity = stream.row_identity().to_string();
        let digest = digest_of(&identity);
        let info = StreamInfo {
            stream: stream.name().to_owned(),
            release: env!("CARGO_PKG_VERSION").to_owned(),
            digest: hexadecimal(&digest),
            identity,
            cores,
            rows: most_rows,
            requests,
        };
        Self {
            rows,
            info,
            digest,
            samples: stream.sample_count(),
            schema: ipc::schema(stream.columns()).into(),
        }
    }
}

pub(crate) fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What a feeder serves, and to how many.
#[derive(Debug)]
pub struct ServerOptions {
    /// The streams; none has more requests in the making than its session has slots.
    pub streams: Vec<ServedStream>,
    /// Encrypts connections, and knows who may connect; `None`: they are plain.
    pub tls: Option<ServerTls>,
    /// The most connections.
    pub peers: usize,
}

/// A running feeder's server.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    drain: watch::Sender<bool>,
    thread: std::thread::JoinHandle<()>,
}

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) streams: Vec<ServedStream>,
    /// By stream: the requests of all peers.
    turns: Vec<Arc<Turns>>,
    /// For messages of rows.
    buffers: Arc<Buffers>,
    connections: Mutex<HashMap<IpAddr, usize>>,
}

impl Shared {
    /// Whether requests of others wait for places of which a peer has one.
    fn do_others_wait(&self, peer: u64) -> bool {
        self.turns.iter().any(|turns| turns.do_others_wait(peer))
    }
}

/// Whether connections to an address may be plain without being asked for.
#[must_use]
pub fn is_loopback(address: &SocketAddr) -> bool {
    address.ip().to_canonical().is_loopback()
}

impl Server {
    /// Listens, and serves on a thread of its own.
    ///
    /// # Errors
    /// The address cannot be listened at, or the thread not be started.
    pub fn start(address: SocketAddr, options: ServerOptions) -> io::Result<Self> {
        let listener = std::net::TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (drain, draining) = watch::channel(false);
        let ServerOptions { streams, tls, peers } = options;
        let turns = |stream: &ServedStream| Turns::new(stream.info.requests as usize);
        let turns = streams.iter().map(turns).collect();
        let (buffers, connections) = Default::default();
        let shared = Arc::new(Shared { streams, turns, buffers, connections });
        let run = move || {
            let served = serve(listener, shared, tls.map(Arc::new), peers, draining);
            if let Err(error) = runtime.block_on(served) {
                tracing::error!(%error, "the feeder can accept no further daemons");
            }
            runtime.shutdown_timeout(Duration::from_millis(200));
        };
        let thread = std::thread::Builder::new().name("forebay-feed".to_owned()).spawn(run)?;
        Ok(Self { address, drain, thread })
    }

    /// Where it listens.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Takes no further requests.
    pub fn drain(&self) {
        self.drain.send_replace(true);
    }

    /// Whether all answers are sent after [`drain`](Self::drain).
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.thread.is_finished()
    }
}

/// A place among an address's connections.
#[derive(Debug)]
struct PlaceOfPeer {
    shared: Arc<Shared>,
    address: IpAddr,
    _permit: OwnedSemaphorePermit,
}

impl PlaceOfPeer {
    fn take(shared: &Arc<Shared>, address: IpAddr, permit: OwnedSemaphorePermit) -> Option<Self> {
        let mut all = shared.connections.lock().unwrap_or_else(PoisonError::into_inner);
        let count = all.entry(address).or_default();
        if *count >= MAX_OF_AN_ADDRESS {
            return None;
        }
        *count += 1;
        drop(all);
        Some(Self { shared: Arc::clone(shared), address, _permit: permit })
    }
}

impl Drop for PlaceOfPeer {
    fn drop(&mut self) {
        let mut all = self.shared.connections.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = all.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                all.remove(&self.address);
            }
        }
    }
}

async fn serve(
    listener: std::net::TcpListener,
    shared: Arc<Shared>,
    tls: Option<Arc<ServerTls>>,
    peers: usize,
    mut draining: watch::Receiver<bool>,
) -> io::Result<()> {
    let listener = TcpListener::from_std(listener)?;
    let places = Arc::new(Semaphore::new(peers));
    let mut connections = tokio::task::JoinSet::new();
    let mut peer = 0;
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = connections.join_next() => continue,
            changed = draining.changed() => {
                if changed.is_err() || *draining.borrow() {
                    break;
                }
                continue;
            }
        };
        let (socket, from) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // Probably out of descriptors.
                tracing::error!(%error, "cannot accept a daemon; raise the limit of open files (ulimit -n)");
                tokio::time::sleep(Duration::from_millis(200)).await;
                continue;
            }
        };
        let permit = Arc::clone(&places).try_acquire_owned().ok();
        let place = permit.and_then(|permit| PlaceOfPeer::take(&shared, from.ip(), permit));
        let Some(place) = place else {
            tracing::warn!(%from, "refused a connection: there are as many as feed.peers allows, or {MAX_OF_AN_ADDRESS} of this address");
            continue;
        };
        let (shared, tls, draining) = (Arc::clone(&shared), tls.clone(), draining.clone());
        peer += 1;
        connections.spawn(async move {
            let served = serve_one((socket, peer), shared, tls.as_deref(), draining);
            if let Err(reason) = served.await {
                tracing::warn!(%from, "a daemon's connection ended: {reason}");
            }
            drop(place);
        });
    }
    drop(listener);
    let all = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(DRAIN, all).await.is_err() {
        tracing::warn!(
            "answers took longer than {} s; their daemons ask elsewhere",
            DRAIN.as_secs()
        );
    }
    Ok(())
}

async fn serve_one(
    (socket, peer): (tokio::net::TcpStream, u64),
    shared: Arc<Shared>,
    tls: Option<&ServerTls>,
    mut draining: watch::Receiver<bool>,
) -> Result<(), String> {
    prepare(&socket).map_err(|error| error.to_string())?;
    let connection = match tls {
        None => Connection::Plain(socket),
        Some(tls) => {
            let acceptor = tokio_rustls::TlsAcceptor::from(tls.current());
            let accepted = tokio::time::timeout(HANDSHAKE, acceptor.accept(socket)).await;
            let accepted = accepted.map_err(|_| "it did not prove who it is in time".to_owned())?;
            Connection::Server(Box::new(accepted.map_err(|error| tls.explain(&error))?))
        }
    };
    let answers = Answers::default();
    let calls = Calls::new(Arc::clone(&shared), peer, answers.clone());
    let most = calls.most_requests();
    let serving = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .initial_stream_window_size(RECEIVE_WINDOW / 4)
        .initial_connection_window_size(RECEIVE_WINDOW)
        .max_concurrent_streams(most)
        .max_send_buf_size(SEND_BUFFER)
        .max_header_list_size(MAX_HEADER_BYTES)
        .max_pending_accept_reset_streams(64)
        .max_local_error_reset_streams(64)
        .keep_alive_interval(Some(PING_PERIOD))
        .keep_alive_timeout(PING_LIMIT)
        .serve_connection(TokioIo::new(connection), calls);
    tokio::pin!(serving);
    let mut is_draining = false;
    let mut looks = tokio::time::interval(LOOK_PERIOD);
    loop {
        tokio::select! {
            served = &mut serving => {
                return served.or_else(|error| {
                    // A daemon that ends, or is killed, does not say so.
                    let is_end = error.is_incomplete_message() || error.is_closed();
                    if is_end { Ok(()) } else { Err(explained(tls, &error)) }
                });
            }
            _ = looks.tick() => {
                let limit = if shared.do_others_wait(peer) { UNREAD_BESIDE_OTHERS } else { UNREAD };
                if answers.are_unread(limit) {
                    return Err(format!("it has not read an answer for {} s", limit.as_secs()));
                }
            }
            changed = draining.changed(), if !is_draining => {
                is_draining = true;
                if changed.is_err() || *draining.borrow() {
                    serving.as_mut().graceful_shutdown();
                }
            }
        }
    }
}

fn explained(tls: Option<&ServerTls>, error: &hyper::Error) -> String {
    let mut source = std::error::Error::source(error);
    while let Some(inner) = source {
        if let (Some(tls), Some(error)) = (tls, inner.downcast_ref::<io::Error>()) {
            return tls.explain(error);
        }
        if inner.source().is_none() {
            return format!("{error}: {inner}");
        }
        source = inner.source();
    }
    error.to_string()
}

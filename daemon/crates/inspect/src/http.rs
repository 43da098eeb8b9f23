//! Metrics over HTTP (`listen.metrics`): Prometheus' text format, two probes and a page that draws the metrics live.
//!
//! A separate thread at normal priority, `forebay-http`, serves them with a separate runtime: the contents of clients'
//! requests, and how slowly they read, do not affect the engine. It requests reports from the engine one at a time over
//! a channel and caches each briefly. It reads no request bodies and changes nothing in the daemon.
//!
//! The address is bound before the daemon drops privileges and opens its streams, so that a port in use is an error at
//! once; the thread starts afterwards, with the remaining privileges. It ends with the process.

mod answers;
mod asking;
mod exposition;
mod hosts;
mod metrics;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{anyhow, bail};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, mpsc};

use self::asking::Asker;
use crate::question::Question;
use forebay_config::{Config, MetricsFrom};

/// Maximum concurrent connections; further ones wait in the kernel's queue. A browser opens up to six, a scraper one.
const MAX_CONNECTIONS: usize = 64;
/// The maximum size of a request's head.
const MAX_HEAD_BYTES: usize = 16 << 10;
/// The pause after a failed accept, most likely for lack of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// Time limits of a connection.
#[derive(Debug, Clone, Copy)]
struct Patience {
    /// For a request's head, and for an idle connection between requests.
    head: Duration,
    /// For the whole connection, so that a client that does not read is disconnected. Clients reconnect automatically.
    life: Duration,
    /// The additional time for a response in progress.
    last_answer: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self { head: seconds(5), life: seconds(60), last_answer: seconds(5) }
    }
}

/// The configuration for one port per local rank: the rank is the last digit of the configured port.
fn rank_ports(address: SocketAddr) -> String {
    let (port, ip) = (address.port() / 10, address.ip());
    let ip = if ip.is_ipv6() { format!("[{ip}]") } else { ip.to_string() };
    format!("; where several ranks of a host read this file: \"{ip}:{port}${{LOCAL_RANK:-0}}\"")
}

/// A bound address that is not yet served.
#[derive(Debug)]
pub struct MetricsListener {
    listener: TcpListener,
    address: SocketAddr,
    from: MetricsFrom,
    patience: Patience,
}

impl MetricsListener {
    /// Binds the `listen.metrics` of the first stream that has one; `None` if no stream has.
    ///
    /// # Errors
    /// Two streams name different addresses, or the system refuses.
    pub fn bind(configs: &[Config]) -> anyhow::Result<Option<Self>> {
        let mut named = configs
            .iter()
            .filter_map(|config| config.listen.metrics.map(|address| (config, address)));
        let Some((first, address)) = named.next() else { return Ok(None) };
        if let Some((other, second)) = named.find(|(_, other)| *other != address) {
            bail!(
                "{} has listen.metrics = \"{address}\" and {} has \"{second}\", but a daemon has one metrics address; set it in one file only",
                first.source,
                other.source
            );
        }
        let listen = || {
            let listener = TcpListener::bind(address)?;
            listener.set_nonblocking(true)?;
            Ok((listener.local_addr()?, listener))
        };
        let (address, listener) = listen().map_err(|source: io::Error| {
            let ranks = match source.kind() {
                // Two ranks may share a configuration file.
                io::ErrorKind::AddrInUse => rank_ports(address),
                _ => String::new(),
            };
            anyhow!(
                "cannot serve figures at listen.metrics = \"{address}\": {source}; choose another port, or port 0 for any \
                 free one{ranks}"
            )
        })?;
        let (from, patience) = (first.listen.metrics_from, Patience::default());
        Ok(Some(Self { listener, address, from, patience }))
    }

    /// The address with the port that the kernel assigned.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Starts the thread. The engine's thread receives its requests.
    ///
    /// # Errors
    /// The system refuses a thread or its descriptors.
    pub fn start(self) -> io::Result<mpsc::Receiver<Question>> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (questions, asked) = mpsc::channel(1);
        let listener = {
            let _inside = runtime.enter();
            tokio::net::TcpListener::from_std(self.listener)?
        };
        let patience = self.patience;
        let bound = (self.from == MetricsFrom::Loopback).then_some(self.address.ip());
        let router = answers::router(Arc::new(Asker::new(questions)), bound);
        std::thread::Builder::new()
            .name("forebay-http".to_owned())
            .spawn(move || runtime.block_on(accept_for_ever(listener, router, patience)))?;
        Ok(asked)
    }
}

async fn accept_for_ever(
    listener: tokio::net::TcpListener,
    router: axum::Router,
    patience: Patience,
) {
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        // The semaphore is never closed.
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let router = router.clone();
                tokio::spawn(async move {
                    serve_connection(stream, router, patience).await;
                    drop(place);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept an HTTP connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Serves a connection until the client disconnects, is too slow, or the connection's time is over. Nothing is logged.
async fn serve_connection(stream: TcpStream, router: axum::Router, patience: Patience) {
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(patience.head)
        .max_buf_size(MAX_HEAD_BYTES)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    tokio::pin!(connection);
    tokio::select! {
        _ = connection.as_mut() => return,
        () = tokio::time::sleep(patience.life) => {}
    }
    connection.as_mut().graceful_shutdown();
    let _ = tokio::time::timeout(patience.last_answer, connection).await;
}

#[cfg(test)]
mod tests;

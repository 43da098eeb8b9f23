//! `forebay feed CONFIG… --listen ADDRESS`: makes rows for the daemons of other hosts, until a signal.
//!
//! The engine makes rows on request, without a client of shared memory; the server of the crate `feed` runs on a thread of
//! its own and asks for them. A signal ends the listening first, then what is under way is sent, then the process ends.

use std::io::Write as _;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use super::config_arguments::ConfigArguments;
use super::feeders::tls_files;
use super::harden::{Inherited, disable_dumping};
use super::launch::{Launch, Rings, runtime};
use super::logging;
use super::lost_spawner::LostSpawner;
use super::opening_watch::OpeningWatch;
use forebay_affinity::LocalRank;
use forebay_config::{Config, FeedConfig};
use forebay_engine::{FeedRequest, FeedSession, SharedEngine};
use forebay_feed::server::{ServedStream, Server, ServerOptions, is_loopback};
use forebay_feed::tls::ServerTls;
use forebay_inspect::http::MetricsListener;
use forebay_workers::WorkerStart;

/// Requests of a stream that wait for the engine's thread.
const QUEUE: usize = 64;
/// How often a request looks whether a slot is free, and the end whether all answers are sent.
const LOOK_PERIOD: Duration = Duration::from_millis(1);

/// Arguments of `forebay feed`.
#[derive(Debug, Args)]
pub(super) struct FeedArguments {
    #[command(flatten)]
    config: ConfigArguments,
    /// The IP address and port to listen at; port 0: any free one.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9461")]
    listen: SocketAddr,
}

/// `forebay feed`.
pub(super) fn feed(arguments: &FeedArguments) -> anyhow::Result<ExitCode> {
    Inherited::find().close();
    disable_dumping();
    let logging = logging::start("info");
    let mut configs = arguments.config.read()?;
    let first = configs.first().context("no configuration")?;
    let tls = server_tls(first)?;
    if tls.is_none() && !first.feed.allow_plain && !is_loopback(&arguments.listen) {
        anyhow::bail!(
            "{} can be reached from other hosts, and connections would be plain: set feed.tls (`forebay keys` makes the files), or \
             feed.allow_plain = true where the network encrypts",
            arguments.listen
        );
    }
    let limits = configs.iter().map(|config| config.feed.clone()).collect::<Vec<_>>();
    configs.iter_mut().for_each(prepare);
    let metrics = MetricsListener::bind(&configs)?;
    let mut launch = Launch::prepare(
        configs,
        LocalRank { rank: 0, count: 1 },
        Rings::New,
        WorkerStart::AtOnce,
        &OpeningWatch::patient(),
        |_| {},
    )
    .map_err(|fault| anyhow::anyhow!(fault.message))?;
    launch.may_have_feeders = false;
    let threads = launch.threads();
    let runtime = runtime()?;
    let local = tokio::task::LocalSet::new();
    let lost = LostSpawner::watch();
    local.block_on(&runtime, async {
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let engine = launch.start(None, metrics, None)?;
        let streams = engine.borrow().streams().to_vec();
        let (mut served, mut serving) = (Vec::new(), tokio::task::JoinSet::new());
        for (number, (stream, limits)) in streams.iter().zip(&limits).enumerate() {
            let session = engine.borrow_mut().open_feed(number, limits.rows);
            let session = session.map_err(|fault| anyhow::anyhow!(fault.message))?;
            let (rows, wanted) = mpsc::channel(QUEUE);
            served.push(ServedStream::new(stream, threads, limits.rows, requests_of(limits), rows));
            serving.spawn_local(make_rows(Rc::clone(&engine), session, wanted));
        }
        let options = ServerOptions {
            streams: served,
            tls,
            peers: limits.iter().map(|limits| limits.peers as usize).max().unwrap_or(1),
        };
        let server = Server::start(arguments.listen, options)
            .with_context(|| format!("cannot listen at {}", arguments.listen))?;
        let names: Vec<&str> = streams.iter().map(|stream| stream.name()).collect();
        tracing::info!(address = %server.address(), streams = names.join(","), threads, "feeding");
        // What starts feeders reads this line.
        let _ = writeln!(std::io::stdout(), "listening on {}", server.address());
        tokio::select! {
            _ = interrupt.recv() => tracing::info!("interrupted; draining"),
            _ = terminate.recv() => tracing::info!("terminated; draining"),
            () = lost.wait() => tracing::error!("ending; whoever started this feeder is to start the next one"),
        }
        if lost.exit_status() == 0 {
            server.drain();
            while !server.has_ended() {
                tokio::select! {
                    () = tokio::time::sleep(10 * LOOK_PERIOD) => {}
                    _ = interrupt.recv() => break,
                    _ = terminate.recv() => break,
                }
            }
        }
        serving.abort_all();
        engine.borrow().finish_lists();
        anyhow::Ok(())
    })?;
    runtime.shutdown_timeout(Duration::from_millis(200));
    drop(logging);
    forebay_workers::end_workers();
    std::process::exit(lost.exit_status());
}

/// Sets what a feeder's engine has instead of a trainer's: a ring of small requests, and nothing that is shared.
fn prepare(config: &mut Config) {
    config.ring.slots = u16::try_from(requests_of(&config.feed)).unwrap_or(u16::MAX);
    config.ring.hold = 1;
    config.listen.max_sessions = 1;
    config.share.window = Some(1);
    if config.batch.budget.is_none()
        && let Some(rows) = NonZeroU32::new(config.feed.rows)
    {
        config.batch.size = rows;
    }
}

fn server_tls(config: &Config) -> anyhow::Result<Option<ServerTls>> {
    let Some(files) = &config.feed.tls else { return Ok(None) };
    let allow = config.feed.allow.iter().map(|name| name.parse()).collect::<Result<_, _>>();
    let allow = allow.with_context(|| format!("{}", config.location(&["feed", "allow"])))?;
    Ok(Some(ServerTls::open(tls_files(files), allow)?))
}

/// Requests in the making: a ring has three slots at least.
fn requests_of(limits: &FeedConfig) -> u32 {
    limits.requests.max(3)
}

/// Passes a stream's requests on to the engine, in the order in which they came. Each stream has a task of its own: one
/// whose rows are slow holds up no other.
async fn make_rows(
    engine: SharedEngine,
    session: FeedSession,
    mut wanted: mpsc::Receiver<FeedRequest>,
) {
    while let Some(request) = wanted.recv().await {
        while engine.borrow().feed_room(&session) == 0 {
            tokio::time::sleep(LOOK_PERIOD).await;
        }
        // The server has checked the request: a refusal means that the engine ends.
        if let Err(reason) = engine.borrow_mut().feed(&session, request) {
            tracing::warn!(reason, "a request of rows was refused");
        }
    }
}

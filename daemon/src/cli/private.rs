//! A private loader's daemon: one client, whose socket is the standard input; the daemon ends with its trainer.

use std::os::fd::AsFd;
use std::path::Path;
use std::process::ExitCode;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use forebay_protocol::frames::{ConfigSource, Fault, FaultKind, Start};
use forebay_protocol::socket::Connection;
use tokio::signal::unix::{SignalKind, signal};

use super::harden::{Inherited, disable_dumping, unblock_signals};
use super::launch::{Launch, Rings, runtime};
use super::logging;
use super::lost_spawner::LostSpawner;
use super::opening_watch::OpeningWatch;
use forebay_affinity::LocalRank;
use forebay_config::{Config, Override};
use forebay_control::{
    AccessRules, Host, Opened, Opening, RestartState, Resumed, accept_clients,
    listen_for_observers, serve_connection,
};
use forebay_engine::{LastEnd, SharedEngine, WorkPage};
use forebay_inspect::error_text::whole_reason;
use forebay_inspect::http::MetricsListener;
use forebay_keys::ConfigError;
use forebay_workers::WorkerStart;

/// `forebay private`.
pub(super) fn private() -> anyhow::Result<ExitCode> {
    Inherited::find().close();
    disable_dumping();
    unblock_signals();
    // Logs warnings; the opened dataset, whose classes reveal a wrong path; what a start waits for; and the page's
    // address. Errors that the trainer raises are not also written to its stderr.
    let [dataset, metrics, sent] = [logging::DATASET, logging::METRICS, logging::SENT];
    let workers = forebay_workers::LOG_OF_STARTS;
    let logging =
        logging::start(&format!("warn,{dataset}=info,{metrics}=info,{workers}=info,{sent}=off"));
    let descriptor = std::io::stdin().as_fd().try_clone_to_owned().context("no standard input")?;
    let connection = Connection::from_descriptor(descriptor).context(
        "standard input is not a loader's socket; only the client library runs this command",
    )?;
    let runtime = runtime()?;
    let local = tokio::task::LocalSet::new();
    let lost = LostSpawner::watch();
    let outcome = local.block_on(&runtime, serve_one(connection, &lost));
    // Hung reads of a storage must not keep the daemon alive after its trainer has ended.
    runtime.shutdown_timeout(Duration::from_millis(200));
    forebay_workers::end_workers();
    drop(logging);
    outcome?;
    // Threads may still sleep in an operation; their results are not needed.
    std::process::exit(lost.exit_status());
}

async fn serve_one(connection: Connection, lost: &LostSpawner) -> anyhow::Result<()> {
    // A Ctrl-C at the terminal is for the trainer, which tells this daemon when to end.
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let host =
        Rc::new(Host::private(Box::new(|opening, progress| Box::pin(open(opening, progress)))));
    let served = serve_connection(connection, Rc::clone(&host));
    tokio::pin!(served);
    loop {
        tokio::select! {
            () = &mut served => break,
            // The loader starts the next daemon.
            () = lost.wait() => break,
            _ = interrupt.recv() => {}
            _ = terminate.recv() => break,
        }
    }
    if let Some(engine) = host.engine() {
        engine.borrow().finish_lists();
    }
    Ok(())
}

/// Opens the streams that the loader requests; a dataset is scanned on a separate thread. `progress` changes during the
/// opening.
async fn open(opening: Opening, progress: Arc<AtomicU64>) -> Result<Opened, Fault> {
    let internal = |message: String| Fault { kind: FaultKind::Internal, message };
    let (rank, count) = match &opening {
        Opening::Start(start, _) => (start.local_rank, start.local_world_size),
        Opening::Restart(restart, _) => (restart.local_rank, restart.local_world_size),
    };
    if let Opening::Restart(restart, _) = &opening {
        tracing::warn!(
            process = std::process::id(),
            "the previous daemon died: {}; this daemon resumes its sessions",
            restart.reason
        );
    }
    let local = LocalRank { rank, count: count.max(1) };
    // A separate thread: a thread of the runtime would later read samples, with the rights that this process drops.
    let (sender, prepared) = tokio::sync::oneshot::channel();
    let prepare = move || {
        let mut before = None;
        let (config, rings) = match opening {
            Opening::Start(start, object) => {
                let mut config = read_config(&start).map_err(|error| Fault {
                    kind: FaultKind::Config,
                    message: error.to_string(),
                })?;
                config.dataset.object = object;
                (config, Rings::New)
            }
            Opening::Restart(restart, kept) => {
                let Resumed { config, page, index } = RestartState::open(kept)?;
                before = Some((page, restart.signal.map_or(LastEnd::Exit, LastEnd::Signal)));
                (config, Rings::Kept(index))
            }
        };
        let configs = vec![config];
        let metrics = match (MetricsListener::bind(&configs), &rings) {
            (Ok(metrics), _) => metrics,
            // A running trainer needs its batches more than the metrics.
            (Err(error), Rings::Kept(_)) => {
                tracing::warn!("{error}; this daemon runs without listen.metrics");
                None
            }
            (Err(error), Rings::New) => {
                return Err(Fault { kind: FaultKind::Config, message: error.to_string() });
            }
        };
        // Relaxed: a counter that orders nothing.
        let on_progress = |_| {
            progress.fetch_add(1, Ordering::Relaxed);
        };
        let opening = OpeningWatch::patient();
        // At a first start the loader waits for the workers; at a restart a trainer may be running.
        let workers = match rings {
            Rings::New => WorkerStart::AtOnceInNormalClass,
            Rings::Kept(_) => WorkerStart::AtOnce,
        };
        let launch = Launch::prepare(configs, local, rings, workers, &opening, on_progress)?;
        let before = before.as_ref().map(|(page, end)| (page, *end));
        let page = WorkPage::in_memory(before)
            .map_err(|error| Fault { kind: FaultKind::Memory, message: error.to_string() })?;
        Ok((launch, metrics, page))
    };
    std::thread::Builder::new()
        .name("forebay-start".to_owned())
        .spawn(move || drop(sender.send(prepare())))
        .map_err(|error| internal(format!("cannot start a thread: {error}")))?;
    let (launch, metrics, page) = prepared.await.map_err(|error| internal(error.to_string()))??;
    let name = launch.streams.first().map_or_else(String::new, |stream| stream.name().to_owned());
    let restart_state = launch.streams.first().map(|stream| RestartState::of(stream, &page));
    let restart_state = restart_state.transpose();
    let restart_state = restart_state.unwrap_or_else(|error| {
        tracing::warn!(%error, "cannot save the plan for a restart; if this daemon dies, the loader fails with DaemonLost");
        None
    });
    let engine =
        launch.start(None, metrics, Some(page)).map_err(|error| internal(whole_reason(&error)))?;
    serve_observers(&name, &engine);
    Ok((engine, restart_state))
}

/// Listens for `forebay stats`, `top` and others. A failure is only logged.
fn serve_observers(name: &str, engine: &SharedEngine) {
    match listen_for_observers(name) {
        Ok((path, listener)) => {
            tracing::info!(socket = %path.display(), "observable");
            let host = Rc::new(Host::observed(Rc::clone(engine)));
            tokio::task::spawn_local(async move {
                // An abstract name is visible across containers that share a network.
                let rules = AccessRules { own_processes_only: true, ..AccessRules::default() };
                if let Err(error) = accept_clients(listener, vec![], rules, host).await {
                    tracing::warn!(%error, "the observation socket failed; `forebay stats` and `top` no longer reach this daemon");
                }
            });
        }
        Err(error) => {
            tracing::warn!(%error, "cannot listen for `forebay stats` and `top`; this daemon cannot be observed")
        }
    }
}

fn read_config(start: &Start) -> Result<Config, ConfigError> {
    let mut dict = serde_json::Map::new();
    for (key, text) in &start.overrides {
        let value =
            serde_json::from_str(text).unwrap_or_else(|_| serde_json::Value::String(text.clone()));
        dict.insert(key.clone(), value);
    }
    let overrides = Override::from_json(&serde_json::Value::Object(dict))?;
    match &start.config {
        ConfigSource::File(path) => Config::from_file(Path::new(path), &overrides),
        ConfigSource::Json { name, folder, text } => {
            let dict = serde_json::from_str(text).unwrap_or(serde_json::Value::Null);
            Config::from_json(name, Path::new(folder), &dict, &overrides)
        }
    }
}

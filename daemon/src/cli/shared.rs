//! `forebay shared`: the daemon that loaders of one host share. The first of them starts it, any of them may start the
//! next one after its death, and it ends when the last one has left. docs/design/shared-daemon.md draws the states.

use std::fs::OpenOptions;
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::Args;
use forebay_protocol::frames::{DaemonFrame, Fault, FaultKind};
use forebay_protocol::socket::Connection;
use rustix::fs::OFlags;
use tokio::signal::unix::{SignalKind, signal};

use super::harden::{Inherited, disable_dumping, unblock_signals};
use super::launch::runtime;
use super::loader_opening::{Audience, open_for_loader};
use super::logging;
use super::lost_spawner::LostSpawner;
use forebay_control::{
    AccessRules, Host, ListenError, SocketPlace, accept_clients, serve_connection,
};
use forebay_engine::SharedEngine;

/// How long the daemon stays without a session: the time of a loader between its connection and its attach, or between
/// two daemons.
const STAYS: Duration = Duration::from_secs(5);
/// How often it looks for sessions.
const LOOK_PERIOD: Duration = Duration::from_millis(250);
/// How often loaders that wait for the opening get a sign of life.
const SIGN_OF_LIFE: Duration = Duration::from_millis(100);

/// Arguments of `forebay shared`.
#[derive(Debug, Args)]
pub(super) struct SharedArguments {
    /// The socket's file in the run-time folder.
    file: String,
    /// This process is the daemon, not the process that starts it.
    #[arg(long)]
    detached: bool,
}

/// `forebay shared`. The standard input is the socket of the loader that starts the daemon.
pub(super) fn shared(arguments: &SharedArguments) -> anyhow::Result<ExitCode> {
    Inherited::find().close();
    unblock_signals();
    if !arguments.detached {
        return detach(&arguments.file);
    }
    // Neither the terminal nor the launcher of the loader that started this daemon ends it.
    let _ = rustix::process::setsid();
    disable_dumping();
    let descriptor = std::io::stdin().as_fd().try_clone_to_owned().context("no standard input")?;
    let starter = Connection::from_descriptor(descriptor).context(
        "standard input is not a loader's socket; only the client library runs this command",
    )?;
    let mut place =
        match SocketPlace::bind_in_runtime_folder(&arguments.file, &AccessRules::default()) {
            Ok(place) => place,
            Err(error) => {
                refuse(&starter, &error);
                return Ok(ExitCode::SUCCESS);
            }
        };
    let log = start_log(&place.path)?;
    let (dataset, metrics) = (logging::DATASET, logging::METRICS);
    let logging = logging::start(&format!("warn,{dataset}=info,{metrics}=info"));
    let runtime = runtime()?;
    let local = tokio::task::LocalSet::new();
    let lost = LostSpawner::watch();
    let outcome = local.block_on(&runtime, serve(starter, &mut place, &lost));
    runtime.shutdown_timeout(Duration::from_millis(200));
    forebay_workers::end_workers();
    drop(logging);
    if outcome.is_ok() && lost.exit_status() == 0 {
        // Before the lock is released: afterwards the file may be the next daemon's.
        let _ = std::fs::remove_file(log);
    }
    drop(place);
    outcome?;
    std::process::exit(lost.exit_status());
}

/// Starts the daemon and ends: the daemon is a child of the system's, which no loader has to wait for.
fn detach(file: &str) -> anyhow::Result<ExitCode> {
    let program = std::env::current_exe().context("this program's file")?;
    let _daemon = Command::new(program)
        .args(["shared", "--detached", file])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .context("starting the daemon")?;
    Ok(ExitCode::SUCCESS)
}

/// Reports to the loader why this daemon does not listen; [`FaultKind::Taken`]: another one does.
fn refuse(starter: &Connection, error: &ListenError) {
    let kind = match error {
        ListenError::Held(_) => FaultKind::Taken,
        _ => FaultKind::Config,
    };
    let fault = Fault { kind, message: error.to_string() };
    // Best effort: the loader may be gone.
    let _ = starter.send(&DaemonFrame::Fault(fault), &[]);
}

/// The log, next to the socket: the loader that started this daemon may end before it.
fn start_log(socket: &Path) -> anyhow::Result<PathBuf> {
    let path = socket.with_extension("log");
    let file = OpenOptions::new()
        .create(true)
        .truncate(true)
        .write(true)
        .mode(0o600)
        .custom_flags((OFlags::NOFOLLOW | OFlags::APPEND).bits().cast_signed())
        .open(&path)
        .with_context(|| format!("the log {}", path.display()))?;
    nix::unistd::dup2_stderr(&file).context("the standard error")?;
    Ok(path)
}

async fn serve(
    starter: Connection,
    place: &mut SocketPlace,
    lost: &LostSpawner,
) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let folder = place.path.parent().unwrap_or(Path::new("/")).to_owned();
    let host = Rc::new(Host::shared(Box::new(move |opening, progress| {
        let audience = Audience::Shared(folder.clone());
        Box::pin(async move { open_for_loader(opening, progress, &audience).await })
    })));
    let mut starting = tokio::task::spawn_local(serve_connection(starter, Rc::clone(&host)));
    let engine = loop {
        if let Some(engine) = host.engine() {
            break engine;
        }
        tokio::select! {
            // The opening failed, which the loader was told, or the loader ended: the next one starts another daemon.
            _ = &mut starting => match host.engine() {
                Some(engine) => break engine,
                None => return Ok(()),
            },
            () = tokio::time::sleep(SIGN_OF_LIFE) => place.keep_waiting(),
            _ = terminate.recv() => return Ok(()),
        }
    };
    let Some((listener, waiting)) = place.take_listener() else { return Ok(()) };
    tokio::select! {
        accepted = accept_clients(listener, waiting, AccessRules::default(), host) => accepted?,
        () = left_alone(&engine) => {}
        _ = terminate.recv() => tracing::warn!("terminated; ending"),
        () = lost.wait() => tracing::error!("ending; a loader is to start the next one"),
    }
    if lost.exit_status() == 0 {
        engine.borrow_mut().say_goodbye();
    }
    engine.borrow().finish_lists();
    // Time to send the last frames.
    tokio::time::sleep(Duration::from_millis(20)).await;
    Ok(())
}

/// Returns when there has been no session for a while.
async fn left_alone(engine: &SharedEngine) {
    let mut used = Instant::now();
    while used.elapsed() < STAYS {
        tokio::time::sleep(LOOK_PERIOD).await;
        if engine.borrow().has_sessions() {
            used = Instant::now();
        }
    }
}

//! `forebay shared`: the daemon that loaders of one host share. The first of them starts it, any of them may start the
//! next one after its death, and it ends when the last one has left. docs/design/shared-daemon.md draws the states.

use std::cell::{Cell, RefCell};
use std::fs::OpenOptions;
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
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
use forebay_inspect::error_text::whole_reason;

/// How long the daemon waits for its first loader.
const FIRST_STAY: Duration = Duration::from_secs(5);
/// How long it stays after its last one. A program that is started again takes longer, and is to get a daemon that has
/// read its sources again.
const STAY: Duration = Duration::from_secs(1);
/// How often it looks for loaders.
const LOOK_PERIOD: Duration = Duration::from_millis(100);
/// How often it looks after loaders that wait for the opening.
const WAITING_PERIOD: Duration = Duration::from_millis(20);
/// A larger log is emptied at the next start.
const MAX_LOG_BYTES: u64 = 1 << 20;

/// Arguments of `forebay shared`.
#[derive(Debug, Args)]
pub(super) struct SharedArguments {
    /// The socket.
    socket: PathBuf,
    /// This process is the daemon, not the process that starts it.
    #[arg(long)]
    detached: bool,
}

/// `forebay shared`. The standard input is the socket of the loader that starts the daemon.
pub(super) fn shared(arguments: &SharedArguments) -> anyhow::Result<ExitCode> {
    Inherited::find().close();
    unblock_signals();
    if !arguments.detached {
        return detach(&arguments.socket);
    }
    // Neither the terminal nor the launcher of the loader that started this daemon ends it.
    let _ = rustix::process::setsid();
    disable_dumping();
    let descriptor = std::io::stdin().as_fd().try_clone_to_owned().context("no standard input")?;
    let starter = Connection::from_descriptor(descriptor).context(
        "standard input is not a loader's socket; only the client library runs this command",
    )?;
    let mut place = match SocketPlace::bind_private(&arguments.socket) {
        Ok(place) => place,
        Err(error) => {
            let kind = match error {
                // Another daemon listens.
                ListenError::Held(_) => FaultKind::Taken,
                // A later start may find room or rights.
                ListenError::System { .. } => FaultKind::Memory,
                _ => FaultKind::Config,
            };
            refuse(&starter, kind, error.to_string());
            return Ok(ExitCode::SUCCESS);
        }
    };
    let prepared = start_log(&place.path).and_then(|log| Ok((log, runtime()?)));
    let (log, runtime) = match prepared {
        Ok(prepared) => prepared,
        Err(error) => {
            refuse(&starter, FaultKind::Memory, whole_reason(&error));
            return Ok(ExitCode::SUCCESS);
        }
    };
    let (dataset, metrics) = (logging::DATASET, logging::METRICS);
    let logging = logging::start(&format!("warn,{dataset}=info,{metrics}=info"));
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
fn detach(socket: &Path) -> anyhow::Result<ExitCode> {
    let program = std::env::current_exe().context("this program's file")?;
    let _daemon = Command::new(program)
        .args(["shared", "--detached"])
        .arg(socket)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .context("starting the daemon")?;
    Ok(ExitCode::SUCCESS)
}

/// Reports to the loader why this daemon does not serve.
fn refuse(starter: &Connection, kind: FaultKind, message: String) {
    // Best effort: the loader may be gone.
    let _ = starter.send(&DaemonFrame::Fault(Fault { kind, message }), &[]);
}

/// The log, next to the socket: the loader that started this daemon may end before it. It is continued, so that it has
/// the last words of a daemon that died.
fn start_log(socket: &Path) -> anyhow::Result<PathBuf> {
    let path = socket.with_extension("log");
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .custom_flags((OFlags::NOFOLLOW | OFlags::APPEND).bits().cast_signed())
        .open(&path)
        .with_context(|| format!("the log {}", path.display()))?;
    if file.metadata().is_ok_and(|status| status.len() > MAX_LOG_BYTES) {
        file.set_len(0).with_context(|| format!("the log {}", path.display()))?;
    }
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
    let opening = Rc::new(OpeningState::default());
    let host = Rc::new(Host::shared(Box::new({
        let opening = Rc::clone(&opening);
        move |request, progress| {
            let (audience, opening) = (Audience::Shared(folder.clone()), Rc::clone(&opening));
            *opening.progress.borrow_mut() = Some(Arc::clone(&progress));
            Box::pin(async move {
                let opened = open_for_loader(request, progress, &audience).await;
                *opening.fault.borrow_mut() = opened.as_ref().err().cloned();
                opened
            })
        }
    })));
    let mut starting = tokio::task::spawn_local(serve_connection(starter, Rc::clone(&host)));
    let engine = loop {
        if let Some(engine) = host.engine() {
            break engine;
        }
        tokio::select! {
            _ = &mut starting => match host.engine() {
                Some(engine) => break engine,
                // The opening failed, or the loader that started this daemon ended: the next one starts another.
                None => {
                    if let Some(fault) = opening.fault.take() {
                        place.refuse_waiting(&fault);
                    }
                    return Ok(());
                }
            },
            () = tokio::time::sleep(WAITING_PERIOD) => place.keep_waiting(opening.has_progressed()),
            _ = terminate.recv() => return Ok(()),
        }
    };
    let Some((listener, waiting)) = place.take_listener() else { return Ok(()) };
    tokio::select! {
        accepted = accept_clients(listener, waiting, AccessRules::default(), Rc::clone(&host)) => accepted?,
        () = left_alone(&host, &engine) => {}
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

/// The opening of the streams, as the loaders that wait for it see it.
#[derive(Debug, Default)]
struct OpeningState {
    progress: RefCell<Option<Arc<AtomicU64>>>,
    seen: Cell<u64>,
    /// Why it failed.
    fault: RefCell<Option<Fault>>,
}

impl OpeningState {
    /// Whether it has progressed since the last call.
    fn has_progressed(&self) -> bool {
        // Relaxed: a count, nothing is ordered by it.
        let now = self.progress.borrow().as_ref().map_or(0, |count| count.load(Ordering::Relaxed));
        self.seen.replace(now) != now
    }
}

/// Returns when there has been no loader for a while.
async fn left_alone(host: &Host, engine: &SharedEngine) {
    let (mut used, mut stay) = (Instant::now(), FIRST_STAY);
    while used.elapsed() < stay {
        tokio::time::sleep(LOOK_PERIOD).await;
        if host.has_loaders() || engine.borrow().has_sessions() {
            (used, stay) = (Instant::now(), STAY);
        }
    }
}

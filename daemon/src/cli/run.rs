//! `forebay run CONFIG… -- COMMAND…`: a daemon together with a command. It ends with the command and exits with the
//! command's status.
//!
//! The command is started first, from this process's only thread, through `forebay guarded`, which asks the kernel to
//! kill it when this process dies and then executes the command: so no code runs between fork and exec here.

use std::ffi::OsString;
use std::io::IsTerminal;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitCode};
use std::rc::Rc;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use forebay_protocol::frames::RestartPolicy;
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, getpgrp, tcgetpgrp};
use tokio::signal::unix::{SignalKind, signal};

use super::config_arguments::ConfigArguments;
use super::harden::{Inherited, disable_dumping};
use super::launch::{Launch, Rings, runtime};
use super::logging;
use super::opening_watch::OpeningWatch;
use super::serve::Listening;
use super::work_file::WorkFile;
use forebay_affinity::LocalRank;
use forebay_control::{Host, accept_clients};
use forebay_inspect::http::MetricsListener;
use forebay_workers::WorkerStart;

/// Arguments of `forebay run`.
#[derive(Debug, Args)]
pub(super) struct RunArguments {
    #[command(flatten)]
    config: ConfigArguments,
    /// The command and its arguments, after `--`. It finds the daemon through FOREBAY_SOCKET.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Arguments of the hidden `forebay guarded`.
#[derive(Debug, Args)]
pub(super) struct GuardedArguments {
    parent: i32,
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
    command: Vec<OsString>,
}

/// `forebay guarded`: executes the command, which dies with its parent.
pub(super) fn guarded(arguments: &GuardedArguments) -> anyhow::Result<ExitCode> {
    nix::sys::prctl::set_pdeathsig(Signal::SIGKILL).context("PR_SET_PDEATHSIG")?;
    if nix::unistd::getppid().as_raw() != arguments.parent {
        anyhow::bail!("the daemon died before its command started");
    }
    let (program, rest) = arguments.command.split_first().context("no command")?;
    let error = Command::new(program).args(rest).exec();
    Err(error).with_context(|| format!("cannot start {}", program.to_string_lossy()))
}

/// `forebay run`.
pub(super) fn run(arguments: &RunArguments) -> anyhow::Result<ExitCode> {
    let inherited = Inherited::find();
    disable_dumping();
    // At this level a start that waits for its storage is logged.
    let logging = logging::start("info");
    let configs = arguments.config.read()?;
    let metrics = MetricsListener::bind(&configs)?;
    let listening = Listening::of(&configs, None)?;
    // The trainer is started afterwards.
    let launch = Launch::prepare(
        configs,
        LocalRank::from_environment(),
        Rings::New,
        WorkerStart::AtOnceInNormalClass,
        &OpeningWatch::patient(),
        |_| {},
    )
    .map_err(|fault| anyhow::anyhow!(fault.message))?;
    let mut place = listening.bind()?;
    let rank = LocalRank::from_environment().rank;
    let work = WorkFile::open(place.path.parent(), &launch.streams, rank);
    let (work_file, page) = work.unzip();
    let program = std::env::current_exe().context("where this program lies")?;
    let mut command = Command::new(program);
    command
        .arg("guarded")
        .arg(std::process::id().to_string())
        .args(&arguments.command)
        .env("FOREBAY_SOCKET", &place.path);
    // The runtime starts no thread until it gets blocking work.
    let runtime = runtime()?;
    let local = tokio::task::LocalSet::new();
    let status = local.block_on(&runtime, async {
        // Before the command starts: a signal in between would end this process and thus kill the command instead of
        // being forwarded.
        let signals = listen_for_signals()?;
        let mut ended = signal(SignalKind::child())?;
        let mut child = command.spawn().context("cannot start the command")?;
        // Only the command needs these descriptors.
        inherited.close();
        forward_signals(signals, Pid::from_raw(i32::try_from(child.id()).unwrap_or(i32::MAX)));
        let rules = listening.rules;
        let engine = launch.start(place.path.parent(), metrics, page)?;
        let host = Rc::new(Host::serving(Rc::clone(&engine), RestartPolicy::Never));
        if let Some((listener, waiting)) = place.take_listener() {
            tokio::task::spawn_local(async move {
                if let Err(error) = accept_clients(listener, waiting, rules, host).await {
                    tracing::error!(%error, "the daemon can accept no further clients");
                }
            });
        }
        loop {
            if let Some(status) = child.try_wait()? {
                engine.borrow().finish_lists();
                return anyhow::Ok(status);
            }
            // The stream was created before the start, so a signal between the two calls is not lost.
            ended.recv().await;
        }
    })?;
    runtime.shutdown_timeout(Duration::from_millis(200));
    drop(work_file);
    drop(place);
    drop(logging);
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    forebay_workers::end_workers();
    std::process::exit(code);
}

/// Starts to receive the signals to forward.
fn listen_for_signals() -> anyhow::Result<Vec<(tokio::signal::unix::Signal, Signal)>> {
    let kinds = [
        (SignalKind::terminate(), Signal::SIGTERM),
        (SignalKind::interrupt(), Signal::SIGINT),
        (SignalKind::hangup(), Signal::SIGHUP),
        (SignalKind::user_defined1(), Signal::SIGUSR1),
        (SignalKind::user_defined2(), Signal::SIGUSR2),
    ];
    kinds.into_iter().map(|(kind, forwarded)| Ok((signal(kind)?, forwarded))).collect()
}

/// Forwards signals. An interrupt from the terminal has already reached the command, which is in the same foreground
/// group.
fn forward_signals(signals: Vec<(tokio::signal::unix::Signal, Signal)>, child: Pid) {
    for (mut received, forwarded) in signals {
        tokio::task::spawn_local(async move {
            while received.recv().await.is_some() {
                if forwarded != Signal::SIGINT || !in_foreground() {
                    let _ = kill(child, forwarded);
                }
            }
        });
    }
}

fn in_foreground() -> bool {
    let stdin = std::io::stdin();
    stdin.is_terminal() && tcgetpgrp(&stdin) == Ok(getpgrp())
}

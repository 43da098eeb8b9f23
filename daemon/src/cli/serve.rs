//! `forebay serve`: the daemon in the foreground, until a signal.

use std::path::PathBuf;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

use clap::Args;
use forebay_protocol::frames::RestartPolicy;
use tokio::signal::unix::{SignalKind, signal};

use super::config_arguments::ConfigArguments;
use super::harden::{Inherited, disable_dumping};
use super::launch::{Launch, Rings, runtime};
use super::logging;
use super::lost_spawner::LostSpawner;
use super::notify::ServiceManager;
use super::opening_watch::{OpeningProgress, OpeningWatch};
use super::work_file::WorkFile;
use forebay_affinity::LocalRank;
use forebay_config::Config;
use forebay_control::{AccessRules, Host, SocketPlace, accept_clients};
use forebay_inspect::http::MetricsListener;
use forebay_workers::WorkerStart;

/// Arguments of `forebay serve`.
#[derive(Debug, Args)]
pub(super) struct ServeArguments {
    #[command(flatten)]
    config: ConfigArguments,
    /// Socket path; overrides listen.socket of the first configuration.
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
}

/// `forebay serve`.
pub(super) fn serve(arguments: &ServeArguments) -> anyhow::Result<ExitCode> {
    Inherited::find().close();
    disable_dumping();
    let manager = ServiceManager::from_environment();
    let logging = logging::start("info");
    let configs = arguments.config.read()?;
    let metrics = MetricsListener::bind(&configs)?;
    let listening = Listening::of(&configs, arguments.socket.clone())?;
    // Clients of a daemon that died reconnect to its socket: while this daemon waits for its storage, they wait with
    // it.
    let mut place = None;
    let keep_clients = |progress: OpeningProgress| {
        if progress.is_waiting && place.is_none() {
            // If this fails, listening after the start reports why.
            place = listening.bind().ok();
        }
        if let Some(place) = &mut place {
            place.keep_waiting(true);
        }
    };
    // Trainers of a daemon that died may be running.
    let launch = Launch::prepare(
        configs,
        LocalRank::from_environment(),
        Rings::New,
        WorkerStart::AtOnce,
        &OpeningWatch::patient(),
        keep_clients,
    )
    .map_err(|fault| anyhow::anyhow!(fault.message))?;
    let mut place = match place {
        Some(place) => place,
        None => listening.bind()?,
    };
    let rank = LocalRank::from_environment().rank;
    let work = WorkFile::open(place.path.parent(), &launch.streams, rank);
    let (work_file, page) = work.unzip();
    let runtime = runtime()?;
    let local = tokio::task::LocalSet::new();
    let lost = LostSpawner::watch();
    local.block_on(&runtime, async {
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let rules = listening.rules;
        let names: Vec<String> = launch.streams.iter().map(|stream| stream.name().to_owned()).collect();
        tracing::info!(socket = %place.path.display(), streams = names.join(","), threads = launch.threads(), "serving");
        let engine = launch.start(place.path.parent(), metrics, page)?;
        let host = Rc::new(Host::serving(Rc::clone(&engine), RestartPolicy::BySupervisor));
        manager.notify_ready(&format!("serving {} at {}", names.join(", "), place.path.display()));
        if let Some((listener, waiting)) = place.take_listener() {
            tokio::select! {
                () = manager.keep_alive() => {}
                accepted = accept_clients(listener, waiting, rules, host) => accepted?,
                _ = interrupt.recv() => tracing::info!("interrupted; ending"),
                _ = terminate.recv() => tracing::info!("terminated; ending"),
                () = lost.wait() => tracing::error!("ending; this daemon's supervisor is to start the next one"),
            }
        }
        manager.notify_stopping();
        if lost.exit_status() == 0 {
            engine.borrow_mut().say_goodbye();
        }
        engine.borrow().finish_lists();
        // Time to send the last frames.
        tokio::time::sleep(Duration::from_millis(20)).await;
        anyhow::Ok(())
    })?;
    runtime.shutdown_timeout(Duration::from_millis(200));
    drop(work_file);
    drop(place);
    drop(logging);
    forebay_workers::end_workers();
    std::process::exit(lost.exit_status());
}

/// The socket of a daemon and its access rules.
#[derive(Debug)]
pub(super) struct Listening {
    socket: Option<PathBuf>,
    name: String,
    /// The clients that any of the streams admits.
    pub(super) rules: AccessRules,
}

impl Listening {
    /// From the arguments, otherwise from the first configuration.
    pub(super) fn of(configs: &[Config], socket: Option<PathBuf>) -> anyhow::Result<Self> {
        let Some(first) = configs.first() else { anyhow::bail!("no configuration") };
        let mut rules = AccessRules::default();
        for Config { listen, .. } in configs {
            rules.allow_uids.extend(&listen.allow_uids);
            rules.group = rules.group.or(listen.group);
        }
        let socket = socket.or_else(|| first.listen.socket.clone());
        Ok(Self { socket, name: first.name.clone(), rules })
    }

    /// Starts listening.
    pub(super) fn bind(&self) -> anyhow::Result<SocketPlace> {
        Ok(SocketPlace::bind(self.socket.as_deref(), &self.name, &self.rules)?)
    }
}

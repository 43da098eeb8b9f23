//! A private loader's daemon: one client, whose socket is the standard input; the daemon ends with its trainer.

use std::os::fd::AsFd;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

use anyhow::Context as _;
use forebay_protocol::socket::Connection;
use tokio::signal::unix::{SignalKind, signal};

use super::harden::{Inherited, disable_dumping, unblock_signals};
use super::launch::runtime;
use super::loader_opening::{Audience, open_for_loader};
use super::logging;
use super::lost_spawner::LostSpawner;
use forebay_control::{AccessRules, Host, accept_clients, listen_for_observers, serve_connection};
use forebay_engine::SharedEngine;

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
    let host = Rc::new(Host::private(Box::new(|opening, progress| {
        Box::pin(async move {
            let opened = open_for_loader(opening, progress, &Audience::OneLoader).await?;
            serve_observers(&opened.0);
            Ok(opened)
        })
    })));
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

/// Listens for `forebay stats`, `top` and others. A failure is only logged.
fn serve_observers(engine: &SharedEngine) {
    let name =
        engine.borrow().streams().first().map_or_else(String::new, |one| one.name().to_owned());
    match listen_for_observers(&name) {
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

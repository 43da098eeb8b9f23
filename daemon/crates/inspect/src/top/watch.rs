//! Requests reports from daemons, each on a separate thread: a daemon that does not respond blocks neither the screen
//! nor the others. A connection is reused while it works; a broken one is replaced at the next request.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use anyhow::Context as _;

use super::super::observer::Observer;
use super::super::sanitize::sanitize;
use crate::error_text::whole_reason;
use forebay_host::sockets::find_sockets;
use forebay_observe::DaemonReport;

/// The interval of searches for sockets and of connecting to a lost daemon.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// The capacity of the queue of responses to the screen.
const WAITING_ANSWERS: usize = 4;

/// A daemon's report or the reason for its absence; strings are sanitized.
#[derive(Debug)]
pub(super) struct Answer {
    pub at: Instant,
    pub report: Result<Box<DaemonReport>, String>,
}

/// Watches a daemon until the receiver is dropped.
pub(super) fn watch(socket: &Path, every: Duration) -> anyhow::Result<Receiver<Answer>> {
    let (answers, received) = sync_channel(WAITING_ANSWERS);
    let socket = socket.to_owned();
    std::thread::Builder::new()
        .name("forebay-watch".to_owned())
        .spawn(move || ask_for_ever(&socket, every, &answers))
        .context("cannot start a thread")?;
    Ok(received)
}

fn ask_for_ever(socket: &Path, every: Duration, answers: &SyncSender<Answer>) {
    let mut observer = None;
    let mut next = Instant::now();
    loop {
        let report = ask(socket, &mut observer);
        let pause = if report.is_ok() { every } else { every.max(RETRY_INTERVAL) };
        if answers.send(Answer { at: Instant::now(), report }).is_err() {
            return;
        }
        // Keeps a fixed interval; missed ticks are skipped.
        next = (next + pause).max(Instant::now());
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
    }
}

/// Sends one request over the current connection, which is dropped if it fails.
fn ask(socket: &Path, observer: &mut Option<Observer>) -> Result<Box<DaemonReport>, String> {
    let answer = (|| {
        let asked = match observer.take() {
            Some(asked) => asked,
            None => Observer::connect(socket)?,
        };
        let report = asked.stats()?;
        *observer = Some(asked);
        anyhow::Ok(Box::new(report))
    })();
    answer.map_err(|error| sanitize(&whole_reason(&error)))
}

/// Searches the automatic sockets of this user on a separate thread, because reading a directory can hang.
pub(super) fn search_sockets() -> anyhow::Result<Receiver<Vec<PathBuf>>> {
    let (found, received) = sync_channel(1);
    std::thread::Builder::new()
        .name("forebay-snapshot".to_owned())
        .spawn(move || {
            while found.send(find_sockets()).is_ok() {
                std::thread::sleep(RETRY_INTERVAL);
            }
        })
        .context("cannot start a thread")?;
    Ok(received)
}

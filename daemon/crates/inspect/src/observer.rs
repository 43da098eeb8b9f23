//! A connection to a running daemon, for commands that observe it.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use forebay_protocol::frames::{ClientFrame, DaemonFrame, PROTOCOL_VERSION};
use forebay_protocol::observing::{Recording, ReplayRequest, SessionSteps};
use forebay_protocol::socket::{Connection, Incoming, SocketError};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::sanitize::{sanitize, sanitize_json};
use forebay_host::sockets::{credentials, find_sockets};
use forebay_observe::DaemonReport;

/// The maximum time for a daemon's response.
const ANSWER_DEADLINE: Duration = Duration::from_secs(10);

/// One connection; its requests are answered in order.
#[derive(Debug)]
pub struct Observer {
    connection: Connection,
    socket: PathBuf,
}

impl Observer {
    /// Connects to the daemon at `socket`.
    pub fn connect(socket: &Path) -> anyhow::Result<Self> {
        let connect = || {
            let connection = Connection::connect(socket)?;
            // Any user can bind an abstract name.
            let owner = credentials(&connection)?.uid();
            let own = nix::unistd::Uid::effective().as_raw();
            if socket.as_os_str().as_encoded_bytes().starts_with(b"@") && owner != own {
                bail!("it belongs to another user ({owner})");
            }
            let release = env!("CARGO_PKG_VERSION").to_owned();
            let hello = ClientFrame::Hello { protocol: PROTOCOL_VERSION, release };
            send(&connection, &hello)?;
            anyhow::Ok(connection)
        };
        let connection = connect().with_context(|| asking(socket))?;
        Ok(Self { connection, socket: socket.to_owned() })
    }

    /// The daemon's metrics as the JSON text that `stats --json` prints.
    pub fn stats_text(&self) -> anyhow::Result<String> {
        let mut text = String::new();
        self.ask(&ClientFrame::Stats, ANSWER_DEADLINE, |frame, _| match frame {
            DaemonFrame::StatsPart { last, text: part } => {
                text.push_str(&part);
                last.then_some(())
            }
            _ => None,
        })?;
        Ok(text)
    }

    /// The daemon's metrics; their strings are sanitized.
    pub fn stats(&self) -> anyhow::Result<DaemonReport> {
        read(&self.stats_text()?)
    }

    /// The progress of every session's trainer.
    pub fn steps(&self) -> anyhow::Result<Vec<SessionSteps>> {
        self.ask(&ClientFrame::Steps, ANSWER_DEADLINE, steps_in)
    }

    /// Sends a request about a replay; returns the progress of every session's trainer.
    pub fn replay(&self, request: ReplayRequest) -> anyhow::Result<Vec<SessionSteps>> {
        self.ask(&ClientFrame::Replay(request), ANSWER_DEADLINE, steps_in)
    }

    /// Makes a recording that takes `takes`, and returns the memory file that contains it.
    pub fn record(&self, recording: Recording, takes: Duration) -> anyhow::Result<OwnedFd> {
        let question = ClientFrame::Record(recording);
        self.ask(&question, takes + ANSWER_DEADLINE, |frame, mut descriptors| match frame {
            DaemonFrame::Recorded => descriptors.pop(),
            _ => None,
        })
    }

    /// Sends a request and passes frames to `answer` until they complete the response.
    fn ask<T>(
        &self,
        question: &ClientFrame,
        patience: Duration,
        mut answer: impl FnMut(DaemonFrame, Vec<OwnedFd>) -> Option<T>,
    ) -> anyhow::Result<T> {
        let mut converse = || {
            send(&self.connection, question)?;
            let deadline = Instant::now() + patience;
            loop {
                match self.connection.receive::<DaemonFrame>()? {
                    Incoming::Frame(DaemonFrame::Fault(fault), _) => {
                        bail!(sanitize(&fault.message))
                    }
                    Incoming::Frame(frame, descriptors) => {
                        if let Some(answer) = answer(frame, descriptors) {
                            return Ok(answer);
                        }
                    }
                    Incoming::Doorbell => {}
                    Incoming::Empty => {
                        let left = deadline.saturating_duration_since(Instant::now());
                        if left.is_zero() {
                            bail!("no answer within {} s", patience.as_secs());
                        }
                        let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
                        let descriptor = self.connection.as_fd();
                        poll(&mut [PollFd::new(descriptor, PollFlags::POLLIN)], timeout)?;
                    }
                }
            }
        };
        converse().with_context(|| asking(&self.socket))
    }
}

/// Sends a frame. If the daemon has closed the connection, the reason may be in the receive buffer: it is read next.
fn send(connection: &Connection, frame: &ClientFrame) -> Result<(), SocketError> {
    match connection.send(frame, &[]) {
        Err(SocketError::Closed) => Ok(()),
        sent => sent,
    }
}

/// Parses a daemon's response for a terminal: every string in it is sanitized first.
pub(crate) fn read(text: &str) -> anyhow::Result<DaemonReport> {
    let other_release = "the daemon is another release";
    let json = serde_json::from_str(text).context(other_release)?;
    anyhow::ensure!(!matches!(json, serde_json::Value::Null), "the daemon has no stream yet");
    serde_json::from_value(sanitize_json(json)).context(other_release)
}

fn steps_in(frame: DaemonFrame, _: Vec<OwnedFd>) -> Option<Vec<SessionSteps>> {
    match frame {
        DaemonFrame::Steps(steps) => Some(steps),
        _ => None,
    }
}

fn asking(socket: &Path) -> String {
    format!("asking the daemon at {}", socket.display())
}

/// The sockets of the daemons: the named ones, otherwise FOREBAY_SOCKET, otherwise all of this user's daemons. At least
/// one.
pub fn the_sockets(named: &[PathBuf]) -> anyhow::Result<Vec<PathBuf>> {
    if !named.is_empty() {
        return Ok(named.to_vec());
    }
    if let Some(socket) = std::env::var_os("FOREBAY_SOCKET").filter(|socket| !socket.is_empty()) {
        return Ok(vec![socket.into()]);
    }
    let found = find_sockets();
    if found.is_empty() {
        bail!("no running daemon of this user was found; give its socket");
    }
    Ok(found)
}

/// Like [`the_sockets`], for a command about one daemon.
pub fn the_socket(named: Option<&Path>) -> anyhow::Result<PathBuf> {
    let mut found = the_sockets(named.map(Path::to_owned).as_slice())?;
    if found.len() > 1 {
        let list: Vec<String> = found.iter().map(|path| path.display().to_string()).collect();
        bail!("several daemons run; name one: {}", list.join(" "))
    }
    Ok(found.remove(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn daemon_without_streams_is_distinguished_from_other_releases() {
        assert!(read("null").unwrap_err().to_string().contains("no stream yet"));
        assert!(read("{}").unwrap_err().to_string().contains("another release"));
        assert!(read("").is_err());
    }

    #[test]
    fn daemons_response_cannot_move_the_cursor() {
        let mut report = DaemonReport::default();
        report.verdict.sentence = "sample 3 (/data/\u{1b}[2J.jpg) hangs".to_owned();
        let read = read(&serde_json::to_string(&report).unwrap()).unwrap();
        assert_eq!(read.verdict.sentence, "sample 3 (/data/\\x1b[2J.jpg) hangs");
    }
}

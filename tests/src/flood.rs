//! A client that sends one frame without end, and what that leaves to an honest client beside it.

use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use forebay_client::Loader;
use forebay_protocol::frames::{
    Attach, ClientFrame, ConfigSource, DaemonFrame, NamesOf, NamesRequest, PROTOCOL_VERSION,
    Reattach, Restart, Start,
};
use forebay_protocol::ids::Position;
use forebay_protocol::observing::{Recording, ReplayRequest};
use forebay_protocol::socket::{Connection, Incoming};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde_json::{Value, json};

use crate::raw::hello;
use crate::{Daemon, TestDir, program, wait_until};

/// What is sent without end. `seek-answered` waits for each answer; `unknown` is no frame of the protocol.
pub const KINDS: [&str; 16] = [
    "seek",
    "seek-answered",
    "stats",
    "steps",
    "names",
    "replay",
    "record",
    "doorbell",
    "hello",
    "attach",
    "attach-named",
    "reattach",
    "start",
    "restart",
    "goodbye",
    "unknown",
];

/// The stage of the honest client's stream: 16 threads that sleep for 1 ms a row.
const STAGE: &str =
    "{ name = \"sleep\", concurrency = 16, operations = [{ op = \"delay\", milliseconds = 1 }] }";

/// Rank 1 of 2; the honest client is rank 0.
fn attach() -> Attach {
    let position = Position { epoch: 0, samples: 0 };
    Attach {
        stream: None,
        rank: 1,
        world_size: 2,
        position,
        substitutes: 0,
        trainer: String::new(),
        batch_size: None,
        cuts: Vec::new(),
    }
}

/// The frames of one connection after its hello, the `number`th of them.
fn frame(kind: &str, number: u64, session: u64) -> Option<ClientFrame> {
    Some(match kind {
        "seek" | "seek-answered" | "names" if number == 0 => ClientFrame::Attach(attach()),
        "seek" | "seek-answered" => ClientFrame::Seek {
            serial: number,
            position: Position { epoch: 0, samples: 1024 * (number % 2) },
            substitutes: 0,
            cuts: Vec::new(),
        },
        "names" => {
            let of = NamesOf::Files { samples: (0..200).collect() };
            ClientFrame::Names(NamesRequest { request: number, of })
        }
        "stats" => ClientFrame::Stats,
        "steps" => ClientFrame::Steps,
        "replay" if number.is_multiple_of(2) => {
            ClientFrame::Replay(ReplayRequest::Check { session, batches: 1 })
        }
        "replay" => ClientFrame::Replay(ReplayRequest::Cancel { session }),
        "record" => ClientFrame::Record(Recording::Trace { milliseconds: 1 }),
        "attach" => ClientFrame::Attach(attach()),
        "attach-named" => ClientFrame::AttachNamed(attach()),
        "reattach" => {
            ClientFrame::Reattach(Reattach { attach: attach(), serial: 1, leased: vec![] })
        }
        "start" => ClientFrame::Start(Start {
            config: ConfigSource::File("/".to_owned()),
            overrides: Vec::new(),
            local_world_size: 1,
            local_rank: 0,
        }),
        "restart" => ClientFrame::Restart(Restart {
            local_world_size: 1,
            local_rank: 0,
            reason: "none".to_owned(),
            signal: None,
        }),
        "goodbye" => ClientFrame::Goodbye,
        _ => return None,
    })
}

/// Sends the `number`th message of a connection.
fn send(kind: &str, connection: &Connection, number: u64, session: u64) -> bool {
    let sent = match (kind, number) {
        (_, 0) => connection.send(&hello(PROTOCOL_VERSION), &[]),
        ("doorbell", _) => connection.ring(),
        // No variant of a client's frame has this number.
        ("unknown", _) => connection.send(&"x".repeat(100), &[]),
        (kind, number) => match frame(kind, number - 1, session) {
            Some(frame) => connection.send(&frame, &[]),
            None => return false,
        },
    };
    sent.is_ok()
}

/// Whether the connection is left after one answer to what it asked for.
fn is_left(kind: &str, answer: &DaemonFrame) -> bool {
    matches!(
        (kind, answer),
        ("attach", DaemonFrame::Attached(_)) | ("hello", DaemonFrame::Welcome { .. })
    )
}

/// Sends frames of a kind, about the honest client's session where they name one, until this process ends; it ends with the
/// one that started it.
pub fn flood(socket: &Path, kind: &str, session: u64) -> ! {
    let _ = nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGKILL);
    loop {
        let Ok(connection) = Connection::connect(socket) else {
            // The queue of connections is full.
            std::thread::sleep(Duration::from_millis(1));
            continue;
        };
        flood_one(&connection, kind, session);
    }
}

fn flood_one(connection: &Connection, kind: &str, session: u64) {
    // The number of the next message, and of those that are answered one by one the answers that are due.
    let (mut next, mut due) = (0, 0);
    loop {
        let events = PollFlags::POLLIN | PollFlags::POLLOUT;
        let is_waiting = kind == "seek-answered" && due > 0;
        let wanted = if is_waiting { PollFlags::POLLIN } else { events };
        let _ = poll(&mut [PollFd::new(connection.as_fd(), wanted)], PollTimeout::from(100u8));
        loop {
            match connection.receive::<DaemonFrame>() {
                Ok(Incoming::Frame(answer, _)) if is_left(kind, &answer) => return,
                Ok(Incoming::Frame(DaemonFrame::Positioned(_), _)) => due = 0,
                Ok(Incoming::Empty) => break,
                Ok(_) => {}
                Err(_) => return,
            }
        }
        if !is_waiting && send(kind, connection, next, session) {
            next += 1;
            due += u64::from(next > 2);
        }
    }
}

/// A process that floods.
#[derive(Debug)]
pub struct Flooder(Child);

impl Flooder {
    /// Starts it. `program`: `forebay-test-flood`.
    pub fn start(dir: &TestDir, program: &Path, socket: &Path, kind: &str, session: u64) -> Self {
        let mut command = dir.command(program);
        command
            .arg("client")
            .arg(socket)
            .arg(kind)
            .arg(session.to_string())
            .stdin(Stdio::null())
            .stderr(Stdio::null());
        Self(command.spawn().unwrap())
    }
}

impl Drop for Flooder {
    fn drop(&mut self) {
        program::kill(&mut self.0);
    }
}

/// A daemon; its clients are at once in need of the next batch.
pub fn daemon() -> (TestDir, Daemon) {
    let dir = TestDir::new();
    let config = dir.staged_stream(200_000, "", STAGE);
    // A seek costs the more the larger the batches are.
    let daemon = Daemon::serve_with(&dir, &[&config], &["--set", "batch.size=512"]);
    (dir, daemon)
}

/// An honest client beside a flood. One that seeks has its session first: where both are in need, it was served first.
pub fn beside(dir: &TestDir, daemon: &Daemon, program: &Path, kind: &str) -> (Flooder, Loader) {
    let attach = || daemon.loader(0, 2).attach().unwrap();
    if kind.starts_with("seek") {
        let flooder = Flooder::start(dir, program, &daemon.socket, kind, 0);
        wait_until("the flooder has its session", || daemon.mapped_segments() > 0);
        (flooder, attach())
    } else {
        let loader = attach();
        let session = loader.terms().session;
        (Flooder::start(dir, program, &daemon.socket, kind, session), loader)
    }
}

/// Takes so many batches.
pub fn take(loader: &mut Loader, batches: u64) {
    let mut taken = 0;
    while taken < batches {
        taken += u64::from(loader.next_batch().unwrap().is_some());
    }
}

fn rate(loader: &mut Loader, time: Duration) -> f64 {
    let (begun, mut taken) = (Instant::now(), 0u32);
    while begun.elapsed() < time {
        taken += u32::from(loader.next_batch().unwrap().is_some());
    }
    f64::from(taken) / begun.elapsed().as_secs_f64()
}

/// For each kind of flood the honest client's batches a second beside it, and alone just before and after: in turns of two
/// seconds, of which the one in the middle counts, as the speed of a machine drifts.
pub fn measure(program: &Path, seconds: f64, kinds: &[&str]) -> Value {
    let (dir, daemon) = daemon();
    let mut turns = 1_u32;
    while f64::from(turns) * 2.0 < seconds {
        turns += 1;
    }
    let time = Duration::from_secs_f64(seconds / f64::from(turns));
    let alone = || {
        wait_until("the sessions have ended", || daemon.mapped_segments() == 0);
        let mut loader = daemon.loader(0, 2).attach().unwrap();
        take(&mut loader, 10);
        rate(&mut loader, time / 2)
    };
    let mut found = serde_json::Map::new();
    for kind in kinds {
        let mut rates = Vec::new();
        for _ in 0..turns {
            let before = alone();
            wait_until("the session has ended", || daemon.mapped_segments() == 0);
            let (flooder, mut loader) = beside(&dir, &daemon, program, kind);
            // What seeks may throw away without being put off is no part of the rate.
            take(&mut loader, 40);
            let beside = rate(&mut loader, time);
            drop((flooder, loader));
            rates.push((f64::midpoint(before, alone()), beside));
        }
        rates.sort_by(|(a, b), (c, d)| (b / a).total_cmp(&(d / c)));
        let (alone, beside) = rates[rates.len() / 2];
        found.insert((*kind).to_owned(), json!({ "alone": alone, "beside": beside }));
    }
    Value::Object(found)
}

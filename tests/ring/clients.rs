//! Clients that come, go, collide and die.

use std::path::Path;
use std::process::Child;

use forebay_client::Error;
use forebay_protocol::frames::{ClientFrame, DaemonFrame, FaultKind, PROTOCOL_VERSION};
use forebay_protocol::socket::Connection;
use forebay_tests::raw::{self, Raw, hello};
use forebay_tests::taken::take_epoch;
use forebay_tests::{Daemon, TestDir, is_running, program, wait_until};
use nix::sys::signal::Signal;
use serde_json::Value;

const TRAINER: &str = env!("CARGO_BIN_EXE_forebay-test-trainer");

fn serve(keys: &str) -> (TestDir, Daemon) {
    let dir = TestDir::new();
    let daemon = Daemon::serve(&dir, &dir.stack_stream(40, keys));
    (dir, daemon)
}

/// A trainer that has taken three batches, has done some steps and hangs; its last line before.
fn hanging_trainer(dir: &TestDir, daemon: &Daemon, steps: &[&str]) -> (Child, Value) {
    let mut command = dir.command(Path::new(TRAINER));
    command.args(["use=default", "take=3"]).args(steps).env("FOREBAY_SOCKET", &daemon.socket);
    let (child, mut told) = program::start_until_it_hangs(&mut command);
    (child, told.pop().expect("it told of its batches"))
}

#[test]
fn more_clients_than_max_sessions_are_refused_by_the_key() {
    let (_place, daemon) = serve("listen.max_sessions = 2");
    let _held: Vec<_> = (0..2).map(|rank| daemon.loader(rank, 3).attach().unwrap()).collect();
    let error = daemon.loader(2, 3).attach().unwrap_err();
    assert!(error.to_string().contains("listen.max_sessions"), "{error}");
}

#[test]
fn a_killed_client_makes_room_at_once() {
    let (dir, mut daemon) = serve("");
    let expected = take_epoch(&mut daemon.loader(0, 1).attach().unwrap());
    for _ in 0..3 {
        let (mut child, _) = hanging_trainer(&dir, &daemon, &[]);
        let refused = daemon.loader(0, 1).attach();
        assert!(matches!(refused, Err(Error::Taken(_))), "{refused:?}");
        program::kill(&mut child);
        let mut loader = daemon.loader(0, 1).attach().unwrap();
        assert_eq!(take_epoch(&mut loader), expected);
        drop(loader);
    }
    assert!(daemon.is_running());
    wait_until("all segments are given back", || daemon.mapped_segments() == 0);
}

#[test]
fn a_killed_client_makes_room_though_children_of_it_still_have_its_socket() {
    let (dir, daemon) = serve("");
    let expected = take_epoch(&mut daemon.loader(0, 1).attach().unwrap());
    let (mut child, told) = hanging_trainer(&dir, &daemon, &["children"]);
    let children: Vec<u32> = serde_json::from_value(told["children"].clone()).unwrap();
    assert!(!children.is_empty(), "{told}");
    program::kill(&mut child);
    wait_until("the session has ended", || daemon.mapped_segments() == 0);
    assert!(children.iter().all(|child| is_running(*child)));
    assert_eq!(take_epoch(&mut daemon.loader(0, 1).attach().unwrap()), expected);
    for child in children {
        assert!(forebay_tests::signal(child, Signal::SIGKILL));
    }
}

#[test]
fn a_trainer_that_takes_nothing_stops_the_daemon_at_the_rings_size() {
    let (dir, daemon) = serve("ring.slots = 5");
    let mut loader = daemon.loader(0, 1).attach().unwrap();
    let ready = || daemon.stats(&dir)["sessions"][0]["slots_ready"].clone();
    wait_until("the ring is full", || ready() == 5);
    let tasks = || {
        let stats = daemon.stats(&dir);
        let stages = stats["stages"].as_array().unwrap();
        stages.iter().map(|stage| stage["num_tasks"].as_u64().unwrap()).collect::<Vec<_>>()
    };
    let (done, ticks) = (tasks(), daemon.cpu_ticks());
    assert_eq!(done, [20, 20]);
    std::thread::sleep(std::time::Duration::from_millis(500));
    assert_eq!(tasks(), done);
    // A tick is 10 ms; the daemon looks up four times a second and answered the questions above.
    assert!(daemon.cpu_ticks() - ticks <= 10, "{} ticks", daemon.cpu_ticks() - ticks);
    let stats = daemon.stats(&dir);
    assert_eq!(stats["sessions"][0]["batches_published"], 5);
    assert_eq!(take_epoch(&mut loader).len(), 10);
}

#[test]
fn strangers_at_the_socket_do_no_harm() {
    let (_place, mut daemon) = serve("");
    let mut loader = daemon.loader(0, 1).attach().unwrap();
    let expected = take_epoch(&mut loader);
    drop(loader);
    let answer = |frames: &[ClientFrame]| Raw::sending(&daemon, frames).refused();
    let fault = answer(&[hello(PROTOCOL_VERSION + 1)]);
    assert_eq!(fault.kind, FaultKind::Version);
    for part in ["raw", &format!("protocol {}", PROTOCOL_VERSION + 1), "same release"] {
        assert!(fault.message.contains(part), "{}", fault.message);
    }
    for frames in [
        vec![ClientFrame::Stats],
        vec![hello(PROTOCOL_VERSION), hello(PROTOCOL_VERSION)],
        vec![
            hello(PROTOCOL_VERSION),
            ClientFrame::Seek {
                serial: 1,
                position: Default::default(),
                substitutes: 0,
                cuts: Vec::new(),
            },
        ],
    ] {
        assert_eq!(answer(&frames).kind, FaultKind::Protocol, "{frames:?}");
    }
    // Many that connect and say nothing.
    let idle: Vec<Connection> =
        (0..50).map(|_| Connection::connect(&daemon.socket).unwrap()).collect();
    let mut loader = daemon.loader(0, 1).attach().unwrap();
    assert_eq!(take_epoch(&mut loader), expected);
    drop(idle);
    assert!(daemon.is_running());
}

/// The daemon's descriptors that its connections cost; work threads that start meanwhile have others.
fn of_connections(daemon: &Daemon) -> usize {
    let kinds = forebay_tests::open_files(daemon.pid());
    kinds.iter().filter(|kind| kind.starts_with("socket:") || kind.contains("pidfd")).count()
}

#[test]
fn of_a_thousand_connections_at_once_each_is_served_or_refused_with_the_reason() {
    let (_place, daemon) = serve("");
    let mut honest = daemon.loader(0, 1).attach().unwrap();
    let expected = take_epoch(&mut honest);
    let open = of_connections(&daemon);
    let crowd: Vec<Raw> = (0..1000)
        .map(|_| {
            let connection = raw::connect(&daemon.socket);
            // One that is refused already does not read it.
            let _ = connection.send(&hello(PROTOCOL_VERSION), &[]);
            Raw(connection)
        })
        .collect();
    let (mut served, mut refused) = (0, 0);
    for connection in &crowd {
        match connection.answer().expect("a reason comes before the end").0 {
            DaemonFrame::Welcome { .. } => served += 1,
            DaemonFrame::Fault(fault) => {
                assert!(fault.message.contains("256 connections"), "{}", fault.message);
                assert!(fault.message.contains("end unused clients"), "{}", fault.message);
                refused += 1;
            }
            other => panic!("{other:?}"),
        }
    }
    // The honest client's is one of the 256.
    assert_eq!((served, refused), (255, 745));
    honest.seek(Default::default()).unwrap();
    assert_eq!(take_epoch(&mut honest), expected);
    drop(crowd);
    wait_until("all connections are closed", || of_connections(&daemon) <= open);
    assert_eq!(take_epoch(&mut daemon.loader(1, 2).attach().unwrap()).len(), 5);
}

#[test]
fn a_batch_that_was_given_back_is_not_reported_as_held() {
    let (dir, daemon) = serve("ring.slots = 4");
    let mut loader = daemon.loader(0, 1).attach().unwrap();
    // One is fewer than the client rings for while others are ready.
    drop(loader.next_batch().unwrap());
    wait_until("the ring is full again", || {
        let session = &daemon.stats(&dir)["sessions"][0];
        (&session["slots_ready"], &session["slots_leased"]) == (&4.into(), &0.into())
    });
}

#[test]
fn a_daemon_whose_trainers_are_killed_stays_flat() {
    let soak = forebay_tests::soak::soak(Path::new(TRAINER), std::time::Duration::from_secs(4));
    assert!(soak["trainers_killed"].as_u64().unwrap() >= 4, "{soak}");
    let grown_by = |what: &str| {
        let [early, late] = [0, 1].map(|half| soak[what][half].as_u64().unwrap());
        late.saturating_sub(early)
    };
    // A descriptor or a thread left behind by each trainer would make dozens; fetch threads come and go.
    assert!(grown_by("descriptors") < 3 && grown_by("threads") < 10, "{soak}");
}

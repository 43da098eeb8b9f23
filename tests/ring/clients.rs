//! Clients that come, go, collide and die.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Stdio};

use forebay_client::Error;
use forebay_protocol::frames::{ClientFrame, DaemonFrame, FaultKind, PROTOCOL_VERSION};
use forebay_protocol::socket::{Connection, Incoming, SocketError};
use forebay_tests::taken::{take, take_epoch};
use forebay_tests::{Daemon, TestDir, data, is_running, program, wait_until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

const TRAINER: &str = env!("CARGO_BIN_EXE_forebay-test-trainer");

fn serve(keys: &str) -> (TestDir, Daemon) {
    let dir = TestDir::new();
    data::stack(&dir.path("data"), 40);
    let config = dir.config("train.toml", &data::stack_config(&dir.path("data"), keys));
    let daemon = Daemon::serve(&dir, &config);
    (dir, daemon)
}

/// A trainer that has taken three batches, has done this and hangs; what it told last before.
fn hanging_trainer(dir: &TestDir, daemon: &Daemon, steps: &[&str]) -> (Child, Value) {
    let mut child = dir
        .command(Path::new(TRAINER))
        .args(["use=default", "take=3"])
        .args(steps)
        .arg("hang")
        .env("FOREBAY_SOCKET", &daemon.socket)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let told: Vec<Value> = lines
        .map(|line| serde_json::from_str(&line.unwrap()).unwrap())
        .take_while(|value: &Value| value["hangs"] != true)
        .collect();
    (child, told.last().expect("it told of its batches").clone())
}

#[test]
fn a_client_that_comes_and_goes_leaves_nothing_in_the_daemon() {
    let dir = TestDir::new();
    data::stack(&dir.path("data"), 40);
    let keys = data::stack_config(&dir.path("data"), "ring.slots = 4");
    let config = dir.config("train.toml", &keys);
    // Few reads at once, so that the number of threads settles soon.
    let few = ["--set", "stage.fetch.concurrency=2"];
    let daemon = Daemon::serve_with(&dir, &[&config], &few);
    let come_and_go = |round: u32| {
        let mut loader = daemon.loader(0, 1).attach().unwrap();
        match round % 3 {
            0 => drop(take_epoch(&mut loader)),
            1 => drop(take(&mut loader, 2)),
            _ => {}
        }
        // A batch may outlive its loader.
        let kept = (round % 4 == 1).then(|| loader.next_batch().unwrap());
        drop(loader);
        drop(kept);
        wait_until("the session has ended", || daemon.mapped_segments() == 0);
    };
    (0..6).for_each(come_and_go);
    wait_until("connections are closed", || {
        daemon.stats(&dir)["sessions"].as_array().unwrap().is_empty()
    });
    let (descriptors, threads) = (daemon.descriptors(), daemon.threads());
    (0..20).for_each(come_and_go);
    wait_until("no descriptor is left over", || daemon.descriptors() <= descriptors);
    // Reads go over a pool of threads that grows by a few when they overlap; a thread a client would be twenty.
    assert!(daemon.threads() < threads + 10, "{threads} threads became {}", daemon.threads());
}

#[test]
fn a_second_client_of_the_same_rank_is_refused_while_the_first_lives() {
    let (_place, daemon) = serve("");
    let mut first = daemon.loader(1, 2).attach().unwrap();
    let Err(Error::Taken(message)) = daemon.loader(1, 2).attach() else {
        panic!("rank 1 of 2 is taken");
    };
    assert!(message.contains("`train`") && message.contains("rank 1 of 2"), "{message}");
    let other = daemon.loader(0, 2).attach().unwrap();
    take(&mut first, 1);
    drop(first);
    // A goodbye ends the session before the next attach is read.
    let mut next = daemon.loader(1, 2).attach().unwrap();
    assert_eq!(take_epoch(&mut next).len(), 5);
    drop(other);
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
        child.kill().unwrap();
        program::wait(&mut child);
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
    child.kill().unwrap();
    program::wait(&mut child);
    wait_until("the session has ended", || daemon.mapped_segments() == 0);
    assert!(children.iter().all(|child| is_running(*child)));
    assert_eq!(take_epoch(&mut daemon.loader(0, 1).attach().unwrap()), expected);
    for child in children {
        kill(Pid::from_raw(child.try_into().unwrap()), Signal::SIGKILL).unwrap();
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
    let hello = |protocol| ClientFrame::Hello { protocol, release: "0.0.1-old".to_owned() };
    let answer = |frames: &[ClientFrame]| {
        let connection = Connection::connect(&daemon.socket).unwrap();
        for frame in frames {
            connection.send(frame, &[]).unwrap();
        }
        let mut faults = Vec::new();
        wait_until("the daemon closes the connection", || match connection.receive() {
            Ok(Incoming::Frame(DaemonFrame::Fault(fault), _)) => {
                faults.push(fault);
                false
            }
            Ok(_) => false,
            Err(_) => true,
        });
        assert_eq!(faults.len(), 1, "{faults:?}");
        faults.remove(0)
    };
    let fault = answer(&[hello(PROTOCOL_VERSION + 1)]);
    assert_eq!(fault.kind, FaultKind::Version);
    for part in ["0.0.1-old", &format!("protocol {}", PROTOCOL_VERSION + 1), "same release"] {
        assert!(fault.message.contains(part), "{}", fault.message);
    }
    for frames in [
        vec![ClientFrame::Stats],
        vec![hello(PROTOCOL_VERSION), hello(PROTOCOL_VERSION)],
        vec![
            hello(PROTOCOL_VERSION),
            ClientFrame::Seek { serial: 1, position: Default::default(), substitutes: 0 },
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
    let entries = std::fs::read_dir(format!("/proc/{}/fd", daemon.pid())).unwrap();
    let kinds = entries.flatten().filter_map(|entry| std::fs::read_link(entry.path()).ok());
    let kinds = kinds.map(|kind| kind.to_string_lossy().into_owned());
    kinds.filter(|kind| kind.starts_with("socket:") || kind.contains("pidfd")).count()
}

#[test]
fn of_a_thousand_connections_at_once_each_is_served_or_refused_with_the_reason() {
    let (_place, daemon) = serve("");
    let mut honest = daemon.loader(0, 1).attach().unwrap();
    let expected = take_epoch(&mut honest);
    let open = of_connections(&daemon);
    let connect = || loop {
        match Connection::connect(&daemon.socket) {
            Ok(connection) => return connection,
            // The queue of those that are not yet accepted is full.
            Err(SocketError::Call { source, .. })
                if source.kind() == std::io::ErrorKind::WouldBlock =>
            {
                std::thread::yield_now();
            }
            Err(error) => panic!("{error}"),
        }
    };
    let crowd: Vec<Connection> = (0..1000)
        .map(|_| {
            let connection = connect();
            let hello =
                ClientFrame::Hello { protocol: PROTOCOL_VERSION, release: "crowd".to_owned() };
            // One that is refused already does not read it.
            let _ = connection.send(&hello, &[]);
            connection
        })
        .collect();
    let (mut served, mut refused) = (0, 0);
    for connection in &crowd {
        wait_until("each is answered", || {
            match connection.receive().expect("a reason comes before the end") {
                Incoming::Frame(DaemonFrame::Welcome { .. }, _) => served += 1,
                Incoming::Frame(DaemonFrame::Fault(fault), _) => {
                    assert!(fault.message.contains("256 connections"), "{}", fault.message);
                    assert!(fault.message.contains("end unused clients"), "{}", fault.message);
                    refused += 1;
                }
                Incoming::Frame(other, _) => panic!("{other:?}"),
                Incoming::Empty | Incoming::Doorbell => return false,
            }
            true
        });
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
fn a_daemon_whose_trainers_are_killed_stays_flat() {
    let soak = forebay_tests::soak::soak(Path::new(TRAINER), std::time::Duration::from_secs(4));
    assert!(soak.trainers_killed >= 4, "{soak:?}");
    let [early, late] = soak.descriptors;
    // A descriptor left behind by each trainer would make dozens.
    assert!(late < early + 3, "{soak:?}");
}

//! Named segments: the same batches for a client that cannot receive descriptors, and what is given up for it.

use std::path::PathBuf;
use std::time::Duration;

use forebay_client::Error;
use forebay_protocol::frames::{Attach, ClientFrame, DaemonFrame};
use forebay_protocol::ids::Position;
use forebay_tests::taken::{take_epoch, until_error};
use forebay_tests::{Daemon, Raw, TestDir, wait_until};
use nix::sys::signal::Signal;

fn serve(keys: &str) -> (TestDir, Daemon) {
    let dir = TestDir::new();
    let daemon = Daemon::serve(&dir, &dir.image_stream(80, 4, keys));
    (dir, daemon)
}

/// The names that the daemon gives to a client which does not open them.
fn ask_for_names(daemon: &Daemon) -> (Raw, Vec<PathBuf>) {
    let raw = Raw::connect(daemon);
    let attach = Attach {
        stream: None,
        rank: 0,
        world_size: 1,
        position: Position::default(),
        substitutes: 0,
        trainer: String::new(),
        batch_size: None,
        cuts: Vec::new(),
    };
    raw.send(&ClientFrame::AttachNamed(attach), &[]);
    let Some((DaemonFrame::AttachedNamed { names, .. }, descriptors)) = raw.answer() else {
        panic!("the daemon gave no names");
    };
    assert!(descriptors.is_empty());
    let folder = PathBuf::from("/dev/shm");
    (raw, names.map(|name| folder.join(name.trim_start_matches('/'))).into())
}

#[test]
fn a_client_without_descriptors_gets_the_same_batches_and_leaves_no_name() {
    let (_place, daemon) = serve("order.epochs = 2\nlisten.named_segments = true");
    let mut by_descriptor = daemon.loader(0, 1).attach().unwrap();
    let expected = [take_epoch(&mut by_descriptor), take_epoch(&mut by_descriptor)];
    drop(by_descriptor);
    let mut by_name = loop {
        match daemon.loader(0, 1).named_segments(true).attach() {
            // The daemon may not have seen the end of the session before.
            Err(Error::Taken(_)) => std::thread::sleep(Duration::from_millis(10)),
            attached => break attached.unwrap(),
        }
    };
    let of_daemon = std::fs::read_to_string(format!("/proc/{}/maps", daemon.pid())).unwrap();
    let mut mapped: Vec<&str> = of_daemon
        .lines()
        .filter_map(|line| Some(line.split_once("/dev/shm/forebay-")?.1))
        .collect();
    mapped.dedup();
    assert!(
        !mapped.is_empty() && mapped.iter().all(|name| name.ends_with("(deleted)")),
        "{mapped:?}"
    );
    assert_eq!([take_epoch(&mut by_name), take_epoch(&mut by_name)], expected);
}

#[test]
fn names_go_with_their_client_and_those_of_a_killed_daemon_at_the_next_start() {
    let (dir, daemon) = serve("listen.named_segments = true");
    let (connection, names) = ask_for_names(&daemon);
    assert!(names.iter().all(|name| name.exists()), "{names:?}");
    drop(connection);
    wait_until("the names to go with the client", || names.iter().all(|name| !name.exists()));
    let (_connection, names) = ask_for_names(&daemon);
    let _ = daemon.end(Signal::SIGKILL);
    assert!(names.iter().all(|name| name.exists()), "{names:?}");
    let _next = Daemon::serve(&dir, &dir.path("train.toml"));
    // It listens before it sweeps.
    wait_until("the names to go", || names.iter().all(|name| !name.exists()));
}

#[test]
fn named_segments_are_refused_unless_the_configuration_offers_them() {
    let (_place, daemon) = serve("");
    let error = daemon.loader(0, 1).named_segments(true).attach().unwrap_err();
    assert!(matches!(error, Error::Config(_)), "{error:?}");
    assert!(error.to_string().contains("set listen.named_segments = true"), "{error}");
}

#[test]
fn a_loader_over_named_segments_ends_with_its_daemon() {
    let (_place, daemon) = serve("listen.named_segments = true");
    let mut loader = daemon.loader(0, 1).named_segments(true).attach().unwrap();
    drop(loader.next_batch().unwrap());
    let _ = daemon.end(Signal::SIGKILL);
    let (_, lost) = until_error(&mut loader);
    assert!(matches!(lost, Error::DaemonLost(_)), "{lost:?}");
}

//! `forebay serve` and its socket.

use std::io::BufRead;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};

use forebay_client::Error;
use forebay_protocol::frames::PROTOCOL_VERSION;
use forebay_protocol::socket::Connection;
use forebay_tests::raw::{Raw, hello};
use forebay_tests::taken::take_epoch;
use forebay_tests::{Daemon, TestDir, program, wait_until};
use nix::sys::signal::Signal;

#[test]
fn signals_end_the_daemon_cleanly_and_its_clients_hear_of_it() {
    let dir = TestDir::new();
    let config = dir.stack_stream(40, "");
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let daemon = Daemon::serve(&dir, &config);
        let socket = daemon.socket.clone();
        let mut lock = socket.clone().into_os_string();
        lock.push(".lock");
        let metadata = std::fs::metadata(&socket).unwrap();
        assert!(metadata.file_type().is_socket());
        assert_eq!(metadata.permissions().mode() & 0o777, 0o600);
        assert!(std::fs::exists(&lock).unwrap());
        // Long enough for the first batch on a busy machine; the end is waited for as long.
        let patience = std::time::Duration::from_secs(5);
        let mut loader = daemon.loader(0, 1).timeout(patience).attach().unwrap();
        let first = loader.next_batch().unwrap().unwrap();
        wait_until("the ring is full", || {
            let session = &daemon.stats(&dir)["sessions"][0];
            session["slots_ready"].as_u64() == Some(7)
        });
        let (status, log) = daemon.end(signal);
        assert_eq!(status.code(), Some(0), "{log}");
        assert!(!std::fs::exists(&socket).unwrap() && !std::fs::exists(&lock).unwrap());
        // What was published before the end is still handed over.
        for _ in 0..7 {
            assert!(loader.next_batch().unwrap().is_some());
        }
        let Err(Error::DaemonLost(message)) = loader.next_batch() else {
            panic!("the daemon is gone");
        };
        assert!(message.contains("exited normally"), "{message}");
        drop(first);
    }
}

#[test]
fn a_second_daemon_at_the_same_socket_is_refused_and_the_first_lives_on() {
    let dir = TestDir::new();
    let config = dir.stack_stream(40, "");
    let mut daemon = Daemon::serve(&dir, &config);
    let mut second = dir.forebay(&["serve"]);
    second.arg(&config).arg("--socket").arg(&daemon.socket);
    let refused = program::run(&mut second);
    assert_eq!(refused.status.code(), Some(1));
    assert!(refused.stderr.contains("another daemon listens at"), "{}", refused.stderr);
    assert!(refused.stderr.contains("listen.socket"), "{}", refused.stderr);
    assert!(daemon.is_running());
    assert_eq!(take_epoch(&mut daemon.loader(0, 1).attach().unwrap()).len(), 10);
}

#[test]
fn automatic_sockets_are_swept_at_the_next_start() {
    let dir = TestDir::new();
    let config = dir.stack_stream(40, "");
    let start = || {
        let mut serve = dir.forebay(&["serve"]);
        let child = serve.arg(&config).stderr(std::process::Stdio::null()).spawn().unwrap();
        let name = format!("{}-train.sock", child.id());
        wait_until("the socket is there", || dir.runtime_files().contains(&name));
        (child, name)
    };
    let (mut first, left) = start();
    program::kill(&mut first);
    assert!(dir.runtime_files().contains(&left));
    let (mut second, name) = start();
    let mut files = dir.runtime_files();
    // The page of the samples under work is the next daemon's, too.
    files.retain(|file| !file.ends_with(".work"));
    assert_eq!(files, [name.clone(), format!("{name}.lock")].into());
    let mode = std::fs::metadata(dir.runtime_folder()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
    // The only daemon of this user needs no name.
    wait_until("the daemon answers", || {
        program::run(&mut dir.forebay(&["stats", "--json"])).status.success()
    });
    assert!(forebay_tests::signal(second.id(), Signal::SIGTERM));
    assert_eq!(program::wait(&mut second).code(), Some(0));
    assert!(dir.runtime_files().is_empty(), "{:?}", dir.runtime_files());
}

#[test]
fn a_confined_daemon_serves_the_same_and_leaves_nothing() {
    let dir = TestDir::new();
    let config = dir.image_stream(40, 4, "");
    let mut epochs = Vec::new();
    for confine in ["off", "auto", "strict"] {
        let set = format!("security.confine={confine}");
        let daemon = Daemon::serve_with(&dir, &[&config], &["--set", &set]);
        epochs.push(take_epoch(&mut daemon.loader(0, 1).attach().unwrap()));
        let socket = daemon.socket.clone();
        let (status, log) = daemon.end(Signal::SIGTERM);
        assert_eq!(status.code(), Some(0), "{log}");
        assert!(!std::fs::exists(&socket).unwrap(), "{confine}");
        if log.contains("no Landlock") {
            forebay_tests::skipped("this kernel has no Landlock: the daemon was not confined");
        } else {
            assert!(log.contains("cannot start programs") || confine == "off", "{log}");
        }
    }
    assert!(epochs[0].len() == 5 && epochs[0] == epochs[1] && epochs[0] == epochs[2]);
}

/// Reads a daemon's messages to its service manager until one contains a word.
fn told_until(socket: &std::os::unix::net::UnixDatagram, word: &str) -> Vec<String> {
    socket.set_read_timeout(Some(forebay_tests::DEADLINE)).unwrap();
    let mut told = Vec::new();
    let mut bytes = [0; 1024];
    while !told.iter().any(|text: &String| text.contains(word)) {
        let length = socket.recv(&mut bytes).unwrap_or_else(|error| panic!("{error}: {told:?}"));
        told.push(String::from_utf8(bytes[..length].to_vec()).unwrap());
    }
    told
}

#[test]
fn a_service_manager_hears_that_it_is_ready_alive_and_ending() {
    let dir = TestDir::new();
    let config = dir.stack_stream(40, "");
    let manager = std::os::unix::net::UnixDatagram::bind(dir.path("notify")).unwrap();
    let mut serve = dir.forebay(&["serve"]);
    serve.arg(&config).arg("--socket").arg(dir.path("daemon.sock"));
    serve.env("NOTIFY_SOCKET", dir.path("notify")).env("WATCHDOG_USEC", "40000");
    let mut child = serve.stderr(std::process::Stdio::null()).spawn().unwrap();
    let told = told_until(&manager, "READY=1");
    assert!(told.last().unwrap().contains("daemon.sock"), "{told:?}");
    // Ready means that it can be attached to.
    forebay_protocol::socket::Connection::connect(&dir.path("daemon.sock")).unwrap();
    told_until(&manager, "WATCHDOG=1");
    told_until(&manager, "WATCHDOG=1");
    assert!(forebay_tests::signal(child.id(), Signal::SIGTERM));
    told_until(&manager, "STOPPING=1");
    assert_eq!(program::wait(&mut child).code(), Some(0));
    // A watchdog that is meant for another process is not fed.
    let mut serve = dir.forebay(&["serve"]);
    serve.arg(&config).arg("--socket").arg(dir.path("daemon.sock"));
    serve.env("NOTIFY_SOCKET", dir.path("notify")).env("WATCHDOG_USEC", "1000");
    serve.env("WATCHDOG_PID", "1");
    let mut child = serve.stderr(std::process::Stdio::null()).spawn().unwrap();
    told_until(&manager, "READY=1");
    manager.set_read_timeout(Some(std::time::Duration::from_millis(100))).unwrap();
    assert!(manager.recv(&mut [0; 64]).is_err());
    program::kill(&mut child);
}

#[test]
fn too_low_a_limit_of_open_files_is_told_with_the_remedy_and_outlived() {
    let dir = TestDir::new();
    let config = dir.stack_stream(40, "");
    let socket = dir.path("daemon.sock");
    let limited = |files: u32| {
        let mut command = dir.command(std::path::Path::new("sh"));
        command.args(["-c", &format!("ulimit -n {files}; exec \"$@\""), "sh"]);
        command.arg(program::forebay()).arg("serve").arg(&config).arg("--socket").arg(&socket);
        command
    };
    for files in [8, 10, 12, 16, 63] {
        let refused = program::run(&mut limited(files));
        assert_eq!(refused.status.code(), Some(1), "{refused:?}");
        let said = format!("limit of open files is {files}");
        assert!(
            refused.stderr.contains(&said) && refused.stderr.contains("ulimit -n"),
            "{refused:?}"
        );
    }
    let mut child = limited(64).stderr(std::process::Stdio::piped()).spawn().unwrap();
    wait_until("the daemon listens", || Connection::connect(&socket).is_ok());
    let open_files = || std::fs::read_dir(format!("/proc/{}/fd", child.id())).unwrap().count();
    let loader = || {
        let target = forebay_client::Target::Socket(socket.clone(), None);
        forebay_tests::test_dir::loader(target, 0, 1)
    };
    // Clients that are there, until there is no room for another one's memory.
    let mut crowd = Vec::new();
    let refused = loop {
        let raw = Raw(Connection::connect(&socket).unwrap());
        raw.send(&hello(PROTOCOL_VERSION), &[]);
        assert!(raw.answer().is_some());
        crowd.push(raw);
        let before = open_files();
        match loader().attach() {
            Ok(loader) => drop(loader),
            Err(error) => break error,
        }
        wait_until("its session has ended", || open_files() <= before);
    };
    if !matches!(refused, Error::Memory(_)) {
        program::kill(&mut child);
        let log = std::io::read_to_string(child.stderr.take().unwrap());
        panic!("{refused:?}, and the daemon's log: {}", log.unwrap());
    }
    assert!(refused.to_string().contains("ulimit -n"), "{refused}");
    // Then none can be taken in at all.
    let waiting: Vec<_> = (0..8).map(|_| Connection::connect(&socket).unwrap()).collect();
    let mut log = std::io::BufReader::new(child.stderr.take().unwrap()).lines();
    let told = log.find(|line| line.as_ref().unwrap().contains("cannot accept a client")).unwrap();
    assert!(told.as_ref().unwrap().contains("ulimit -n"), "{told:?}");
    std::thread::spawn(move || log.for_each(drop));
    drop((crowd, waiting));
    assert_eq!(take_epoch(&mut loader().attach().unwrap()).len(), 10);
    program::kill(&mut child);
}

/// The kernel takes the descriptors away that a process has no room for; the frame itself arrives.
#[test]
fn a_trainer_without_room_for_the_rings_descriptors_says_so_and_names_the_remedy() {
    let dir = TestDir::new();
    let daemon = Daemon::serve(&dir, &dir.stack_stream(40, ""));
    let mut said = Vec::new();
    for files in 4..40 {
        let mut command = dir.command(std::path::Path::new("sh"));
        command.args(["-c", &format!("ulimit -n {files}; exec \"$@\""), "sh"]);
        command.arg(env!("CARGO_BIN_EXE_forebay-test-trainer"));
        command.arg(format!("use={}", daemon.socket.display())).arg("epoch");
        let trainer = program::run(&mut command);
        if trainer.status.success() {
            assert!(
                said.iter().any(|said: &String| said.contains("descriptors of a control frame"))
            );
            return;
        }
        said.push(trainer.stdout);
    }
    panic!("no trainer got through: {said:?}");
}

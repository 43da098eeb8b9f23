//! `forebay top` beside a daemon at work: as plain text, and in a terminal of its own.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use forebay_tests::{Daemon, TestDir, program, wait_until};
use nix::sys::signal::Signal;
use rustix::fs::{Mode, OFlags};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

use crate::headspace::Trainer;

/// A daemon, and a trainer that takes batches until it is dropped.
fn at_work(dir: &TestDir) -> (Daemon, Trainer) {
    let daemon = Daemon::serve(dir, &dir.stack_stream(40, ""));
    let loader = daemon.loader(0, 1).attach().unwrap();
    (daemon, Trainer::start(loader, std::time::Duration::from_millis(5), 0))
}

#[test]
fn top_prints_one_screen_where_there_is_no_terminal() {
    let dir = TestDir::new();
    let (daemon, _trainer) = at_work(&dir);
    let shown = program::run(dir.forebay(&["top", "--once"]).arg(&daemon.socket));
    assert!(shown.status.success(), "{shown:?}");
    for word in ["train, rank 0 of 1", "samples/s", "fetch", "copy", "▸", "ring", "cores", "memory"]
    {
        assert!(shown.stdout.contains(word), "{word} in {}", shown.stdout);
    }
    assert!(
        !shown.stdout.contains('\u{1b}') && !shown.stdout.contains(" 0 now"),
        "{}",
        shown.stdout
    );
    // Standard output is a pipe here, so `--once` goes without saying.
    let table = program::run(dir.forebay(&["top", "--all"]).arg(&daemon.socket));
    assert!(table.stdout.contains("1 session of 1 daemon"), "{table:?}");
    assert!(table.stdout.contains("\n    0  train"), "{table:?}");
}

#[test]
fn top_without_a_daemon_says_what_to_name() {
    let dir = TestDir::new();
    let none = program::run(&mut dir.forebay_alone(&["top"]));
    assert!(none.status.code() == Some(1) && none.stderr.contains("give its socket"), "{none:?}");
    let socket = dir.path("nobody.sock");
    let lost = program::run(dir.forebay(&["top", "--once"]).arg(&socket));
    let named = lost.stderr.contains(socket.to_str().unwrap());
    assert!(lost.status.code() == Some(1) && named, "{lost:?}");
}

/// Both ends of a pseudo-terminal of 80×24: a person's, and a program's.
fn open_terminal() -> (OwnedFd, OwnedFd) {
    let keys = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
    grantpt(&keys).unwrap();
    unlockpt(&keys).unwrap();
    let name = ptsname(&keys, Vec::new()).unwrap();
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    let screen = rustix::fs::open(name.as_c_str(), flags, Mode::empty()).unwrap();
    let size = Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(&screen, size).unwrap();
    (keys, screen)
}

/// Starts a program in a terminal.
fn start_in(screen: &OwnedFd, dir: &TestDir, arguments: &[&str]) -> Child {
    let stdio = || Stdio::from(screen.try_clone().unwrap());
    let mut command = dir.forebay(arguments);
    command.env("TERM", "xterm-256color").stdin(stdio()).stdout(stdio()).stderr(stdio());
    // The command, which holds copies of the screen, goes here: a reader would not see its end.
    command.spawn().unwrap()
}

/// A terminal with a program in it.
struct Terminal {
    keys: File,
    screen: OwnedFd,
    child: Child,
    written: Arc<Mutex<Vec<u8>>>,
    reader: JoinHandle<()>,
}

impl Terminal {
    fn run(dir: &TestDir, arguments: &[&str]) -> Self {
        let (keys, screen) = open_terminal();
        let child = start_in(&screen, dir, arguments);
        let keys = File::from(keys);
        let mut output = keys.try_clone().unwrap();
        let written = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&written);
        let reader = std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            // An error (EIO) says that no process has the screen open.
            while let Ok(count @ 1..) = output.read(&mut bytes) {
                kept.lock().unwrap().extend_from_slice(&bytes[..count]);
            }
        });
        Self { keys, screen, child, written, reader }
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.written.lock().unwrap()).into_owned()
    }

    /// What the screen shows by now: only what changed is written, so the last bytes are not the screen.
    fn shown(&self) -> String {
        let text = self.text();
        let mut cells = vec![vec![' '; 80]; 24];
        let (mut row, mut column) = (0, 0);
        let mut rest = text.chars();
        while let Some(character) = rest.next() {
            if character != '\u{1b}' {
                if let Some(cell) = cells.get_mut(row).and_then(|row| row.get_mut(column)) {
                    *cell = character;
                }
                column += 1;
                continue;
            }
            // Of the sequences (`ESC [ NUMBERS LETTER`) only the cursor's place matters here.
            let sequence: String =
                rest.by_ref().skip(1).take_while(|one| !one.is_ascii_alphabetic()).collect();
            let ended_by = text[..text.len() - rest.as_str().len()].chars().next_back();
            if let (Some('H'), Some((to_row, to_column))) = (ended_by, sequence.split_once(';')) {
                let number = |text: &str| text.parse::<usize>().unwrap_or(1) - 1;
                (row, column) = (number(to_row), number(to_column));
            }
        }
        let lines = cells.iter().map(|row| row.iter().collect::<String>());
        lines.collect::<Vec<_>>().join("\n")
    }

    /// Waits for the end: its status, everything that was written, and whether lines are edited as before.
    fn finish(mut self) -> (Option<i32>, String, bool) {
        let status = program::wait(&mut self.child);
        let modes = tcgetattr(&self.screen).unwrap().local_modes;
        let is_restored = modes.contains(LocalModes::ICANON | LocalModes::ECHO);
        drop(self.screen);
        self.reader.join().unwrap();
        let text = String::from_utf8_lossy(&self.written.lock().unwrap()).into_owned();
        (status.code(), text, is_restored)
    }
}

#[track_caller]
fn assert_given_back(terminal: Terminal) {
    let (status, text, is_restored) = terminal.finish();
    assert_eq!(status, Some(0), "{text}");
    assert!(text.starts_with("\u{1b}[?1049h"), "{text:?}");
    // Leaving the other screen is the last thing that is written.
    assert!(text.ends_with("\u{1b}[?25h\u{1b}[?1049l"), "{text:?}");
    assert!(is_restored);
}

#[test]
fn top_in_a_terminal_ends_by_a_key_or_a_signal_and_gives_it_back() {
    let dir = TestDir::new();
    let (mut daemon, _trainer) = at_work(&dir);
    let socket = daemon.socket.to_str().unwrap().to_owned();
    let mut by_key = Terminal::run(&dir, &["top", &socket, "--every", "0.1"]);
    let by_signal = Terminal::run(&dir, &["top", "--all", &socket]);
    wait_until("both show the daemon", || {
        by_key.shown().contains("samples/s") && by_signal.shown().contains("samples/s")
    });
    let modes = tcgetattr(&by_key.screen).unwrap().local_modes;
    assert!(!modes.intersects(LocalModes::ICANON | LocalModes::ECHO));
    by_key.keys.write_all(b"?").unwrap();
    wait_until("the help is shown", || by_key.shown().contains("┌ help ─"));
    // A daemon that is stopped does not hold the keys up.
    daemon.signal(Signal::SIGSTOP);
    by_key.keys.write_all(b"q").unwrap();
    assert_given_back(by_key);
    daemon.signal(Signal::SIGCONT);
    assert!(forebay_tests::signal(by_signal.child.id(), Signal::SIGTERM));
    assert_given_back(by_signal);
    assert!(daemon.is_running());
}

/// No hang-up signal comes: the terminal is not the one of its session.
#[test]
fn top_ends_when_its_terminal_is_gone() {
    let dir = TestDir::new();
    let (daemon, _trainer) = at_work(&dir);
    let (keys, screen) = open_terminal();
    let socket = daemon.socket.to_str().unwrap();
    let mut child = start_in(&screen, &dir, &["top", socket, "--every", "0.1"]);
    drop(screen);
    let mut keys = File::from(keys);
    let mut shown = Vec::new();
    while !String::from_utf8_lossy(&shown).contains("samples/s") {
        let mut bytes = [0; 4096];
        let count = keys.read(&mut bytes).unwrap();
        shown.extend_from_slice(&bytes[..count]);
    }
    drop(keys);
    assert!(program::wait(&mut child).code().is_some());
}

#[test]
fn a_daemon_that_goes_is_told_of_and_the_one_in_its_place_is_found() {
    let dir = TestDir::new();
    let config = dir.stack_stream(40, "");
    let daemon = Daemon::serve(&dir, &config);
    let loader = daemon.loader(0, 1).attach().unwrap();
    let socket = daemon.socket.to_str().unwrap().to_owned();
    let mut terminal = Terminal::run(&dir, &["top", &socket, "--every", "0.1"]);
    wait_until("the daemon is shown", || terminal.shown().contains("train, rank 0 of 1"));
    drop(loader);
    drop(daemon);
    wait_until("its end is told", || terminal.shown().contains("no answer for"));
    let daemon = Daemon::serve(&dir, &config);
    let _loader = daemon.loader(0, 1).attach().unwrap();
    let process = format!("process {}", daemon.pid());
    wait_until("the one in its place is shown", || {
        let shown = terminal.shown();
        shown.contains(&process)
            && shown.contains("train, rank 0 of 1")
            && !shown.contains("no answer")
    });
    terminal.keys.write_all(&[3]).unwrap();
    assert_given_back(terminal);
}

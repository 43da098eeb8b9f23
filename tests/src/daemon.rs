//! A running `forebay serve`: started, asked, looked at from outside, ended.

use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::thread::JoinHandle;

use forebay_client::{Builder, Target};
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::test_dir::{self, TestDir};
use crate::{names_in, program, wait_until};

/// The daemon. Dropping it kills it.
#[derive(Debug)]
pub struct Daemon {
    child: Child,
    /// Where it listens.
    pub socket: PathBuf,
    log: Option<JoinHandle<String>>,
}

impl Daemon {
    /// Starts it over one configuration and waits until it listens.
    pub fn serve(dir: &TestDir, config: &Path) -> Self {
        Self::serve_with(dir, &[config], &[])
    }

    /// Starts it over several configurations with further arguments and waits until it listens.
    pub fn serve_with(dir: &TestDir, configs: &[&Path], arguments: &[&str]) -> Self {
        let socket = dir.path("daemon.sock");
        let mut child = dir
            .forebay(&["serve"])
            .args(configs)
            .args(arguments)
            .arg("--socket")
            .arg(&socket)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let log = child.stderr.take().map(program::read_all);
        let mut daemon = Self { child, socket, log };
        // Connecting, not looking for the file: a leftover socket is a file too.
        wait_until("the daemon listens", || {
            if let Some(status) = daemon.child.try_wait().unwrap() {
                panic!("the daemon ended with {status}: {}", daemon.log_to_the_end());
            }
            forebay_protocol::socket::Connection::connect(&daemon.socket).is_ok()
        });
        daemon
    }

    fn log_to_the_end(&mut self) -> String {
        self.log.take().map_or_else(String::new, |log| log.join().unwrap())
    }

    /// A client of its first stream.
    pub fn loader(&self, rank: u32, world_size: u32) -> Builder {
        test_dir::loader(Target::Socket(self.socket.clone(), None), rank, world_size)
    }

    /// A client of a stream.
    pub fn loader_of(&self, stream: &str) -> Builder {
        test_dir::loader(Target::Socket(self.socket.clone(), Some(stream.to_owned())), 0, 1)
    }

    /// Its process's number.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its figures, as `forebay stats --json` prints them.
    pub fn stats(&self, dir: &TestDir) -> Value {
        program::run(dir.forebay(&["stats", "--json"]).arg(&self.socket)).json()
    }

    /// What the kernel says of it under a name.
    fn status(&self, name: &str) -> String {
        std::fs::read_to_string(format!("/proc/{}/{name}", self.pid())).expect("it is gone")
    }

    /// Its open descriptors.
    pub fn descriptors(&self) -> usize {
        names_in(Path::new(&format!("/proc/{}/fd", self.pid()))).len()
    }

    /// Its resident memory without shared segments and files, in bytes.
    pub fn resident_bytes(&self) -> u64 {
        let status = self.status("status");
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
    }

    /// Its threads.
    pub fn threads(&self) -> usize {
        names_in(Path::new(&format!("/proc/{}/task", self.pid()))).len()
    }

    /// The shared segments that it has mapped.
    pub fn mapped_segments(&self) -> usize {
        self.status("maps").lines().filter(|line| line.contains("memfd:")).count()
    }

    /// Its processor time so far, in clock ticks.
    pub fn cpu_ticks(&self) -> u64 {
        let status = self.status("stat");
        let (_, rest) = status.rsplit_once(") ").unwrap();
        // utime and stime are fields 14 and 15; the state, field 3, is the first of the rest.
        rest.split(' ').skip(11).take(2).map(|ticks| ticks.parse::<u64>().unwrap()).sum()
    }

    /// Whether it still runs.
    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        assert!(crate::signal(self.pid(), signal), "the daemon is gone");
    }

    /// Sends it a signal and waits for its end: how it ended, and what it logged.
    pub fn end(mut self, signal: Signal) -> (ExitStatus, String) {
        self.signal(signal);
        let status = program::wait(&mut self.child);
        let log = self.log_to_the_end();
        (status, log)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            let log = self.log_to_the_end();
            let lines: Vec<&str> = log.lines().collect();
            let last = &lines[lines.len().saturating_sub(20)..];
            eprintln!("the daemon's log ends with:\n{}", last.join("\n"));
        }
    }
}

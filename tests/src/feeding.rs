//! Feeders: running ones ([`Feeder`]), and both ends of their connections without any rule kept ([`wire`]): a peer that asks
//! and reads as it likes ([`wire::Peer`]), and a feeder that lies ([`liar`]).

pub mod liar;
pub mod wire;

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::{Child, ChildStderr, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use nix::sys::signal::Signal;

use crate::{TestDir, wait_until};

/// A running `forebay feed`. Dropping it kills it.
#[derive(Debug)]
pub struct Feeder {
    /// Its process.
    pub child: Child,
    /// Where it listens.
    pub address: String,
    log: Arc<Mutex<String>>,
    reader: Option<JoinHandle<()>>,
}

impl Feeder {
    /// Starts one on a free port of loopback.
    pub fn start(dir: &TestDir, config: &Path, settings: &[&str]) -> Self {
        Self::start_at(dir, "127.0.0.1:0", config, settings)
    }

    /// Starts one at an address.
    pub fn start_at(dir: &TestDir, address: &str, config: &Path, settings: &[&str]) -> Self {
        let mut command = dir.forebay(&["feed", "--listen", address]);
        command.arg(config);
        for setting in settings {
            command.args(["--set", setting]);
        }
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let log = Arc::default();
        let stderr = child.stderr.take().unwrap();
        let reader = std::thread::spawn({
            let log = Arc::clone(&log);
            move || read_log(stderr, &log)
        });
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("listening on ");
        let address = address.unwrap_or_else(|| panic!("{line:?}: {log:?}")).to_owned();
        Self { child, address, log, reader: Some(reader) }
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        assert!(crate::signal(self.child.id(), signal), "the feeder is gone");
    }

    /// What it has logged.
    pub fn log(&self) -> String {
        self.log.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits until its log has these words.
    pub fn wait_for_log(&self, words: &str) {
        wait_until(&format!("the feeder's log has {words:?}"), || self.log().contains(words));
    }

    /// The most resident memory that it has had, and anonymous memory now, in bytes.
    pub fn memory(&self) -> (u64, u64) {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let kibibytes = |key: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(key)).unwrap();
            line.split_whitespace().next().unwrap().parse::<u64>().unwrap()
        };
        (kibibytes("VmHWM:") << 10, kibibytes("RssAnon:") << 10)
    }
}

fn read_log(mut stderr: ChildStderr, log: &Mutex<String>) {
    let mut buffer = [0; 4096];
    while let Ok(count @ 1..) = stderr.read(&mut buffer) {
        let text = String::from_utf8_lossy(&buffer[..count]);
        eprint!("{text}");
        log.lock().unwrap_or_else(PoisonError::into_inner).push_str(&text);
    }
}

impl Drop for Feeder {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
    }
}

/// The setting `feeders.addresses`.
pub fn addresses<'a>(feeders: impl IntoIterator<Item = &'a str>) -> String {
    let listed: Vec<String> = feeders.into_iter().map(|address| format!("\"{address}\"")).collect();
    format!("feeders.addresses=[{}]", listed.join(","))
}

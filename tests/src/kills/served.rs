//! The server behind which data lies, in a process that is killed and comes back on its port.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Of 1,000 requests, how many meet bad weather.
const BAD_OF_1000: u64 = 60;
/// Below the ports that the kernel gives to connections, so that none of them has it while the server is away.
const FIRST_PORT: u16 = 20_000;
const PORTS: u16 = 12_000;

/// See the module's head. Dropping it ends it.
#[derive(Debug)]
pub struct Served {
    shared: Arc<Shared>,
    manager: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    program: PathBuf,
    folder: PathBuf,
    port: u16,
    state: Mutex<State>,
    is_over: AtomicBool,
}

#[derive(Debug)]
struct State {
    /// `None`: it is away.
    child: Option<Child>,
    back_at: Instant,
    /// How often it was started, which decides its weather.
    starts: u64,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts it and waits until it listens.
    fn start(&self, state: &mut State, seed: u64) {
        state.starts += 1;
        let mut child = Command::new(&self.program)
            .arg(&self.folder)
            .arg(self.port.to_string())
            .arg(seed.wrapping_add(state.starts).to_string())
            .arg(BAD_OF_1000.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line.trim(), self.port.to_string(), "the server has not come to its port");
        state.child = Some(child);
    }
}

impl Served {
    /// Shows a folder on a port that is free; `seed` decides the weather.
    pub fn new(program: &Path, folder: &Path, seed: u64) -> Self {
        // Several processes look for one at the same time.
        let own = u16::try_from(std::process::id() % u32::from(PORTS)).unwrap_or(0);
        let mut ports = (0..PORTS).map(|turn| FIRST_PORT + (own + turn) % PORTS);
        let port = ports.find(|port| std::net::TcpListener::bind(("127.0.0.1", *port)).is_ok());
        let shared = Arc::new(Shared {
            program: program.to_owned(),
            folder: folder.to_owned(),
            port: port.expect("a free port"),
            state: Mutex::new(State { child: None, back_at: Instant::now(), starts: 0 }),
            is_over: AtomicBool::new(false),
        });
        shared.start(&mut shared.state(), seed);
        let manager = std::thread::spawn({
            let shared = Arc::clone(&shared);
            move || {
                while !shared.is_over.load(Ordering::SeqCst) {
                    let mut state = shared.state();
                    if state.child.is_none() && Instant::now() >= state.back_at {
                        shared.start(&mut state, seed);
                    }
                    drop(state);
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
        });
        Self { shared, manager: Some(manager) }
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.shared.port
    }

    /// Kills it; it comes back after a while. False: it is away already.
    pub fn kill(&self, away: Duration) -> bool {
        let mut state = self.shared.state();
        let Some(mut child) = state.child.take() else { return false };
        child.kill().unwrap();
        child.wait().unwrap();
        state.back_at = Instant::now() + away;
        true
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::SeqCst);
        if let Some(manager) = self.manager.take() {
            let _ = manager.join();
        }
        if let Some(mut child) = self.shared.state().child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
